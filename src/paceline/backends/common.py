"""Sessions, cache slots and helpers that the llama.cpp and transformers backends share."""

from __future__ import annotations

import logging
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, Generic, TypeVar

import numpy as np

from paceline.speculative.errors import BusyError, UsageError
from paceline.speculative.forward_output import LogitsOutput, row_index
from paceline.speculative.interfaces import NO_FEATURES, Features, PromptSelector, RequiredOutputs
from paceline.speculative.sessions import TreeSession
from paceline.speculative.sessions import common_prefix as common_prefix
from paceline.speculative.tree import DraftTree
from paceline.speculative.vocabulary import Vocab
from paceline.text.grammar import TokenTrie

MAX_STATES = 8  # of a prompt
MAX_STATE_BYTES = 1 << 28
MIN_STATE_DISTANCE, LAST_TOKENS = 256, 16
MIN_LONG_PROMPT, MAX_CHANGE, MAX_CHANGING_PROMPTS = 512, 128, 3
log = logging.getLogger("paceline.backends")


class LoadedTarget(ABC):
    """What the targets of these backends have in common."""

    path: Path
    vocab: Vocab
    prompt_selector: PromptSelector | None = None
    _change = ""  # of the model itself

    @property
    @abstractmethod
    def text(self) -> Any:
        """See Backend."""

    @property
    def modification(self) -> str:
        selector = self.prompt_selector
        return ", ".join(filter(None, [self._change, selector.description if selector is not None else ""]))

    @property
    def origin(self) -> str:
        return f"{self.path} {self.modification}".rstrip()

    @cached_property
    def token_trie(self) -> TokenTrie:
        """See Backend. Added tokens that look like control tokens (<think>) count as no text."""
        pieces = [self.vocab.piece(token) for token in range(self.vocab.size)]
        for token in self.text.added_tokens():
            if pieces[token].startswith(b"<") and pieces[token].endswith(b">"):
                pieces[token] = b""
        return TokenTrie(pieces, self.vocab.eos)


def parameters(n: int) -> str:
    """Format a number of parameters: 1.5B, 135M."""
    return f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.{1 if n < 99.5e6 else 0}f}M"


def check_exit(n: int, layers: int, path: Path) -> None:
    """Raise UsageError unless the first `n` of the model's layers are a proper part of it."""
    if not 1 <= n < layers:
        raise UsageError(f"{path}: its first {n} layers: must be 1 to {layers - 1} of its {layers}")


def require_experts(used: int, experts: int, path: Path) -> None:
    """Raise UsageError unless both numbers are known."""
    if not used or not experts:
        raise UsageError(f"{path}: is no mixture of experts, or does not say how many a token uses")


def check_experts(n: int, used: int, experts: int, path: Path) -> None:
    """Raise UsageError unless a mixture that uses `used` of its experts for a token can use `n` instead."""
    require_experts(used, experts, path)
    if not 1 <= n <= experts or n == used:
        raise UsageError(
            f"{path}: experts={n}: a token uses {used} of {experts}; give another number from 1 to {experts}"
        )


def describe_experts(n: int, used: int) -> str:
    """Return the `modification` of a mixture that uses `n` experts instead of `used`."""
    return f"with {n} experts a token instead of {used}"


