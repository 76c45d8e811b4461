"""The certificate: what was checked, what came of it, and the verdict."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from typing import Any

import numpy as np

from paceline.api import LLM
from paceline.backends.logit_drift import batch_logit_drift
from paceline.bench.certify.greedy import check_greedy
from paceline.bench.certify.held import (
    ContextRow,
    FixedRowsTarget,
    SamplingSetup,
    record_rows,
    recorded_places,
)
from paceline.bench.certify.prompts import PROMPTS
from paceline.bench.certify.sampled import CHUNK, SampledCheck, check_sampled
from paceline.bench.certify.state import StateCheck, check_state
from paceline.bench.text_comparison import rows_of
from paceline.drafter_factory import make_drafter
from paceline.speculative.errors import ModelError
from paceline.speculative.sampling import Sampling

# Every sampler at once, each doing something to most rows. What was said just now is made likelier, not
# unlikelier: it rarely comes twice, and a row that overlooks its own drafted prefix would hardly show.
ALL_SAMPLERS = Sampling(
    temperature=0.9,
    top_k=50,
    typical_p=0.99,
    top_p=0.97,
    min_p=0.005,
    xtc_probability=0.2,
    xtc_threshold=0.15,
    repeat_penalty=1.1,
    repeat_last_n=8,
    presence_penalty=-1.0,
    frequency_penalty=0.1,
    logit_bias={0: -1.0, 1: 0.5},
)
RECORDED_ROWS = 48  # rows kept of each text
MAX_NOISE_TEXTS = 3  # texts that noise is measured on
MAX_SAMPLED_DEPTH = 7  # tokens of a draft in the sampled check
MIN_TEXT_TOKENS = 128  # tokens of a text that shows the noise: a few of them may not


@dataclass(frozen=True)
class CertifyPlan:
    """n: tokens decoded of each prompt. contexts, runs: of the sampled check. sequences: of the state check.
    sampling: of the sampled check, at temperature 1 where it is 0; named penalties and biases also hold for
    the greedy check."""

    prompts: Sequence[str] = PROMPTS
    n: int = 64
    contexts: int = 8
    runs: int = 2000
    sequences: int = 16
    sampling: Sampling = ALL_SAMPLERS
    seed: int = 0

    def __post_init__(self) -> None:
        if self.sampling.greedy:
            object.__setattr__(self, "sampling", replace(self.sampling, temperature=1.0))


def work(llm: LLM, plan: CertifyPlan) -> dict[str, int]:
    """Check -> how often `certify` ticks for it."""
    draft = plan.sequences if llm.draft is not None else 0
    return {
        "greedy": len(plan.prompts) * (1 + uses_goodput_policy(llm)),
        "state": plan.sequences,
        "draft state": draft,
        "sampled": plan.contexts * math.ceil(plan.runs / CHUNK),
    }


def uses_goodput_policy(llm: LLM) -> bool:
    """Whether a rule decides that may draft little, and otherwise every time."""
    return llm.drafting.policy == "rate"


def certify(llm: LLM, plan: CertifyPlan, tick: Callable[[str], None] = lambda _: None) -> dict[str, Any]:
    """Run every check and return the record that `paceline certify --json` prints.

    tick: called with a check's name after each piece of its work.

    every_draft: the greedy check with all drafts verified, where the policy goes by the clock and may draft
    little.
    draft_state: of the draft model's cache; a defect there costs acceptance, never exactness."""
    named = Sampling() if plan.sampling is ALL_SAMPLERS else plan.sampling
    at_zero = replace(named, temperature=0.0, typical_p=1.0, xtc_probability=0.0)
    # Without costs, it verifies all drafts.
    thorough = LLM(llm.target, llm.drafter, llm.drafting, llm.draft, corpora=llm.corpora)
    greedy, every_draft = [], []
    for prompt in plan.prompts:
        text = prompt_tokens(llm, prompt)
        greedy.append(check_greedy(llm, text, plan.n, at_zero))
        tick("greedy")
        if uses_goodput_policy(llm):
            every_draft.append(check_greedy(thorough, text, plan.n, at_zero, greedy[-1].plain))
            tick("greedy")
    texts = extend_texts([one.text for one in greedy], llm.target.caps.n_ctx)
    state = state_check(llm, llm.target, texts, plan, lambda: tick("state"))
    draft_state = None
    if llm.draft is not None:
        theirs = draft_texts(llm, texts)
        draft_state = state_check(llm, llm.draft, theirs, plan, lambda: tick("draft state"))
    sampled = sampled_check(llm, plan, texts, lambda: tick("sampled"))
    compared = [*greedy, *every_draft]
    worst = float(np.max([one.worst for one in compared]))  # NaN too
    limit = 0.0 if llm.target.caps.exact else state.limit
    alters = llm.target.modification
    failed = {
        altered_target_message(alters): bool(alters),  # whatever the checks say
        "greedy": any(one.verdict == "defect" for one in compared),
        "sampled": not sampled.passed,
        "state": not state.passed,
        "log-probabilities": not worst <= limit,
    }
    defects = [name for name, is_wrong in failed.items() if is_wrong]
    return {
        "certified": not defects,
        "defects": defects,
        "greedy": [one.as_dict() for one in greedy],
        "every_draft": [one.as_dict() for one in every_draft],
        "sampled": sampled.as_dict(),
        "state": state.as_dict(),
        "logprobs": {
            "passed": worst <= limit,
            "tokens": sum(one.n_equal for one in compared),
            "worst": worst,
            "limit": limit,
        },
        "draft_state": None if draft_state is None else draft_state.as_dict(),
    }


