"""Which part of a model drafts best for it: blocks are left out, and what is left is held against what the
whole model says.

Candidates are views that leave out blocks evenly, those that a dynamic programme over hidden states chooses
(CLaSp, arXiv:2505.24196), random ones, and those that Bayesian optimisation proposes knowing all before
(Draft & Verify, arXiv:2309.08168; SWIFT, arXiv:2410.06916). Each is judged by the share of tokens that it
guesses right behind the model's own text, and by the speed that this share and its cost promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from paceline.core.cost import Cost
from paceline.core.errors import MissingExtraError, UsageError
from paceline.core.ports import Want
from paceline.core.theory import with_verification_cost
from paceline.core.tree import chain
from paceline.engines.views import View, evenly

Text = tuple[list[int], list[int]]  # a prompt, and what the whole model answered
METHODS = ("evenly", "clasp", "random", "bayes")
LONGEST = 8  # tokens ahead, where speeds are weighed
SHARE = 0.5  # of the blocks that can be left out: random views leave out at most so many


@dataclass(frozen=True)
class Tried:
    """agreement: the share of tokens guessed right. share: of the model's weights that the view reads.
    speed: over plain decoding, as expected; n_draft: with so many tokens a draft."""

    view: View
    method: str
    agreement: float
    share: float
    speed: float
    n_draft: int


class Judge:
    """Holds views against `texts`, whose prompts the whole model reads once. It needs a session for each."""

    def __init__(self, whole: Any, texts: Sequence[Text], cost: Cost | None = None) -> None:
        self._whole, self._texts = whole, texts
        self.layers: int = whole.layers
        depth = max((len(prompt) for prompt, _ in texts), default=1)
        self._curve = [1.0] * (LONGEST + 2) if cost is None else cost.curve(LONGEST + 1, depth)
        self._sessions = []
        for prompt, _ in texts:
            session = whole.open()
            session.extend(prompt)
            while session.unread:
                whole.forward([(session, min(session.unread, whole.caps.chunk))], Want())
            self._sessions.append(session)

    def agreement(self, view: Any) -> float:
        """Of an engine that is a view of the whole one."""
        batch = []
        for session, (prompt, answer) in zip(self._sessions, self._texts, strict=True):
            beside = view.open(session)
            beside.extend(prompt)
            batch.append((beside, chain(answer[:-1], "answer")))
        outs = view.forward(batch, Want())
        right = sum(
            out.argmax(row) == token
            for out, (_, answer) in zip(outs, self._texts, strict=True)
            for row, token in enumerate(answer)
        )
        for beside, _ in batch:
            beside.close()
        return float(right / self.tokens)

    @property
    def tokens(self) -> int:
        return sum(len(answer) for _, answer in self._texts)

    def tried(self, view: View, method: str) -> Tried:
        engine = self._whole.view(view)
        agreement, share = self.agreement(engine), engine.memory / self._whole.memory
        speeds = [
            with_verification_cost(agreement, n, share, self._curve[n + 1] / self._curve[1])
            for n in range(1, LONGEST + 1)
        ]
        n = int(np.argmax(speeds))
        return Tried(view, method, agreement, share, speeds[n], n + 1)

    def close(self) -> None:
        for session in self._sessions:
            session.close()


def search(
    judge: Judge,
    *,
    tries: int,
    blocks: int = 0,
    methods: Sequence[str] = METHODS,
    seed: int = 0,
    guides: Sequence[Text] = (),
    closest: Callable[[Sequence[int], int, int], Sequence[frozenset[int]]] | None = None,
) -> Iterator[Tried]:
    """At most `tries` views, as they are judged; none twice. blocks: how many are left out; 0 tries several
    numbers. guides: texts that `closest` (HfTarget.closest) is asked about. Raises UsageError, and
    MissingExtraError where the library for "bayes" is missing."""
    check_methods(methods)
    n_blocks = 2 * (judge.layers - 2)
    if n_blocks < 1 or not 0 <= blocks <= n_blocks:
        raise UsageError(
            f"{blocks} blocks: of {judge.layers} layers 1 to {max(0, n_blocks)} can be left out, none of the "
            "first and the last layer"
        )
    space = Space(judge.layers, blocks)
    seen: dict[View, Tried] = {}
    random = tries if "bayes" not in methods else tries // 3
    proposals: dict[str, Iterator[View]] = {
        "evenly": (evenly(judge.layers, n) for n in space.numbers),
        "clasp": guided(space, guides, closest),
        "random": (space.random(np.random.default_rng([seed, at])) for at in range(random)),
        "bayes": proposed(space, seen, seed),
    }
    for method in METHODS:
        if method not in methods:
            continue
        for view in proposals[method]:
            if len(seen) >= tries:
                return
            if view not in seen:
                seen[view] = judge.tried(view, method)
                yield seen[view]


def check_methods(methods: Sequence[str]) -> None:
    """Raises UsageError."""
    if unknown := [name for name in methods if name not in METHODS]:
        raise UsageError(f"method {unknown[0]!r}: choose from {', '.join(METHODS)}")


class Space:
    """The blocks that can be left out, as numbers between 0 and 1: attention of layers 1, 2, ..., then their
    feed-forward; where `blocks` is 0 a last number says how many."""

    def __init__(self, layers: int, blocks: int) -> None:
        self.inner, self.blocks = layers - 2, blocks
        self.most = max(1, round(SHARE * 2 * self.inner))
        self.names = [f"b{at:04}" for at in range(2 * self.inner)] + ([] if blocks else ["n"])

    @property
    def numbers(self) -> list[int]:
        """Of blocks, where a few are tried: 2, 4, 8, ..."""
        if self.blocks:
            return [self.blocks]
        return [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= self.most]

    def random(self, rng: np.random.Generator) -> View:
        return self.view(rng.random(len(self.names)))

    def view(self, point: Sequence[float] | np.ndarray[Any, Any]) -> View:
        """Without the blocks whose numbers are largest."""
        values = np.asarray(point)
        n = self.blocks or max(1, min(self.most, round(float(values[-1]) * self.most)))
        out = np.argsort(-values[: 2 * self.inner], kind="stable")[:n].tolist()
        return View(
            0,
            frozenset(1 + at for at in out if at < self.inner),
            frozenset(1 + at - self.inner for at in out if at >= self.inner),
        )

    def point(self, view: View) -> list[float]:
        left = {at - 1 for at in view.attention} | {at - 1 + self.inner for at in view.feed_forward}
        values = [float(at in left) for at in range(2 * self.inner)]
        return values if self.blocks else [*values, min(1.0, len(left) / self.most)]


def guided(
    space: Space,
    guides: Sequence[Text],
    closest: Callable[[Sequence[int], int, int], Sequence[frozenset[int]]] | None,
) -> Iterator[View]:
    """Whole layers, as hidden states advise."""
    wanted = sorted({(n + 1) // 2 for n in space.numbers if n > 1})
    if closest is None or not wanted:
        return
    for prompt, answer in guides:
        found = closest([*prompt, *answer], len(answer), wanted[-1])
        for n in wanted:
            if n <= len(found):
                layers = sorted(found[n - 1])
                odd = space.blocks % 2  # one block less than whole layers have
                yield View(0, frozenset(layers), frozenset(layers[: len(layers) - odd]))


def proposed(space: Space, seen: dict[View, Tried], seed: int) -> Iterator[View]:
    """By a Gaussian process over all that was tried."""
    try:
        from bayes_opt import BayesianOptimization
        from bayes_opt.acquisition import ExpectedImprovement
    except ImportError as error:
        raise MissingExtraError(
            f"searching views by Bayesian optimisation needs bayesian-optimization ({error}): "
            "pip install 'paceline[hf]', or leave the method bayes out"
        ) from error

    # The best of many random points: what counts is which numbers are largest, so that climbing from there,
    # in as many dimensions as there are blocks, finds nothing more and takes minutes.
    acquisition: Any = ExpectedImprovement(xi=0.01)
    acquisition.suggest = partial(acquisition.suggest, n_smart=0)
    optimiser = BayesianOptimization(
        None,
        dict.fromkeys(space.names, (0.0, 1.0)),
        acquisition_function=acquisition,
        random_state=seed,
        verbose=0,
        allow_duplicate_points=True,
    )
    told: set[View] = set()
    for _ in range(10_000):
        for view in [view for view in seen if view not in told]:
            told.add(view)
            point = dict(zip(space.names, space.point(view), strict=True))
            optimiser.register(params=point, target=seen[view].speed)
        suggestion = optimiser.suggest()
        yield space.view([float(suggestion[name]) for name in space.names])
