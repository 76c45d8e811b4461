"""The state check: whether the cache holds the committed text.

Text is decoded with random acceptances and rejections, decoy branches and a second session in the same
passes. The next row must equal the row of the same text from an empty cache."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from paceline.backends.logit_drift import Rows, logits_from_empty_cache, max_logit_difference
from paceline.bench.text_comparison import PLAUSIBLE
from paceline.speculative.interfaces import Budget, ForwardOutput, RequiredOutputs, Session, Target
from paceline.speculative.tree import EMPTY, ROOT, DraftTree

NOISE_FACTOR = 2.0  # all cells of a sequence come from passes of other shapes, not only the compared row
ROUNDING = 1e-4  # share of a row's spread that is never a defect: the prompt's pass has another shape too
SESSION_CLOSE_PROBABILITY = 0.2  # per pass: the second session is closed before its draft is decided


@dataclass(frozen=True)
class StateCheck:
    """The result of the walk that came nearest to its limit.
    worst: the largest difference of a logit from the row computed afresh.
    noise: effect of the shape of a pass alone. spread: standard deviation of the walk's logits.
    rows: number of rows compared in all walks. beside: another session was in the passes."""

    sequences: int
    tokens: int
    worst: float
    noise: float
    spread: float
    equal_rows: bool = False  # the target's (Caps): then no difference is allowed
    rows: int = 0
    beside: bool = False

    @property
    def limit(self) -> float:
        if self.equal_rows:
            return 0.0
        return min(max(NOISE_FACTOR * self.noise, ROUNDING * self.spread), PLAUSIBLE * self.spread)

    @property
    def share(self) -> float:
        """The worst difference as a share of the limit."""
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
    """Walk `sequences` times along the texts, comparing the last row, or all of a target with equal rows."""
    random = np.random.default_rng([seed, 3])
    walks, tokens, rows = list[StateCheck](), 0, 0
    equal, beside = target.caps.equal_rows, target.caps.max_sessions > 1
    for i in range(sequences):
        text, other = (texts[j % len(texts)] for j in (i, i + 1))
        walk = RandomWalk(target, budget, random, other if beside and len(other) > 1 else ())
        for walked, seen in walk.along(text):
            start = len(walked) - len(seen) + 1
            again = logits_from_empty_cache(target, walked[:start], walked[start:])
            tokens, rows = tokens + len(walked), rows + len(seen)
            worst = max_logit_difference(seen, again)
            walks.append(StateCheck(sequences, 0, worst, noise, float(again.std()), equal, beside=beside))
        tick()
    nearest = max(walks, key=lambda one: np.nan_to_num(one.share, nan=np.inf))
    return replace(nearest, tokens=tokens, rows=rows)


class RandomWalk:
    """Decoding along a text with drafts of which a random part is right.
    other: text of a second session in the same passes; empty for none."""

    def __init__(
        self, target: Target, budget: Budget, random: np.random.Generator, other: Sequence[int]
    ) -> None:
        self._target, self._budget, self._random, self._other = target, budget, random, other
        self._caps = target.caps
        self._second: Session | None = None

    def along(self, text: Sequence[int]) -> list[tuple[list[int], Rows]]:
        """Return for each session its tokens and the last rows [rows, n_vocab]: one row, or for the first
        session all that were collected."""
        session = self._target.open()
        rows: list[Rows] = []
        try:
            at = int(self._random.integers(1, max(2, len(text) // 2)))
            session.extend(text[:at])
            while self._caps.equal_rows and session.pending_tokens and self._random.random() < 0.5:
                self._pass(session, self._chunk(session))  # chunked prefill
            while at < len(text):
                at, accepted = self._stride(session, text)
                rows += accepted if self._caps.equal_rows else []
            both = [session, self._second_session()] if self._other else [session]
            outs = self._target.forward([(one, EMPTY) for one in both], RequiredOutputs())
            first, *others = (_row(out, 0) for out in outs)
            main = np.concatenate([*rows, first])[-self._caps.max_batch_tokens :]
            return [(list(one.tokens), rows) for one, rows in zip(both, [main, *others], strict=True)]
        finally:
            session.close()
            self._close_other()

    def _stride(self, session: Session, text: Sequence[int]) -> tuple[int, list[Rows]]:
        """Draft, run a pass and commit; return the number of tokens and their rows."""
        tree, path = self._draft(session, text)
        out = self._pass(session, tree)
        accepted = path[: int(self._random.integers(0, len(path) + 1))]
        rows = [_row(out, row) for row in (0, *(node + 1 for node in accepted))]
        session.commit(accepted, text[len(session.tokens) + len(accepted)])
        return len(session.tokens), rows

    def _draft(self, session: Session, text: Sequence[int]) -> tuple[DraftTree, list[int]]:
        """Return a tree of decoys that includes the next tokens, and the nodes of those."""
        budget, caps, random = self._budget, self._caps, self._random
        ahead = text[len(session.tokens) :]
        room = caps.n_ctx - len(session.tokens)
        depth = min(budget.depth, room)
        width = int(random.integers(1, min(budget.width, caps.max_branches, max(1, room)) + 1))
        right = int(random.integers(0, min(depth, len(ahead) - 1) + 1))
        rows = caps.max_batch_tokens // 2 if self._other else caps.max_batch_tokens
        nodes = max(0, min(budget.nodes, room, rows - 1))  # as Request.cap has it
        return among_decoys(ahead[:right], depth, width, nodes, self._target.vocab.size, random)

    def _chunk(self, session: Session) -> int:
        return int(self._random.integers(1, session.pending_tokens + 1))

    def _pass(self, session: Session, tree: DraftTree | int) -> ForwardOutput:
        """Return the session's output of a pass in which the other session takes part."""
        if not self._other:
            return self._target.forward([(session, tree)], RequiredOutputs())[0]
        text, random, second = self._other, self._random, self._second_session()
        draft, path = self._draft(second, text)
        prefills = second.pending_tokens and random.random() < 0.5
        batch = [(session, tree), (second, self._chunk(second) if prefills else draft)]
        if random.random() < 0.5:
            out = self._target.forward(batch, RequiredOutputs())[0]
        else:
            out = self._target.forward(batch[::-1], RequiredOutputs())[1]
        accepted = path[: int(random.integers(0, len(path) + 1))]
        at = len(second.tokens) + len(accepted)
        if at + 1 >= len(text) or random.random() < SESSION_CLOSE_PROBABILITY:
            self._close_other()
        elif not prefills:
            second.commit(accepted, text[at])
        return out

    def _second_session(self) -> Session:
        """Return the second session, reopened if it has been closed."""
        if self._second is None:
            self._second = self._target.open()
            self._second.extend(self._other[: int(self._random.integers(1, len(self._other)))])
        return self._second

    def _close_other(self) -> None:
        if self._second is not None:
            self._second.close()
            self._second = None


def _row(out: ForwardOutput, row: int) -> Rows:
    return out.logits(row).astype(np.float64)[None]


def among_decoys(
    right: Sequence[int], depth: int, width: int, nodes: int, n_vocab: int, random: np.random.Generator
) -> tuple[DraftTree, list[int]]:
    """Return `width` chains of `depth` random tokens, one beginning with `right`, and the nodes of that."""
    tokens: list[int] = []
    parents: list[int] = []
    path: list[int] = []
    right_branch = int(random.integers(width))
    ends = [ROOT] * width
    for level in range(depth):
        for branch in range(width):
            if len(tokens) >= nodes:
                break
            is_right = branch == right_branch and level < len(right)
            tokens.append(int(right[level]) if is_right else int(random.integers(n_vocab)))
            parents.append(ends[branch])
            ends[branch] = len(tokens) - 1
            if is_right:
                path.append(ends[branch])
    n = len(tokens)
    return DraftTree(tuple(tokens), tuple(parents), (1.0,) * n, ("decoy",) * n), path
