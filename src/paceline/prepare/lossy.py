"""What variants of a target gain in speed, and what they change: fewer experts, or a part of each prompt.

The variants answer prompts of a suite in turns with the whole model. The fastest one whose perplexity, or
agreement with the whole model's likeliest tokens, is within a bound is recommended for the role "speed"."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from paceline.api import LLM
from paceline.backends.interface import HasExperts
from paceline.backends.speculative_prefill import SHORT, AttentionSelector, ShowsAttention
from paceline.bench.suites import workload
from paceline.loading import load_options
from paceline.prepare.suite_prompts import ANSWERS, LOADING, Begin, short_items, tokenise_prompts
from paceline.settings import PLAIN, Drafting, LoadOptions, Quality
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import RequiredOutputs, SelectsPromptTokens, Target
from paceline.speculative.request import extend_with_prompt
from paceline.speculative.tree import chain
from paceline.storage.costs import Recommendation, store_recommendation
from paceline.system.home import to_stderr

SCORED_ROWS = 64  # rows of a pass over a text
MAX_COUNTS = 6  # numbers of experts tried without a choice

Name = TypeVar("Name")


@dataclass(frozen=True)
class Scores:
    """The negative log-likelihood of each token of a text, and the likeliest token at each place."""

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


@dataclass(frozen=True)
class MeasuredAnswer:
    """An answer to one prompt: seconds to its first token, tokens per second after it, the prompt tokens that
    were computed, and the scores of the whole model's answer."""

    seconds: float
    speed: float
    computed: int
    tokens: tuple[int, ...]
    scores: Scores


@dataclass(frozen=True)
class LossyTarget:
    """A target in one of its forms. prepare: gives it this form. plain: no drafter is used."""

    llm: LLM
    plain: bool = True
    prepare: Callable[[], object] = lambda: None

    def answer(self, prompt: Sequence[int], whole: Sequence[int], n: int) -> MeasuredAnswer:
        """Answer a prompt from empty caches, and score `whole` (the own answer, if empty) after it."""
        self.prepare()
        for model in (self.llm.target, self.llm.draft):
            if model is not None:
                model.forget()
        settings: Any = {"ignore_eos": True, "plain": self.plain, "remember": False}
        began = perf_counter()
        with self.llm.stream(prompt, max_tokens=n, **settings) as stream:
            next(stream)
            seconds = perf_counter() - began
            for _ in stream:
                pass
        own = stream.result()
        scores = score_text(self.llm.target, [*prompt, *(whole or own.tokens)], len(prompt))
        computed = len(prompt) - own.n_skipped
        return MeasuredAnswer(seconds, own.tokens_per_second, computed, own.tokens, scores)


def measure_variants(
    variants: Mapping[Name, LossyTarget],
    prompts: Iterable[Sequence[int]],
    n: int,
    tick: Callable[[str], None] = lambda _: None,
) -> dict[Name, list[MeasuredAnswer]]:
    """Answer each prompt with every variant in turns. The first one is the whole model."""
    found: dict[Name, list[MeasuredAnswer]] = {name: [] for name in variants}
    for prompt in prompts:
        whole: tuple[int, ...] = ()
        for name, variant in variants.items():
            found[name].append(answer := variant.answer(prompt, whole, n))
            whole = whole or answer.tokens
            tick(ANSWERS)
    return found


