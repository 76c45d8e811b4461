"""Speculative prefill measured: how soon the first token comes, and what is left of the answer.

The target answers grounded prompts. With a part of the prompt, chosen by the draft model, each token of that
answer is predicted again: how often is it still the likeliest, and how much less likely is the answer?"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.api import LLM
from paceline.backends.speculative_prefill import SHORT, AttentionSelector, ShowsAttention
from paceline.bench.suites import workload
from paceline.loading import load_options
from paceline.prepare import variants
from paceline.settings import PLAIN, LoadOptions, Quality
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import SelectsPromptTokens
from paceline.system.home import to_stderr


@dataclass(frozen=True)
class MeasuredAnswer:
    """An answer to one prompt. nats, likeliest: of the whole prompt's answer, token by token."""

    seconds: float
    computed: int
    answer: tuple[int, ...]
    nats: NDArray[np.float64]
    likeliest: NDArray[np.int64]


def measure_prefill(
    models: LoadOptions,
    begin: variants.Begin,
    *,
    shares: Sequence[float] = (0.5, 0.3, 0.2, 0.1),
    suite: str = "real-grounded",
    items: int = 8,
    n: int = 64,
    bound: float = 0.9,
) -> dict[str, Any]:
    """Measure answers with parts of their prompts, store the recommended share for the role "speed", and
    return a record for `paceline prefill --json`.
    shares: of each prompt. items, n: answers, and tokens of each. bound: minimum share of the answers' tokens
    that must stay the likeliest. Raises UsageError, as for a suite without long prompts."""
    shares = sorted(shares, reverse=True)
    choices = {1.0: Quality(), **{share: Quality(f"prefill={share:g}") for share in shares}}
    with load_options(replace(models, drafting=PLAIN, quality=Quality("prefill=0.5"))) as llm:
        target, draft = llm.target, llm.draft
        assert isinstance(target, SelectsPromptTokens)
        assert isinstance(draft, ShowsAttention)  # else `load` refused it
        prompts = long_prompts(llm, suite, items, n)
        tick = begin(dict.fromkeys((variants.ANSWERS, variants.SCORING), len(prompts) * (1 + len(shares))))
        found: dict[float, list[MeasuredAnswer]] = {share: [] for share in choices}
        draft.prompt_attention(prompts[0][: SHORT + 1], 1)  # its first call makes a context
        for prompt in prompts:
            answer: tuple[int, ...] = ()
            for share, answers in found.items():
                target.prompt_selector = None if share == 1.0 else AttentionSelector(draft, share)
                answers.append(measured := measure(llm, prompt, answer, n, tick))
                answer = answer or measured.answer
        rows = [row(share, found[share], found[1.0]) for share in found]
        best = recommend(rows, bound)
        effect = (
            f"{best['agreement']:.0%} of {best['tokens']:,} tokens of answers stayed the likeliest, at least "
            f"{bound:.0%} wanted"
        )
        lossy = choices[best["share"]].lossy
        variants.recommend_lossy("prefill", {"model": target, "draft": draft}, lossy, effect)
        return {
            "model": str(llm.target.path),
            "draft": str(llm.draft.path),
            "suite": suite,
            "bound": bound,
            "prompts": len(prompts),
            "prompt_tokens": float(np.mean([len(prompt) for prompt in prompts])),
            "rows": rows,
            "recommended": best["share"],
        }


def long_prompts(llm: LLM, suite: str, items: int, n: int) -> list[list[int]]:
    """Return the prompts of which a part can be computed. Raises UsageError if there are none."""
    prompts = list[list[int]]()
    for item in workload.sample_items(workload.load(suite), items):
        try:
            prompts += variants.tokenise_prompts(llm, [item], n)
        except UsageError as error:
            to_stderr(str(error))
    prompts = [prompt for prompt in prompts if len(prompt) > SHORT]
    if not prompts:
        raise UsageError(f"suite {suite}: holds no prompt of more than {SHORT} tokens that fits")
    return prompts


def measure(
    llm: LLM, prompt: Sequence[int], answer: Sequence[int], n: int, tick: Callable[[str], None]
) -> MeasuredAnswer:
    """Answer a prompt from empty caches, and predict `answer` (the own one, if empty) after it."""
    assert llm.draft is not None
    for model in (llm.target, llm.draft):
        model.forget()
    began = perf_counter()
    with llm.stream(prompt, max_tokens=n, ignore_eos=True) as stream:
        next(stream)
        seconds = perf_counter() - began
        for _ in stream:
            pass
    whole = stream.result()
    tick(variants.ANSWERS)
    text = [*prompt, *(answer or whole.tokens)]
    nats, likeliest = variants.score_text(llm.target, text, len(prompt))
    tick(variants.SCORING)
    return MeasuredAnswer(seconds, len(prompt) - whole.n_skipped, whole.tokens, nats, likeliest)


def row(share: float, found: Sequence[MeasuredAnswer], whole: Sequence[MeasuredAnswer]) -> dict[str, Any]:
    """Return the figures of one share. first_token: time to it, as a share of the whole prompt's."""
    pairs = list(zip(found, whole, strict=True))
    same = np.concatenate([one.likeliest == np.array(full.answer) for one, full in pairs])
    rise = np.concatenate([one.nats - full.nats for one, full in pairs]).mean()
    return {
        "share": share,
        "computed": float(np.mean([one.computed for one in found])),
        "first_token": float(np.mean([one.seconds / full.seconds for one, full in pairs])),
        "agreement": float(same.mean()),
        "rise": float(np.exp(rise) - 1),
        "same_answers": sum(one.answer == full.answer for one, full in pairs),
        "tokens": len(same),
    }


def recommend(rows: Sequence[dict[str, Any]], bound: float) -> dict[str, Any]:
    """Return the row with the soonest first token whose agreement is within the bound, else the first."""
    good = (row for row in rows if row["agreement"] >= bound)
    return min(good, key=lambda row: row["first_token"], default=rows[0])
