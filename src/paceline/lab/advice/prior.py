"""How often a draft will be right, before anybody has measured it.

A small table, not a model: what was published for pairs of models, by task, as a range; moved by what is
known of the two. Every number has its source beside it, or the word judgement. The ranges are wide on
purpose: pairs of one size and family differ by a fifth, and which task is the easiest differs between pairs
as well (arXiv:2604.14682 found chat easier than code). A measured acceptance takes the place of all of this
(past.py).

Acceptance is Leviathan's `a` (core/theory.py): the chance that the next drafted token is kept, given that
those before it were."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

from paceline.core.errors import UsageError
from paceline.machine.models.facts import Facts

ANY = "any"
LEAST, MOST = 0.02, 0.98  # no prior is sure of anything


@dataclass(frozen=True)
class Range:
    low: float
    likely: float
    high: float

    def moved(self, by: float, *, wider: float = 0.0) -> Range:
        low, likely, high = (
            min(MOST, max(LEAST, value + by)) for value in (self.low - wider, self.likely, self.high)
        )
        return Range(low, likely, high)


@dataclass(frozen=True)
class Task:
    """model: the acceptance of a draft of the target's family with a tenth of its parameters, at Q8_0.
    copied: how often the text so far, or an earlier one, has a guess for what follows (a share of the steps);
    copier: how often its tokens are right then."""

    model: Range
    copied: Range
    copier: Range
    source: str


SPEC_BENCH = "Spec-Bench leaderboard, github.com/hemingkx/Spec-Bench"
SUFFIX = "arXiv:2411.04975"
DSPARK = "by position, github.com/vllm-project/speculators/issues/1135"
TASKS: Mapping[str, Task] = {
    # Qwen2.5-Coder-32B + 3B: 313 of 912 kept at K = 16, which is a = 0.86
    # (github.com/ggml-org/llama.cpp/pull/10455); HumanEval 0.82 (DSPARK); 11x with K = 24, which nothing
    # below 0.94 gives, for 32B + 0.5B (a user's report).
    "code": Task(
        Range(0.62, 0.79, 0.92), Range(0.15, 0.30, 0.50), Range(0.50, 0.68, 0.85), f"{DSPARK}; {SUFFIX}"
    ),
    # Copying, here and in the next three: what suffix gained on our own suites (1.8x, 1.5x, 1.6x and 1.4x
    # where passes are cheap, docs/drafters.md), and upwards what was published of real traffic. The model's:
    # as code, judgement.
    "edit": Task(
        Range(0.62, 0.79, 0.92), Range(0.25, 0.50, 0.90), Range(0.60, 0.80, 0.96), "arXiv:2412.01447"
    ),
    "json": Task(  # from tool calls, judgement
        Range(0.58, 0.76, 0.92), Range(0.18, 0.38, 0.75), Range(0.50, 0.72, 0.92), "judgement"
    ),
    "agent": Task(  # tool calls 0.75 (DSPARK); SWE-Bench 3.8x by suffix alone
        Range(0.58, 0.75, 0.90), Range(0.20, 0.42, 0.85), Range(0.55, 0.76, 0.95), f"{DSPARK}; {SUFFIX}"
    ),
    "quote": Task(  # texts that repeat their prompt: prompt lookup on retrieval 1.6x
        Range(0.55, 0.72, 0.88), Range(0.18, 0.36, 0.80), Range(0.55, 0.74, 0.95), SPEC_BENCH
    ),
    "math": Task(  # 0.82 (DSPARK); prompt lookup 1.6x
        Range(0.60, 0.76, 0.88), Range(0.20, 0.35, 0.50), Range(0.50, 0.66, 0.80), f"{DSPARK}; {SPEC_BENCH}"
    ),
    "summary": Task(  # draft model 2.00x where all tasks have 1.83x; prompt lookup 2.3x
        Range(0.55, 0.70, 0.85), Range(0.25, 0.42, 0.70), Range(0.65, 0.80, 0.92), SPEC_BENCH
    ),
    "chat": Task(  # draft model 1.98x, 2.3 tokens a step; prompt lookup 1.5x
        Range(0.48, 0.66, 0.82), Range(0.12, 0.28, 0.42), Range(0.45, 0.62, 0.78), SPEC_BENCH
    ),
    # Writing 0.62 (DSPARK); Llama-3.1-8B + 3.2-1B 526 of 730 kept
    # (github.com/ggml-org/llama.cpp/issues/5877).
    "prose": Task(Range(0.45, 0.62, 0.80), Range(0.05, 0.14, 0.30), Range(0.30, 0.48, 0.68), DSPARK),
    "translation": Task(  # draft model 1.37x, the least of all tasks; prompt lookup 1.05x
        Range(0.35, 0.52, 0.70), Range(0.04, 0.11, 0.25), Range(0.30, 0.45, 0.65), SPEC_BENCH
    ),
    # 123 recorded answers: suffix has a guess at 26% of the steps and 1.70 tokens a step (docs/drafters.md).
    ANY: Task(Range(0.45, 0.69, 0.90), Range(0.10, 0.28, 0.60), Range(0.45, 0.70, 0.90), "all of them"),
}

# Vicuna with one draft of 68M: 2.29, 2.18 and 2.01 tokens a step at 7B, 13B and 33B (SPEC_BENCH). 1 -
# 1/tokens falls by 0.06 over the 0.67 decades of that.
PER_DECADE = 0.09
USUAL_RATIO = 10.0
LEAST_RATIO, MOST_RATIO = 1.0, 1000.0

# How much farther from the target's words a draft is that was made by others. Judgement: Llama 3.1 8B and 3.2
# 1B, of two families, do as well as any; models that only share a vocabulary were taught by different texts.
RELATED, STRANGER, OTHER_VOCABULARY = -0.02, -0.12, -0.20
UNSURE = 0.10  # on the low side, where the families' names tell nothing

# What quantising the draft costs. Its own words move by a total variation of at most sqrt(KL / 2) (Pinsker),
# and acceptance by no more than they do; the logarithm of the perplexity's ratio stands for KL: for an 8B
# model 1.565 at Q2_K, 1.028 at Q4_K_M, 1.0035 at Q6_K, 1.0004 at Q8_0
# (github.com/ggml-org/llama.cpp/pull/6936). A third of that bound is taken: judgement, and so are the bits in
# between. Models of 0.5B lose more: Q5_K_M 1.022 (huggingface.co/jukofyork/DeepSeek-R1-DRAFT-0.5B-v1.0-GGUF),
# which is why the rest is rounded up.
BY_BITS: Mapping[int, float] = {1: 0.30, 2: 0.16, 3: 0.09, 4: 0.045, 5: 0.03, 6: 0.015, 8: 0.005}
BITS = re.compile(r"(?:^|[^A-Z0-9])(?:I?Q|TQ|(?:MX|NV)FP)([1-8])", re.IGNORECASE)


def task_of(name: str) -> Task:
    """Raises UsageError."""
    if name not in TASKS:
        raise UsageError(f"--task {name}: choose from {', '.join(TASKS)}")
    return TASKS[name]


def expected(task: str, target: Facts, draft: Facts, *, mappable: bool = False) -> Range:
    """Of a draft model's tokens. mappable: it has another vocabulary and is translated for."""
    found = task_of(task).model
    by, wider = kinship(target.family, draft.family)
    if mappable:
        by, wider = min(by, OTHER_VOCABULARY), max(wider, UNSURE)
    by -= PER_DECADE * (math.log10(size_ratio(target, draft)) - math.log10(USUAL_RATIO))
    return found.moved(by - quantised(draft.quantisation), wider=wider)


