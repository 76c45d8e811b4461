"""The systems of a bench, the lossless gate, and the rounds in which they take turns."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import takewhile
from time import perf_counter
from typing import Any

from paceline.api import LLM
from paceline.bench.gate import (
    NOT_CHECKED,
    SAMPLES_ELSEWHERE,
    Contestant,
    DifferenceClassifier,
    sampled_verdict,
)
from paceline.bench.method import Method
from paceline.bench.paceline_system import LoadedModels, PacelineSystem, resident
from paceline.bench.prompts import RequestBuilder
from paceline.bench.replay.recording import Recorder
from paceline.bench.suites.workload import Item, length
from paceline.bench.system import BenchAnswer, BenchRequest, ItemMeasurements, measurement
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling import Sampling

Tick = Callable[[str], None]
Watch = Callable[[Mapping[str, int]], AbstractContextManager[Tick]]

WARM_UP_TOKENS = 8  # of a system's first answer, which is not timed
MIN_ANSWER_TOKENS = 2  # decoding speed is measured from the second token on


class Runner:
    """Systems that answer the same items in turn.
    entries: plain decoding first, the reference of all. requests: by item. skipped, reading: as in Run."""

    def __init__(self, models: LoadedModels, plain: Method, prompts: RequestBuilder, watch: Watch) -> None:
        self._models, self._prompts, self._watch = models, prompts, watch
        self.classifier = DifferenceClassifier(models.plain)
        self.plain = Contestant(PacelineSystem(plain, models))
        self.entries = [self.plain]
        self.skipped: list[str] = []
        self.reading: list[tuple[int, float]] = []  # tokens and seconds
        self.requests: dict[str, BenchRequest] = {}
        self._tried: set[str] = set()
        self._plain_texts: dict[str, str] = {}

    def warm_up(self, items: Sequence[Item]) -> None:
        """Answer the first possible item plainly, which warms the target up and shows its memory."""
        if not any(map(self.prepare, items)):
            why = next(iter(self.skipped), "the suite has no items of this --size")
            raise UsageError(f"nothing to ask: {why}")
        self._models.memory = self._models.memory or resident()

    def add(self, methods: Sequence[Method]) -> None:
        for method in methods:
            system = PacelineSystem(method, self._models)
            self.entries.append(Contestant(system, system.llm.drafting.budget, self.plain))

    @property
    def systems(self) -> list[PacelineSystem]:
        return [entry.system for entry in self.entries if isinstance(entry.system, PacelineSystem)]

    @property
    def llm(self) -> LLM:
        """The last method's target and drafter, preferably one with a draft model."""
        return max((system.llm for system in self.systems[::-1]), key=lambda llm: llm.draft is not None)

    @property
    def baselines(self) -> dict[str, str]:
        """Other programs, with their version if they report it."""
        others = [entry.system for entry in self.entries if not isinstance(entry.system, PacelineSystem)]
        return {one.name: one.version() for one in others}

    def prepare(self, item: Item) -> bool:
        """Return whether an item has a request; if not, note the reason. Its plain answer is computed, which
        other systems must repeat and later items of a session refer to."""
        if item.id in self._tried:
            return item.id in self.requests
        self._tried.add(item.id)
        try:
            request = self._prompts.request(item, self._plain_texts)
        except UsageError as error:
            self.skipped.append(str(error))
            return False
        answer = self.plain.system.answer(as_greedy(request))
        if not item.earlier and answer.decoded == answer.n_tokens:  # the prompt was prefilled alone
            self.reading.append((answer.n_prompt, answer.seconds - answer.decoding))
        # Cut at the end token: beyond it some programs forbid the token and others continue after it.
        target = self._models.plain.target
        tokens = tuple(takewhile(lambda token: token not in target.vocab.eos, answer.tokens or ()))
        self.plain.greedy_tokens[item.id] = tokens
        self._plain_texts[item.id] = b"".join(map(target.text.piece, tokens)).decode(errors="replace")
        if len(tokens) < MIN_ANSWER_TOKENS:
            self.skipped.append(f"item {item.id}: the model has nothing to say to it")
            return False
        self.requests[item.id] = replace(request, max_tokens=len(tokens))
        return True

    def check(
        self, items: Sequence[Item], sampling: Sampling, seed: int, until: float = math.inf
    ) -> list[Item]:
        """Run the gate of a sampled bench and return the checked items; after `until` (by perf_counter) no
        further one is checked. Every system must repeat plain greedy output, and drafted sampling must have
        the target's distribution."""
        checked = list[Item]()
        sampled = [] if sampling.greedy else self.entries[1:]
        for entry in sampled:  # until it is
            entry.sampled = NOT_CHECKED if isinstance(entry.system, PacelineSystem) else SAMPLES_ELSEWHERE
        with self._watch({"gate": len(items)}) as tick:
            for item in items:
                if (not checked or perf_counter() < until) and self.prepare(item):
                    checked.append(item)
                    request = as_greedy(self.requests[item.id])
                    for entry in self.entries[1:]:
                        if (answer := entry.answer(request)) is not None:
                            entry.judge(self.classifier, item.id, request, answer)
                tick("gate")
            for entry in sampled:
                if isinstance(entry.system, PacelineSystem):
                    greedy = self.plain.greedy_tokens
                    texts = [[*one.tokens, *greedy[id_]] for id_, one in self.requests.items()]
                    entry.sampled = sampled_verdict(entry.system.llm, sampling, texts, seed)
        return checked

    def rounds(
        self, items: Sequence[Item], n: int = 1, done: Collection[ItemMeasurements] = (),
        until: float = math.inf, first: int = 0,
    ) -> Iterator[ItemMeasurements]:  # fmt: skip
        """Yield the measurements of each item except those in `done`.
        At each item the systems answer in another order, and greedy answers are judged. Learning drafters
        forget before each round and learn from its answers.
        first: number of earlier groups. until: by perf_counter; items that would end later are left out."""
        learners = [system for system in self.systems if system.learns]
        measured = {(group.round, group.item) for group in done}
        for entry in self.entries:
            entry.target_alteration = self._models.plain.target.modification
            for group in done:
                if entry.name in group.outcomes:
                    entry.add(group.item, group.outcomes[entry.name])
        start, number, left_out, done_work = perf_counter(), first, set[str](), 0
        seconds = (until - start) / n
        with self._watch({"measure": n * len(items) * len(self.entries)}) as tick:
            for round_ in range(n):
                for system in learners:
                    system.forget()
                for item in items:
                    again = (round_, item.id) in measured
                    if round_ == 0 and number > first and not again:
                        elapsed = perf_counter() - start
                        late = elapsed * (1 + work_of(item) / done_work) > seconds
                        if late or not left_out.isdisjoint(item.earlier):
                            left_out.add(item.id)
                    if item.id in left_out or not self.prepare(item) or again:
                        for _ in self.entries:
                            tick("measure")
                        continue
                    if number == first:
                        # Every system answers once without timing, and forgets what it learned.
                        request = self.requests[item.id]
                        for entry in self.entries[1:]:
                            entry.answer(replace(request, max_tokens=min(request.max_tokens, WARM_UP_TOKENS)))
                        for system in learners:
                            system.forget()
                    yield self._measure(item, round_, number, tick)
                    number, done_work = number + 1, done_work + work_of(item)
        if left_out:
            self.skipped.append(f"{len(left_out)} of {len(items)} items: no time was left (--minutes)")

    def _measure(self, item: Item, round_: int, number: int, tick: Tick) -> ItemMeasurements:
        request = self.requests[item.id]
        request = replace(request, seed=request.seed + round_)
        answers: dict[str, BenchAnswer] = {}
        for entry in rotate_order(self.entries, number):
            if (answer := entry.answer(request)) is not None:
                answers[entry.name] = answer
            tick("measure")
        # In the order of entries: a program's drafts are compared with its plain decoding.
        outcomes = {
            entry.name: entry.judge(self.classifier, item.id, request, answers[entry.name])
            for entry in self.entries
            if entry.name in answers and request.sampling.greedy
        }
        measured = {name: measurement(name, answer) for name, answer in answers.items()}
        return ItemMeasurements(round_, item.id, item.category, measured, outcomes)

    def record(self, recorder: Recorder, items: Sequence[Item]) -> None:
        """Record the plain answers for replays: greedy ones, and in a sampled bench also those of its first
        round. They are decoded again on a warm engine, to be timed alone."""
        llm, by_id = self._models.plain, {item.id: item for item in items}
        todo = [(id_, as_greedy(request)) for id_, request in self.requests.items()]
        todo += [one for one in self.requests.items() if not one[1].sampling.greedy]
        with self._watch({"record": len(todo)}) as tick:
            for id_, request in todo:
                if recorder.adding:
                    llm.target.forget()
                    length = {"max_tokens": request.max_tokens, "ignore_eos": True}
                    settings: dict[str, Any] = vars(request.sampling) | length
                    answer = llm.generate(request.tokens, plain=True, seed=request.seed, **settings)
                    recorder.add(
                        request.tokens, answer, id_=id_, sampling=request.sampling, seed=request.seed,
                        category=by_id[id_].category, session=by_id[id_].session,
                    )  # fmt: skip
                tick("record")

    def close(self) -> None:
        for entry in self.entries:
            entry.system.close()


def as_greedy(request: BenchRequest) -> BenchRequest:
    return request if request.sampling.greedy else replace(request, sampling=Sampling())


def work_of(item: Item) -> int:
    """Return the relative time of an item: decoding a token takes as long as reading some ten."""
    return length(item) + 40 * item.max_tokens


def rotate_order(entries: Sequence[Contestant], number: int) -> list[Contestant]:
    """Return an order in which each comes first, and before its neighbour, equally often."""
    cycles, first = divmod(number, len(entries))
    order = [*entries[first:], *entries[:first]]
    return order[::-1] if cycles % 2 else order
