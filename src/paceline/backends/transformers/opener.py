"""The transformers backend's BackendModule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.backends.interface import BackendBuild, KernelStatus
from paceline.backends.transformers.kind import eos_token_ids, text_config
from paceline.backends.transformers.loading import (
    cache_gguf_reader,
    import_libraries,
    load_config,
    load_tokenizer,
)
from paceline.backends.transformers.loading import identity as identity
from paceline.backends.transformers.target import HfTarget
from paceline.backends.transformers.text import HfText
from paceline.speculative.vocabulary import Vocab


def open_engine(path: Path, /, **settings: Any) -> HfTarget:
    return HfTarget(path, **settings)


def open_tokenizer(path: Path, /) -> HfTokenizer:
    return HfTokenizer(path)


def build() -> BackendBuild:
    torch, _ = import_libraries()
    return BackendBuild(torch.backends.cpu.get_cpu_capability(), bool(torch.cuda.is_available()))


def kernel_status() -> KernelStatus:
    return KernelStatus()


class HfTokenizer:
    """The tokenizer of a folder or file, which needs no weights. Raises UsageError or ModelError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        with cache_gguf_reader(path):
            config = load_config(path)
            self.text = HfText(load_tokenizer(path), text_config(config).vocab_size)
        self.vocab: Vocab = self.text.vocab(eos_token_ids(config, None))

    def close(self) -> None: ...
