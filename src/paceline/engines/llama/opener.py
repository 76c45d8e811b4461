"""llama.cpp's row in the table of engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.vocab import Vocab
from paceline.engines.engine import Build, KernelStatus
from paceline.engines.llama import binding
from paceline.engines.llama.identity import identity as identity
from paceline.engines.llama.kernels import enter
from paceline.engines.llama.target import LlamaTarget
from paceline.engines.llama.text import LlamaText, read_vocab

OTHERS = ("device", "dtype", "attention")  # settings that only transformers models have


def open_engine(path: Path, /, **settings: Any) -> LlamaTarget:
    return LlamaTarget(path, **{name: value for name, value in settings.items() if name not in OTHERS})


def open_tokenizer(path: Path, /) -> LlamaTokenizer:
    return LlamaTokenizer(path)


def build() -> Build:
    cpp = binding.llama_cpp()
    features = cpp.llama_print_system_info().decode(errors="replace")
    return Build(features, bool(cpp.llama_supports_gpu_offload()))


def kernels() -> KernelStatus:
    return enter()


class LlamaTokenizer:
    """Of a GGUF file, which need not hold more than its vocabulary. Raises UsageError or ModelError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._model: Any = binding.load_model(path, vocab_only=True)
        try:
            self.vocab: Vocab = read_vocab(self._model, self._require_open)
            self.text = LlamaText(self._model)
            if self.vocab.size == 0:
                raise UsageError(f"{path}: has no vocabulary; give the model that is served")
        except BaseException:
            self.close()
            raise

    def _require_open(self) -> None:
        if self._model is None:
            raise UsageError(f"{self.path}: the tokenizer is closed; load it again")

    def close(self) -> None:
        if self._model is not None:
            binding.llama_cpp().llama_model_free(self._model)
            self._model = None
