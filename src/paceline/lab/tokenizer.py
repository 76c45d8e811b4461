"""A model file's tokenizer without its weights."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Any

from paceline.core.errors import UsageError
from paceline.core.vocab import Vocab
from paceline.engines.llama import binding
from paceline.engines.llama.text import LlamaText, read_vocab


class Tokenizer:
    """Of a GGUF file, which need not hold more than its vocabulary. Raises UsageError or ModelError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._model: Any = binding.load_model(path, vocab_only=True)
        try:
            self.vocab: Vocab = read_vocab(self._model)
            self.text = LlamaText(self._model)
            if self.vocab.size == 0:
                raise UsageError(f"{path}: has no vocabulary; give the model that is served")
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Tokenizer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        if self._model is not None:
            binding.llama_cpp().llama_model_free(self._model)
            self._model = None
