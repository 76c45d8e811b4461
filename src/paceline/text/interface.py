"""The interface of a model's tokenizer and chat template."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

from paceline.speculative.vocabulary import Vocab
from paceline.text.messages import Message, Tool
from paceline.text.template_process import render


class Text(Protocol):
    """A model's tokenizer and chat template."""

    @abstractmethod
    def encode(self, text: str, *, special: bool = False, add_bos: bool = True) -> list[int]:
        """Return token ids, after BOS if the model has one there. special: parse control tokens in `text`.
        Raises UsageError for text that cannot be encoded."""

    @abstractmethod
    def piece(self, token: int) -> bytes:
        """Return a token's bytes; none for a control token."""

    @abstractmethod
    def template(self, *, tools: bool = False) -> str:
        """Return the chat template for chats with or without tools; "" if there is none."""

    @abstractmethod
    def bos_and_eos(self) -> tuple[str, str]:
        """Return the text of both control tokens."""

    def encode_continuation(self, text: str, *, special: bool = False) -> list[int]:
        """Return the token ids of `text` behind another text: without BOS and a tokenizer's first space."""
        before = self.encode("\n", special=special, add_bos=False)
        tokens = self.encode("\n" + text, special=special, add_bos=False)
        if tokens[: len(before)] == before:
            return tokens[len(before) :]
        # The newline merged with the text, so that no space was added.
        return self.encode(text, special=special, add_bos=False)

    @property
    def has_chat_template(self) -> bool:
        """True if the model has a chat template."""
        return bool(self.template())

    def render(
        self,
        messages: list[Message],
        tools: list[Tool] | None = None,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """Render `messages` up to the answer. Raises ModelError without a usable template."""
        bos, eos = self.bos_and_eos()
        given = {"bos_token": bos, "eos_token": eos, **(variables or {})}
        return render(self.template(tools=bool(tools)), messages, tools, **given)


class Tokenizer(Protocol):
    """A tokenizer that is loaded without weights. Close it (contextlib.closing)."""

    @property
    def path(self) -> Path: ...

    @property
    def vocab(self) -> Vocab: ...

    @property
    def text(self) -> Text: ...

    def close(self) -> None: ...
