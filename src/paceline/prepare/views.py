"""Searching for a view of one model: its own answers to a suite, the search, and what is kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from paceline.backends.views import SupportsViews
from paceline.bench.prompts import RequestBuilder
from paceline.bench.suites import workload
from paceline.loading import load
from paceline.prepare.view_search import Text, ViewEvaluator, ViewScore, search
from paceline.profiling.pass_costs import costs_of, to_stderr
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling import Sampling
from paceline.storage import views
from paceline.storage.views import CachedView

LONGEST = 1200  # characters of a prompt
ANSWERS, VIEWS = "answers", "views"  # kinds of work
GUIDES, SEEN = 2, 96  # texts whose hidden states are looked at, and their last tokens


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
            {
                "view": one.view.words,
                "left_out": one.view.left_out(self.layers),
                "method": one.method,
                "agreement": one.agreement,
                "share": one.share,
                "speed": one.speed,
                "n_draft": one.n_draft,
            }
            for one in self.tried
        ]
        return asdict(self) | {"tried": tried, "blocks": 2 * self.layers}


def searched(given: Mapping[str, Any], plan: ViewSearchPlan, tick: Callable[[str], None]) -> ViewSearchResult:
    """given: what `load` takes. tick: is called after each of `plan.work`; where it raises KeyboardInterrupt
    the search ends with what was found. Raises UsageError or ModelError, and KeyboardInterrupt where
    nothing was found yet."""
    items = chosen(plan)
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
        seen, held = texts[::2], texts[1::2]
        tried = list[ViewScore]()
        judge = ViewEvaluator(whole, seen, cost)
        found = search(
            judge,
            tries=plan.tries,
            blocks=plan.blocks,
            guides=[(prompt[-SEEN:], answer) for prompt, answer in seen[:GUIDES]],
            closest=whole.closest,
        )
        try:
            for one in found:
                tried.append(one)
                tick(VIEWS)
        except KeyboardInterrupt:
            if not tried:
                raise
        judge.close()
        told = ViewEvaluator(whole, held or seen, cost)
        best = max(tried, key=lambda one: one.speed)
        it = told.tried(best.view, best.method)
        told.close()
        kept = CachedView(it.view.words, it.agreement, it.share, told.tokens, it.method, len(tried))
        views.keep(llm.target.identity()["model"], kept, to_stderr)
        return ViewSearchResult(
            str(llm.target.path), whole.layers, judge.tokens, tuple(tried), kept, it.speed, it.n_draft
        )


def chosen(plan: ViewSearchPlan) -> list[workload.Item]:
    """Short items of all categories, half to search by and half to report."""
    short = [
        item
        for item in workload.load(plan.suite)
        if not item.session
        and len(item.prompt) + sum(len(said or "") for _, said in item.messages) <= LONGEST
    ]
    if not short:
        raise UsageError(f"suite {plan.suite}: holds no item of at most {LONGEST:,} characters")
    return workload.sampled(short, 2 * plan.items)


def answers(llm: Any, items: list[workload.Item], plan: ViewSearchPlan) -> Iterator[Text]:
    prompts = RequestBuilder(llm, n=plan.n, ignore_eos=True, sampling=Sampling(), seed=0)
    for item in items:
        ask = prompts.ask(item, {}, [])
        yield (
            list(ask.tokens),
            list(llm.generate(ask.tokens, max_tokens=plan.n, ignore_eos=True).tokens),
        )
