"""One point of a bench: its systems, the lossless gate, and the rounds in which they take turns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import count, cycle, islice
from pathlib import Path
from time import perf_counter

from paceline.core.errors import PacelineError, UsageError
from paceline.core.sampling import Sampling
from paceline.lab.bench.entry import Entry
from paceline.lab.bench.forecast import Forecast, Size, Work
from paceline.lab.bench.gate import Examiner, Verdict, sampled_verdict
from paceline.lab.bench.measurement import Group, Measurement
from paceline.lab.bench.method import Method
from paceline.lab.bench.models import Models, resident
from paceline.lab.bench.own import Paceline
from paceline.lab.bench.prompts import Prompts, earlier
from paceline.lab.bench.recorded import GREEDY, record, todo
from paceline.lab.replay.recording import Recorder
from paceline.lab.system import Answer, Ask
from paceline.lab.workload import Item
from paceline.llm import LLM

Tick = Callable[[str], None]
Watch = Callable[[Mapping[str, int]], AbstractContextManager[Tick]]

WARM = 8  # tokens of a system's first answer, which is not timed
LEAST = 3  # items, before the clock says how far the forecast is off
SHORTEST = 2  # tokens: the speed of decoding shows from the second on


class Turns:
    """entries: the systems, plain decoding first, the reference of them all. batches: the items that are
    asked at once, by name: several only where a sweep says so. keep_prompts: see Plan. forecast: what the
    work is expected to take."""

    def __init__(
        self,
        models: Models,
        plain: Method,
        prompts: Prompts,
        watch: Watch,
        *,
        keep_prompts: bool = False,
        forecast: Forecast | None = None,
    ) -> None:
        self._models, self._prompts, self._watch = models, prompts, watch
        self._keep_prompts = keep_prompts
        self.examiner = Examiner(models.plain)
        self.plain = Entry(Paceline(plain, models, None, keep_prompts=keep_prompts))
        self.entries = [self.plain]
        self.skipped: list[str] = []
        self.batches: dict[str, list[Item]] = {}
        self.reading: list[tuple[int, float]] = []  # tokens of prompts that were read anew, and seconds
        self._asks: dict[str, Ask] = {}
        self._tried: set[str] = set()
        self._plain_texts: dict[str, str] = {}
        self._forecast, self._sizes = forecast, dict[str, Size]()

    def ask_plainly(self, items: Sequence[Item], batch: int) -> None:
        """Decode every item greedily and plainly, one by one: what the others have to repeat, and what later
        items of a session refer to. Raises UsageError where no item fits the context."""
        before = earlier(items)
        with self._watch(self._work({"plain": [self._expected("plain", item) for item in items]})) as tick:
            for item in items:
                self._ask(item, before[item.id])
                tick("plain")
        asked = [item for item in items if item.id in self._asks]
        if not asked:
            raise self._nothing()
        self._models.memory = self._models.memory or resident()
        self.batches = together(asked, batch)

    def ask_first(self, items: Sequence[Item]) -> None:
        """As ask_plainly, up to the first item that can be asked: the rest are asked by `streamed`."""
        before = earlier(items)
        for item in items:
            if self._ask(item, before[item.id]):
                self._models.memory = self._models.memory or resident()
                return
        raise self._nothing()

    def _nothing(self) -> UsageError:
        return UsageError(f"nothing to ask: {next(iter(self.skipped), 'the suite has no items')}")

    def _ask(self, item: Item, before: Sequence[Item]) -> bool:
        """The item's plain answer; False where it cannot be asked, which is noted. Once an item."""
        if item.id in self._tried:
            return item.id in self._asks
        self._tried.add(item.id)
        try:
            self._asks[item.id] = self._prompts.ask(item, self._plain_texts, before)
        except UsageError as error:
            self.skipped.append(str(error))
            return False
        (answer,) = self._answers(self.plain, [item], greedily=True)
        if not before and answer.decoded == answer.n_tokens:  # else it was not read, or not alone
            self.reading.append((answer.n_prompt, answer.seconds - answer.decoding))
        self._plain_texts[item.id] = self._cut(item)
        if len(self.plain.said[item.id]) < SHORTEST:
            self.skipped.append(f"item {item.id}: the model has nothing to say to it")
            del self._asks[item.id]
        return item.id in self._asks

    def _cut(self, item: Item) -> str:
        """Ask for no more than the model has to say, which is returned: beyond its end some programs forbid
        the token that ends a text, others go on after it, and no two texts would be alike."""
        target, said = self._models.plain.target, self.plain.said[item.id]
        end = next((i for i, token in enumerate(said) if token in target.vocab.eos), len(said))
        self._asks[item.id] = replace(self._asks[item.id], max_tokens=max(end, 1))
        self.plain.said[item.id] = said[:end]
        return b"".join(map(target.text.piece, said[:end])).decode(errors="replace")

    def record(self, recorder: Recorder, done: set[Hashable]) -> None:
        """Every item's plain answer, in the order asked: the greedy ones, which the others have to repeat,
        and where the bench samples those of its first round too. done: those that an earlier point of a sweep
        has recorded, which is added to. Raises UsageError for a file of another vocabulary.

        They are decoded anew, one by one on a warm engine: the time is this text's alone."""
        llm = self._models.plain
        recorder.begin(llm.target.vocab, llm.target.name)
        items = {item.id: item for batch in self.batches.values() for item in batch}
        with self._watch({"record": len(todo(self._asks))}) as tick:
            record(recorder, llm, self._asks, items, done, tick)

    def add(self, methods: Sequence[Method], draft: Path | None) -> None:
        for method in methods:
            system = Paceline(method, self._models, draft, keep_prompts=self._keep_prompts)
            self.entries.append(Entry(system, system.llm.drafting.budget, self.plain))

    @property
    def llm(self) -> LLM:
        """The last method's target and drafter, of those with a draft model if there are any."""
        ours = [entry.system.llm for entry in self.entries if isinstance(entry.system, Paceline)]
        return next((llm for llm in reversed(ours) if llm.draft is not None), ours[-1])

    @property
    def peers(self) -> dict[str, str]:
        """Other programs, with their version where they tell it."""
        others = [entry.system for entry in self.entries if not isinstance(entry.system, Paceline)]
        return {one.name: one.version() if hasattr(one, "version") else "" for one in others}

    def check(self, sampling: Sampling, seed: int) -> None:
        """The gate: every system repeats plain greedy output, and is warm after it; where the bench samples,
        the drafted distribution is compared with the target's too."""
        at_once = any(len(items) > 1 for items in self.batches.values())
        held = self.entries if at_once else self.entries[1:]
        for entry in self.entries:
            entry.alters = self._models.plain.target.alters
        gate = [self._expected("gate", *items) for items in self.batches.values() for _ in held]
        with self._watch(self._work({"gate": gate})) as tick:
            for items in self.batches.values():
                for entry in held:
                    self._answers(entry, items, greedily=True)
                    tick("gate")
            for entry in held:
                if not sampling.greedy and entry.reference is not None and not entry.own_plain:
                    entry.sampled = self._sampled(entry, sampling, seed)
                entry.checked = True

    def _sampled(self, entry: Entry, sampling: Sampling, seed: int) -> Verdict:
        if not isinstance(entry.system, Paceline):
            return Verdict(False, "not checked: the sampled output of another program")
        texts = [[*ask.tokens, *self.plain.said[id_]] for id_, ask in self._asks.items()]
        return sampled_verdict(entry.system.llm, sampling, texts, seed)

    def rounds(self, n: int, done: Collection[tuple[int, str]], first: int = 0) -> Iterator[Group]:
        """Groups of measurements but those in `done` (round, name of the batch). In each, the systems take
        their turns in another order, so that none always comes after the same one. first: how many groups
        there were before.

        Drafters that learn start each round knowing no answer, the gate's least of all, and learn from those
        of the round. Of a round that is gone on with, they answer again what is done."""
        todo = {r: [name for name in self.batches if (r, name) not in done] for r in range(n)}
        begun = {r: [name for name in self.batches if (r, name) in done] for r in todo if todo[r]}
        learners = self._learners()
        expected = [
            self._expected("measured", *self.batches[name]) for names in todo.values() for name in names
        ]
        again = sum(map(len, begun.values())) * len(learners)
        work = self._work(
            {"measure": [seconds for seconds in expected for _ in self.entries]}, **{"learn again": again}
        )
        number = count(first)
        with self._watch(work) as tick:
            for round_, before in begun.items():
                for system in learners:
                    system.forget()
                for name in before:
                    for system in learners:
                        system.answer(self.asks(self.batches[name], round_))
                        tick("learn again")
                for name in todo[round_]:
                    items, measured = self.batches[name], {}
                    for entry in in_turn(self.entries, next(number)):
                        answers = self._answers(entry, items, seed=round_)
                        if answers:
                            measured[entry.name] = Measurement.of(entry.name, answers)
                        tick("measure")
                    yield Group(round_, name, items[0].category, measured)

    def streamed(
        self, items: Sequence[Item], done: Collection[tuple[int, str]], until: float
    ) -> Iterator[Group]:
        """One round, item by item: the prompt is read once, plain decoding says what has to be repeated, and
        the systems take their turns; what they say is the gate. For greedy requests of our own systems, which
        keep a prompt (`keep_prompts`). until: an item that would not be done by then (by `perf_counter`) is
        left out."""
        before, learners = earlier(items), self._learners()
        for entry in self.entries:
            entry.alters = self._models.plain.target.alters
        expected = {item.id: sum(self._streamed_steps(item)) for item in items}
        steps = [seconds for item in items for seconds in self._streamed_steps(item)]
        began, spent, left_out = perf_counter(), 0.0, 0
        with self._watch(self._work({"measure": steps})) as tick:
            for number, item in enumerate(items):
                slower = max(1.0, (perf_counter() - began) / spent) if number > LEAST and spent else 1.0
                if number and perf_counter() + slower * expected[item.id] > until:
                    left_out += 1
                    for _ in range(1 + len(self.entries)):
                        tick("measure")
                    continue
                spent += expected[item.id]
                asked = self._ask(item, before[item.id])
                tick("measure")
                if asked:
                    self.batches[item.id] = [item]
                    if len(self.batches) == 1:
                        self._warm(item)
                again = asked and (0, item.id) in done
                measured = {}
                for entry in in_turn(self.entries, number):
                    if again and entry.system in learners:
                        entry.system.answer(self.asks([item]))
                    elif asked and not again:
                        (answer,) = self._answers(entry, [item])
                        measured[entry.name] = Measurement.of(entry.name, [answer])
                    tick("measure")
                if measured:
                    yield Group(0, item.id, item.category, measured)
        for entry in self.entries:
            entry.checked = True
        if left_out:
            self.skipped.append(f"{left_out} of {len(items)} items: their time was over (--minutes)")

    def _streamed_steps(self, item: Item) -> list[float]:
        return [self._expected("plain", item), *[self._expected("measured", item)] * len(self.entries)]

    def _warm(self, item: Item) -> None:
        """Every system has answered before it is timed, and learned nothing from it."""
        (ask,) = self.asks([item])
        for entry in self.entries[1:]:
            entry.system.answer([replace(ask, max_tokens=min(ask.max_tokens, WARM))])
        for system in self._learners():
            system.forget()

    def _expected(self, phase: str, *items: Item) -> float:
        if self._forecast is None:
            return 0.0
        seconds: Callable[[Size], float] = getattr(self._forecast, phase)
        return sum(seconds(self._size(item)) for item in items)

    def _size(self, item: Item) -> Size:
        ask = self._asks.get(item.id)
        if ask is not None:
            return Size(len(ask.tokens), ask.max_tokens)
        if item.id not in self._sizes:
            self._sizes[item.id] = self._prompts.size(item, 0)
        return self._sizes[item.id]

    def _work(self, seconds: Mapping[str, Sequence[float]], **unknown: int) -> Work:
        return Work({} if self._forecast is None else seconds,
                    **{kind: len(steps) for kind, steps in seconds.items()} | unknown)  # fmt: skip

    def _learners(self) -> list[Paceline]:
        ours = [entry.system for entry in self.entries if isinstance(entry.system, Paceline)]
        return [system for system in ours if system.learns]

    def asks(self, items: Sequence[Item], seed: int = 0) -> list[Ask]:
        """seed: added to the items' own."""
        asks = [self._asks[item.id] for item in items]
        return [replace(ask, seed=ask.seed + seed) for ask in asks]

    def _answers(
        self, entry: Entry, items: Sequence[Item], greedily: bool = False, seed: int = 0
    ) -> list[Answer]:
        """[] from a program that has failed: the others go on without it."""
        if entry.failed:
            return []
        asks = self.asks(items, seed)
        if greedily:
            asks = [ask if ask.sampling.greedy else replace(ask, sampling=GREEDY) for ask in asks]
        try:
            answers = entry.system.answer(asks)
        except PacelineError as error:
            if isinstance(entry.system, Paceline):
                raise
            entry.failed = str(error)
            return []
        if asks[0].sampling.greedy:
            for item, ask, answer in zip(items, asks, answers, strict=True):
                entry.judge(self.examiner, item.id, ask, answer, len(items))
        return answers

    def close(self) -> None:
        for entry in self.entries:
            entry.system.close()


def in_turn(entries: Sequence[Entry], number: int) -> list[Entry]:
    """Each comes first as often as any other, and as often before its neighbour as after it."""
    cycles, first = divmod(number, len(entries))
    order = [*entries[first:], *entries[:first]]
    return order[::-1] if cycles % 2 else order


def together(items: Sequence[Item], batch: int) -> dict[str, list[Item]]:
    """Items in batches of equal parts of a category, each filled up with its own: no item is in two, where a
    drafter that learns would know its answer the second time."""
    by_category: dict[str, list[Item]] = {}
    for item in items:
        by_category.setdefault(item.category, []).append(item)
    batches: list[list[Item]] = []
    for some in by_category.values():
        n = -(-len(some) // batch)
        parts = [some[i * len(some) // n : (i + 1) * len(some) // n] for i in range(n)]
        batches += [list(islice(cycle(part), batch)) for part in parts]
    return {"+".join(item.id for item in one): one for one in batches}
