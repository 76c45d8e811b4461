"""transformers' row in the table of engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.core.vocab import Vocab
from paceline.engines.engine import Build, KernelStatus
from paceline.engines.hf.identity import identity as identity
from paceline.engines.hf.kind import ends_of, text_config
from paceline.engines.hf.loading import libraries, load_config, load_tokenizer, read_once
from paceline.engines.hf.target import HfTarget
from paceline.engines.hf.text import HfText


def open_engine(path: Path, /, **settings: Any) -> HfTarget:
    return HfTarget(path, **settings)


def open_tokenizer(path: Path, /) -> HfTokenizer:
    return HfTokenizer(path)


def build() -> Build:
    torch, _ = libraries()
    return Build(torch.backends.cpu.get_cpu_capability(), bool(torch.cuda.is_available()))


def kernels() -> KernelStatus:
    return KernelStatus()


class HfTokenizer:
    """Of a folder or file, which need not hold weights. Raises UsageError or ModelError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with read_once(path):
            config = load_config(path)
            self.text = HfText(load_tokenizer(path), text_config(config).vocab_size)
        self.vocab: Vocab = self.text.vocab(ends_of(config, None))

    def close(self) -> None:
        """Nothing is held."""
