"""The search for the part of a model that drafts best for it.

Candidate views skip blocks evenly, or skip the layers that change hidden states least (arXiv:2403.03853).
Each is scored by the share of tokens of the model's text that it predicts, and by the expected speed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from paceline.backends.views import ModelView, SearchesViews, evenly_spaced_view
from paceline.drafts import require_fit, traits_of
from paceline.fits import LAYER_VIEW
from paceline.loading import load_options
from paceline.prepare.variants import ANSWERS, Begin, Text, generate_answers, short_items
from paceline.profiling.pass_costs import costs_of
from paceline.settings import PLAIN, LoadOptions
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.policy.costs import PassCosts
from paceline.speculative.policy.speedup_formulas import speedup
from paceline.speculative.tree import chain
from paceline.storage.costs import CachedView, store_view
from paceline.system.home import to_stderr

VIEWS = "views"  # phase
Closest = Callable[[Sequence[int], int, int], Sequence[frozenset[int]]]
MOST_AHEAD = 8  # draft tokens in the expected speed
SHARE = 0.5  # maximum share of skipped blocks, if several numbers are tried
GUIDES, SEEN = 2, 96  # number of guide texts, and of their last tokens


@dataclass(frozen=True)
class ViewScore:
    """agreement: share of tokens predicted. share: of the model's weights. speed: expected speedup over plain
    decoding with n_draft tokens a draft."""

    view: ModelView
    method: str
    agreement: float
    share: float
    speed: float
    n_draft: int


class ViewEvaluator:
    """Evaluates views on `texts`, whose prompts the whole model prefills once, each in a session."""

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
                n = min(session.pending_tokens, whole.caps.max_prefill_tokens)
                whole.forward([(session, n)], RequiredOutputs())
            self._sessions.append(session)

    def agreement(self, view: Any) -> float:
        """Return the share of tokens that a view of the whole engine predicts."""
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
        agreement, share = self.agreement(engine), engine.weight_bytes / self._whole.weight_bytes
        speeds = [
            speedup(agreement, n, share, self._curve[n + 1] / self._curve[1])
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
    """Yield the scores of at most `tries` different views. Raises UsageError for too many blocks.
    blocks: to skip; 0 tries several numbers. guides: texts for `closest` (HfTarget.search_skipped_layers)."""
    most = max(1, round(SHARE * 2 * (judge.layers - 2)))
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
    """Yield views without the whole layers that hidden states suggest to skip."""
    wanted = sorted({(n + 1) // 2 for n in numbers if n > 1})
    if not wanted:
        return
    for prompt, answer in guides:
        skipped = closest([*prompt, *answer], len(answer), wanted[-1])
        for n in wanted:
            if n <= len(skipped):
                layers = sorted(skipped[n - 1])
                odd = len(numbers) == 1 and numbers[0] % 2  # one block less than whole layers
                yield ModelView(0, frozenset(layers), frozenset(layers[: len(layers) - odd]))


def search_views(
    models: LoadOptions, begin: Begin, *, blocks: int, tries: int, items: int, n: int, suite: str
) -> dict[str, Any]:
    """Search for a view, store it, and return a record for `paceline views search --json`: all views `tried`
    in order, and the `best` one with its `speed` on other texts. A KeyboardInterrupt in phase VIEWS ends the
    search with the views tried so far, if any. Raises UsageError or ModelError."""
    suite_items = short_items(suite, 2 * items)
    engine = replace(models.engine, sessions=max(1, len(suite_items)))
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
        for text in generate_answers(llm, suite_items, n):
            texts.append(text)
            tick(ANSWERS)
        searched, held_out = texts[::2], texts[1::2]
        tried, guides = list[ViewScore](), [(prompt[-SEEN:], answer) for prompt, answer in searched[:GUIDES]]
        judge, closest = ViewEvaluator(whole, searched, cost), whole.search_skipped_layers
        try:
            for score in search(judge, tries=tries, blocks=blocks, guides=guides, closest=closest):
                tried.append(score)
                tick(VIEWS)
        except KeyboardInterrupt:
            if not tried:
                raise
        judge.close()
        other = ViewEvaluator(whole, held_out or searched, cost)
        best_found = max(tried, key=lambda score: score.speed)
        best = other.evaluate(best_found.view, best_found.method)
        other.close()
        cached = CachedView(best.view.spec, best.agreement, best.share, other.tokens, best.method, len(tried))
        store_view(llm.target.identity()["model"], cached, to_stderr)
        layers = whole.layers
        return {
            "model": str(llm.target.path),
            "layers": layers,
            "blocks": 2 * layers,
            "tokens": judge.tokens,
            "tried": [
                vars(score) | {"view": score.view.spec, "left_out": score.view.n_skipped_blocks(layers)}
                for score in tried
            ],
            "best": asdict(cached),
            "speed": best.speed,
            "n_draft": best.n_draft,
        }
