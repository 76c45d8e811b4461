"""The lossless gate: the checks that a system must pass before its speed is shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from paceline.api import LLM
from paceline.bench.certify import certificate
from paceline.bench.system import BenchAnswer, BenchRequest, System
from paceline.bench.text_comparison import explain, first_non_greedy_token, rows_of
from paceline.settings import Drafting
from paceline.speculative.errors import PacelineError
from paceline.speculative.interfaces import Budget
from paceline.speculative.sampling import Sampling

# Detects a bias of about a tenth of all draws in a second or two. If nothing is drafted, the next size has
# more contexts with fewer runs.
SAMPLED_CHECK_SIZES = ((4, 400), (16, 200), (40, 100))  # contexts, runs
IDENTICAL, NEAR_TIE = "identical", "near-tie"
DEFAULT_BUDGET = Drafting().budget  # for the noise between two programs without drafts


class DifferenceClassifier:
    """A classifier of differences as near-ties or defects, with a cache: many systems differ at one token."""

    def __init__(self, llm: LLM) -> None:
        self.llm = llm
        self._outcomes: dict[tuple[Any, ...], str] = {}

    def outcome(
        self, item: str, request: BenchRequest, plain: Sequence[int], tokens: Sequence[int], budget: Budget
    ) -> str:
        """Return the outcome of a greedy output: identical, near-tie, or the first token that plain decoding
        would not choose, also after a near-tie."""
        target = self.llm.target
        key = (item, rows_of(target, budget), tuple(plain), tuple(tokens))
        if key not in self._outcomes:
            outcome, sampling = IDENTICAL, self.llm.sampling(**vars(request.sampling))
            if it := explain(target, request.tokens, plain, tokens, budget, sampling):
                wrong: int | None = it.index
                if it.near_tie:  # the texts differ after it
                    begin = it.index + 1
                    wrong = first_non_greedy_token(target, request.tokens, tokens, begin, it.noise, sampling)
                outcome = NEAR_TIE if wrong is None else f"from token {wrong} on"
            self._outcomes[key] = outcome
        return self._outcomes[key]


@dataclass(frozen=True)
class GateVerdict:
    lossless: bool
    description: str


NOT_CHECKED = GateVerdict(False, "not checked to the end")
SAMPLES_ELSEWHERE = GateVerdict(True, "samples not checked")  # of another program


@dataclass
class Contestant:
    """A system in a bench with its gate results.
    budget: of its drafts; None for plain decoding. reference: the contestant whose greedy output it must
    repeat, if any. other_program_plain: plain decoding of another program, whose different text is only
    reported. greedy_tokens, outcomes: by item; of several outcomes the worst. failed: why the system can no
    longer answer. target_alteration: difference of the target from its file; nothing is lossless then."""

    system: System
    budget: Budget | None = None
    reference: Contestant | None = None
    other_program_plain: bool = False
    greedy_tokens: dict[str, tuple[int, ...]] = field(default_factory=dict)
    outcomes: dict[str, str] = field(default_factory=dict)
    sampled: GateVerdict | None = None
    failed: str = ""
    remark: str = ""
    target_alteration: str = ""

    @property
    def name(self) -> str:
        return self.system.name

    def answer(self, request: BenchRequest) -> BenchAnswer | None:
        """Return the answer, or None from a program that has failed. An error of ours ends the bench."""
        if not self.failed:
            try:
                return self.system.answer(request)
            except PacelineError as error:
                if self.system.ours:
                    raise
                self.failed = str(error)
        return None

    def judge(
        self, classifier: DifferenceClassifier, item: str, request: BenchRequest, answer: BenchAnswer
    ) -> str:
        """Record a greedy answer and return its outcome."""
        reference = self.reference or self
        while item not in reference.greedy_tokens and reference.reference is not None:
            reference = reference.reference  # it failed before this item
        plain = reference.greedy_tokens.get(item)
        tokens = tokens_of(classifier.llm, answer, plain)[: request.max_tokens]  # some programs add a few
        self.greedy_tokens.setdefault(item, tokens)
        if answer.n_prompt != len(request.tokens):
            self.remark = f"; reads {answer.n_prompt} tokens where we have {len(request.tokens)}"
        budget = self.budget or reference.budget or DEFAULT_BUDGET
        outcome = classifier.outcome(item, request, tokens if plain is None else plain, tokens, budget)
        self.add(item, outcome)
        return outcome

    def add(self, item: str, outcome: str) -> None:
        self.outcomes[item] = max(self.outcomes.get(item, IDENTICAL), outcome, key=severity)

    @property
    def row(self) -> dict[str, Any]:
        """The fields of BenchResult that are known without measurements."""
        known = {"lossless": self.verdict.lossless, "verdict": self.verdict.description}
        return {"system": self.name, **known, "memory": self.system.memory()}

    @property
    def verdict(self) -> GateVerdict:
        if self.failed:
            return GateVerdict(False, f"failed: {self.failed}")
        if self.target_alteration:
            message = certificate.altered_target_message(self.target_alteration)
            return GateVerdict(False, f"NOT LOSSLESS: {message}")
        if self.reference is not None and not self.outcomes:
            return NOT_CHECKED
        worst = next((f"{item} {found}" for item, found in self.outcomes.items() if severity(found) > 1), "")
        ties = sum(found == NEAR_TIE for found in self.outcomes.values())
        text = f"{ties} near-tie{'s' * (ties > 1)}" if ties else IDENTICAL
        if worst:
            text = f"its own text: {worst}" if self.other_program_plain else f"NOT LOSSLESS: {worst}"
        elif self.reference is None:
            text = "reference"
        lossless = not worst or self.other_program_plain
        if lossless and self.sampled is SAMPLES_ELSEWHERE:
            text = f"{self.sampled.description}: {text}"
        elif lossless and self.sampled is not None:
            lossless, sampled = self.sampled.lossless, self.sampled.description
            text = f"{text}, {sampled}" if lossless else sampled
        return GateVerdict(lossless, text + self.remark)


def severity(outcome: str) -> int:
    return {IDENTICAL: 0, NEAR_TIE: 1}.get(outcome, 2)


def tokens_of(llm: LLM, answer: BenchAnswer, plain: Sequence[int] | None) -> tuple[int, ...]:
    """Return an answer in the target's tokens. Without token ids, they are plain decoding's if the text is
    the same, and otherwise the text's encoding."""
    if answer.tokens is not None:
        return answer.tokens
    if plain is not None:
        text = b"".join(map(llm.target.text.piece, plain)).decode(errors="ignore")
        if answer.text.startswith(text.rstrip("\ufffd")):
            return tuple(plain)
    return tuple(llm.target.text.encode_continuation(answer.text))


def sampled_verdict(llm: LLM, sampling: Sampling, texts: Sequence[Sequence[int]], seed: int) -> GateVerdict:
    """Check that sampled output has the target's distribution. texts: prompts with their greedy outputs."""
    for contexts, runs in SAMPLED_CHECK_SIZES:
        plan = certificate.CertifyPlan(contexts=contexts, runs=runs, sampling=sampling, seed=seed)
        extended = certificate.extend_texts(texts[:contexts], llm.target.caps.n_ctx)
        sampled = certificate.sampled_check(llm, plan, extended, lambda: None)
        if sampled.drafted > 0:
            if sampled.passed:
                return GateVerdict(True, "unbiased")
            return GateVerdict(False, "NOT LOSSLESS: sampled output is biased")
    return GateVerdict(False, "not checked: nothing was drafted where sampled output was looked at")
