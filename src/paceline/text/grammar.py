"""Grammars over a model's tokens, matched by llguidance."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Sequence
from time import thread_time
from typing import TYPE_CHECKING

import numpy as np

from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import Grammar
from paceline.speculative.sampling import Mask
from paceline.text.grammar_source import GrammarSource

if TYPE_CHECKING:
    from llguidance import LLMatcher

NO_EXTENSION = "NoExtensionBias"  # no token fits, and the text is not complete
CACHED_BYTES = 128e6  # of a model's grammars, as estimated; a usual one has 100 kB, and grows with its use
# More was not measured for a grammar, a character of its source, and a second of its compilation.
BYTES_PER_GRAMMAR, BYTES_PER_CHARACTER, BYTES_PER_SECOND = 1e6, 200.0, 1e8
# Processor time in masks, spent by the thread that decodes for all: so many seconds, and more for each token.
# A usual mask takes 0.1 ms, that of 2,500 optional properties 120 ms.
DRAFTING_SECONDS, DRAFTING_SECONDS_PER_TOKEN = 1.0, 0.005
MASK_SECONDS, MASK_SECONDS_PER_TOKEN = 10.0, 0.05
# Copies of a grammar share llguidance's lexer, whose limits count the states that all copies need.
MAX_COPIES = 1000
MAX_REBUILD_SECONDS = 0.05  # slower grammars are not compiled again during a request


class TokenTrie:
    """A model's tokens for llguidance, and a cache of compiled grammars.
    pieces: bytes of each token, empty for a control token."""

    def __init__(self, pieces: Sequence[bytes], eos: frozenset[int]) -> None:
        from llguidance import LLTokenizer, TokenizerWrapper

        if not eos:
            raise UsageError("this model has no end-of-text token: it cannot end a text where a grammar does")
        self.eos = sorted(eos)
        self.size = len(pieces)
        tokens = [b"" if token in eos else text for token, text in enumerate(pieces)]
        self.tokenizer = LLTokenizer(TokenizerWrapper(_ByteTokenizer(tokens, self.eos[0])))
        self.allow_all, self.allow_none = np.full(self.size, True), np.full(self.size, False)
        self.allow_all.flags.writeable = self.allow_none.flags.writeable = False
        self._lock = threading.Lock()  # of the grammars below
        self._compiled = OrderedDict[GrammarSource, CompiledGrammar]()  # the least recently used first

    def compile(self, syntax: GrammarSource) -> CompiledGrammar:
        """Return a cached grammar, or compile it, in any thread. Raises UsageError if no text can begin."""
        grammar = self.get_cached(syntax)
        if grammar is None:
            grammar = CompiledGrammar(syntax, self)
            with self._lock:
                self._compiled[syntax] = grammar
                while sum(it.n_bytes for it in self._compiled.values()) > CACHED_BYTES:
                    self._compiled.popitem(last=False)
        return grammar

    def get_cached(self, syntax: GrammarSource) -> CompiledGrammar | None:
        """Return a cached grammar, if there is one and it can be copied."""
        with self._lock:
            grammar = self._compiled.get(syntax)
            if grammar is None or grammar.copies >= MAX_COPIES:
                return None
            self._compiled.move_to_end(syntax)
            return grammar

    def discard(self, grammar: CompiledGrammar) -> None:
        """Remove a grammar whose lexer has reached a limit."""
        with self._lock:
            if self._compiled.get(grammar.syntax) is grammar:
                del self._compiled[grammar.syntax]

    def next_token_mask(self, matcher: LLMatcher) -> Mask:
        """Return the tokens that may follow; none after an error of the matcher."""
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
    """A tokenizer in llguidance's interface."""

    bos_token_id = None

    def __init__(self, tokens: list[bytes], eos: int) -> None:
        self.tokens, self.eos_token_id = tokens, eos

    def __call__(self, text: bytes) -> list[int]:
        return []  # used for forced tokens only, which are off


