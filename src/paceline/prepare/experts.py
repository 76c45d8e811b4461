"""What a mixture of experts says, and how fast, with fewer experts a token.

Each number of experts is another target (`lossy`): its perplexity on a text and its agreement with the whole
model are measured beside its speed, plain and with drafters. All are loaded at once, as they share their
weights, and answer in turns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.api import LLM
from paceline.backends.interface import HasExperts
from paceline.bench.suites import workload
from paceline.loading import load
from paceline.prepare.views import generate_answers, short_items, tokenise_prompts
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs, Target
from paceline.speculative.request import extend_with_prompt
from paceline.speculative.tree import chain
from paceline.storage.lossy import Recommendation, store_recommendation
from paceline.system.home import to_stderr

LOADING, SCORING, ANSWERS = "loading", "scoring", "answers"  # phases
SCORED_ROWS = 64  # rows of a pass over a text
TRIED = 6  # most numbers of experts tried without a choice

Scores = tuple[NDArray[np.float64], NDArray[np.int64]]  # nats of each token, and the likeliest token


@dataclass(frozen=True)
class ExpertsPlan:
    """What to measure. counts: numbers of experts; all below the model's own, if empty.
    text_tokens: tokens of the text. items, n: answers, and tokens of each. bound: most rise of perplexity."""

    counts: tuple[int, ...] = ()
    text: str = ""
    text_tokens: int = 512
    suite: str = "real"
    items: int = 4
    n: int = 64
    bound: float = 0.02


def measure_experts(
    given: Mapping[str, Any], plan: ExpertsPlan, begin: Callable[[Mapping[str, int]], Callable[[str], None]]
) -> dict[str, Any]:
    """Measure the model with each number of experts. Return a record for `paceline experts --json`.

    given: arguments of `load`. begin: called with the steps of each phase, and returns a function to call
    after each step. The recommended number is stored for the role "speed". Raises UsageError for a model
    without experts or an impossible plan."""
    items = short_items(plan.suite, plan.items)
    drafters = ("none", "lookup", *(["model"] if given.get("draft") is not None else []))
    with ExitStack() as opened:
        whole = opened.enter_context(load_with(given, "none", ""))
        used, experts, counts = counts_of(whole, plan)
        n = len(counts) * len(drafters)
        tick = begin({LOADING: n, SCORING: len(counts), ANSWERS: n * len(items)})
        models = {(used, "none"): whole}
        for count in counts:
            lossy = f"experts={count}" if count != used else ""
            for name in drafters:
                if (count, name) not in models:
                    models[count, name] = opened.enter_context(load_with(given, name, lossy))
                tick(LOADING)
        text = text_of(whole, plan, items)
        scores = dict[int, Scores]()
        for count in counts:
            scores[count] = score_text(models[count, "none"].target, text)
            tick(SCORING)
        seconds: dict[tuple[int, str], list[float]] = {at: [] for at in models}
        for prompt in tokenise_prompts(whole, items, plan.n):
            for at, llm in models.items():
                llm.generate(prompt, max_tokens=1, ignore_eos=True)  # the prompt is in the cache then
                answer = llm.generate(prompt, max_tokens=plan.n, ignore_eos=True)
                seconds[at].append(1 / answer.tokens_per_second)
                tick(ANSWERS)
        rows = [row(count, drafters, scores, seconds, used) for count in counts]
        best = recommend(rows, plan.bound)
        remember(whole, rows, best, used, plan.bound, len(text))
        return {
            "model": str(whole.target.path),
            "experts": experts,
            "used": used,
            "bound": plan.bound,
            "text_tokens": len(text),
            "answers": len(items),
            "rows": rows,
            "recommended": best,
        }


def load_with(given: Mapping[str, Any], drafter: str, lossy: str) -> LLM:
    """Load the model with one drafter, and the draft model only if the drafter needs it."""
    needed = {key: value for key, value in given.items() if key != "draft" or drafter == "model"}
    cross_vocab = "auto" if drafter == "model" else "off"
    return load(**needed, cross_vocab=cross_vocab, drafters=drafter, lossy=lossy)


def counts_of(whole: LLM, plan: ExpertsPlan) -> tuple[int, int, list[int]]:
    """Return the experts of a token, those that there are, and the numbers to measure. Raises UsageError."""
    if not isinstance(whole.target, HasExperts):
        raise UsageError(f"{whole.target.path}: has no experts to leave out")
    used, experts = whole.target.expert_counts()
    counts = [used, *(plan.counts or usual_counts(used))]
    if wrong := [n for n in counts[1:] if not 1 <= n <= experts or n == used]:
        raise UsageError(f"experts {wrong[0]}: a token uses {used}; give other numbers from 1 to {experts}")
    return used, experts, counts


def remember(
    whole: LLM, rows: Sequence[Mapping[str, Any]], best: Mapping[str, Any], used: int, bound: float, n: int
) -> None:
    """Store the recommendation for the role "speed". n: tokens of the text."""
    found = next(row for row in rows if row["experts"] == best["experts"])
    effect = (
        f"perplexity {found['rise']:+.1%}, at most {bound:+.0%} allowed; {found['agreement']:.0%} of {n:,} "
        "likeliest tokens are the same"
    )
    lossy = "" if best["experts"] == used else f"experts={best['experts']}"
    models = {"model": whole.target.identity()["model"]}
    store_recommendation("experts", models, Recommendation(lossy, effect), to_stderr)


def usual_counts(used: int) -> tuple[int, ...]:
    """Return numbers below `used`: all, or at most TRIED spread evenly."""
    found = np.unique(np.linspace(1, used - 1, min(TRIED, used - 1)).round().astype(int)) if used > 1 else ()
    return tuple(int(n) for n in reversed(found))


def text_of(llm: LLM, plan: ExpertsPlan, items: Sequence[workload.Item]) -> list[int]:
    """Return the tokens of the text; without one, prompts of the suite and the whole model's answers."""
    if plan.text:
        tokens = llm.target.text.encode(plan.text)
    else:
        tokens = [
            token for prompt, answer in generate_answers(llm, items, plan.n) for token in prompt + answer
        ]
    tokens = tokens[: min(plan.text_tokens, llm.target.caps.n_ctx)]
    if len(tokens) < 2:
        raise UsageError("the text has fewer than two tokens")
    return tokens


def score_text(target: Target, tokens: Sequence[int], n_prompt: int = 1) -> Scores:
    """Return the nats of each token of a text after its prompt, and the token that is likeliest there."""
    nats, likeliest = list[float](), list[int]()
    target.forget()
    with closing(target.open()) as session:
        extend_with_prompt(target, session, tokens[:n_prompt])
        for start in range(n_prompt, len(tokens), SCORED_ROWS):
            right = list(tokens[start : start + SCORED_ROWS])
            out = target.forward([(session, chain(right[:-1], "text"))], RequiredOutputs())[0]
            for row, token in enumerate(right):
                logits = np.asarray(out.logits(row), np.float64)
                most = logits.max()
                nats.append(float(most + np.log(np.exp(logits - most).sum()) - logits[token]))
                likeliest.append(int(logits.argmax()))
            session.commit(range(len(right) - 1), right[-1])
    return np.array(nats), np.array(likeliest)


def row(
    count: int,
    drafters: Sequence[str],
    scores: Mapping[int, Scores],
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
    speed, count, name = max(
        (speed, row["experts"], name)
        for row in rows
        if row["rise"] <= bound
        for name, speed in row["speed"].items()
    )
    return {"experts": count, "drafter": name, "speed": speed}
