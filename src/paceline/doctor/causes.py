"""The causes of a loss, each with its evidence and a remedy. Unknown facts cause nothing."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from paceline.fits import ABSENT, NO_GRAPH, STRIPPED, USABLE
from paceline.hardware.cores import cores_taken
from paceline.models.headers.facts import HYBRID, RECURRENT
from paceline.speculative import speedup_formulas as theory
from paceline.speculative.printable import count

HIGH, MEDIUM = SEVERITIES = ("high", "medium")

ROWS = 8  # batch tokens of the pass that a mixture of experts is judged by
MIN_DRAFT_SHARE = 0.25  # of a step's time: a smaller share does not decide
MIN_REJECTED = 0.5  # of drafts, which are rejected somewhere: fewer do not matter
MIN_DRAFTED_TOKENS = 20  # for an acceptance rate
LOW_ACCEPTANCE = 0.3  # below which the draft is the cause, not what verification costs
GOOD_ACCEPTANCE = 0.6  # from which a draft has no fault worth naming
LARGE_DRAFT = 0.5  # bytes of the draft relative to the target
NEAR_CHANCE = 0.85  # of the logarithm of the vocabulary: such a model knows nothing of the text
FEW_BITS = ("iq1", "iq2", "q2", "tq1", "tq2", "iq3", "q3")
KERNEL_STEP = 1.5  # a pass over two rows relative to one, which kernels for few rows avoid
QUICK_PASS = 0.002  # seconds: work around the passes takes as long as they do
MIN_OVERHEAD = 0.15  # of a step's time, outside passes and drafting
SHORT_ANSWER = 48  # tokens
HIGH_TEMPERATURE = 0.9
SHORT_DRAFTS = "keep drafts short and certain (--draft auto, or a higher --p-min)"


@dataclass(frozen=True)
class Evidence:
    """Facts about a pair of models, the machine, a drafted run and recorded requests. None, empty or 0:
    unknown, causes nothing.
    threads: for decoding; physical, logical: usable cores; quota: processors' worth of time.
    gpus: GPUs that could gain; offload: the engine can use them; target_layers: layers on a GPU.
    kernels: why Paceline's kernels for processors are not used, or "".
    memory: kind of memory (Facts.memory). experts, experts_used: of the target.
    mtp: of the target's file (fits.py); uses_mtp: these layers draft. cache_type: of the KV cache.
    target_size, draft_size: bytes; available, usable: bytes of memory, free before loading and total.
    quantisation: of the draft. translated: the draft has another vocabulary. differences: what else of a
    draft's tokenizer and template may lower the acceptance.
    log_vocab: the logarithm of the vocabulary's size; surprise: the draft's mean negative log-likelihood of
    the target's text, in nats per token.
    curve: seconds of a target pass by rows. draft_token: seconds of a draft token.
    doubt: why the measured times are not usable.
    proposals, drafted, accepted, rejected, times: steps with a draft, and counts of a drafted run
    (speculative/stats.py); tried: the acceptance of drafts that its policy would not have verified.
    others: processors that other programs kept busy.
    requests, answer_tokens, temperature, early_changes: of recorded requests: their number, the medians, and
    the share of prompts that differ early from the one before and then go on alike."""

    threads: int = 0
    physical: int = 0
    logical: int = 0
    quota: float | None = None
    gpus: int = 0
    offload: bool | None = None
    target_layers: int = 0
    kernels: str = ""
    memory: str = ""
    experts: int = 0
    experts_used: int = 0
    mtp: str = ABSENT
    uses_mtp: bool = False
    cache_type: str = ""
    target_size: int = 0
    draft_size: int = 0
    available: int = 0
    usable: int = 0
    quantisation: str = ""
    translated: bool = False
    differences: tuple[str, ...] = ()
    log_vocab: float = 0.0
    surprise: float | None = None
    curve: Mapping[int, float] | None = None
    draft_token: float | None = None
    doubt: str = ""
    proposals: int = 0
    drafted: int = 0
    accepted: int = 0
    rejected: int = 0
    tried: float | None = None
    times: Mapping[str, float] | None = None
    others: float | None = None
    requests: int = 0
    answer_tokens: float = 0.0
    temperature: float = 0.0
    early_changes: float = 0.0

    @property
    def acceptance(self) -> float | None:
        """Return the chance that a drafted token is accepted; None after too few tokens."""
        if self.drafted < MIN_DRAFTED_TOKENS:
            return self.tried
        return theory.acceptance(self.accepted, self.rejected)

    @property
    def length(self) -> int:
        """Return the mean draft length in tokens."""
        return max(1, round(self.drafted / self.proposals)) if self.proposals else 1

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

    def share(self, *parts: str) -> float:
        """Return the share of these parts of a step's time."""
        times = self.times or {}
        total = sum(times.values())
        return sum(times.get(part, 0.0) for part in parts) / total if total > 0 else 0.0


