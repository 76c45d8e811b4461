"""llama.cpp's tokenizer and vocabulary, and the chat template of a GGUF file."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from pathlib import Path
from typing import Any

from paceline.backends.llama_cpp.binding import llama_cpp, load_model
from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError
from paceline.speculative.vocabulary import Vocab
from paceline.text.interface import Text

TOKENIZER_KINDS = {1: "SPM", 2: "BPE", 3: "WPM", 4: "UGM", 5: "RWKV", 6: "PLaMo-2"}


def read_vocab(model: Any, require: Callable[[], None] = lambda: None) -> Vocab:
    """Return the vocabulary of a model. require: raises if the model is closed."""
    cpp = llama_cpp()
    vocab = cpp.llama_model_get_vocab(model)
    size = int(cpp.llama_vocab_n_tokens(vocab))
    bos = int(cpp.llama_vocab_bos(vocab))
    kind = int(cpp.llama_vocab_type(vocab))
    reader = LlamaText(model)

    def text(token: int) -> bytes:
        require()
        return bytes(cpp.llama_vocab_get_text(vocab, token))

    def piece(token: int) -> bytes:
        require()
        return reader.piece(token)

    return Vocab(
        size=size,
        kind=TOKENIZER_KINDS.get(kind, f"type {kind}"),
        bos=bos if bos >= 0 else None,
        eos=frozenset(t for t in range(size) if cpp.llama_vocab_is_eog(vocab, t)),
        add_bos=bool(cpp.llama_vocab_get_add_bos(vocab)),
        add_eos=bool(cpp.llama_vocab_get_add_eos(vocab)),
        text=text,
        piece=piece,
    )


class LlamaText(Text):
    """The tokenizer of a loaded model."""

    def __init__(self, model: Any) -> None:
        self._model = model
        self._cpp = llama_cpp()
        self._vocab = self._cpp.llama_model_get_vocab(model)

    def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
        data = typed.text("the text", text).encode()
        size = len(data) + 8
        while True:
            buffer = (ctypes.c_int32 * size)()
            n = self._cpp.llama_tokenize(self._vocab, data, len(data), buffer, size, add_bos, special)
            if n >= 0:
                return list(buffer[:n])
            size = -n

    def piece(self, token: int) -> bytes:
        size = 64
        while True:
            buffer = ctypes.create_string_buffer(size)
            n = self._cpp.llama_token_to_piece(self._vocab, token, buffer, size, 0, False)
            if n >= 0:
                return buffer.raw[:n]
            size = -n

    def added_tokens(self) -> list[int]:
        """Return the tokens that were added to the vocabulary, without control tokens."""
        attributes, added = self._cpp.llama_vocab_get_attr, self._cpp.LLAMA_TOKEN_ATTR_USER_DEFINED
        tokens = range(self._cpp.llama_vocab_n_tokens(self._vocab))
        return [token for token in tokens if attributes(self._vocab, token) & added]

    def template(self, *, tools: bool = False) -> str:
        template = self._cpp.llama_model_chat_template
        data = (tools and template(self._model, b"tool_use")) or template(self._model, None)
        return data.decode(errors="replace") if data else ""

    def bos_and_eos(self) -> tuple[str, str]:
        ids = (int(self._cpp.llama_vocab_bos(self._vocab)), int(self._cpp.llama_vocab_eos(self._vocab)))
        bos, eos = (self._cpp.llama_vocab_get_text(self._vocab, id_) if id_ >= 0 else b"" for id_ in ids)
        return bytes(bos).decode(errors="replace"), bytes(eos).decode(errors="replace")


class LlamaTokenizer:
    """The tokenizer of a GGUF file, which needs no weights. Raises UsageError or ModelError."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._model: Any = load_model(path, vocab_only=True)
        self.vocab: Vocab = read_vocab(self._model, self._require_open)
        self.text = LlamaText(self._model)
        if self.vocab.size == 0:
            self.close()
            raise UsageError(f"{path}: has no vocabulary; give the model that is served")

    def _require_open(self) -> None:
        if self._model is None:
            raise UsageError(f"{self.path}: the tokenizer is closed; load it again")

    def close(self) -> None:
        if self._model is not None:
            llama_cpp().llama_model_free(self._model)
            self._model = None
