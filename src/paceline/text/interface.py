"""The interface of a model's tokenizer and chat template."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from paceline.speculative.vocabulary import Vocab
from paceline.text.messages import Message, Tool


class Text(Protocol):
    """Text to tokens and back."""

    @abstractmethod
    def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
        """Return token ids, BOS first where the model wants one. special: text may spell control tokens.
        Raises UsageError for what cannot be encoded."""

    @abstractmethod
    def piece(self, token: int) -> bytes:
        """Return the bytes a token stands for; a control token has none."""

    @abstractmethod
    def template(self, *, tools: bool = False) -> str:
        """Return the chat template, of several the one for a chat with or without tools; "" if none."""

    @abstractmethod
    def bos_and_eos(self) -> tuple[str, str]:
        """Return the text of both control tokens, as templates write them."""

    def encode_continuation(self, text: str) -> list[int]:
        """Return token ids of `text` as it continues another."""
        return encode_continuation(self.encode, text)

    @property
    def has_chat_template(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self.template())

    def render(
        self,
        messages: list[Message],
        tools: list[Tool] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Return `messages` in the chat template, ready for the answer. Raises ModelError without one."""
        from paceline.text.chat_template import render

        bos, eos = self.bos_and_eos()
        return render(self.template(tools=bool(tools)), messages, tools, variables, bos=bos, eos=eos)


class Tokenizer(Protocol):
    """A model's tokenizer without its weights. Close it (contextlib.closing)."""

    @property
    def path(self) -> Path: ...

    @property
    def vocab(self) -> Vocab: ...

    @property
    def text(self) -> Text: ...

    def close(self) -> None: ...


class Encode(Protocol):
    def __call__(self, text: str, *, add_bos: bool) -> list[int]: ...


def encode_continuation(encode: Encode, text: str) -> list[int]:
    """Return token ids of `text` as it continues another: without BOS, and without the space that some
    tokenizers put before a beginning."""
    before = encode("\n", add_bos=False)
    tokens = encode("\n" + text, add_bos=False)
    # Where the newline became one with the text, no space was added either.
    return tokens[len(before) :] if tokens[: len(before)] == before else encode(text, add_bos=False)
