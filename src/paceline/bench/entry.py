"""A system in a bench, and what the lossless gate has found of it so far."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace

from paceline.api import LLM
from paceline.bench.certify.certificate import altered
from paceline.bench.gate import DifferenceClassifier, GateVerdict, GreedyOutcomes, both, outcome
from paceline.bench.summary import SystemSummary
from paceline.bench.system import BenchAnswer, BenchRequest, System
from paceline.config import Drafting
from paceline.speculative.errors import PeerError
from paceline.speculative.interfaces import Budget

NOT_CHECKED = GateVerdict(False, "not checked to the end")
USUAL = Drafting().budget  # for the noise between two programs that draft nothing


@dataclass
class Contestant:
    """reference: the entry whose greedy output it must repeat; None where there is nothing to repeat.
    own_plain: it is another program's plain decoding, which may say something else: that is only told.
    budget: what it drafts at most; None for plain decoding. said: its greedy answers, by item. sampled: the
    verdict on its sampled output, where it samples. failed: why it can be asked no more. remark: what else is
    to be said of it. alters: what the target is besides the model in its file: then nothing is lossless."""

    system: System
    budget: Budget | None = None
    reference: Contestant | None = None
    own_plain: bool = False
    said: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sampled: GateVerdict | None = None
    failed: str = ""
    remark: str = ""
    alters: str = ""
    greedy: GreedyOutcomes = field(default_factory=GreedyOutcomes)

    @property
    def name(self) -> str:
        return self.system.name

    def judge(self, examiner: DifferenceClassifier, item: str, ask: BenchRequest, answer: BenchAnswer) -> str:
        """Take in a greedy answer: its outcome."""
        reference = self.reference or self
        while item not in reference.said and reference.reference is not None:
            reference = reference.reference  # it failed before it came to that
        plain = reference.said.get(item)
        tokens = tokens_of(examiner.llm, answer, plain)[: ask.max_tokens]  # some programs say a few more
        self.said.setdefault(item, tokens)
        if answer.n_prompt != len(ask.tokens):
            self.remark = f"reads {answer.n_prompt} tokens where we have {len(ask.tokens)}"
        budget = self.budget or reference.budget or USUAL
        found = outcome(*examiner.compare(item, ask, tokens if plain is None else plain, tokens, budget))
        self.greedy.add(item, found)
        return found

    @property
    def row(self) -> SystemSummary:
        verdict = self.verdict
        n_draft = None if self.budget is None else self.budget.depth
        memory = None
        with suppress(PeerError):  # a program that has ended meanwhile
            memory = self.system.memory()
        return SystemSummary(self.name, verdict.lossless, verdict.said, memory, n_draft)

    @property
    def verdict(self) -> GateVerdict:
        if self.failed:
            return GateVerdict(False, f"failed: {self.failed}")
        if self.alters:
            return GateVerdict(False, f"NOT LOSSLESS: {altered(self.alters)}")
        greedy = self.greedy.verdict
        if self.reference is None:
            return replace(greedy, said="reference") if greedy.lossless else greedy
        if not self.greedy.outcomes:
            return NOT_CHECKED
        if self.own_plain:
            greedy = GateVerdict(
                True, greedy.said if greedy.lossless else f"its own text: {self.greedy.worst}"
            )
        elif self.sampled is not None:
            greedy = both(greedy, self.sampled)
        return replace(greedy, said=f"{greedy.said}; {self.remark}") if self.remark else greedy


def tokens_of(llm: LLM, answer: BenchAnswer, plain: Sequence[int] | None) -> tuple[int, ...]:
    """The answer in the target's tokens; of a program that tells none, plain decoding's where it is the same
    text, and otherwise what its text comes to, which need not be the tokens it had."""
    if answer.tokens is not None:
        return answer.tokens
    if plain is not None:
        text = b"".join(map(llm.target.text.piece, plain)).decode(errors="ignore")
        if answer.text.startswith(text.rstrip("\ufffd")):
            return tuple(plain)
    return tuple(llm.target.text.encode_within(answer.text))
