"""Does the cache hold what it should? After random acceptances and rejections, with decoys and another
session beside them, the next row must be the one that the same text gives from nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from paceline.backends.logit_drift import Rows, logits_from_empty_cache, max_logit_difference
from paceline.bench.text_comparison import PLAUSIBLE
from paceline.speculative.interfaces import Budget, ForwardOutput, RequiredOutputs, Session, Target
from paceline.speculative.tree import EMPTY, ROOT, DraftTree

# Every cell of the sequence was written by a pass of another shape, not only the row that is looked at.
NOISE_FACTOR = 2.0
# Of a row's spread, what is never a defect: exact rows show no noise, but a walk's prompt has a shape too.
ROUNDING = 1e-4
SESSION_CLOSE_PROBABILITY = (
    0.2  # the chance, a pass, that the session beside a walk is closed, its draft not decided
)


@dataclass(frozen=True)
class StateCheck:
    """Of the walk that came nearest to its limit.

    worst: the most that two logits of a row moved apart from the same row computed afresh.
    noise: what the shape of a pass alone can do. spread: the standard deviation of its rows' logits.
    rows: how many were compared, of all walks. beside: whether another session was in their passes."""

    sequences: int
    tokens: int
    worst: float
    noise: float
    spread: float
    equal_rows: bool = False  # the target's (Caps): then nothing may move at all
    rows: int = 0
    beside: bool = False

    @property
    def limit(self) -> float:
        if self.equal_rows:
            return 0.0
        return min(max(NOISE_FACTOR * self.noise, ROUNDING * self.spread), PLAUSIBLE * self.spread)

    @property
    def share(self) -> float:
        """Of the limit."""
        return self.worst / self.limit if self.limit > 0 else np.inf if self.worst > 0 else 0.0

    @property
    def passed(self) -> bool:
        return self.worst <= self.limit

    def as_dict(self) -> dict[str, Any]:
        return {"passed": self.passed, "limit": self.limit} | asdict(self)


def check_state(
    target: Target,
    texts: Sequence[Sequence[int]],
    budget: Budget,
    noise: float,
    *,
    sequences: int,
    seed: int,
    tick: Callable[[], None],
) -> StateCheck:
    """`sequences` walks along the texts. Each ends in a comparison: of its last row, or where rows are equal
    to the last bit of all rows on its way."""
    random = np.random.default_rng([seed, 3])
    found: StateCheck | None = None
    tokens = rows = 0
    equal, beside = target.caps.equal_rows, target.caps.max_sessions > 1
    for i in range(sequences):
        text, other = (texts[j % len(texts)] for j in (i, i + 1))
        walk = RandomWalk(target, budget, random, other if beside and len(other) > 1 else ())
        for walked, seen in walk.along(text):
            start = len(walked) - len(seen) + 1
            again = logits_from_empty_cache(target, walked[:start], walked[start:])
            tokens, rows = tokens + len(walked), rows + len(seen)
            one = StateCheck(
                sequences, tokens, max_logit_difference(seen, again), noise, float(again.std()), equal
            )
            # The one nearest to its own limit, or beyond it; not max(), which passes over a NaN.
            if found is None or not (one.share <= found.share or np.isnan(found.share)):
                found = one
        tick()
    assert found is not None  # there is at least one walk
    return replace(found, tokens=tokens, rows=rows, beside=beside)


class RandomWalk:
    """Decoding along a text with drafts of which a random part is right. other: the text of a session that
    does so in the same passes; empty for none."""

    def __init__(
        self, target: Target, budget: Budget, random: np.random.Generator, other: Sequence[int]
    ) -> None:
        self._target, self._budget, self._random, self._other = target, budget, random, other
        self._caps = target.caps
        self._beside: Session | None = None

    def along(self, text: Sequence[int]) -> list[tuple[list[int], Rows]]:
        """Of each session, tokens committed and rows [rows, n_vocab] that speak of what follows them and each
        of their last beginnings: one row, or of the first session all that were kept."""
        session = self._target.open()
        rows: list[Rows] = []
        try:
            at = int(self._random.integers(1, max(2, len(text) // 2)))
            session.extend(text[:at])
            while self._caps.equal_rows and session.pending_tokens and self._random.random() < 0.5:
                self._pass(session, self._piece(session))  # chunked prefill
            while at < len(text):
                at, selected = self._stride(session, text)
                rows += selected if self._caps.equal_rows else []
            both = [session, self._other_session()] if self._other else [session]
            outs = self._target.forward([(one, EMPTY) for one in both], RequiredOutputs())
            first, *second = (_row(out, 0) for out in outs)
            mine = np.concatenate([*rows, first])[-self._caps.max_batch_tokens :]
            return [(list(one.tokens), found) for one, found in zip(both, [mine, *second], strict=True)]
        finally:
            session.close()
            self._leave()

    def _stride(self, session: Session, text: Sequence[int]) -> tuple[int, list[Rows]]:
        """One draft, one pass, one commit: how many tokens of `text` there are then, and their rows."""
        tree, path = self._draft(session, text)
        out = self._pass(session, tree)
        selected = path[: int(self._random.integers(0, len(path) + 1))]
        rows = [_row(out, row) for row in (0, *(node + 1 for node in selected))]
        session.commit(selected, text[len(session.tokens) + len(selected)])
        return len(session.tokens), rows

    def _draft(self, session: Session, text: Sequence[int]) -> tuple[DraftTree, list[int]]:
        """Decoys, among them what comes next; and the nodes of that."""
        budget, caps, random = self._budget, self._caps, self._random
        ahead = text[len(session.tokens) :]
        room = caps.n_ctx - len(session.tokens)
        depth = min(budget.depth, room)
        width = int(random.integers(1, min(budget.width, caps.max_branches, max(1, room)) + 1))
        right = int(random.integers(0, min(depth, len(ahead) - 1) + 1))
        rows = caps.max_batch_tokens // 2 if self._other else caps.max_batch_tokens
        nodes = max(0, min(budget.nodes, room, rows - 1))  # as Request.cap has it
        return among_decoys(ahead[:right], depth, width, nodes, self._target.vocab.size, random)

    def _piece(self, session: Session) -> int:
        return int(self._random.integers(1, session.pending_tokens + 1))

    def _pass(self, session: Session, tree: DraftTree | int) -> ForwardOutput:
        """What it says of the session; the other one goes on, too, or leaves with its draft undecided."""
        if not self._other:
            return self._target.forward([(session, tree)], RequiredOutputs())[0]
        text, random, beside = self._other, self._random, self._other_session()
        theirs, path = self._draft(beside, text)
        reads = beside.pending_tokens and random.random() < 0.5
        batch = [(session, tree), (beside, self._piece(beside) if reads else theirs)]
        if random.random() < 0.5:
            mine = self._target.forward(batch, RequiredOutputs())[0]
        else:
            mine = self._target.forward(batch[::-1], RequiredOutputs())[1]
        selected = path[: int(random.integers(0, len(path) + 1))]
        at = len(beside.tokens) + len(selected)
        if at + 1 >= len(text) or random.random() < SESSION_CLOSE_PROBABILITY:
            self._leave()
        elif not reads:
            beside.commit(selected, text[at])
        return mine

    def _other_session(self) -> Session:
        """The session beside; a new one where it has left."""
        if self._beside is None:
            self._beside = self._target.open()
            self._beside.extend(self._other[: int(self._random.integers(1, len(self._other)))])
        return self._beside

    def _leave(self) -> None:
        if self._beside is not None:
            self._beside.close()
            self._beside = None


def _row(out: ForwardOutput, row: int) -> Rows:
    return out.logits(row).astype(np.float64)[None]


def among_decoys(
    right: Sequence[int], depth: int, width: int, nodes: int, n_vocab: int, random: np.random.Generator
) -> tuple[DraftTree, list[int]]:
    """`width` chains of `depth` random tokens, one of which begins with `right`; and the nodes of that."""
    tokens: list[int] = []
    parents: list[int] = []
    path: list[int] = []
    mine = int(random.integers(width))
    ends = [ROOT] * width
    for level in range(depth):
        for branch in range(width):
            if len(tokens) >= nodes:
                break
            is_right = branch == mine and level < len(right)
            tokens.append(int(right[level]) if is_right else int(random.integers(n_vocab)))
            parents.append(ends[branch])
            ends[branch] = len(tokens) - 1
            if is_right:
                path.append(ends[branch])
    n = len(tokens)
    return DraftTree(tuple(tokens), tuple(parents), (1.0,) * n, ("decoy",) * n), path
