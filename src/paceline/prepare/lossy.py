"""What variants of a target gain in speed, and what they change: fewer experts, or a part of each prompt.

The variants answer prompts of a suite in turns with the whole model. The fastest one whose perplexity, or
agreement with the whole model's likeliest tokens, is within a bound is recommended for the role "speed"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.api import LLM
from paceline.backends.interface import HasExperts
from paceline.backends.speculative_prefill import SHORT, AttentionSelector, ShowsAttention
from paceline.bench.suites import workload
from paceline.loading import load_options
from paceline.prepare.suite_answers import (
    ANSWERS,
    LOADING,
    SCORING,
    Begin,
    generate_answers,
    short_items,
    tokenise_prompts,
)
from paceline.settings import PLAIN, Drafting, LoadOptions, Quality
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs, SelectsPromptTokens, Target
from paceline.speculative.request import extend_with_prompt
from paceline.speculative.tree import chain
from paceline.storage.costs import Recommendation, store_recommendation
from paceline.system.home import to_stderr

SCORED_ROWS = 64  # rows of a pass over a text
MAX_COUNTS = 6  # numbers of experts tried without a choice


@dataclass(frozen=True)
class Scores:
    """Of the tokens of a text: their negative log-likelihood, and the likeliest tokens in their places."""

    nats: NDArray[np.float64]
    likeliest: NDArray[np.int64]

    def changes(self, whole: Scores) -> dict[str, float]:
        """Return the rise of perplexity over the whole model's, and how often its likeliest token is ours."""
        rise = float(np.exp(self.nats.mean() - whole.nats.mean()) - 1)
        return {"rise": rise, "agreement": float((self.likeliest == whole.likeliest).mean())}

    @classmethod
    def joined(cls, scores: Iterable[Scores]) -> Scores:
        columns = zip(*((some.nats, some.likeliest) for some in scores), strict=True)
        return cls(*map(np.concatenate, columns))


def score_text(target: Target, tokens: Sequence[int], n_prompt: int = 1) -> Scores:
    """Score the tokens of a text after its prompt."""
    nats, likeliest = list[float](), list[int]()
    target.forget()
    with closing(target.open()) as session:
        extend_with_prompt(target, session, tokens[:n_prompt])
        for start in range(n_prompt, len(tokens), SCORED_ROWS):
            right = list(tokens[start : start + SCORED_ROWS])
            out = target.forward([(session, chain(right[:-1], "text"))], RequiredOutputs())[0]
            for row, token in enumerate(right):
                logits = np.asarray(out.logits(row), np.float64)
                top = logits.max()
                nats.append(float(top + np.log(np.exp(logits - top).sum()) - logits[token]))
                likeliest.append(int(logits.argmax()))
            session.commit(range(len(right) - 1), right[-1])
    return Scores(np.array(nats), np.array(likeliest))


def measure_experts(
    models: LoadOptions,
    begin: Begin,
    *,
    counts: Sequence[int] = (),
    text: str = "",
    text_tokens: int = 512,
    suite: str = "real",
    items: int = 4,
    n: int = 64,
    bound: float = 0.02,
) -> dict[str, Any]:
    """Measure a mixture of experts with each number of experts, plain and with drafters; all are loaded at
    once, as they share their weights. Return a record for `paceline experts --json`.
    counts: numbers of experts; all below the model's own, if empty. text: to score, its first `text_tokens`.
    items, n: answers, and tokens of each. bound: maximum rise of perplexity. Raises UsageError."""
    suite_items = short_items(suite, items)
    drafters = ("lookup", *(["model"] if models.draft is not None else []))
    with ExitStack() as opened:
        whole = opened.enter_context(load_options(variant_of(models, "lookup")))
        if not isinstance(whole.target, HasExperts):
            raise UsageError(f"{whole.target.path}: has no experts to leave out")
        used, experts = whole.target.expert_counts()
        lossy = {used: ""} | {it: f"experts={it}" for it in counts or usual_counts(used) if it != used}
        steps = {LOADING: len(lossy) * len(drafters), SCORING: len(lossy)}
        tick = begin(steps | {ANSWERS: len(lossy) * (1 + len(drafters)) * len(suite_items)})
        loaded = dict[tuple[int, str], LLM]()
        for count, choice in lossy.items():
            for name in drafters:
                llm = whole
                if (count, name) != (used, "lookup"):
                    llm = opened.enter_context(load_options(variant_of(models, name, choice)))
                loaded[count, name] = llm
                tick(LOADING)
        tokens = scored_text(whole, text, text_tokens, suite_items, n)
        scores = dict[int, Scores]()
        for count in lossy:
            scores[count] = score_text(loaded[count, "lookup"].target, tokens)
            tick(SCORING)
        speeds = answer_speeds(loaded, list(tokenise_prompts(whole, suite_items, n)), n, tick)
        rows = []
        for count in lossy:
            ratios = {name: speeds[count, name] / speeds[used, "none"] for name in ("none", *drafters)}
            perplexity = {"perplexity": float(np.exp(scores[count].nats.mean()))}
            speed = {"speed": {name: float(np.mean(ratio)) for name, ratio in ratios.items()}}
            rows.append({"experts": count} | perplexity | scores[count].changes(scores[used]) | speed)
        best = fastest_experts(rows, bound)
        row = next(row for row in rows if row["experts"] == best["experts"])
        effect = (
            f"perplexity {row['rise']:+.1%}, at most {bound:+.0%} allowed; {row['agreement']:.0%} of "
            f"{len(tokens):,} likeliest tokens are the same"
        )
        found = Recommendation(lossy[best["experts"]], effect)
        store_recommendation("experts", {"model": whole.target.identity()["model"]}, found, to_stderr)
        return {
            "model": str(whole.target.path),
            "experts": experts,
            "used": used,
            "bound": bound,
            "text_tokens": len(tokens),
            "answers": len(suite_items),
            "rows": rows,
            "recommended": best,
        }


