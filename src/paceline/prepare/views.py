"""The search for a view, a part of a model without some blocks, that drafts best for the model."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from paceline.backends.views import ModelView, SearchesViews, evenly_spaced_view
from paceline.drafts import require_fit, traits_of
from paceline.fits import LAYER_VIEW
from paceline.loading import load_options
from paceline.prepare.suite_prompts import ANSWERS, Begin, short_items, tokenise_prompts
from paceline.profiling.pass_costs import costs_of
from paceline.settings import PLAIN, LoadOptions
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.speedup_formulas import speedup
from paceline.speculative.tree import chain
from paceline.storage.costs import CachedView, store_view
from paceline.system.home import to_stderr

VIEWS = "views"  # a phase of the search
MAX_DRAFT_TOKENS = 8  # in the expected speed
GUIDES, GUIDE_TOKENS = 2, 96  # texts that advise which layers to skip, and the last tokens of their prompts

Text = tuple[Sequence[int], Sequence[int]]  # a prompt, and the whole model's answer


@dataclass(frozen=True)
class ViewScore:
    """agreement: share of tokens predicted. share: of the model's weights. speed: expected speedup over plain
    decoding with drafts of n_draft tokens."""

    view: ModelView
    method: str
    agreement: float
    share: float
    speed: float
    n_draft: int


class ViewEvaluator:
    """Evaluates views on `texts`, whose prompts the whole model prefills once, each in a session."""

    def __init__(self, whole: Any, texts: Sequence[Text], cost: PassCosts | None = None) -> None:
        self.whole, self.texts = whole, texts
        self.tokens = sum(len(answer) for _, answer in texts)
        limit, depth = MAX_DRAFT_TOKENS, max((len(prompt) for prompt, _ in texts), default=1)
        self._curve = [1.0] * (limit + 2) if cost is None else cost.curve(limit + 1, depth)
        self._sessions = []
        for prompt, _ in texts:
            session = whole.open()
            session.extend(prompt)
            while session.pending_tokens:
                n = min(session.pending_tokens, whole.caps.max_prefill_tokens)
                whole.forward([(session, n)], RequiredOutputs())
            self._sessions.append(session)

    def agreement(self, view: Any) -> float:
        """Return the share of tokens that a view of the whole engine predicts."""
        with ExitStack() as opened:
            batch = []
            for session, (prompt, answer) in zip(self._sessions, self.texts, strict=True):
                view_session = opened.enter_context(closing(view.open(session)))
                view_session.extend(prompt)
                batch.append((view_session, chain(answer[:-1], "answer")))
            outs = view.forward(batch, RequiredOutputs())
            right = sum(
                out.argmax(row) == token
                for out, (_, answer) in zip(outs, self.texts, strict=True)
                for row, token in enumerate(answer)
            )
        return float(right / self.tokens)

    def evaluate(self, view: ModelView, method: str) -> ViewScore:
        engine = self.whole.view(view)
        agreement, share = self.agreement(engine), engine.weight_bytes / self.whole.weight_bytes
        speeds = [
            speedup(agreement, n, share, self._curve[n + 1] / self._curve[1])
            for n in range(1, MAX_DRAFT_TOKENS + 1)
        ]
        n = int(np.argmax(speeds))
        return ViewScore(view, method, agreement, share, speeds[n], n + 1)

    def close(self) -> None:
        for session in self._sessions:
            session.close()


def search(evaluator: ViewEvaluator, *, tries: int, blocks: int = 0) -> Iterator[ViewScore]:
    """Yield the scores of at most `tries` different views, which skip blocks evenly, or the layers that
    change hidden states least (arXiv:2403.03853). Raises UsageError for too many blocks.
    blocks: to skip; 0 tries several numbers, up to half of the blocks."""
    limit = max(1, evaluator.whole.layers - 2)
    numbers = [blocks] if blocks else [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= limit]
    seen = set[ModelView]()
    for method, view in candidate_views(evaluator, numbers):
        if len(seen) == tries:
            return
        if view not in seen:
            seen.add(view)
            yield evaluator.evaluate(view, method)


def candidate_views(evaluator: ViewEvaluator, numbers: Sequence[int]) -> Iterator[tuple[str, ModelView]]:
    """Yield views without so many blocks: evenly spaced, then whole layers that hidden states suggest."""
    for n in numbers:
        yield "evenly", evenly_spaced_view(evaluator.whole.layers, n)
    counts = sorted({(n + 1) // 2 for n in numbers if n > 1})
    for prompt, answer in evaluator.texts[:GUIDES] if counts else ():
        text = [*prompt[-GUIDE_TOKENS:], *answer]
        skipped = evaluator.whole.search_skipped_layers(text, len(answer), counts[-1])
        for n in counts:
            if n <= len(skipped):
                layers = sorted(skipped[n - 1])
                odd = len(numbers) == 1 and numbers[0] % 2  # one block less than whole layers
                yield "similar", ModelView(0, frozenset(layers), frozenset(layers[: len(layers) - odd]))


def search_views(
    models: LoadOptions, begin: Begin, *, blocks: int, tries: int, items: int, n: int, suite: str
) -> dict[str, Any]:
    """Search for a view, store it, and return a record for `paceline views search --json`: all views `tried`
    in order, and the `best` one with its `speed` on other texts. A KeyboardInterrupt in phase VIEWS ends the
    search with the views tried so far, if any. Raises UsageError or ModelError."""
    suite_items = short_items(suite, 2 * items)
    engine = replace(models.engine, sessions=len(suite_items))
    with load_options(replace(models, drafting=PLAIN, engine=engine)) as llm:
        whole: Any = llm.target
        if not isinstance(whole, SearchesViews):
            raise UsageError(
                f"{whole.path}: its engine cannot leave blocks out: views are for transformers models "
                "(hf:FILE reads a GGUF file with transformers)"
            )
        require_fit(str(llm.target.path), LAYER_VIEW, traits_of(llm.target))
        cost = costs_of(llm.target).target
        tick, texts = begin({ANSWERS: len(suite_items), VIEWS: tries}), list[Text]()
        for prompt in tokenise_prompts(llm, suite_items, n):
            texts.append((prompt, llm.generate(prompt, max_tokens=n, ignore_eos=True).tokens))
            tick(ANSWERS)
        tried = list[ViewScore]()
        with closing(ViewEvaluator(whole, texts[::2], cost)) as evaluator:
            try:
                for score in search(evaluator, tries=tries, blocks=blocks):
                    tried.append(score)
                    tick(VIEWS)
            except KeyboardInterrupt:
                if not tried:
                    raise
        fastest = max(tried, key=lambda score: score.speed)
        with closing(ViewEvaluator(whole, texts[1::2] or texts, cost)) as other:
            best = other.evaluate(fastest.view, fastest.method)
        cached = CachedView(best.view.spec, best.agreement, best.share, other.tokens, best.method, len(tried))
        store_view(llm.target.identity()["model"], cached, to_stderr)
        layers = whole.layers
        return {
            "model": str(llm.target.path),
            "layers": layers,
            "blocks": 2 * layers,
            "tokens": evaluator.tokens,
            "tried": [
                vars(score) | {"view": score.view.spec, "left_out": score.view.n_skipped_blocks(layers)}
                for score in tried
            ],
            "best": asdict(cached),
            "speed": best.speed,
            "n_draft": best.n_draft,
        }