@dataclass(frozen=True)
class SparsePrompt:
    """Where the computed tokens of a prompt stand. A token's place is its index in the KV cache, its position
    is its index in the text. Tokens after the prompt follow without gaps.
    positions: of the computed tokens, ascending."""

    positions: Sequence[int]

    @property
    def skipped(self) -> int:
        """Prompt tokens that are left out."""
        return self.positions[-1] + 1 - len(self.positions)

    def position(self, place: int) -> int:
        return self.positions[place] if place < len(self.positions) else place + self.skipped

    def moves(self, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield the runs of the first `end` places, the last one first: start, end, and distance to move."""
        for start in range(end - 1, -1, -1):
            if start == 0 or self.positions[start] > self.positions[start - 1] + 1:
                if distance := self.positions[start] - start:
                    yield start, end, distance
                end = start


def state_places(tokens: Sequence[int], start: int, piece: Callable[[int], bytes]) -> list[int]:
    """Return the numbers of tokens, more than `start`, after which the state of a prompt is kept.
    These are before its last control token, as the next prompt may have the answer without its thoughts, and
    before some of the others, with which messages begin and end. Without any, one is near the end."""
    control = {token for token in {*tokens[start + 1 :]} if not piece(token)}
    places = [n for n in range(start + 1, len(tokens)) if tokens[n] in control]
    places = places or [n for n in [len(tokens) - LAST_TOKENS] if n > start]
    out, distance = [start], max(MIN_STATE_DISTANCE, (len(tokens) - start) // MAX_STATES)
    for n in places[:-1]:
        if n >= out[-1] + distance:
            out.append(n)
    return out[1:] + places[-1:]


class CacheSlot:
    """A sequence of the KV cache, which outlives its session so that prefixes can be reused.
    The owner is a weak reference: a session that an interrupt drops frees its slot.
    is_stateful: its state cannot drop tokens, but returns to a copy.
    checkpoint: number of tokens in the state that a rejected draft returns to; 0 if there is none.
    n_reused: tokens that its sessions found in the cache.
    states: copies of a prompt's states by their numbers of tokens, which ascend."""

    checkpoint = n_reused = 0

    def __init__(self, *, is_stateful: bool = False) -> None:
        self.is_stateful, self.states = is_stateful, dict[int, Any]()
        self.cached: list[int] = []
        self.sparse: SparsePrompt | None = None  # the cache leaves out prompt tokens
        self.owner: weakref.ref[Any] | None = None

    @property
    def is_free(self) -> bool:
        return self.owner is None or self.owner() is None

    def common_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of the tokens are in the cache, each at its position."""
        return 0 if self.sparse is not None else common_prefix(self.cached, tokens)

    def reusable_prefix(self, tokens: Sequence[int]) -> int:
        """Return how many of the tokens need not be computed."""
        n = self.common_prefix(tokens)
        return self.last_state(n) if self.is_stateful and n < len(self.cached) else n

    def last_state(self, end: int) -> int:
        """Return the number of tokens in the last state after at most `end`; 0 if there is none."""
        return max((n for n in (self.checkpoint, *self.states) if n <= end), default=0)

    def add_state(self, state: Any, size: int) -> None:
        """Keep the state after the cached tokens, of `size` bytes. Of too many, drop the one nearest to its
        predecessor, from which little has to be computed again."""
        self.states[len(self.cached)] = state
        while len(self.states) > max(1, min(MAX_STATES, MAX_STATE_BYTES // max(1, size))):
            del self.states[min((b - a, b) for a, b in pairwise([0, *list(self.states)[:-1]]))[1]]

    def drop_states(self) -> None:
        """Drop the states of other texts than the cached one."""
        self.states = {n: state for n, state in self.states.items() if n <= len(self.cached)}


def early_change(tokens: Sequence[int], earlier: Sequence[Sequence[int]]) -> int | None:
    """Return how many tokens of a prompt are those of an earlier one, if these are few and it goes on like
    one after it has differed; else None."""
    start = max((common_prefix(prompt, tokens) for prompt in earlier), default=0)
    later = np.array(tokens[start + MAX_CHANGE : start + 2 * MAX_CHANGE]).tobytes()
    goes_on = any(later in np.array(prompt).tobytes() for prompt in earlier)
    return start if later and goes_on and 4 * start < len(tokens) else None


class ChangingPrompts:
    """Logs once that prompts in a row change near their beginning, so that no cached prefix serves them."""

    n = 0  # such prompts so far

    def check(self, tokens: Sequence[int], slots: Sequence[CacheSlot]) -> None:
        """Look at the next prompt."""
        if len(tokens) < MIN_LONG_PROMPT or self.n == MAX_CHANGING_PROMPTS:
            return
        start = early_change(tokens, [slot.cached for slot in slots if slot.sparse is None])
        self.n = 0 if start is None else self.n + 1
        if self.n == MAX_CHANGING_PROMPTS:
            where = f"prompts differ at each request after their first {start} tokens, and go on alike"
            effect = f"nothing is reused of the rest of {len(tokens):,} tokens"
            log.warning("%s: %s. Move what changes (a date, an id) to their end", where, effect)


S = TypeVar("S", bound=CacheSlot)


def free_slots(slots: Sequence[S]) -> list[S]:
    """Return the free slots. Raises BusyError if there are none."""
    free = [slot for slot in slots if slot.is_free]
    if not free:
        raise BusyError(f"all {len(slots)} sessions of this model are in use: close a running stream first")
    return free


class PassOutput(LogitsOutput):
    """Rows `first`, `first + 1`, ... of a session. is_last: returns true until the target's next pass."""

    def __init__(
        self,
        is_last: Callable[[], bool],
        rows: Any,
        first: int,
        computed: int,
        want: RequiredOutputs,
        features: Features = NO_FEATURES,
    ) -> None:
        self._is_last, self._rows, self._first = is_last, rows, first
        top = self.top_k(range(first, first + len(rows)), want.top_k)
        super().__init__(computed, features if top is None else replace(features, top_k=top))

    def _place(self, row: int) -> int:
        return row_index(row, range(self._first, self._first + len(self._rows)), self._is_last())


class CachedSession(TreeSession, Generic[S]):
    """A session in a cache slot: the committed tokens, then the root and the nodes of the last tree.
    _planned: the tree of a pass, EMPTY for a prefill. The cache may hold more than the committed tokens then.
    _slots: of all sessions of the model.
    _piece: see Vocab. _stops: the numbers of tokens after which the prompt's state is kept.
    _context: the tokens that are or will be in the cache, each at its place: `tokens`, unless some of the
    prompt are left out (`_sparse`)."""

    def __init__(self, n_ctx: int, slots: Sequence[S], piece: Callable[[int], bytes]) -> None:
        super().__init__(n_ctx)
        self._slots, self._piece, self._stops = slots, piece, list[int]()
        self._slot: S | None = None
        self._context = self.tokens
        self._sparse: SparsePrompt | None = None
        self._clear_tree()

    @property
    def n_skipped(self) -> int:
        """Prompt tokens that are left out."""
        return 0 if self._sparse is None else self._sparse.skipped

    @property
    def context_length(self) -> int:
        """Tokens that the next one attends to."""
        return len(self._context)

    def _positions(self, start: int, end: int) -> list[int]:
        """Return the positions of the tokens at the places [start, end) of the cache."""
        places = range(start, end)
        return list(places if self._sparse is None else map(self._sparse.position, places))

    def _clear_tree(self) -> None:
        self.tree = None
        self._planned: DraftTree | None = None

    @property
    def slot(self) -> S:
        assert self._slot is not None, "forward before extend: the session has no root"
        return self._slot

    @property
    def pending_tokens(self) -> int:
        return 0 if self._slot is None else max(0, len(self._context) - 1 - len(self._slot.cached))

    def _append(self, tokens: Sequence[int]) -> None:
        if self._slot is None:
            self._begin(list(tokens[:-1]))
            self.slot.n_reused += min(len(self.slot.cached), len(tokens) - 1)
            if self.slot.is_stateful:
                self._stops = state_places(tokens, len(self.slot.cached), self._piece)
        if self._context is not self.tokens:
            self._context += tokens

    def extend_sparse(self, prompt: Sequence[int], positions: Sequence[int]) -> None:
        """See SparseSession."""
        assert not self.tokens, "a sparse prompt begins a session"
        assert list(positions[-1:]) == [len(prompt) - 1], "a sparse prompt has its last token"
        if len(positions) == len(prompt):
            self.extend(prompt)
            return
        self._require_room(len(prompt))
        sparse, context = SparsePrompt(positions), [prompt[position] for position in positions]
        self._begin(context[: common_prefix(positions, range(len(prompt)))])  # up to the first gap
        self.tokens, self._context, self._sparse = list(prompt), context, sparse
        self.slot.sparse = sparse

    def read(self, n: int) -> None:
        """Record that the next `n` tokens are in the cache."""
        cached = self.slot.cached
        cached += self._context[len(cached) : len(cached) + n]
        if len(cached) in self._stops and len(cached) not in self.slot.states:
            self.slot.add_state(*self._copy_state())

    def next_stop(self, n: int) -> int | None:
        """Return how many of the next `n` pending tokens come before a state is kept; None if none is."""
        place = len(self.slot.cached)
        return next((stop - place for stop in self._stops if place < stop <= place + n), None)

    def mark_computed(self) -> None:
        """Record that the cache holds the planned pass."""
        cached = self.slot.cached
        cached += self._context[len(cached) : -1]
        self.tree = self._planned

    def _checkpoint_length(self, tree: DraftTree, first: int) -> int | None:
        """Return the tokens in the state before `tree` if it has the first nodes since the last commit: all
        committed ones if it grows an empty tree, else those in the cache. None if no checkpoint is due.
        first: its first row to compute."""
        if not len(tree) or first > 1:
            return None
        return len(self._context) if first else len(self.slot.cached)

    def close(self) -> None:
        if self._slot is not None:
            if self._slot.is_stateful and self.tree is not None:
                self._commit(self.tree, ())  # the state with the root is that of committed tokens, too
            else:
                self.rollback()
            if self._sparse is not None:
                self._drop_context()
            self._slot.owner = None
            self._slot = None
            self._release()
        super().close()
        self._context, self._sparse = self.tokens, None

    def _rewind(self) -> None:
        self.rollback()

    @abstractmethod
    def _begin(self, tokens: list[int]) -> None:
        """Take a slot and reuse its common prefix with `tokens`, which are those before the root."""

    def require_free(self) -> None:
        """See SparseSession."""
        free_slots(self._slots)

    @abstractmethod
    def _drop_context(self) -> None:
        """Empty the slot: another session cannot use a context that leaves out tokens."""

    @abstractmethod
    def _copy_state(self) -> tuple[Any, int]:
        """Return a copy of the recurrent state, and its bytes."""

    @abstractmethod
    def rollback(self) -> None:
        """Return to the committed tokens without the root, also after a failed pass."""

    @abstractmethod
    def _release(self) -> None:
        """Let the backend's threads sleep."""