@dataclass(frozen=True)
class Cause:
    """A cause of a loss. name: the same in every report. evidence: the numbers. remedy: the advice."""

    name: str
    severity: str
    evidence: str
    remedy: str


def diagnose(evidence: Evidence) -> list[Cause]:
    """Return the causes, the gravest first; what others on the machine did comes before what was measured."""
    judges = causes_in_machine, causes_in_draft, causes_in_costs, causes_in_target, causes_in_requests
    found = [cause for judge in judges for cause in judge(evidence)]
    return sorted(found, key=lambda cause: SEVERITIES.index(cause.severity))


def causes_in_machine(e: Evidence) -> Iterator[Cause]:
    threads = count(e.threads, "thread")
    if e.others is not None and e.logical and cores_taken(e.others, e.threads, e.logical):
        why = f"other programs kept {e.others:.1f} of {e.logical} processors busy, next to {threads}"
        remedy = "end them, or leave them cores (-t): threads wait for the slowest among them"
        yield Cause("cores taken by others", HIGH if e.others > 0.5 * e.logical else MEDIUM, why, remedy)
    if e.doubt:
        why = f"{e.doubt}: the machine was too busy to tell what passes cost"
        remedy = "run this again with --refresh when it is calm; nothing is concluded from these times"
        yield Cause("unreliable timings", HIGH, why, remedy)
    if e.quota is not None and e.threads > max(1.0, e.quota):
        why = f"{threads}, and the container's quota is {e.quota:g} processors' time"
        remedy = f"-t {max(1, int(e.quota))}: threads wait for those that the quota stops"
        yield Cause("too many threads", HIGH, why, remedy)
    elif 0 < e.physical < e.threads:
        why = f"{threads}, {count(e.physical, 'physical core')}"
        yield Cause("too many threads", MEDIUM, why, f"-t {e.physical}")
    size = e.target_size + e.draft_size
    models = f"the models have {size / 1e9:.1f} GB"
    if e.usable and size > e.usable:
        why = f"{models}, this machine {e.usable / 1e9:.1f} GB of memory to give"
        yield Cause("swapping", HIGH, why, "a smaller model, or one quantised further")
    elif e.available and size > e.available:
        why = f"{models}, {e.available / 1e9:.1f} GB of memory were free"
        yield Cause("swapping", MEDIUM, why, "close other programs")
    if e.gpus and e.offload is not None and not e.target_layers:
        why, remedy = "an engine that can use them, and no layers there", "keep layers there (-ngl 99)"
        if not e.offload:
            why = "and the installed llama-cpp-python cannot use any"
            remedy = f"install a build with CUDA, ROCm, Vulkan or Metal, and {remedy}"
        yield Cause("GPU not used", HIGH, f"GPUs here: {e.gpus}, {why}", remedy)


