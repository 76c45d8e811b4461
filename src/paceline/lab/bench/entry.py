"""A system in a bench, and what the lossless gate has found of it so far."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field

from paceline.core.errors import PeerError
from paceline.core.ports import Budget
from paceline.core.settings import Drafting
from paceline.lab.bench.gate import Greedy, Verdict, both
from paceline.lab.bench.summary import Row
from paceline.lab.compare import explain
from paceline.lab.system import Answer, Ask, System
from paceline.llm import LLM

USUAL = Drafting().budget  # for the noise between two programs that draft nothing


@dataclass
class Entry:
    """reference: the entry whose greedy output it must repeat; None where there is nothing to repeat.
    own_plain: it is another program's plain decoding, which may say something else: that is only told.
    budget: what it drafts at most; None for plain decoding. said: its greedy answers, by item. sampled: the
    verdict on its sampled output, where it samples. failed: why it can be asked no more."""

    system: System
    budget: Budget | None = None
    reference: Entry | None = None
    own_plain: bool = False
    said: dict[str, tuple[int, ...]] = field(default_factory=dict)
    sampled: Verdict | None = None
    failed: str = ""
    _judged: set[tuple[str, tuple[int, ...]]] = field(default_factory=set)
    _greedy: Greedy = field(default_factory=Greedy)

    @property
    def name(self) -> str:
        return self.system.name

    def judge(self, llm: LLM, item: str, ask: Ask, answer: Answer) -> None:
        """Take in a greedy answer. llm: the target, whose logits tell a near-tie from a defect."""
        tokens = tokens_of(llm, answer)[: ask.max_tokens]  # some programs say a few more
        self.said.setdefault(item, tokens)
        reference = self.reference
        while reference is not None and item not in reference.said:  # it failed before it came to that
            reference = reference.reference
        if reference is not None and (item, tokens) not in self._judged:
            self._judged.add((item, tokens))
            budget = self.budget or reference.budget or USUAL
            self._greedy.add(item, explain(llm.target, ask.tokens, reference.said[item], tokens, budget))

    @property
    def row(self) -> Row:
        verdict = self.verdict
        n_draft = None if self.budget is None else self.budget.depth
        memory = None
        with suppress(PeerError):  # a program that has ended meanwhile
            memory = self.system.memory()
        return Row(self.name, verdict.lossless, verdict.said, memory, n_draft)

    @property
    def verdict(self) -> Verdict:
        if self.failed:
            return Verdict(False, f"failed: {self.failed}")
        if self.reference is None:
            return Verdict(True, "reference")
        verdict = self._greedy.verdict
        if self.own_plain:
            return Verdict(True, verdict.said if verdict.lossless else f"its own text: {self._greedy.worst}")
        return verdict if self.sampled is None else both(verdict, self.sampled)


def tokens_of(llm: LLM, answer: Answer) -> tuple[int, ...]:
    """The answer in the target's tokens; of a program that tells none, what its text comes to."""
    return answer.tokens if answer.tokens is not None else tuple(llm.target.text.encode_within(answer.text))
