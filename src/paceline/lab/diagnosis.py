"""Why drafting loses, or gains less than it could: the likely causes, each with what it is concluded from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from paceline.core.theory import (
    best_n_draft,
    break_even,
    distinct_experts,
    expected_tokens,
    with_verification_cost,
)
from paceline.lab.evidence import Evidence
from paceline.machine.models.facts import HYBRID, RECURRENT

HIGH, MEDIUM, LOW = "high", "medium", "low"
SEVERITIES = (HIGH, MEDIUM, LOW)

QUANTISED = ("q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")  # of llama.cpp's cache types
ROWS = 8  # of the pass that a mixture of experts is judged by
DEAR_DRAFT = 0.25  # of a step's time: less does not decide whether it pays
TAKEN = 0.25  # processors that others keep busy, which is no more than the usual noise
THROTTLED = 0.02  # of a run's time
SWAPPED = 1 << 20  # bytes
GROWN, USUAL = 1.4, 2048  # times what a row costs, within so many tokens of context
FAULTS = 1000  # pages read from disk in a run: 4 MB


@dataclass(frozen=True)
class Cause:
    """name: short, and the same in every report. evidence: the numbers. remedy: what to do."""

    name: str
    severity: str
    evidence: str
    remedy: str


def diagnose(evidence: Evidence) -> list[Cause]:
    """The gravest first."""
    found = [cause for judge in JUDGES if (cause := judge(evidence)) is not None]
    return sorted(found, key=lambda cause: SEVERITIES.index(cause.severity))


def dear_verification(e: Evidence) -> Cause | None:
    a, ratio = e.acceptance, e.relative(e.length + 1)
    if a is None or ratio is None:
        return None
    needed = break_even(ratio, e.length)
    if needed is not None and a >= needed:
        return None
    must = "more than certainty" if needed is None else f"an acceptance of {needed:.2f}"
    return Cause(
        "verification too dear",
        HIGH,
        f"a pass over {e.length + 1} rows costs {ratio:.2f} of one over a single row, which takes {must} "
        f"to pay; {a:.2f} was measured",
        _other_length(e, a),
    )


def _other_length(e: Evidence, a: float) -> str:
    def verify(rows: int) -> float:
        return e.relative(rows) or float(rows)

    most = max(1, max(e.curve or (2,)) - 1)
    best = best_n_draft(a, e.draft_cost or 0.0, verify, longest=most)
    if best == 0:
        return "decode plainly here (--draft none), or use a draft that is right more often"
    return f"drafts of {best} (--n-draft {best}), or --draft auto, which decides by what passes cost"


def dear_draft(e: Evidence) -> Cause | None:
    a, cost, verify = e.acceptance, e.draft_cost, e.relative(e.length + 1)
    total = sum((e.times or {}).values())
    share = (e.times or {}).get("draft", 0.0) / total if total > 0 else 0.0
    if a is None or cost is None or verify is None or share < DEAR_DRAFT:
        return None
    free, real = (with_verification_cost(a, e.length, c, verify) for c in (0.0, cost))
    decides = free > 1.0 >= real
    return Cause(
        "draft too dear",
        HIGH if decides else MEDIUM,
        f"drafting takes {share:.0%} of a step; a token of the draft {cost:.0%} of a row of the target"
        + (
            f", and {expected_tokens(a, e.length):.2f} tokens a step do not make up for it" if decides else ""
        ),
        "use a smaller draft model, or lookup, which costs nothing (--draft lookup)",
    )


def growing_experts(e: Evidence) -> Cause | None:
    ratio = e.relative(ROWS)
    if not 0 < e.experts_used < e.experts or ratio is None:
        return None
    grown = distinct_experts(e.experts, e.experts_used, ROWS) / e.experts_used
    if ratio < 1 + (grown - 1) / 3:  # it is not what the pass waits for
        return None
    return Cause(
        "expert growth",
        MEDIUM,
        f"{e.experts_used} of {e.experts} experts a token: {ROWS} rows read about {grown:.1f} times as many, "
        f"and a pass over them costs {ratio:.2f} of one over a single row",
        "keep drafts short and certain (--draft auto, or a higher --p-min)",
    )


def dear_attention(e: Evidence) -> Cause | None:
    deeper = {depth: seconds for depth, seconds in (e.deeper or {}).items() if depth <= USUAL}
    if not e.flash or e.target_layers > 0 or len(deeper) < 2:
        return None
    low, high = min(deeper), max(deeper)
    grown = deeper[high] / deeper[low]
    if grown < GROWN:
        return None
    return Cause(
        "attention too dear",
        MEDIUM,
        f"a pass over one row costs {grown:.2f} after {high:,} tokens of what it costs after {low:,}",
        "do without flash attention (-fa off) where that is faster, as it may be on a processor: "
        "`paceline doctor --measure` tries both after more tokens than loading does",
    )


def whole_rollback(e: Evidence) -> Cause | None:
    if e.memory not in (RECURRENT, HYBRID):
        return None
    return Cause(
        "full-checkpoint rollback",
        HIGH,
        f"the target is {e.memory}: its state cannot be cut back to the tokens that were accepted, only "
        "restored as a whole",
        "decode plainly (--draft none); drafts pay for targets with attention alone",
    )


def wrong_device(e: Evidence) -> Cause | None:
    if e.gpus == 0:
        return None
    if e.offload is False:
        return Cause(
            "engine without GPU",
            HIGH,
            f"{_counted(e.gpus, 'GPU')} here, and the installed llama-cpp-python cannot use any",
            "install a build with CUDA, ROCm, Vulkan or Metal, and keep layers there (-ngl 99)",
        )
    if e.offload and e.drafted_for and (e.target_layers > 0) != (e.draft_layers > 0):
        on, off = ("target", "draft") if e.target_layers > 0 else ("draft", "target")
        return Cause(
            "drafter on the wrong device",
            HIGH,
            f"layers of the {on} are on a GPU and those of the {off} are not",
            "keep both on it, the draft first: it is asked more often (-ngl 99)",
        )
    if e.offload and e.target_layers == 0:
        return Cause(
            "GPU not used",
            HIGH,
            f"{_counted(e.gpus, 'GPU')} here, an engine that can use it, and no layers on it",
            "keep layers there (-ngl 99)",
        )
    return None


def other_template(e: Evidence) -> Cause | None:
    if (
        not e.drafted_for
        or not e.template
        or "".join(e.template.split()) == "".join((e.draft_template or "").split())
    ):
        return None
    what = "none" if not e.draft_template else "another one"
    return Cause(
        "template differs",
        LOW,
        f"the target has a chat template of {len(e.template):,} characters, the draft {what}",
        "take a draft that was tuned on the same template: it guesses badly at what it never saw",
    )


def beyond_training(e: Evidence) -> Cause | None:
    for name, trained in (("target", e.trained), ("draft", e.draft_trained if e.drafted_for else 0)):
        if 0 < trained < e.n_ctx:
            return Cause(
                "context beyond training",
                MEDIUM if name == "target" else LOW,
                f"a context of {e.n_ctx:,} tokens; the {name} was trained on {trained:,}",
                f"ask for less (-c {trained})",
            )
    return None


def quantised_cache(e: Evidence) -> Cause | None:
    if e.cache_type.lower() not in QUANTISED:
        return None
    return Cause(
        "KV cache quantised",
        MEDIUM,
        f"--cache-type {e.cache_type}: rows are taken apart at every pass, and a draft's guesses get worse",
        "leave it at f16, and ask for less context (-c) where memory is short",
    )


def many_threads(e: Evidence) -> Cause | None:
    if e.quota is not None and e.threads > max(1.0, e.quota):
        return Cause(
            "too many threads",
            HIGH,
            f"{e.threads} threads, and the container's quota is {e.quota:g} processors' time",
            f"-t {max(1, int(e.quota))}: threads wait for those that the quota stops",
        )
    if 0 < e.physical < e.threads:
        return Cause(
            "too many threads",
            MEDIUM,
            f"{e.threads} threads on {_counted(e.physical, 'physical core')}",
            f"-t {e.physical}; `paceline doctor --measure` tries them",
        )
    return None


def throttling(e: Evidence) -> Cause | None:
    if e.throttled is None or e.seconds <= 0 or e.throttled < THROTTLED * e.seconds:
        return None
    return Cause(
        "throttled",
        HIGH,
        f"the container's quota stopped it for {e.throttled:.2f} s in a run of {e.seconds:.2f} s"
        " (of all its threads together)",
        "fewer threads (-t), or a larger quota",
    )


def swapping(e: Evidence) -> Cause | None:
    if e.swapped >= SWAPPED or e.faults >= FAULTS:
        swapped = f"{e.swapped / 1e6:,.0f} MB came back from swap (of all programs)"
        read = f"{swapped} and {e.faults:,} pages from disk"
        return Cause(
            "swapping", HIGH, f"{read} in a run of {e.seconds:.1f} s", "a smaller model or less context (-c)"
        )
    if e.size and e.usable and e.size > e.usable:
        return Cause(
            "swapping",
            HIGH,
            f"the models have {e.size / 1e9:.1f} GB, this machine {e.usable / 1e9:.1f} GB of memory to give",
            "a smaller model, or one quantised further",
        )
    if e.size and e.available and e.size > e.available:
        return Cause(
            "swapping",
            MEDIUM,
            f"the models have {e.size / 1e9:.1f} GB, {e.available / 1e9:.1f} GB of memory were free",
            "close other programs",
        )
    return None


def taken_cores(e: Evidence) -> Cause | None:
    if e.others is None or not e.logical or e.others + e.threads <= e.logical + TAKEN:
        return None
    return Cause(
        "cores taken by others",
        HIGH if e.others > 0.5 * e.logical else MEDIUM,
        f"other programs kept {e.others:.1f} of {_counted(e.logical, 'processor')} busy, beside "
        f"{_counted(e.threads, 'thread')} of ours",
        "end them, or leave them cores (-t): threads wait for the slowest among them",
    )


def _counted(n: int, what: str) -> str:
    return f"{n} {what}{'' if n == 1 else 's'}"


JUDGES: tuple[Callable[[Evidence], Cause | None], ...] = (
    whole_rollback,
    throttling,
    taken_cores,  # before what was measured beside them
    many_threads,
    swapping,
    wrong_device,
    dear_verification,
    dear_draft,
    growing_experts,
    dear_attention,
    quantised_cache,
    beyond_training,
    other_template,
)
