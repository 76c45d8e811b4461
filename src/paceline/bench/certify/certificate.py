"""The losslessness certificate: its plan, its checks and the verdict."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from paceline.api import LLM
from paceline.backends.logit_drift import batch_logit_drift
from paceline.bench.certify import fixed_rows
from paceline.bench.certify.sampled import CHUNK, SampledCheck, check_sampled
from paceline.bench.certify.state import check_state
from paceline.bench.text_comparison import explain, rows_of
from paceline.drafter_factory import make_drafter
from paceline.drafter_table import HEADS
from paceline.drafters.parts import MODEL_SOURCE
from paceline.request_handle import Generation
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import Budget
from paceline.speculative.sampling import Sampling

# Every sampler at once, each changing most rows. The presence penalty is negative: recent tokens become
# likelier, so that a row that overlooks its drafted prefix changes visibly.
ALL_SAMPLERS = Sampling(
    temperature=0.9, top_k=50, typical_p=0.99, top_p=0.97, min_p=0.005, xtc_probability=0.2,
    xtc_threshold=0.15, repeat_penalty=1.1, repeat_last_n=8, presence_penalty=-1.0, frequency_penalty=0.1,
    logit_bias={0: -1.0, 1: 0.5},
)  # fmt: skip
RECORDED_ROWS = 48  # of each text
MAX_NOISE_TEXTS = 3  # on which noise is measured
MAX_SAMPLED_DEPTH = 3  # tokens of a draft in the sampled check
MIN_TEXT_TOKENS = 128  # a shorter text may not show the noise
# Default prompts: typical texts, and repetitive ones whose drafts are long.
PROMPTS: tuple[str, ...] = tuple(json.loads(Path(__file__).with_name("prompts.json").read_text("utf-8")))


@dataclass(frozen=True)
class CertifyPlan:
    """Sizes and settings of the checks.
    n: tokens decoded of each prompt. contexts, runs: of the sampled check. sequences: of the state check.
    sampling: of the sampled check, at temperature 1 where it is 0. Explicit penalties and biases apply to the
    greedy check too."""

    prompts: Sequence[str] = PROMPTS
    n: int = 64
    contexts: int = 8
    runs: int = 1600
    sequences: int = 16
    sampling: Sampling = ALL_SAMPLERS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sampling.greedy:
            object.__setattr__(self, "sampling", replace(self.sampling, temperature=1.0))


def work(llm: LLM, plan: CertifyPlan) -> dict[str, int]:
    """Return the number of ticks of `certify` for each check."""
    return {
        "greedy": len(plan.prompts) * (1 + (llm.drafting.policy == "goodput")),
        "state": plan.sequences,
        "sampled": plan.contexts * math.ceil(plan.runs / CHUNK),
    }


def certify(llm: LLM, plan: CertifyPlan, tick: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Run every check and return the record that `paceline certify --json` prints.
    tick: called with a check's name after each piece of its work.
    every_draft: in the record, the greedy check with all drafts verified, if the policy may draft little."""
    named = Sampling() if plan.sampling is ALL_SAMPLERS else plan.sampling
    at_zero = replace(named, temperature=0.0, dynatemp_range=0.0, typical_p=1.0, xtc_probability=0.0)
    # Without costs the policy verifies all drafts.
    thorough = LLM(llm.target, llm.drafter, llm.drafting, llm.draft, corpora=llm.corpora)
    greedy, every_draft = [], []
    for prompt in plan.prompts:
        text = prompt_tokens(llm, prompt)
        greedy.append(check_greedy(llm, text, plan.n, at_zero))
        tick("greedy")
        if llm.drafting.policy == "goodput":  # it decides whether to draft
            every_draft.append(check_greedy(thorough, text, plan.n, at_zero, greedy[-1].plain))
            tick("greedy")
    texts = extend_texts([one.text for one in greedy], llm.target.caps.n_ctx)
    budget, noise = llm.drafting.budget, 0.0
    if not llm.target.caps.equal_rows:
        rows = rows_of(llm.target, budget)
        noise = max(batch_logit_drift(llm.target, text, rows) for text in texts[:MAX_NOISE_TEXTS])
    state = check_state(
        llm.target, texts, budget, noise, sequences=plan.sequences, seed=plan.seed, tick=lambda: tick("state")
    )
    sampled = sampled_check(llm, plan, texts, lambda: tick("sampled"))
    compared = [one.record for one in (*greedy, *every_draft)]
    worst = float(np.max([one["logprobs"]["worst"] for one in compared]))  # NaN too
    limit = 0.0 if llm.target.caps.exact else state.limit
    alters = llm.target.modification
    passed = {
        altered_target_message(alters): not alters,
        "greedy": all(one["verdict"] != "defect" for one in compared),
        "sampled": sampled.passed,
        "state": state.passed,
        "log-probabilities": worst <= limit,
    }
    defects = [name for name, good in passed.items() if not good]
    return {
        "certified": not defects,
        "defects": defects,
        "greedy": [one.record for one in greedy],
        "every_draft": [one.record for one in every_draft],
        "sampled": sampled.as_dict(),
        "state": state.as_dict(),
        "logprobs": {
            "passed": passed["log-probabilities"],
            "tokens": sum(one["logprobs"]["tokens"] for one in compared),
            "worst": worst,
            "limit": limit,
        },
    }


