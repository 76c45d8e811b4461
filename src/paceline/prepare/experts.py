"""What a mixture of experts outputs, and how fast, with fewer experts per token.

Each number of experts is another target (`lossy`): its perplexity on a text and its agreement with the whole
model are measured together with its speed, plain and with drafters. All are loaded at once, as they share
their weights, and answer in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from paceline.api import LLM
from paceline.backends.interface import HasExperts
from paceline.bench.suites import workload
from paceline.loading import load_options
from paceline.prepare import variants
from paceline.settings import Drafting, LoadOptions, Quality
from paceline.speculative.errors import UsageError

LOADING = "loading"  # phase
MAX_COUNTS = 6  # numbers of experts tried without a choice


def measure_experts(
    models: LoadOptions,
    begin: variants.Begin,
    *,
    counts: Sequence[int] = (),
    text: str = "",
    text_tokens: int = 512,
    suite: str = "real",
    items: int = 4,
    n: int = 64,
    bound: float = 0.02,
) -> dict[str, Any]:
    """Measure the model with each number of experts, store the recommended one for the role "speed", and
    return a record for `paceline experts --json`.
    counts: numbers of experts; all below the model's own, if empty. text: to score, its first `text_tokens`.
    items, n: answers, and tokens of each. bound: maximum rise of perplexity. Raises UsageError."""
    suite_items = variants.short_items(suite, items)
    drafters = ("none", "lookup", *(["model"] if models.draft is not None else []))
    with ExitStack() as opened:

        def load_with(drafter: str, lossy: str) -> LLM:
            """Load the model with one drafter, and the draft model only if the drafter needs it."""
            drafts = drafter == "model"
            drafting = Drafting(drafters=(drafter,), cross_vocab="auto" if drafts else "off")
            draft = models.draft if drafts else None
            needed = replace(models, draft=draft, drafting=drafting, quality=Quality(lossy))
            return opened.enter_context(load_options(needed))

        whole = load_with("none", "")
        used, experts, counts = counts_of(whole, counts)
        lossy = {count: f"experts={count}" if count != used else "" for count in counts}
        n_models = len(counts) * len(drafters)
        n_answers = n_models * len(suite_items)
        tick = begin({LOADING: n_models, variants.SCORING: len(counts), variants.ANSWERS: n_answers})
        loaded = {(used, "none"): whole}
        for count in counts:
            for name in drafters:
                if (count, name) not in loaded:
                    loaded[count, name] = load_with(name, lossy[count])
                tick(LOADING)
        tokens = text_of(whole, text, text_tokens, suite_items, n)
        scores = dict[int, variants.Scores]()
        for count in counts:
            scores[count] = variants.score_text(loaded[count, "none"].target, tokens)
            tick(variants.SCORING)
        prompts = variants.tokenise_prompts(whole, suite_items, n)
        seconds = time_answers(loaded, prompts, n, partial(tick, variants.ANSWERS))
        rows = {count: row(count, drafters, scores, seconds, used) for count in counts}
        best = recommend([*rows.values()], bound)
        found = rows[best["experts"]]
        effect = (
            f"perplexity {found['rise']:+.1%}, at most {bound:+.0%} allowed; {found['agreement']:.0%} of "
            f"{len(tokens):,} likeliest tokens are the same"
        )
        variants.recommend_lossy("experts", {"model": whole.target}, lossy[best["experts"]], effect)
        return {
            "model": str(whole.target.path),
            "experts": experts,
            "used": used,
            "bound": bound,
            "text_tokens": len(tokens),
            "answers": len(suite_items),
            "rows": [*rows.values()],
            "recommended": best,
        }


def counts_of(whole: LLM, wanted: Sequence[int]) -> tuple[int, int, list[int]]:
    """Return the experts per token, those that there are, and the numbers to measure. Raises UsageError."""
    if not isinstance(whole.target, HasExperts):
        raise UsageError(f"{whole.target.path}: has no experts to leave out")
    used, experts = whole.target.expert_counts()
    return used, experts, [*dict.fromkeys([used, *(wanted or usual_counts(used))])]


def usual_counts(used: int) -> tuple[int, ...]:
    """Return numbers below `used`: all, or at most MAX_COUNTS spread evenly."""
    counts = np.linspace(1, used - 1, min(MAX_COUNTS, used - 1)).round().astype(int) if used > 1 else ()
    return tuple(sorted({int(n) for n in counts}, reverse=True))


def text_of(llm: LLM, text: str, limit: int, items: Sequence[workload.Item], n: int) -> list[int]:
    """Return the tokens of the text; without one, prompts of the suite and the whole model's answers."""
    if text:
        tokens = llm.target.text.encode(text)
    else:
        answers = variants.generate_answers(llm, items, n)
        tokens = [token for prompt, answer in answers for token in prompt + answer]
    tokens = tokens[: min(limit, llm.target.caps.n_ctx)]
    if len(tokens) < 2:
        raise UsageError("the text has fewer than two tokens")
    return tokens


def time_answers(
    models: Mapping[tuple[int, str], LLM], prompts: Iterable[list[int]], n: int, tick: Callable[[], None]
) -> dict[tuple[int, str], list[float]]:
    """Return the seconds per token of each model's answers to the prompts, which are in the caches."""
    seconds: dict[tuple[int, str], list[float]] = {at: [] for at in models}
    for prompt in prompts:
        for at, llm in models.items():
            llm.generate(prompt, max_tokens=1, ignore_eos=True)
            answer = llm.generate(prompt, max_tokens=n, ignore_eos=True)
            seconds[at].append(1 / answer.tokens_per_second)
            tick()
    return seconds


def row(
    count: int,
    drafters: Sequence[str],
    scores: Mapping[int, variants.Scores],
    seconds: Mapping[tuple[int, str], Sequence[float]],
    used: int,
) -> dict[str, Any]:
    """Return the figures of one number of experts. Speeds are over the whole model's plain decoding."""
    nats, likeliest = scores[count]
    base = np.array(seconds[used, "none"])
    return {
        "experts": count,
        "perplexity": float(np.exp(nats.mean())),
        "rise": float(np.exp(nats.mean() - scores[used][0].mean()) - 1),
        "agreement": float((likeliest == scores[used][1]).mean()),
        "speed": {name: float(np.mean(base / np.array(seconds[count, name]))) for name in drafters},
    }


def recommend(rows: Sequence[Mapping[str, Any]], bound: float) -> dict[str, Any]:
    """Return the fastest number of experts and drafter whose rise of perplexity is within the bound."""
    good = (row for row in rows if row["rise"] <= bound)
    found = ((speed, row["experts"], name) for row in good for name, speed in row["speed"].items())
    speed, count, name = max(found)
    return {"experts": count, "drafter": name, "speed": speed}
