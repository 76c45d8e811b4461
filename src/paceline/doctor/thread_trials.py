"""Which number of threads reads prompts and decodes fastest: tried with a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from paceline.hardware.containers import Limits
from paceline.hardware.cores import PERFORMANCE, Cores
from paceline.hardware.threads import advise
from paceline.speculative.interfaces import Target
from paceline.speculative.policy.pass_timer import (
    Clock,
    PassTimer,
    Progress,
    cold_tokens,
    measurement_order,
    medians,
)

STAGE = "setting"  # of a progress bar
ROUNDS = 3
SECONDS = 6.0  # about; a large model takes longer
PROMPT = (16, 256)  # tokens of one that is read: at least, at most
PASSES = (2, 48)  # of one token each, likewise
DEPTH = 16  # tokens that these come after
MOST = 12  # numbers of threads
MAX_EQUAL_DIFFERENCE = 0.03  # a difference that three rounds cannot tell from none
FAR = 3.0  # times the fastest one's seconds in the first round, which no other round makes up for


@dataclass(frozen=True)
class Trial:
    """prompt, decode: tokens a second. prompt_ratio, decode_ratio: over the fastest number of threads'."""

    threads: int
    prompt: float
    decode: float
    prompt_ratio: float
    decode_ratio: float

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def counts_for(cores: Cores, limits: Limits) -> list[int]:
    """At most MOST numbers of threads, the fewest first; none more than just beyond a quota, which would
    crawl."""
    physical, logical = cores.physical, cores.logical
    counts = {1, 2, 4, 8, 16, 32, 64, 128, physical // 2, physical, advise(cores, limits).threads}
    counts |= {cores.of_kind(PERFORMANCE)}
    most = logical if cores.smt else physical
    if limits.cpus is not None:
        counts |= {int(limits.cpus), int(limits.cpus) + 1}
        most = min(most, int(limits.cpus) + 1)
    found = [n for n in sorted(counts | {most}) if 1 <= n <= most]
    return found[:1] + found[1:][-(MOST - 1) :]


def measure_thread_counts(
    target: Target,
    use_threads: Callable[[int], None],
    counts: Sequence[int],
    *,
    progress: Progress = cold_tokens,
    clock: Clock = perf_counter,
) -> list[Trial]:
    """Of each number of threads the median of the rounds; one far behind the others in the first has no more.
    What number they are afterwards is for the caller to set back."""
    with closing(PassTimer(target, clock)) as timer:
        half = max(1, target.caps.n_ctx // 2)
        length, passes = min(PROMPT[0], half), min(PASSES[0], half)
        _read_and_decode(timer, length, passes)  # weights come into memory
        a_token, a_pass = _read_and_decode(timer, length, passes)
        share = SECONDS / (ROUNDS * len(counts)) / 2  # of a number in a round: half of it for either
        length = min(PROMPT[1], half, max(length, int(share / a_token)))
        passes = min(PASSES[1], half, max(passes, int(share / a_pass)))
        taken: list[list[tuple[float, float]]] = [[] for _ in counts]
        for i in measurement_order(len(counts), ROUNDS, progress):
            samples = taken[i]
            if samples and samples[0][1] > FAR * min(others[0][1] for others in taken):
                continue
            use_threads(counts[i])
            _read_and_decode(timer, 1, 1)  # threads are made
            samples.append(_read_and_decode(timer, length, passes))
    speeds = [tuple(1 / seconds for seconds in medians(samples)) for samples in taken]
    best = [max(speed[k] for speed in speeds) for k in (0, 1)]
    return [
        Trial(n, prompt, decode, prompt / best[0], decode / best[1])
        for n, (prompt, decode) in zip(counts, speeds, strict=True)
    ]


def _read_and_decode(timer: PassTimer, length: int, passes: int) -> tuple[float, float]:
    """Seconds a token of a new prompt of so many tokens, and of a pass over one row after a short one."""
    timer.reset()
    a_token = timer.prefill(length) / length
    timer.prefill(min(DEPTH, length))
    return a_token, sum(timer.time_pass(1) for _ in range(passes)) / passes


def best(trials: Sequence[Trial]) -> Trial:
    """The fastest at decoding; of those that are alike the one of the fewest threads."""
    return min(
        (one for one in trials if one.decode_ratio >= 1 - MAX_EQUAL_DIFFERENCE), key=lambda one: one.threads
    )
