"""llama.cpp's row in the table of engines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.backends.interface import BackendBuild, KernelStatus
from paceline.backends.llama_cpp import binding
from paceline.backends.llama_cpp.identity import identity as identity
from paceline.backends.llama_cpp.kernels import enter
from paceline.backends.llama_cpp.target import LlamaTarget
from paceline.backends.llama_cpp.text import LlamaText, read_vocab
from paceline.speculative.errors import UsageError
from paceline.speculative.vocabulary import Vocab

OTHERS = ("device", "dtype", "attention")  # settings that only transformers models have


def open_engine(path: Path, /, **settings: Any) -> LlamaTarget:
    return LlamaTarget(path, **{name: value for name, value in settings.items() if name not in OTHERS})


def open_tokenizer(path: Path, /) -> LlamaTokenizer:
    return LlamaTokenizer(path)


def build() -> BackendBuild:
    cpp = binding.llama_cpp()
    features = cpp.llama_print_system_info().decode(errors="replace")
    return BackendBuild(features, bool(cpp.llama_supports_gpu_offload()))


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
