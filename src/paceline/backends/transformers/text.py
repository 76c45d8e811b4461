"""Tokenizer, vocabulary and chat template of a transformers model."""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import cached_property
from typing import Any

from paceline.models.headers.vocabulary import BYTE_LEVEL, end_tokens
from paceline.speculative import validation as typed
from paceline.speculative.errors import ModelError
from paceline.speculative.vocabulary import Vocab
from paceline.text.interface import Text

TOKENIZER_KINDS = {"BPE": "BPE", "Unigram": "UGM", "WordPiece": "WPM"}


class HfText(Text):
    """A fast tokenizer of transformers. size: of the model's vocabulary, which may be larger."""

    def __init__(self, tokenizer: Any, size: int) -> None:
        if not getattr(tokenizer, "is_fast", False):
            raise ModelError(
                f"{tokenizer.name_or_path}: has no fast tokenizer (tokenizer.json), and the bytes of its "
                "tokens are not to be had otherwise"
            )
        self._tokenizer, self._size = tokenizer, size
        model = json.loads(tokenizer.backend_tokenizer.to_str())
        parts = model.get("decoder") or {}
        self._decoders = {part["type"]: part for part in parts.get("decoders", [parts]) if part}
        self._model = model.get("model") or {}
        added = tokenizer.added_tokens_decoder
        self._special = {id_ for id_, token in added.items() if token.special}
        self._added = {id_: token.content for id_, token in added.items()}

    def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
        typed.text("the text", text)
        ids = self._tokenizer.encode(text, add_special_tokens=False, split_special_tokens=not special)
        return [self.bos, *ids] if add_bos and self.adds_bos and self.bos is not None else list(ids)

    def piece(self, token: int) -> bytes:
        if token in self._special:
            return b""
        if token in self._added:
            return str(self._added[token]).encode()
        spelled = self._tokenizer.convert_ids_to_tokens(token) if token < len(self._tokenizer) else None
        if spelled is None:
            return b""
        if "ByteLevel" in self._decoders:
            return bytes([BYTE_LEVEL[letter] for letter in spelled if letter in BYTE_LEVEL])
        if "ByteFallback" in self._decoders and len(spelled) == 6 and spelled.startswith("<0x"):
            return bytes([int(spelled[3:5], 16)])
        if "WordPiece" in self._decoders:
            prefix = self._decoders["WordPiece"].get("prefix", "##")
            return (spelled.removeprefix(prefix) if spelled.startswith(prefix) else f" {spelled}").encode()
        return bytes(spelled.replace("\u2581", " "), "utf-8")

    def token_text(self, token: int) -> bytes:
        """Return the token as the vocabulary spells it."""
        text = self._tokenizer.convert_ids_to_tokens(token) if token < len(self._tokenizer) else None
        return str(text or "").encode()

    @property
    def bos(self) -> int | None:
        return self._tokenizer.bos_token_id  # type: ignore[no-any-return]

    @cached_property
    def adds_bos(self) -> bool:
        """True if the tokenizer puts BOS before a text."""
        return self.bos is not None and self._tokenizer.encode("a")[:1] == [self.bos]

    def added_tokens(self) -> list[int]:
        """Return the tokens that were added to the vocabulary, without control tokens."""
        return [token for token in self._added if token not in self._special and token < self._size]

    def vocab(self, ends: Collection[int]) -> Vocab:
        """Return the vocabulary. ends: EOS tokens of the model's configuration."""
        added = list(self._added)  # a configuration may not list all EOS tokens
        named = {added[i] for i in end_tokens([text.encode() for text in self._added.values()], {})}
        kind = TOKENIZER_KINDS.get(self._model.get("type", ""), self._model.get("type", "unknown"))
        return Vocab(
            size=self._size,
            kind="SPM" if kind == "BPE" and "ByteLevel" not in self._decoders else kind,
            bos=self.bos,
            eos=frozenset({token for token in (*ends, *named) if 0 <= token < self._size}),
            add_bos=self.adds_bos,
            add_eos=False,
            text=self.token_text,
            piece=self.piece,
        )

    def template(self, *, tools: bool = False) -> str:
        template = self._tokenizer.chat_template
        if isinstance(template, dict):
            template = (tools and template.get("tool_use")) or template.get("default")
        return str(template or "")

    def bos_and_eos(self) -> tuple[str, str]:
        return self._tokenizer.bos_token or "", self._tokenizer.eos_token or ""