class GreedyCheck(NamedTuple):
    """The comparison of plain and drafted decoding of a prompt.
    text: prompt and plain output. record: as `paceline certify --json` prints it; its logprobs are the number
    of equal tokens before the first difference, and the largest difference of their log-probabilities."""

    text: tuple[int, ...]
    plain: Generation
    record: dict[str, Any]


def check_greedy(
    llm: LLM, prompt: Sequence[int], n: int, sampling: Sampling, plain: Generation | None = None
) -> GreedyCheck:
    """Compare `n` tokens.
    sampling: at temperature 0, with any penalties and biases. plain: the plain output, if known."""
    request: dict[str, Any] = vars(sampling) | {"max_tokens": n, "logprobs": 0, "remember": False}
    prompt = tuple(prompt)  # an empty list would mean a batch without prompts
    sampling = llm.sampling(**vars(sampling))  # with sequence breakers as tokens
    plain = plain or llm.generate(prompt, plain=True, **request)
    drafted = llm.generate(prompt, **request)
    difference = explain(llm.target, prompt, plain.tokens, drafted.tokens, llm.drafting.budget, sampling)
    verdict, described = "identical", None
    if difference is not None:
        verdict = "near-tie" if difference.near_tie else "defect"
        piece = llm.target.text.piece
        texts = tuple("" if t is None else piece(t).decode(errors="replace") for t in difference.tokens)
        described = vars(difference) | {"text": texts}
    equal = None if difference is None else difference.index
    both = list(zip(plain.logprobs, drafted.logprobs, strict=False))[:equal]
    worst = float(np.max([abs(a.logprob - b.logprob) for a, b in both], initial=0.0))  # NaN too
    record = {
        "verdict": verdict,
        "n_tokens": plain.n_tokens,
        "stats": drafted.stats.as_dict(),
        "difference": described,
        "logprobs": {"tokens": len(both), "worst": worst},
    }
    return GreedyCheck((*prompt, *plain.tokens), plain, record)


def prompt_tokens(llm: LLM, prompt: str) -> list[int]:
    """Return a prompt's tokens, in the model's chat template if it has one."""
    try:
        return llm.chat_tokens(prompt)
    except ModelError:
        return llm.tokens(prompt)


def altered_target_message(alters: str) -> str:
    return f"the target is not the model in its file ({alters})"


def extend_texts(texts: Sequence[Sequence[int]], n_ctx: int) -> list[list[int]]:
    """Extend each text to MIN_TEXT_TOKENS with those after it, cyclically, and cut it to `n_ctx`."""
    out = []
    for i, text in enumerate(texts):
        endless = chain.from_iterable(cycle([*texts[i:], *texts[:i]]))
        out.append(list(islice(endless, min(n_ctx, max(len(text), MIN_TEXT_TOKENS)))))
    return out


def draft_texts(llm: LLM, texts: Sequence[list[int]]) -> list[list[int]]:
    assert llm.draft is not None  # the caller's condition
    if llm.drafting.cross_vocab == "off":
        n = llm.draft.vocab.size
        return [[token if token < n else 0 for token in text] for text in texts]  # as drafters/model.py does
    piece = llm.target.text.piece
    decoded = [b"".join(map(piece, text)).decode(errors="replace") for text in texts]
    return extend_texts([llm.draft.text.encode(text) for text in decoded], llm.draft.caps.n_ctx)


def sampled_check(
    llm: LLM, plan: CertifyPlan, texts: Sequence[list[int]], tick: Callable[[], None]
) -> SampledCheck:
    place = fixed_rows.ContextRow()
    rows = [fixed_rows.record_rows(llm.target, text, RECORDED_ROWS) for text in texts]
    target, draft = fixed_rows.FixedRowsTarget(llm.target, np.concatenate(rows), place), None
    if llm.draft is not None:
        in_draft = draft_texts(llm, texts)
        draft_rows = [fixed_rows.record_rows(llm.draft, text, RECORDED_ROWS) for text in in_draft]
        draft = fixed_rows.FixedRowsTarget(llm.draft, np.concatenate(draft_rows), place)
    # The recorded rows of a head are drafted from like those of a draft model: there are no hidden states.
    names = tuple(MODEL_SOURCE if name in HEADS else name for name in llm.drafting.drafters)
    drafter, _ = make_drafter(replace(llm.drafting, drafters=names), target, draft, llm.corpora)
    budget = sampled_budget(llm.drafting.budget)
    loop = fixed_rows.SamplingSetup(target, drafter, place, budget, plan.sampling, llm.drafting.verify)
    return check_sampled(
        loop, fixed_rows.recorded_places(texts, rows), plan.contexts, plan.runs, plan.seed, tick
    )


def sampled_budget(budget: Budget) -> Budget:
    """Return the budget of the sampled check: longer drafts repeat its cases, and take longer."""
    return budget.limited_to(MAX_SAMPLED_DEPTH, MAX_SAMPLED_DEPTH * budget.width, budget.width)