def variant_of(models: LoadOptions, drafter: str, lossy: str = "") -> LoadOptions:
    """Return a variant with one drafter, and the draft model only if the drafter needs it."""
    drafts = drafter == "model"
    drafting = Drafting(drafters=(drafter,), cross_vocab="auto" if drafts else "off")
    draft = models.draft if drafts else None
    return replace(models, draft=draft, drafting=drafting, quality=Quality(lossy))


def usual_counts(used: int) -> tuple[int, ...]:
    """Return numbers below `used`: all, or at most MAX_COUNTS spread evenly."""
    counts = np.linspace(1, used - 1, min(MAX_COUNTS, used - 1)).round().astype(int) if used > 1 else ()
    return tuple(sorted({int(n) for n in counts}, reverse=True))


def scored_text(llm: LLM, text: str, limit: int, items: Sequence[workload.Item], n: int) -> list[int]:
    """Return the tokens of the text; without one, prompts of the suite and the whole model's answers."""
    if text:
        tokens = llm.target.text.encode(text)
    else:
        tokens = [token for texts in generate_answers(llm, items, n) for part in texts for token in part]
    tokens = tokens[: min(limit, llm.target.caps.n_ctx)]
    if len(tokens) < 2:
        raise UsageError("the text has fewer than two tokens")
    return tokens


def answer_speeds(
    loaded: Mapping[tuple[int, str], LLM],
    prompts: Sequence[Sequence[int]],
    n: int,
    tick: Callable[[str], None],
) -> dict[tuple[int, str], NDArray[np.float64]]:
    """Return the tokens per second of each prompt's answer, with the prompt in the cache, by number of
    experts and drafter ("none" for plain decoding). They answer in turns."""
    plain = {(count, "none"): llm for (count, name), llm in loaded.items() if name == "lookup"}
    speeds: dict[tuple[int, str], list[float]] = {variant: [] for variant in (*plain, *loaded)}
    for prompt in prompts:
        for (count, name), llm in (plain | dict(loaded)).items():
            settings: Any = {"ignore_eos": True, "plain": name == "none", "remember": False}
            llm.generate(prompt, max_tokens=1, **settings)  # into the cache
            speeds[count, name].append(llm.generate(prompt, max_tokens=n, **settings).tokens_per_second)
            tick(ANSWERS)
    return {variant: np.array(found) for variant, found in speeds.items()}


def fastest_experts(rows: Sequence[Mapping[str, Any]], bound: float) -> dict[str, Any]:
    """Return the fastest number of experts and drafter whose rise of perplexity is within the bound."""
    good = (row for row in rows if row["rise"] <= bound)
    found = ((speed, row["experts"], name) for row in good for name, speed in row["speed"].items())
    speed, count, name = max(found)
    return {"experts": count, "drafter": name, "speed": speed}


@dataclass(frozen=True)
class PrefilledAnswer:
    """An answer to one prompt: seconds to its first token, the prompt tokens that were computed, and the
    scores of the whole prompt's answer."""

    seconds: float
    computed: int
    answer: tuple[int, ...]
    scores: Scores


