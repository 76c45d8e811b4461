"""A Grammar over a model's tokens, matched by llguidance."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from time import thread_time
from typing import TYPE_CHECKING

import numpy as np

from paceline.speculative.errors import ContractError, UsageError
from paceline.speculative.sampling import Mask
from paceline.text.grammar_source import GrammarSource

if TYPE_CHECKING:
    from llguidance import LLMatcher

NO_EXTENSION = "NoExtensionBias"  # no token fits, though the text is not whole
CACHED_GRAMMARS = 32  # of a model; one that is ordinary has some 100 kB
# Copies of a compiled grammar share llguidance's lexer, and its limits count what all of them have made it
# build: after so many copies another one is compiled.
MAX_COPIES = 1000
MAX_REBUILD_SECONDS = 0.05  # a grammar that takes longer is not compiled again in the middle of an answer


class TokenTrie:
    """A model's tokens as llguidance wants them. spelled: each token's bytes; none for what is no text."""

    def __init__(self, spelled: Sequence[bytes], eos: frozenset[int]) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        if not eos:
            raise UsageError("this model has no end-of-text token: it cannot end a text where a grammar does")
        self.eos = sorted(eos)
        self.size = len(spelled)
        tokens = [b"" if token in eos else text for token, text in enumerate(spelled)]
        self.tokenizer = LLTokenizer(TokenizerWrapper(_ByteTokenizer(tokens, self.eos[0])))
        self.allow_all, self.allow_none = np.full(self.size, True), np.full(self.size, False)
        for mask in (self.allow_all, self.allow_none):
            mask.setflags(write=False)
        self._lock = threading.Lock()  # of the grammars below
        self._compiled = OrderedDict[GrammarSource, CompiledGrammar]()  # the one used last is the last

    def compile(self, syntax: GrammarSource) -> CompiledGrammar:
        """Return a cached grammar, or compile it. Any thread may call it. Raises UsageError where no text of
        this model can begin."""
        known = self.get_cached(syntax)
        if known is None:
            known = CompiledGrammar(syntax, self)
            with self._lock:
                self._compiled[syntax] = known
                if len(self._compiled) > CACHED_GRAMMARS:
                    self._compiled.popitem(last=False)
        return known

    def get_cached(self, syntax: GrammarSource) -> CompiledGrammar | None:
        """Return the grammar of an earlier `compiled`, if it is still there and not worn out."""
        with self._lock:
            known = self._compiled.get(syntax)
            if known is None or known.copies >= MAX_COPIES:
                return None
            self._compiled.move_to_end(syntax)
            return known

    def discard(self, grammar: CompiledGrammar) -> None:
        """Do not hand it out again: its lexer has come to a limit."""
        with self._lock:
            if self._compiled.get(grammar.syntax) is grammar:
                del self._compiled[grammar.syntax]

    def next_token_mask(self, matcher: LLMatcher) -> Mask:
        """What may follow where `matcher` stands; nothing where it has come to an error."""
        from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask

        bits = allocate_token_bitmask(1, self.size)
        fill_next_token_bitmask(matcher, bits)
        if matcher.is_error():
            return self.allow_none
        mask = np.unpackbits(bits.view(np.uint8)[0], count=self.size, bitorder="little").astype(np.bool_)
        mask[self.eos] = mask[self.eos[0]]
        mask.setflags(write=False)
        return mask


class _ByteTokenizer:
    """A tokenizer as llguidance asks for one."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], eos: int) -> None:
        self.tokens, self.eos_token_id = tokens, eos

    def __call__(self, text: bytes) -> list[int]:
        return []  # only for forced tokens, which are off


class CompiledGrammar:
    """A syntax compiled for one vocabulary, with its first mask. Requests take copies.

    Later masks are bounded by llguidance's limits: what exceeds them is an error of the matcher."""

    def __init__(self, syntax: GrammarSource, trie: TokenTrie) -> None:
        from llguidance import LLMatcher

        began = thread_time()
        self.syntax, self.trie, self.copies = syntax, trie, 0
        self._matcher = LLMatcher(trie.tokenizer, syntax.lark, log_level=0)
        self.first_mask = trie.allow_none if self._matcher.is_error() else trie.next_token_mask(self._matcher)
        if self.first_mask is trie.allow_none:
            raise UsageError(_format_dead_end(syntax.name, _error(self._matcher), started=False))
        self.seconds = thread_time() - began

    def matcher(self) -> LLMatcher:
        self.copies += 1
        return self._matcher.deep_copy()


class TextGrammar:
    """One request's Grammar. Owns its matcher, which may stand anywhere below the committed text."""

    def __init__(self, grammar: CompiledGrammar) -> None:
        self.syntax = grammar.syntax
        self._grammar, self._trie = grammar, grammar.trie
        self._committed: list[int] = []
        self._ended = False
        self._masks: dict[tuple[int, ...], Mask] = {(): grammar.first_mask}
        self._restart()

    def _restart(self) -> None:
        """Take another matcher: one that has come to an error never leaves it."""
        self._matcher = self._grammar.matcher()
        self._matcher.consume_tokens(self._committed)
        self._below: tuple[int, ...] = ()  # the drafted tokens it has consumed

    def _renew(self, text: str) -> None:
        """Compile the grammar again: its lexer, which all copies share, has come to a limit. Raises
        UsageError where that would keep others waiting."""
        self._trie.discard(self._grammar)
        if self._grammar.seconds > MAX_REBUILD_SECONDS:
            raise UsageError(_format_dead_end(self.syntax.name, text, started=True))
        self._grammar = CompiledGrammar(self.syntax, self._trie)
        self._restart()

    def mask(self, path: Sequence[int]) -> Mask:
        """Raises UsageError where nothing can follow the committed text itself."""
        path = tuple(path)
        known = self._masks.get(path)
        if known is None:
            known = self._masks[path] = self._after(path)
        return known

    def _after(self, path: tuple[int, ...]) -> Mask:
        everything, nothing = self._trie.allow_all, self._trie.allow_none
        if self._ended:
            return everything
        if path:
            above, token = self.mask(path[:-1]), path[-1]
            if not above[token]:
                return nothing
            if above is everything or token in self._trie.eos:
                return everything
        # What others and drafts made it try counts against its limits: a fresh one decides.
        for _ in range(2):
            if self._walk(path) and (mask := self._trie.next_token_mask(self._matcher)) is not nothing:
                return mask
            value = _error(self._matcher)
            if value == NO_EXTENSION:  # not a limit: so it is with any matcher
                self._restart()
                break
            self._renew(value)
        if not path:
            raise UsageError(_format_dead_end(self.syntax.name, value, started=bool(self._committed)))
        return nothing

    def _walk(self, path: tuple[int, ...]) -> bool:
        """Move the matcher; false where it comes to an error."""
        shared = 0
        while shared < min(len(path), len(self._below)) and path[shared] == self._below[shared]:
            shared += 1
        self._matcher.rollback(len(self._below) - shared)
        self._below = path
        return self._matcher.consume_tokens(list(path[shared:]))

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


def _error(matcher: LLMatcher) -> str:
    return matcher.get_error().partition("\n")[0]


def _format_dead_end(name: str, text: str, *, started: bool) -> str:
    if text != NO_EXTENSION:
        return f"{name} is too complex for llguidance ({text}): simplify it"
    return f"{name}: nothing can follow the text so far" if started else f"no text can satisfy {name}"