def compare(found: Sequence[MeasuredAnswer], whole: Sequence[MeasuredAnswer]) -> dict[str, Any]:
    """Return the figures of one variant. first_token: time to it, as a share of the whole model's.
    speed: of the other tokens, as a multiple of the whole model's."""
    pairs = list(zip(found, whole, strict=True))
    ours, theirs = (Scores.joined(answer.scores for answer in some) for some in (found, whole))
    return {
        "computed": float(np.mean([answer.computed for answer in found])),
        "first_token": float(np.mean([answer.seconds / full.seconds for answer, full in pairs])),
        "speed": float(np.mean([answer.speed / full.speed for answer, full in pairs])),
        **ours.changes(theirs),
        "same_answers": sum(answer.tokens == full.tokens for answer, full in pairs),
        "tokens": len(ours.nats),
    }


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
    counts: numbers of experts; all below the model's own, if empty.
    text: to score, its first `text_tokens`, instead of the whole model's answers.
    items, n: answers, and tokens of each. bound: maximum rise of perplexity. Raises UsageError."""
    suite_items = short_items(suite, items)
    drafters = ("lookup", *(["model"] if models.draft is not None else []))
    with ExitStack() as opened:
        whole = opened.enter_context(load_options(variant_of(models, "lookup")))
        if not isinstance(whole.target, HasExperts):
            raise UsageError(f"{whole.target.path}: has no experts to leave out")
        used, experts = whole.target.expert_counts()
        lossy = {used: ""} | {it: f"experts={it}" for it in counts or usual_counts(used) if it != used}
        answers = len(lossy) * (1 + len(drafters)) * len(suite_items)
        tick = begin({LOADING: len(lossy) * len(drafters), ANSWERS: answers})
        variants = dict[tuple[int, str], LossyTarget]()
        for count, option in lossy.items():
            for name in drafters:
                needed = variant_of(models, name, option)
                is_whole = (count, name) == (used, "lookup")
                llm = whole if is_whole else opened.enter_context(load_options(needed))
                variants |= {(count, "none"): LossyTarget(llm), (count, name): LossyTarget(llm, plain=False)}
                tick(LOADING)
        found = measure_variants(variants, tokenise_prompts(whole, suite_items, n), n, tick)
        scores = {it: Scores.joined(answer.scores for answer in found[it, "none"]) for it in lossy}
        if text:
            tokens = whole.target.text.encode(text)[: min(text_tokens, whole.target.caps.n_ctx)]
            if len(tokens) < 2:
                raise UsageError("the text has fewer than two tokens")
            scores = {it: score_text(variants[it, "none"].llm.target, tokens) for it in lossy}
        rows = [row_of(count, found, scores, used) for count in lossy]
        best = fastest_experts(rows, bound)
        row = next(row for row in rows if row["experts"] == best["experts"])
        n_scored = len(scores[used].nats)
        effect = (
            f"perplexity {row['rise']:+.1%}, at most {bound:+.0%} allowed; {row['agreement']:.0%} of "
            f"{n_scored:,} likeliest tokens are the same"
        )
        choice = Recommendation(lossy[best["experts"]], effect)
        store_recommendation("experts", {"model": whole.target.identity()["model"]}, choice, to_stderr)
        return {
            "model": str(whole.target.path),
            "experts": experts,
            "used": used,
            "bound": bound,
            "text_tokens": n_scored,
            "answers": len(suite_items),
            "rows": rows,
            "recommended": best,
        }


def row_of(
    count: int, found: Mapping[tuple[int, str], Any], scores: Mapping[int, Scores], used: int
) -> dict[str, Any]:
    """Return the figures of a number of experts."""
    own = {name: answers for (n, name), answers in found.items() if n == count}
    speed = {name: compare(answers, found[used, "none"])["speed"] for name, answers in own.items()}
    perplexity = float(np.exp(scores[count].nats.mean()))
    changes = scores[count].changes(scores[used])
    return {"experts": count, "perplexity": perplexity, **changes, "speed": speed}


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


def fastest_experts(rows: Sequence[Mapping[str, Any]], bound: float) -> dict[str, Any]:
    """Return the fastest number of experts and drafter whose rise of perplexity is within the bound."""
    good = (row for row in rows if row["rise"] <= bound)
    found = ((speed, row["experts"], name) for row in good for name, speed in row["speed"].items())
    speed, count, name = max(found)
    return {"experts": count, "drafter": name, "speed": speed}


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
        tick = begin({ANSWERS: len(prompts) * len(choices)})
        draft.prompt_attention(prompts[0][: SHORT + 1], 1)  # its first call makes a context
        selectors = {share: AttentionSelector(draft, share) for share in shares}
        variants = {
            share: LossyTarget(llm, prepare=partial(setattr, target, "prompt_selector", selectors.get(share)))
            for share in choices
        }
        found = measure_variants(variants, prompts, n, tick)
        rows = [{"share": share} | compare(answers, found[1.0]) for share, answers in found.items()]
        best = soonest_share(rows, bound)
        effect = (
            f"{best['agreement']:.0%} of {best['tokens']:,} tokens of answers stayed the likeliest, at least "
            f"{bound:.0%} wanted"
        )
        names = {"model": target.identity()["model"], "draft": llm.draft.identity()["model"]}
        choice = Recommendation(choices[best["share"]].lossy, effect)
        store_recommendation("prefill", names, choice, to_stderr)
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


def soonest_share(rows: Sequence[dict[str, Any]], bound: float) -> dict[str, Any]:
    """Return the row with the soonest first token whose agreement is within the bound; the first is whole."""
    return min((row for row in rows if row["agreement"] >= bound), key=lambda row: row["first_token"])