def causes_in_draft(e: Evidence) -> Iterator[Cause]:
    """Yield what needs no clock: sizes, acceptance, vocabulary."""
    if e.target_size and e.draft_size > LARGE_DRAFT * e.target_size:
        why = f"the draft has {e.draft_size / e.target_size:.0%} of the target's bytes, and reads them for "
        remedy = "take a draft of a tenth of the target, or lookup (paceline pairs lists what is here)"
        yield Cause("draft too large", HIGH, f"{why}every token that it guesses", remedy)
    a = e.acceptance
    if e.surprise is not None and e.log_vocab and e.surprise > NEAR_CHANCE * e.log_vocab:
        why = f"the draft gives a token of the target's text a probability of {math.exp(-e.surprise):.1e}, "
        why += f"where chance has {math.exp(-e.log_vocab):.1e}: its weights are damaged or untrained"
        yield Cause("draft damaged", HIGH, why, "download it again; paceline pairs lists others")
        return
    if a is None or a >= GOOD_ACCEPTANCE:
        return
    right = f"{a:.2f} of its guesses are what the target says"
    if e.translated:
        why = f"the draft has another vocabulary ({'; '.join(e.differences)}), and {right}"
        remedy = "a draft of the target's family (paceline pairs), or its vocabulary (paceline transplant)"
        yield Cause("another vocabulary", HIGH if a < LOW_ACCEPTANCE else MEDIUM, why, remedy)
    elif e.cache_type == "q8_0" and a < LOW_ACCEPTANCE:
        why = f"{right}, and keys and values have 8 bits, with which drafts of some models collapse (Gemma 4)"
        yield Cause("quantised cache", HIGH, why, "the usual cache (--cache-type f16)")
    elif e.quantisation.lower().replace("_", "").startswith(FEW_BITS):
        why = f"{right}, and its weights are {e.quantisation}"
        remedy = "a draft with 4 bits or more; paceline tune --sweep quantisation=Q8_0,Q4_K_M measures them"
        yield Cause("draft quantised too low", MEDIUM, why, remedy)
    elif e.differences:
        yield Cause("template or tokens differ", MEDIUM, f"{right}: {'; '.join(e.differences)}",
                    "a draft of the target's family and version (paceline check TARGET DRAFT)")  # fmt: skip
    elif a < LOW_ACCEPTANCE:
        remedy = (
            "a draft that was made for this model and content (paceline pairs, paceline train), or lookup"
        )
        yield Cause(
            "draft rarely right", HIGH, f"{right}: it was made for other texts or another model", remedy
        )


def causes_in_costs(e: Evidence) -> Iterator[Cause]:
    a, ratio, cost = e.acceptance, e.relative(e.length + 1), e.draft_cost
    overhead = e.share("verify", "commit", "other")
    if e.curve and e.curve.get(1, 1.0) < QUICK_PASS and overhead > MIN_OVERHEAD:
        why = f"a pass takes {1e3 * e.curve[1]:.1f} ms, and deciding and verifying {overhead:.0%} of a step"
        yield Cause("target too quick", HIGH, why, "decode plainly (--draft none): there is nothing to gain")
    two = e.relative(2)
    if e.kernels and two is not None and two > KERNEL_STEP:
        why = f"a pass over two rows costs {two:.2f} of one over a single row, and Paceline's kernels, which "
        why += f"keep that low, are not used: {e.kernels}"
        yield Cause("kernels not used", MEDIUM, why, "--kernels auto, and a C++ compiler (docs/kernels.md)")
    if a is not None and ratio is not None:
        needed = theory.break_even(ratio, e.length)
        if needed is None or LOW_ACCEPTANCE <= a < needed:
            must = "more than certainty" if needed is None else f"an acceptance of {needed:.2f}"
            why = f"a pass over {e.length + 1} rows costs {ratio:.2f} of one over a single row, which takes "
            why += f"{must} to pay; {a:.2f} was measured"
            yield Cause("verification too expensive", HIGH, why, _other_length(e, a))
    share = e.share("draft")
    if a is not None and ratio is not None and cost is not None and share >= MIN_DRAFT_SHARE:
        free, real = (theory.speedup(a, e.length, c, ratio) for c in (0.0, cost))
        decides = free > 1.0 >= real
        why = f"drafting takes {share:.0%} of a step; a token of the draft {cost:.0%} of a row of the target"
        if decides:
            why += f", and {theory.expected_tokens(a, e.length):.2f} tokens per step do not make up for it"
        remedy = "use a smaller draft model, or lookup, which costs nothing (--draft lookup)"
        yield Cause("draft model too slow", HIGH if decides else MEDIUM, why, remedy)
    ratio = e.relative(ROWS)
    if 0 < e.experts_used < e.experts and ratio is not None:
        grown = theory.distinct_experts(e.experts, e.experts_used, ROWS) / e.experts_used
        if ratio >= 1 + (grown - 1) / 3:  # otherwise it is not what the pass waits for
            why = f"{e.experts_used} of {e.experts} experts per token: {ROWS} rows read about {grown:.1f} "
            why += f"times as many, and a pass over them costs {ratio:.2f} of one over a single row"
            yield Cause("expert growth", MEDIUM, why, SHORT_DRAFTS)


