"""How long a bench will take, by what passes cost here, and which items fit into a time that was given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.core.cost import Cost
from paceline.lab.workload import Item, ordered

LARGEST = 0.25  # of the time: what one item may take, so that it does not stand in for all others
ENOUGH = 3  # items of each category, before answers are made longer
ANSWERS = (128, 64, 32)  # tokens of an answer: the longest that leaves room for enough items
CHUNK = 64  # rows of a pass that reads a prompt, at least: what a row costs there


class Work(dict[str, int]):
    """How many steps of each kind there are. seconds: what each of them is expected to take, in order;
    nothing for a kind of which that is not known."""

    def __init__(self, seconds: Mapping[str, Sequence[float]], **unknown: int) -> None:
        super().__init__(unknown | {kind: len(steps) for kind, steps in seconds.items()})
        self.seconds: dict[str, Sequence[float]] = dict(seconds)

    def named(self, name: Callable[[str], str]) -> Work:
        out = Work({name(kind): steps for kind, steps in self.seconds.items()})
        out.update({name(kind): n for kind, n in self.items()})
        return out


@dataclass(frozen=True)
class Size:
    """Tokens of an item's prompt and of its answer."""

    prompt: int
    answer: int


class Pace:
    """Seconds that plain decoding takes here."""

    def __init__(self, cost: Cost) -> None:
        self._cost = cost

    def read(self, size: Size) -> float:
        rows = max(1, min(CHUNK, self._cost.most))
        return size.prompt / rows * self._cost.seconds(rows, max(1, size.prompt // 2))

    def decode(self, size: Size) -> float:
        return size.answer * self._cost.seconds(1, size.prompt + size.answer // 2)


@dataclass(frozen=True)
class Forecast:
    """systems: how many answer each item, plain decoding among them. Drafts are taken to bring nothing: a
    bench that ends sooner disappoints nobody. keep_prompts: see Plan. streamed: see Turns.streamed."""

    pace: Pace
    systems: int
    rounds: int = 1
    keep_prompts: bool = False
    streamed: bool = False

    def plain(self, size: Size) -> float:
        return self.pace.read(size) + self.pace.decode(size)

    def gate(self, size: Size) -> float:
        """Of the systems beside plain decoding, each."""
        return self._again(size, self.systems - 1)

    def measured(self, size: Size) -> float:
        """In one round, of each system."""
        return self.pace.decode(size) if self.streamed else self._again(size, self.systems)

    def _again(self, size: Size, sharing: int) -> float:
        reads = 1 / max(1, sharing) if self.keep_prompts else 1.0
        return reads * self.pace.read(size) + self.pace.decode(size)

    def total(self, size: Size) -> float:
        """Seconds that an item takes in all."""
        checked = 0.0 if self.streamed else (self.systems - 1) * self.gate(size)
        return self.plain(size) + checked + self.rounds * self.systems * self.measured(size)


@dataclass(frozen=True)
class Choice:
    """Items, and most tokens of their answers (0: each its own)."""

    items: list[Item]
    tokens: int = 0
    seconds: float = field(default=0.0, compare=False)


def fitted(
    items: Sequence[Item],
    tokens: int,
    size_of: Callable[[Item, int], Size],
    seconds: Callable[[Size], float],
    budget: float,
) -> Choice:
    """The items that can be done in `budget` seconds: from all categories, a cheaper one where the next
    does not fit. tokens: most of an answer, as asked for; 0 leaves it to be chosen, so that there are
    several items of each category. There is one item at least."""
    categories = len({item.category for item in items})
    best = Choice([])
    for n in (tokens,) if tokens else (0, *ANSWERS):
        costs = {item.id: seconds(size_of(item, n)) for item in items}
        choice = _filled(items, n, costs, budget)
        if len(choice.items) > len(best.items):
            best = choice
        if len(best.items) >= min(len(items), ENOUGH * categories):
            return best
    if not best.items:
        n = tokens or ANSWERS[-1]
        first = min((i for i in items if _begins(i, items)), key=lambda item: seconds(size_of(item, n)))
        best = Choice([first], n, seconds(size_of(first, n)))
    return best


def _filled(items: Sequence[Item], n: int, costs: Mapping[str, float], budget: float) -> Choice:
    chosen: set[str] = set()
    broken: set[str] = set()  # sessions of which an item was left out: nothing after it can be asked
    spent = 0.0
    for item in ordered(items):
        cost = costs[item.id]
        if cost > LARGEST * budget or spent + cost > budget or item.session in broken:
            broken |= {item.session} - {""}
            continue
        chosen.add(item.id)
        spent += cost
    return Choice([item for item in ordered(items) if item.id in chosen], n, spent)


def _begins(item: Item, items: Sequence[Item]) -> bool:
    """Whether no other item has to come before it."""
    return not item.session or next(one for one in items if one.session == item.session) is item
