"""A Grammar over a model's tokens, matched by llguidance."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from paceline.core.arrays import Mask
from paceline.core.errors import ContractError, UsageError
from paceline.engines.syntax import Syntax

if TYPE_CHECKING:
    from llguidance import LLMatcher

NO_EXTENSION = "NoExtensionBias"  # no token fits, though the text is not whole


class TokenTrie:
    """A model's tokens as llguidance wants them; built once a model, a large vocabulary takes a second.

    spelled: each token's bytes in a text, none for what is no text. eos: the tokens that end it.
    """

    def __init__(self, spelled: Sequence[bytes], eos: frozenset[int]) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        if not eos:
            raise UsageError("this model has no end-of-text token: it cannot end a text where a grammar does")
        self.eos = sorted(eos)
        self.size = len(spelled)
        tokens = [b"" if token in eos else text for token, text in enumerate(spelled)]
        self.tokenizer = LLTokenizer(TokenizerWrapper(_Spelling(tokens, self.eos[0])))
        self.everything, self.nothing = np.full(self.size, True), np.full(self.size, False)
        for mask in (self.everything, self.nothing):
            mask.setflags(write=False)

    def allowed(self, matcher: LLMatcher) -> Mask:
        """What may follow where `matcher` stands; nothing where it has come to an error."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        bits = allocate_token_bitmask(1, self.size)
        fill_next_token_bitmask(matcher, bits)
        if matcher.is_error():
            return self.nothing
        mask = np.unpackbits(bits.view(np.uint8)[0], count=self.size, bitorder="little").astype(np.bool_)
        mask[self.eos] = mask[self.eos[0]]
        mask.setflags(write=False)
        return mask


class _Spelling:
    """A tokenizer as llguidance asks for one."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], eos: int) -> None:
        self.tokens, self.eos_token_id = tokens, eos

    def __call__(self, text: bytes) -> list[int]:
        return []  # only for forced tokens, which are off


class TextGrammar:
    """One request's Grammar. Owns its matcher, which may stand anywhere below the committed text."""

    def __init__(self, syntax: Syntax, trie: TokenTrie) -> None:
        self.syntax = syntax
        self._trie = trie
        self._committed: list[int] = []
        self._ended = False
        self._masks: dict[tuple[int, ...], Mask] = {}
        self._restart()
        self.mask(())

    def _restart(self) -> None:
        """A matcher that has come to an error never leaves it: another one takes its place."""
        from llguidance import LLMatcher

        self._matcher = LLMatcher(self._trie.tokenizer, self.syntax.lark, log_level=0)
        self._matcher.consume_tokens(self._committed)
        self._below: tuple[int, ...] = ()  # the drafted tokens it has consumed

    def mask(self, path: Sequence[int]) -> Mask:
        """Raises UsageError where nothing can follow the committed text itself."""
        path = tuple(path)
        known = self._masks.get(path)
        if known is None:
            known = self._masks[path] = self._after(path)
        return known

    def _after(self, path: tuple[int, ...]) -> Mask:
        everything, nothing = self._trie.everything, self._trie.nothing
        if self._ended:
            return everything
        if path:
            above, token = self.mask(path[:-1]), path[-1]
            if not above[token]:
                return nothing
            if above is everything or token in self._trie.eos:
                return everything
        for _ in range(2):  # what drafts made it try counts against its limits: a fresh one decides
            if self._walk(path) and (mask := self._trie.allowed(self._matcher)) is not nothing:
                return mask
            said = self._matcher.get_error().partition("\n")[0]
            self._restart()
        if not path:
            raise UsageError(self._stuck(said))
        return nothing

    def _walk(self, path: tuple[int, ...]) -> bool:
        """Move the matcher; false where it comes to an error."""
        shared = 0
        while shared < min(len(path), len(self._below)) and path[shared] == self._below[shared]:
            shared += 1
        self._matcher.rollback(len(self._below) - shared)
        self._below = path
        return self._matcher.consume_tokens(list(path[shared:]))

    def _stuck(self, said: str) -> str:
        name = self.syntax.name
        if said != NO_EXTENSION:
            return f"{name} is too complex for llguidance ({said}): simplify it"
        if self._committed:
            return f"{name}: nothing can follow the text so far"
        return f"no text can satisfy {name}"

    def commit(self, tokens: Sequence[int]) -> None:
        for n, token in enumerate(tokens):
            if not self.mask(tokens[:n])[token]:
                raise ContractError(f"{self.syntax.name}: token {token} was emitted, which it forbids")
        if not self._ended:
            end = next((n for n, token in enumerate(tokens) if token in self._trie.eos), None)
            text = tuple(tokens[:end])
            self._ended = end is not None
            self._walk(text)  # an error there shows at the next mask
            self._committed += text
            self._below = ()
        self._masks.clear()