class CompiledGrammar:
    """A grammar compiled for one vocabulary, with its first mask. Requests take copies of its matcher.
    llguidance limits the work of later masks: exceeding it is an error of the matcher."""

    def __init__(self, syntax: GrammarSource, trie: TokenTrie) -> None:
        from llguidance import LLMatcher

        began = thread_time()
        self.syntax, self.trie, self.copies = syntax, trie, 0
        self._matcher = LLMatcher(trie.tokenizer, syntax.lark, log_level=0)
        self.first_mask = trie.allow_none if self._matcher.is_error() else trie.next_token_mask(self._matcher)
        if self.first_mask is trie.allow_none:
            raise UsageError(_format_dead_end(syntax.name, _error(self._matcher), started=False))
        self.seconds = thread_time() - began
        n_bytes = BYTES_PER_GRAMMAR + BYTES_PER_CHARACTER * len(syntax.lark) + BYTES_PER_SECOND * self.seconds
        self.n_bytes = min(n_bytes, CACHED_BYTES / 2)  # no grammar pushes out itself or all others

    def matcher(self) -> LLMatcher:
        """Return a copy of the matcher at the beginning of a text."""
        self.copies += 1
        return self._matcher.deep_copy()


class TextGrammar(Grammar):
    """The Grammar of one request. Its matcher may be at any path of drafted tokens."""

    def __init__(self, grammar: CompiledGrammar) -> None:
        self.syntax = grammar.syntax
        self._grammar, self._trie = grammar, grammar.trie
        self._committed: list[int] = []
        self._ended = False
        self._seconds = 0.0  # of processor time in masks
        self._masks: dict[tuple[int, ...], Mask] = {(): grammar.first_mask}
        self._restart()

    def _restart(self) -> None:
        """Take another matcher, since an error is final."""
        self._matcher = self._grammar.matcher()
        self._matcher.consume_tokens(self._committed)
        self._below: tuple[int, ...] = ()  # drafted tokens that it has consumed

    def _renew(self, text: str) -> None:
        """Compile the grammar again after a limit of the shared lexer. Raises UsageError if that is slow."""
        self._trie.discard(self._grammar)
        if self._grammar.seconds > MAX_REBUILD_SECONDS:
            raise UsageError(_format_dead_end(self.syntax.name, text, started=True))
        self._grammar = CompiledGrammar(self.syntax, self._trie)
        self._restart()

    @property
    def is_slow(self) -> bool:
        return self._seconds > DRAFTING_SECONDS + DRAFTING_SECONDS_PER_TOKEN * len(self._committed)

    def mask(self, path: Sequence[int]) -> Mask:
        """Return the tokens that may follow `path`. Raises UsageError if the text is at a dead end."""
        path = tuple(path)
        if path not in self._masks:
            self._masks[path] = self._after(path)
        return self._masks[path]

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
        if self._seconds > MASK_SECONDS + MASK_SECONDS_PER_TOKEN * len(self._committed):
            took = f"{len(self._committed)} tokens took {self._seconds:.0f} s of processor time"
            raise UsageError(f"{self.syntax.name} is too slow to follow: {took}; simplify it")
        began = thread_time()
        try:
            return self._compute(path)
        finally:
            self._seconds += thread_time() - began

    def _compute(self, path: tuple[int, ...]) -> Mask:
        nothing = self._trie.allow_none
        # Other requests and drafts count against the limits: a new matcher decides.
        for _ in range(2):
            if self._walk(path) and (mask := self._trie.next_token_mask(self._matcher)) is not nothing:
                return mask
            error = _error(self._matcher)
            if error == NO_EXTENSION:  # no limit: a new matcher would agree
                self._restart()
                break
            self._renew(error)
        if not path:
            raise UsageError(_format_dead_end(self.syntax.name, error, started=bool(self._committed)))
        return nothing

    def _walk(self, path: tuple[int, ...]) -> bool:
        """Move the matcher to `path`; return false after an error."""
        shared = 0
        while shared < min(len(path), len(self._below)) and path[shared] == self._below[shared]:
            shared += 1
        self._matcher.rollback(len(self._below) - shared)
        self._below = path
        return self._matcher.consume_tokens(list(path[shared:]))

    def commit(self, tokens: Sequence[int]) -> None:
        for n, token in enumerate(tokens):
            assert self.mask(tokens[:n])[token], f"{self.syntax.name} forbids the emitted token {token}"
        if not self._ended:
            end = next((n for n, token in enumerate(tokens) if token in self._trie.eos), None)
            text = tuple(tokens[:end])
            self._ended = end is not None
            self._walk(text)  # the next mask reports an error
            self._committed += text
            self._below = ()
        self._masks.clear()


def _error(matcher: LLMatcher) -> str:
    return matcher.get_error().partition("\n")[0]


def _format_dead_end(name: str, text: str, *, started: bool) -> str:
    if text != NO_EXTENSION:
        return f"{name} is too complex for llguidance ({text}): simplify it"
    return f"{name}: nothing can follow the text so far" if started else f"no text can satisfy {name}"