def measure_prefill(
    models: LoadOptions,
    begin: Begin,
    *,
    shares: Sequence[float] = (0.5, 0.3, 0.2, 0.1),
    suite: str = "real-grounded",
    items: int = 8,
    n: int = 64,
    bound: float = 0.9,
) -> dict[str, Any]:
    """Measure answers with parts of their prompts, which the draft model chooses: how soon the first token
    comes, and what is left of the whole prompt's answer, each of whose tokens is predicted again. Return a
    record for `paceline prefill --json`.
    shares: of each prompt. items, n: answers, and tokens of each. bound: minimum share of the answers' tokens
    that must stay the likeliest. Raises UsageError, as for a suite without long prompts."""
    shares = sorted(shares, reverse=True)
    choices = {1.0: Quality(), **{share: Quality(f"prefill={share:g}") for share in shares}}
    with load_options(replace(models, drafting=PLAIN, quality=Quality("prefill=0.5"))) as llm:
        target, draft = llm.target, llm.draft
        assert isinstance(target, SelectsPromptTokens)
        assert isinstance(draft, ShowsAttention)  # else `load` refused it
        prompts = long_prompts(llm, suite, items, n)
        tick = begin(dict.fromkeys((ANSWERS, SCORING), len(prompts) * (1 + len(shares))))
        found: dict[float, list[PrefilledAnswer]] = {share: [] for share in choices}
        draft.prompt_attention(prompts[0][: SHORT + 1], 1)  # its first call makes a context
        for prompt in prompts:
            answer: tuple[int, ...] = ()
            for share, answers in found.items():
                target.prompt_selector = None if share == 1.0 else AttentionSelector(draft, share)
                answers.append(measured := answer_prefilled(llm, prompt, answer, n, tick))
                answer = answer or measured.answer
        rows = [{"share": share} | compare_prefilled(found[share], found[1.0]) for share in found]
        best = soonest_share(rows, bound)
        effect = (
            f"{best['agreement']:.0%} of {best['tokens']:,} tokens of answers stayed the likeliest, at least "
            f"{bound:.0%} wanted"
        )
        models_key = {"model": target.identity()["model"], "draft": llm.draft.identity()["model"]}
        choice = Recommendation(choices[best["share"]].lossy, effect)
        store_recommendation("prefill", models_key, choice, to_stderr)
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
            prompts += tokenise_prompts(llm, [item], n)
        except UsageError as error:
            to_stderr(str(error))
    prompts = [prompt for prompt in prompts if len(prompt) > SHORT]
    if not prompts:
        raise UsageError(f"suite {suite}: holds no prompt of more than {SHORT} tokens that fits")
    return prompts


def answer_prefilled(
    llm: LLM, prompt: Sequence[int], answer: Sequence[int], n: int, tick: Callable[[str], None]
) -> PrefilledAnswer:
    """Answer a prompt from empty caches, and score `answer` (the own one, if empty) after it."""
    assert llm.draft is not None
    for model in (llm.target, llm.draft):
        model.forget()
    began = perf_counter()
    with llm.stream(prompt, max_tokens=n, ignore_eos=True) as stream:
        next(stream)
        seconds = perf_counter() - began
        for _ in stream:
            pass
    own = stream.result()
    tick(ANSWERS)
    scores = score_text(llm.target, [*prompt, *(answer or own.tokens)], len(prompt))
    tick(SCORING)
    return PrefilledAnswer(seconds, len(prompt) - own.n_skipped, own.tokens, scores)


def compare_prefilled(found: Sequence[PrefilledAnswer], whole: Sequence[PrefilledAnswer]) -> dict[str, Any]:
    """Return the figures of one share. first_token: time to it, as a share of the whole prompt's."""
    pairs = list(zip(found, whole, strict=True))
    ours, theirs = (Scores.joined(answer.scores for answer in some) for some in (found, whole))
    return {
        "computed": float(np.mean([answer.computed for answer in found])),
        "first_token": float(np.mean([answer.seconds / full.seconds for answer, full in pairs])),
        **ours.changes(theirs),
        "same_answers": sum(answer.answer == full.answer for answer, full in pairs),
        "tokens": len(ours.nats),
    }


def soonest_share(rows: Sequence[dict[str, Any]], bound: float) -> dict[str, Any]:
    """Return the row with the soonest first token whose agreement is within the bound; the first is whole."""
    return min((row for row in rows if row["agreement"] >= bound), key=lambda row: row["first_token"])