def _other_length(e: Evidence, a: float) -> str:
    def verify(rows: int) -> float:
        return e.relative(rows) or float(rows)

    longest = max(1, max(e.curve or (2,)) - 1)
    best = theory.best_n_draft(a, e.draft_cost or 0.0, verify, longest=longest)
    if best == 0:
        return "decode plainly here (--draft none), or use a draft that is right more often"
    return f"drafts of {best} (--n-draft {best}), or --draft auto, which decides by what passes cost"


def causes_in_target(e: Evidence) -> Iterator[Cause]:
    share = e.rejected / e.proposals if e.proposals else 0.0
    if e.memory in (RECURRENT, HYBRID) and share > MIN_REJECTED:
        why = f"the target is {e.memory}: after a rejection its state returns to a checkpoint, and accepted "
        why += f"tokens are computed again; that is so for {share:.0%} of drafts"
        yield Cause("checkpoint rollback", MEDIUM, why, SHORT_DRAFTS)
    if e.mtp == STRIPPED:
        why = "models like the target predict their own next tokens, with layers that its file lacks"
        remedy = "use a file that has them: repositories whose name ends in -MTP-GGUF (paceline pull)"
        yield Cause("MTP layers left out", MEDIUM, why, remedy)
    elif e.mtp == NO_GRAPH:
        why = "the target has layers for its next tokens, which the engine cannot compute (paceline pairs)"
        yield Cause("MTP layers not computed", MEDIUM, why, "a newer version of the engine may know them")
    elif e.mtp == USABLE and not e.uses_mtp:
        why = "the target's file has layers for its next tokens, and another draft is used"
        yield Cause(
            "MTP layers not used", MEDIUM, why, "leave out -md: they draft by themselves (--draft mtp)"
        )


def causes_in_requests(e: Evidence) -> Iterator[Cause]:
    many = f"of {count(e.requests, 'recorded request')}"
    if 0 < e.answer_tokens < SHORT_ANSWER:
        why = f"half {many} have answers of {e.answer_tokens:.0f} tokens or fewer: prompts take most of it"
        remedy = "keep prompts in the cache (--sessions, --prompt-cache): drafts can save little"
        yield Cause("short answers", MEDIUM, why, remedy)
    if e.temperature >= HIGH_TEMPERATURE:
        why = (
            f"half {many} have a temperature of {e.temperature:g} or more: little is certain enough to guess"
        )
        yield Cause(
            "high temperature", MEDIUM, why, "a lower temperature, or drafts with one (--draft-temp 0.7)"
        )
    if e.early_changes > 0.5:
        why = f"{e.early_changes:.0%} {many} differ early from the one before, and then go on alike"
        remedy = (
            "move what changes (a date, an id) to the end of the prompt, so that the cache serves the rest"
        )
        yield Cause("prompts change early", HIGH, why, remedy)
