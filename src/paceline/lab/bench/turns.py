"""One point of a bench: its systems, the lossless gate, and the rounds in which they take turns."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from itertools import cycle, islice
from pathlib import Path

from paceline.core.errors import PeerError, UsageError
from paceline.core.sampling import Sampling
from paceline.lab.bench.entry import Entry
from paceline.lab.bench.gate import sampled_verdict
from paceline.lab.bench.method import Method
from paceline.lab.bench.models import Models, resident
from paceline.lab.bench.own import Paceline
from paceline.lab.bench.prompts import Prompts, earlier
from paceline.lab.bench.summary import Group, Measurement
from paceline.lab.system import Answer, Ask
from paceline.lab.workload import Item
from paceline.llm import LLM

Tick = Callable[[str], None]
Watch = Callable[[Mapping[str, int]], AbstractContextManager[Tick]]

GREEDY = Sampling()
SHORTEST = 2  # tokens: the speed of decoding shows from the second on


class Turns:
    """entries: the systems, plain decoding first, the reference of them all. batches: the items that are
    asked at once, by name: several only where a sweep says so."""

    def __init__(self, models: Models, plain: Method, prompts: Prompts, watch: Watch) -> None:
        self._models, self._prompts, self._watch = models, prompts, watch
        self.plain = Entry(Paceline(plain, models, None))
        self.entries = [self.plain]
        self.skipped: list[str] = []
        self.batches: dict[str, list[Item]] = {}
        self._asks: dict[str, Ask] = {}

    def ask_plainly(self, items: Sequence[Item], batch: int) -> None:
        """Decode every item greedily and plainly, one by one: what the others have to repeat, and what later
        items of a session refer to. Raises UsageError where no item fits the context."""
        answers: dict[str, str] = {}
        before = earlier(items)
        with self._watch({"plain": len(items)}) as tick:
            for item in items:
                try:
                    ask = self._prompts.ask(item, answers, before[item.id])
                except UsageError as error:
                    self.skipped.append(str(error))
                else:
                    self._asks[item.id] = ask
                    self._answers(self.plain, [item], GREEDY)
                    answers[item.id] = self._cut(item)
                tick("plain")
        asked = [item for item in items if item.id in self._asks]
        if not asked:
            raise UsageError(f"nothing to ask: {self.skipped[0]}")
        self._models.memory = self._models.memory or resident()
        self.batches = together(asked, batch)

    def _cut(self, item: Item) -> str:
        """Ask for no more than the model has to say, which is returned: beyond its end some programs forbid
        the token that ends a text, others go on after it, and no two texts would be alike."""
        target, said = self._models.plain.target, self.plain.said[item.id]
        end = next((i for i, token in enumerate(said) if token in target.vocab.eos), len(said))
        n = max(end, SHORTEST)
        self._asks[item.id] = replace(self._asks[item.id], max_tokens=min(n, self._asks[item.id].max_tokens))
        self.plain.said[item.id] = said[:n]
        return b"".join(map(target.text.piece, said[:end])).decode(errors="replace")

    def add(self, methods: Sequence[Method], draft: Path | None) -> None:
        for method in methods:
            system = Paceline(method, self._models, draft)
            self.entries.append(Entry(system, system.llm.drafting.budget, self.plain))

    @property
    def llm(self) -> LLM:
        """The last method's target and drafter, of those with a draft model if there are any."""
        ours = [entry.system.llm for entry in self.entries if isinstance(entry.system, Paceline)]
        return next((llm for llm in reversed(ours) if llm.draft is not None), ours[-1])

    def check(self, sampling: Sampling, seed: int) -> None:
        """The gate: every system repeats plain greedy output, and is warm after it; where the bench samples,
        the drafted distribution is compared with the target's too."""
        others = self.entries[1:]
        if not others:
            return
        with self._watch({"gate": len(others) * len(self.batches)}) as tick:
            for entry in others:
                for items in self.batches.values():
                    self._answers(entry, items, GREEDY)
                    tick("gate")
                if not sampling.greedy and isinstance(entry.system, Paceline) and not entry.failed:
                    texts = [[*self._asks[id_].tokens, *said] for id_, said in self.plain.said.items()]
                    entry.sampled = sampled_verdict(entry.system.llm, sampling, texts, seed)

    def rounds(self, n: int, done: Collection[tuple[int, str]]) -> Iterator[Group]:
        """Groups of measurements but those in `done` (round, name of the batch). In each, the systems take
        their turns in another order, so that none always comes after the same one."""
        todo = [(r, name) for r in range(n) for name in self.batches if (r, name) not in done]
        with self._watch({"measure": len(todo) * len(self.entries)}) as tick:
            for number, (round_, name) in enumerate(todo):
                items = self.batches[name]
                measured = {}
                for entry in in_turn(self.entries, number):
                    answers = self._answers(entry, items)
                    if answers:
                        measured[entry.name] = Measurement.of(entry.name, answers)
                    tick("measure")
                yield Group(round_, name, items[0].category, measured)

    def _answers(self, entry: Entry, items: Sequence[Item], sampling: Sampling | None = None) -> list[Answer]:
        """[] from a program that has failed: the others go on without it. sampling: instead of the
        bench's."""
        if entry.failed:
            return []
        asks = [self._asks[item.id] for item in items]
        if sampling is not None:
            asks = [replace(ask, sampling=sampling) for ask in asks]
        try:
            answers = entry.system.answer(asks)
        except PeerError as error:
            entry.failed = str(error)
            return []
        if asks[0].sampling.greedy:
            for item, ask, answer in zip(items, asks, answers, strict=True):
                entry.judge(self._models.plain, item.id, ask, answer)
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
    """Items in batches, each of one category, whose last batch is filled up with its first items."""
    by_category: dict[str, list[Item]] = {}
    for item in items:
        by_category.setdefault(item.category, []).append(item)
    batches: list[list[Item]] = []
    for some in by_category.values():
        endless = cycle(some)
        batches += [list(islice(endless, batch)) for _ in range(-(-len(some) // batch))]
    return {"+".join(item.id for item in one): one for one in batches}
