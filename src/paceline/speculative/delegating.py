"""The base of targets around another target."""

from __future__ import annotations

from typing import Any

from paceline.speculative.interfaces import Caps
from paceline.speculative.vocabulary import Vocab


class DelegatingTarget:
    """The parts of a Target that are those of the target `inner`. A subclass has `open` and `forward`, and
    sets `vocab` and `caps` where they differ."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.vocab: Vocab = inner.vocab
        self.caps: Caps = inner.caps

    @property
    def origin(self) -> str:
        return str(self.inner.origin)

    @property
    def text(self) -> Any:
        """The tokenizer of `inner`, for a target in the same vocabulary."""
        return self.inner.text

    def forget(self) -> None:
        self.inner.forget()

    def close(self) -> None:
        self.inner.close()
