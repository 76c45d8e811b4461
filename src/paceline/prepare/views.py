"""Which part of a model drafts best for it: blocks are left out, and what is left is held against what the
whole model says.

Candidates are views that leave out blocks evenly, and those without the layers that change hidden states
least (arXiv:2403.03853). Each is judged by the share of tokens that it guesses right behind the
model's own text, and by the speed that this share and its cost promise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from paceline.backends.views import ModelView, SupportsViews, evenly_spaced_view
from paceline.bench.prompts import RequestBuilder
from paceline.bench.suites import workload
from paceline.loading import load
from paceline.profiling.pass_costs import costs_of, to_stderr
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.policy.cost_model import PassCosts
from paceline.speculative.policy.speedup_formulas import with_verification_cost
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import chain
from paceline.storage import views
from paceline.storage.views import CachedView

Text = tuple[list[int], list[int]]  # a prompt, and what the whole model answered
Closest = Callable[[Sequence[int], int, int], Sequence[frozenset[int]]]
MOST_AHEAD = 8  # tokens ahead, where speeds are weighed
SHARE = 0.5  # of the blocks that can be left out, where several numbers are tried
MAX_DRAFT_TOKENS = 1200  # characters of a prompt
ANSWERS, VIEWS = "answers", "views"  # kinds of work
GUIDES, SEEN = 2, 96  # texts whose hidden states are looked at, and their last tokens


@dataclass(frozen=True)
class ViewScore:
    """agreement: the share of tokens guessed right. share: of the model's weights that the view reads.
    speed: over plain decoding, as expected; n_draft: with so many tokens a draft."""

    view: ModelView
    method: str
    agreement: float
    share: float
    speed: float
    n_draft: int


class ViewEvaluator:
    """Holds views against `texts`, whose prompts the whole model reads once. It needs a session for each."""

    def __init__(self, whole: Any, texts: Sequence[Text], cost: PassCosts | None = None) -> None:
        self._whole, self._texts = whole, texts
        self.layers: int = whole.layers
        self.tokens = sum(len(answer) for _, answer in texts)
        depth = max((len(prompt) for prompt, _ in texts), default=1)
        self._curve = [1.0] * (MOST_AHEAD + 2) if cost is None else cost.curve(MOST_AHEAD + 1, depth)
        self._sessions = []
        for prompt, _ in texts:
            session = whole.open()
            session.extend(prompt)
            while session.pending_tokens:
                whole.forward(
                    [(session, min(session.pending_tokens, whole.caps.max_prefill_tokens))], RequiredOutputs()
                )
            self._sessions.append(session)

    def agreement(self, view: Any) -> float:
        """Return the share of tokens that a view of the whole engine guesses right."""
        batch = []
        for session, (prompt, answer) in zip(self._sessions, self._texts, strict=True):
            beside = view.open(session)
            beside.extend(prompt)
            batch.append((beside, chain(answer[:-1], "answer")))
        outs = view.forward(batch, RequiredOutputs())
        right = sum(
            out.argmax(row) == token
            for out, (_, answer) in zip(outs, self._texts, strict=True)
            for row, token in enumerate(answer)
        )
        for beside, _ in batch:
            beside.close()
        return float(right / self.tokens)

    def evaluate(self, view: ModelView, method: str) -> ViewScore:
        engine = self._whole.view(view)
        agreement, share = self.agreement(engine), engine.memory / self._whole.memory
        speeds = [
            with_verification_cost(agreement, n, share, self._curve[n + 1] / self._curve[1])
            for n in range(1, MOST_AHEAD + 1)
        ]
        n = int(np.argmax(speeds))
        return ViewScore(view, method, agreement, share, speeds[n], n + 1)

    def close(self) -> None:
        for session in self._sessions:
            session.close()


def search(
    judge: ViewEvaluator,
    *,
    tries: int,
    blocks: int = 0,
    guides: Sequence[Text] = (),
    closest: Closest | None = None,
) -> Iterator[ViewScore]:
    """Judge at most `tries` views, none twice, and yield each.

    blocks: how many are left out; 0 tries several numbers.
    guides: texts that `closest` (HfTarget.closest) is asked about.
    Raises UsageError.
    """
    n_blocks = 2 * (judge.layers - 2)
    if n_blocks < 1 or not 0 <= blocks <= n_blocks:
        raise UsageError(
            f"{blocks} blocks: of {judge.layers} layers 1 to {max(0, n_blocks)} can be left out, none of the "
            "first and the last layer"
        )
    most = max(1, round(SHARE * n_blocks))
    numbers = [blocks] if blocks else [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= most]
    proposals = [("evenly", evenly_spaced_view(judge.layers, n)) for n in numbers]
    if closest is not None:
        proposals += [("similar", view) for view in hidden_state_views(numbers, guides, closest)]
    seen: set[ModelView] = set()
    for method, view in proposals:
        if len(seen) < tries and view not in seen:
            seen.add(view)
            yield judge.evaluate(view, method)


def hidden_state_views(
    numbers: Sequence[int], guides: Sequence[Text], closest: Closest
) -> Iterator[ModelView]:
    """Yield views without the whole layers that hidden states advise to skip."""
    wanted = sorted({(n + 1) // 2 for n in numbers if n > 1})
    if not wanted:
        return
    for prompt, answer in guides:
        found = closest([*prompt, *answer], len(answer), wanted[-1])
        for n in wanted:
            if n <= len(found):
                layers = sorted(found[n - 1])
                odd = len(numbers) == 1 and numbers[0] % 2  # one block less than whole layers have
                yield ModelView(0, frozenset(layers), frozenset(layers[: len(layers) - odd]))


@dataclass(frozen=True)
class ViewSearchPlan:
    """See `paceline views search`."""

    blocks: int
    tries: int
    items: int
    n: int
    suite: str

    @property
    def work(self) -> dict[str, int]:
        """Steps of each kind, at most."""
        return {ANSWERS: 2 * self.items, VIEWS: self.tries}


@dataclass(frozen=True)
class ViewSearchResult:
    """tried: all views in order, as judged by the search. kept: the best one, as judged by other texts;
    speed: over plain decoding, as expected with `n_draft` tokens a draft."""

    model: str
    layers: int
    tokens: int
    tried: tuple[ViewScore, ...]
    kept: CachedView
    speed: float
    n_draft: int

    def as_dict(self) -> dict[str, Any]:
        tried = [
            vars(one) | {"view": one.view.spec, "left_out": one.view.n_skipped_blocks(self.layers)}
            for one in self.tried
        ]
        return asdict(self) | {"tried": tried, "blocks": 2 * self.layers}


def search_views(
    given: Mapping[str, Any], plan: ViewSearchPlan, tick: Callable[[str], None]
) -> ViewSearchResult:
    """Search for a view. given: what `load` takes. tick: called after each of `plan.work`; where it raises
    KeyboardInterrupt the search ends with what was found, if anything. Raises UsageError or ModelError."""
    items = short_items(plan)
    with load(**given, drafters="none", sessions=max(1, len(items))) as llm:
        whole: Any = llm.target
        if not isinstance(whole, SupportsViews):
            raise UsageError(
                f"{whole.path}: its engine cannot leave blocks out: views are for transformers models "
                "(hf:FILE reads a GGUF file with transformers)"
            )
        cost = costs_of(llm.target).target
        texts = list[Text]()
        for text in answers(llm, items, plan):
            texts.append(text)
            tick(ANSWERS)
        seen, waiting = texts[::2], texts[1::2]
        tried = list[ViewScore]()
        judge = ViewEvaluator(whole, seen, cost)
        found = search(
            judge,
            tries=plan.tries,
            blocks=plan.blocks,
            guides=[(prompt[-SEEN:], answer) for prompt, answer in seen[:GUIDES]],
            closest=whole.search_skipped_layers,
        )
        try:
            for one in found:
                tried.append(one)
                tick(VIEWS)
        except KeyboardInterrupt:
            if not tried:
                raise
        judge.close()
        reported = ViewEvaluator(whole, waiting or seen, cost)
        best = max(tried, key=lambda one: one.speed)
        it = reported.evaluate(best.view, best.method)
        reported.close()
        cached = CachedView(it.view.spec, it.agreement, it.share, reported.tokens, it.method, len(tried))
        views.store_view(llm.target.identity()["model"], cached, to_stderr)
        return ViewSearchResult(
            str(llm.target.path), whole.layers, judge.tokens, tuple(tried), cached, it.speed, it.n_draft
        )


def short_items(plan: ViewSearchPlan) -> list[workload.Item]:
    """Return short items of all categories, half to search by and half to report."""
    short = [
        item
        for item in workload.load(plan.suite)
        if not item.session and workload.length(item) <= MAX_DRAFT_TOKENS
    ]
    if not short:
        raise UsageError(f"suite {plan.suite}: holds no item of at most {MAX_DRAFT_TOKENS:,} characters")
    return workload.sample_items(short, 2 * plan.items)


def answers(llm: Any, items: list[workload.Item], plan: ViewSearchPlan) -> Iterator[Text]:
    prompts = RequestBuilder(llm, n=plan.n, ignore_eos=True, sampling=Sampling(), seed=0)
    for item in items:
        ask = prompts.ask(item, {}, [])
        yield (
            list(ask.tokens),
            list(llm.generate(ask.tokens, max_tokens=plan.n, ignore_eos=True).tokens),
        )