def prompt_tokens(llm: LLM, prompt: str) -> list[int]:
    """A prompt's tokens as `paceline run` has them: in the model's chat template, where it has one."""
    try:
        return llm.chat_tokens(prompt)
    except ModelError:
        return llm.tokens(prompt)


def altered_target_message(alters: str) -> str:
    """Why nothing that such a target says is the model's own."""
    return f"the target is not the model in its file ({alters})"


def extend_texts(texts: Sequence[Sequence[int]], n_ctx: int) -> list[list[int]]:
    """Each text, or as much as has cells; a short one goes on with those after it, round and round."""
    out = []
    for i, text in enumerate(texts):
        endless = chain.from_iterable(cycle([*texts[i:], *texts[:i]]))
        out.append(list(islice(endless, min(n_ctx, max(len(text), MIN_TEXT_TOKENS)))))
    return out


def state_check(
    llm: LLM, model: Any, texts: Sequence[list[int]], plan: CertifyPlan, tick: Callable[[], None]
) -> StateCheck:
    budget = llm.drafting.budget
    noise = 0.0
    if not model.caps.equal_rows:
        noise = max(
            batch_logit_drift(model, text, rows_of(model, budget)) for text in texts[:MAX_NOISE_TEXTS]
        )
    return check_state(model, texts, budget, noise, sequences=plan.sequences, seed=plan.seed, tick=tick)


def draft_texts(llm: LLM, texts: Sequence[list[int]]) -> list[list[int]]:
    """The texts in the draft's tokens."""
    assert llm.draft is not None  # the caller's condition
    if llm.drafting.cross_vocab == "off":
        n = llm.draft.vocab.size
        return [[token if token < n else 0 for token in text] for text in texts]  # as drafters/model.py does
    piece = llm.target.text.piece
    spelled = [b"".join(map(piece, text)).decode(errors="replace") for text in texts]
    return extend_texts([llm.draft.text.encode(text) for text in spelled], llm.draft.caps.n_ctx)


def sampled_check(
    llm: LLM, plan: CertifyPlan, texts: Sequence[list[int]], tick: Callable[[], None]
) -> SampledCheck:
    place = ContextRow()
    rows = [record_rows(llm.target, text, RECORDED_ROWS) for text in texts]
    target, draft = FixedRowsTarget(llm.target, np.concatenate(rows), place), None
    if llm.draft is not None:
        theirs = [record_rows(llm.draft, text, RECORDED_ROWS) for text in draft_texts(llm, texts)]
        draft = FixedRowsTarget(llm.draft, np.concatenate(theirs), place)
    drafter, _ = make_drafter(llm.drafting, target, draft, llm.corpora)
    # Longer drafts repeat what shorter ones do, and take longer to draw.
    budget = llm.drafting.budget
    budget = budget.limited_to(MAX_SAMPLED_DEPTH, MAX_SAMPLED_DEPTH * budget.width, budget.width)
    loop = SamplingSetup(target, drafter, place, budget, plan.sampling, llm.drafting.verify)
    places = recorded_places(texts, rows)
    return check_sampled(loop, places, plan.contexts, plan.runs, plan.seed, tick)