def size_ratio(target: Facts, draft: Facts) -> float:
    """In parameters, where both are known, and otherwise in bytes."""
    if target.parameters and draft.parameters:
        ratio = target.parameters / draft.parameters
    else:
        ratio = target.size / draft.size if target.size and draft.size else USUAL_RATIO
    return min(MOST_RATIO, max(LEAST_RATIO, ratio))


def kinship(target: str, draft: str) -> tuple[float, float]:
    """By how much the acceptance of such a draft is lower, and by how much its range is wider."""
    if target and target == draft:
        return 0.0, 0.0
    if not target or not draft:
        return STRANGER / 2, UNSURE
    return (RELATED, 0.0) if _words(target) & _words(draft) else (STRANGER, UNSURE)


def quantised(kind: str) -> float:
    """What the draft's quantisation takes from its acceptance; kind: as its file says, Q4_K_M."""
    bits = bits_of(kind)
    return 0.0 if bits is None else BY_BITS[min(BY_BITS, key=lambda known: (abs(known - bits), known))]


def bits_of(kind: str) -> int | None:
    """None for whole floats, and where it is not known."""
    match = BITS.search(kind)
    return None if match is None else int(match[1])


def _words(family: str) -> set[str]:
    """qwen2.5-coder is of the kin of qwen3: a name without its numbers."""
    plain = (re.sub(r"[^a-z]", "", word) for word in re.split(r"[-_ .\d]+", family.lower()))
    return {word for word in plain if len(word) > 2} - {"distill", "coder", "instruct", "chat", "base"}
