"""A diagnosis of drafting that loses or gains little: the likely causes, each with its evidence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from paceline.fits import ABSENT, NO_GRAPH, STRIPPED
from paceline.hardware.cores import cores_taken
from paceline.models.headers.facts import HYBRID, RECURRENT
from paceline.speculative.policy import speedup_formulas as theory
from paceline.speculative.printable import count

HIGH, MEDIUM = SEVERITIES = ("high", "medium")

ROWS = 8  # batch tokens of the pass that a mixture of experts is judged by
MIN_DRAFT_SHARE = 0.25  # of a step's time: a smaller share does not decide
MIN_REJECTED = 0.5  # of drafts, which are rejected somewhere: fewer do not matter
MIN_DRAFTED_TOKENS = 20  # for an acceptance rate
MIN_ACCEPTANCE = 0.1  # of a draft that fits at all
SHORT_DRAFTS = "keep drafts short and certain (--draft auto, or a higher --p-min)"


@dataclass(frozen=True)
class Evidence:
    """Facts about a pair of models, the machine and a drafted run. None, empty or 0: unknown, causes nothing.
    threads: for decoding; physical, logical: usable cores; quota: processors' worth of time.
    gpus: GPUs that could gain; offload: the engine can use them; target_layers: layers on a GPU.
    memory: kind of memory (Facts.memory). experts, experts_used: of the target.
    mtp: of the target's file (fits.py). cache_type: of the KV cache.
    size: bytes of both models; available, usable: bytes of memory, free before loading and total.
    curve: seconds of a target pass by rows. draft_token: seconds of a draft token.
    doubt: why the measured times are not usable.
    steps, drafted, accepted, rejected, times: of a drafted run (speculative/stats.py).
    others: processors that other programs kept busy."""

    threads: int = 0
    physical: int = 0
    logical: int = 0
    quota: float | None = None
    gpus: int = 0
    offload: bool | None = None
    target_layers: int = 0
    memory: str = ""
    experts: int = 0
    experts_used: int = 0
    mtp: str = ABSENT
    cache_type: str = ""
    size: int = 0
    available: int = 0
    usable: int = 0
    curve: Mapping[int, float] | None = None
    draft_token: float | None = None
    doubt: str = ""
    steps: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    times: Mapping[str, float] | None = None
    others: float | None = None

    @property
    def acceptance(self) -> float | None:
        """Return the chance that a drafted token is accepted; None after too few tokens."""
        return theory.acceptance(self.accepted, self.rejected) if self.drafted >= MIN_DRAFTED_TOKENS else None

    @property
    def length(self) -> int:
        """Return the mean draft length in tokens."""
        return max(1, round(self.drafted / self.steps)) if self.steps else 0

    def relative(self, rows: int) -> float | None:
        """Return the cost of a pass relative to one row; an unmeasured size costs as the next larger."""
        curve = self.curve or {}
        known = [n for n in sorted(curve) if n >= rows]
        return curve[known[0]] / curve[1] if known and 1 in curve else None

    @property
    def draft_cost(self) -> float | None:
        """Return the cost of a draft token relative to a target pass over one row."""
        if self.draft_token is None or not self.curve or 1 not in self.curve:
            return None
        return self.draft_token / self.curve[1]


@dataclass(frozen=True)
class Cause:
    """A cause of a loss. name: the same in every report. evidence: the numbers. remedy: the advice."""

    name: str
    severity: str
    evidence: str
    remedy: str


def diagnose(evidence: Evidence) -> list[Cause]:
    """Return the causes, the gravest first."""
    found = [cause for judge in CHECKS for cause in judge(evidence)]
    return sorted(found, key=lambda cause: SEVERITIES.index(cause.severity))


def verification_too_expensive(e: Evidence) -> Iterator[Cause]:
    a, ratio = e.acceptance, e.relative(e.length + 1)
    if a is None or ratio is None:
        return
    needed = theory.break_even(ratio, e.length)
    if needed is None or a < needed:
        must = "more than certainty" if needed is None else f"an acceptance of {needed:.2f}"
        why = f"a pass over {e.length + 1} rows costs {ratio:.2f} of one over a single row, which takes "
        why += f"{must} to pay; {a:.2f} was measured"
        yield Cause("verification too dear", HIGH, why, _other_length(e, a))


def _other_length(e: Evidence, a: float) -> str:
    def verify(rows: int) -> float:
        return e.relative(rows) or float(rows)

    most = max(1, max(e.curve or (2,)) - 1)
    best = theory.best_n_draft(a, e.draft_cost or 0.0, verify, longest=most)
    if best == 0:
        return "decode plainly here (--draft none), or use a draft that is right more often"
    return f"drafts of {best} (--n-draft {best}), or --draft auto, which decides by what passes cost"


def draft_too_expensive(e: Evidence) -> Iterator[Cause]:
    a, cost, verify = e.acceptance, e.draft_cost, e.relative(e.length + 1)
    total = sum((e.times or {}).values())
    share = (e.times or {}).get("draft", 0.0) / total if total > 0 else 0.0
    if a is None or cost is None or verify is None or share < MIN_DRAFT_SHARE:
        return
    free, real = (theory.speedup(a, e.length, c, verify) for c in (0.0, cost))
    decides = free > 1.0 >= real
    lines = f"drafting takes {share:.0%} of a step; a token of the draft {cost:.0%} of a row of the target"
    if decides:
        lines += f", and {theory.expected_tokens(a, e.length):.2f} tokens a step do not make up for it"
    remedy = "use a smaller draft model, or lookup, which costs nothing (--draft lookup)"
    yield Cause("draft too dear", HIGH if decides else MEDIUM, lines, remedy)


def growing_experts(e: Evidence) -> Iterator[Cause]:
    ratio = e.relative(ROWS)
    if not 0 < e.experts_used < e.experts or ratio is None:
        return
    grown = theory.distinct_experts(e.experts, e.experts_used, ROWS) / e.experts_used
    if ratio >= 1 + (grown - 1) / 3:  # otherwise it is not what the pass waits for
        why = f"{e.experts_used} of {e.experts} experts a token: {ROWS} rows read about {grown:.1f} times as "
        why += f"many, and a pass over them costs {ratio:.2f} of one over a single row"
        yield Cause("expert growth", MEDIUM, why, SHORT_DRAFTS)


def recomputed_tokens(e: Evidence) -> Iterator[Cause]:
    share = e.rejected / e.steps if e.steps else 0.0
    if e.memory in (RECURRENT, HYBRID) and share > MIN_REJECTED:
        why = f"the target is {e.memory}: after a rejection its state returns to a checkpoint, and accepted "
        why += f"tokens are computed again; that is so for {share:.0%} of drafts"
        yield Cause("checkpoint rollback", MEDIUM, why, SHORT_DRAFTS)


def missing_layers(e: Evidence) -> Iterator[Cause]:
    if e.mtp == STRIPPED:
        why = "models like the target predict their own next tokens, with layers that its file lacks"
        remedy = "use a file that has them: repositories whose name ends in -MTP-GGUF (paceline pull)"
        yield Cause("MTP layers left out", MEDIUM, why, remedy)
    elif e.mtp == NO_GRAPH:
        why = "the target has layers for its next tokens, which the engine cannot compute (paceline pairs)"
        yield Cause("MTP layers not computed", MEDIUM, why, "a newer version of the engine may know them")


def quantised_cache(e: Evidence) -> Iterator[Cause]:
    a = e.acceptance
    if a is not None and a < MIN_ACCEPTANCE and e.cache_type == "q8_0":
        why = f"{a:.2f} of drafted tokens were accepted, and keys and values have 8 bits, with which drafts "
        why += "of some models collapse (Gemma 4)"
        yield Cause("quantised cache", HIGH, why, "the usual cache (--cache-type f16)")


def unused_gpu(e: Evidence) -> Iterator[Cause]:
    if e.gpus == 0 or e.offload is None or e.target_layers > 0:
        return
    if e.offload:
        message, remedy = "an engine that can use them, and no layers there", "keep layers there (-ngl 99)"
    else:
        message = "and the installed llama-cpp-python cannot use any"
        remedy = "install a build with CUDA, ROCm, Vulkan or Metal, and keep layers there (-ngl 99)"
    yield Cause("GPU not used", HIGH, f"GPUs here: {e.gpus}, {message}", remedy)


def many_threads(e: Evidence) -> Iterator[Cause]:
    threads = count(e.threads, "thread")
    if e.quota is not None and e.threads > max(1.0, e.quota):
        why = f"{threads}, and the container's quota is {e.quota:g} processors' time"
        remedy = f"-t {max(1, int(e.quota))}: threads wait for those that the quota stops"
        yield Cause("too many threads", HIGH, why, remedy)
    elif 0 < e.physical < e.threads:
        why = f"{threads}, {count(e.physical, 'physical core')}"
        yield Cause("too many threads", MEDIUM, why, f"-t {e.physical}")


def swapping(e: Evidence) -> Iterator[Cause]:
    size = f"the models have {e.size / 1e9:.1f} GB"
    if e.size and e.usable and e.size > e.usable:
        message = f"{size}, this machine {e.usable / 1e9:.1f} GB of memory to give"
        yield Cause("swapping", HIGH, message, "a smaller model, or one quantised further")
    elif e.size and e.available and e.size > e.available:
        message = f"{size}, {e.available / 1e9:.1f} GB of memory were free"
        yield Cause("swapping", MEDIUM, message, "close other programs")


def taken_cores(e: Evidence) -> Iterator[Cause]:
    if e.others is not None and e.logical and cores_taken(e.others, e.threads, e.logical):
        beside = f"next to {count(e.threads, 'thread')}"
        why = f"other programs kept {e.others:.1f} of {e.logical} processors busy, {beside}"
        remedy = "end them, or leave them cores (-t): threads wait for the slowest among them"
        yield Cause("cores taken by others", HIGH if e.others > 0.5 * e.logical else MEDIUM, why, remedy)


def too_busy(e: Evidence) -> Iterator[Cause]:
    if e.doubt:
        why = f"{e.doubt}: the machine was too busy to tell what passes cost"
        remedy = "run this again with --refresh when it is calm; nothing is concluded from these times"
        yield Cause("unreliable timings", HIGH, why, remedy)


CHECKS: tuple[Callable[[Evidence], Iterator[Cause]], ...] = (
    taken_cores,  # before what was measured beside them
    too_busy,
    many_threads,
    swapping,
    unused_gpu,
    verification_too_expensive,
    draft_too_expensive,
    growing_experts,
    recomputed_tokens,
    quantised_cache,
    missing_layers,
)
