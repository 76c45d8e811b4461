"""Which number of threads, and on which processors, reads prompts and decodes fastest: tried with a model."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median_low
from time import perf_counter
from typing import Any

import numpy as np

from paceline.core.measuring import release
from paceline.core.ports import Target, Want
from paceline.core.tree import EMPTY
from paceline.machine.hardware.containers import Limits
from paceline.machine.hardware.cores import EFFICIENCY, PERFORMANCE, Cores
from paceline.machine.hardware.threads import advise

TURN = "setting"  # of a progress bar
ROUNDS = 3
SECONDS = 6.0  # about; a large model takes longer
PROMPT = (16, 256)  # tokens that are read in a turn: at least, at most
PASSES = (2, 48)  # of one token each, likewise
DEPTH = 16  # tokens that these come after
MOST = 12  # settings
ALIKE = 0.03  # a difference that three rounds cannot tell from none
FAR = 3.0  # times the fastest one's seconds in the first round, which no other round makes up for

Affinity = Callable[[frozenset[int]], None]
Clock = Callable[[], float]


@dataclass(frozen=True)
class Setting:
    """cpus: the processors that threads are kept to; empty: left to the system. where: these in words.
    spread: the weights lie on all memory nodes in turns."""

    threads: int
    cpus: tuple[int, ...] = ()
    where: str = "anywhere"
    spread: bool = False


@dataclass(frozen=True)
class Trial:
    """prompt, decode: tokens a second. prompt_ratio, decode_ratio: over the fastest setting's."""

    setting: Setting
    prompt: float
    decode: float
    prompt_ratio: float
    decode_ratio: float

    def as_dict(self) -> dict[str, Any]:
        known = asdict(self)
        setting: dict[str, Any] = known.pop("setting")
        return setting | known


def settings_for(cores: Cores, limits: Limits, pinning: bool, placing: bool = False) -> list[Setting]:
    """At most MOST, the fewest threads first; none of more threads than are just beyond a quota, which would
    crawl. pinning: whether threads can be kept to processors here; placing: whether memory can be spread over
    nodes."""
    physical, logical = cores.physical, cores.logical
    advised = advise(cores, limits).threads
    counts = {1, 2, 4, 8, 16, 32, 64, 128, physical // 2, physical, advised}
    if limits.cpus is not None:
        counts |= {int(limits.cpus), int(limits.cpus) + 1}
    counts |= {cores.of_kind(PERFORMANCE)}
    most = logical if cores.smt else physical
    if limits.cpus is not None:
        most = min(most, int(limits.cpus) + 1)
    anywhere = [Setting(n) for n in sorted(counts | {most}) if 1 <= n <= most]
    kept = [setting for setting in _kept(cores) if setting.threads <= most] if pinning else []
    if placing and len(cores.nodes) > 1:
        kept.insert(0, Setting(advised, (), "anywhere, memory spread", spread=True))
    # Those in the middle say least.
    while len(anywhere) + len(kept) > MOST and len(anywhere) > 4:
        del anywhere[1]
    while len(anywhere) + len(kept) > MOST:
        kept.pop()
    return sorted([*anywhere, *kept], key=lambda setting: (setting.threads, setting.cpus))


def _kept(cores: Cores) -> list[Setting]:
    """Ways to keep as many threads to as many processors; none of them all processors there are."""
    every = tuple(sorted(cores.allowed))
    firsts = cores.firsts()
    out = [Setting(1, firsts[:1], "one core"), Setting(len(firsts), firsts, "one a core")]
    if cores.of_kind(EFFICIENCY):
        fast = cores.firsts(PERFORMANCE)
        out.append(Setting(len(fast), fast, "performance cores"))
    if len(cores.nodes) > 1:
        for node, cpus in cores.nodes.items():
            here = tuple(cpu for cpu in firsts if cpu in cpus)
            out.append(Setting(len(here), here, f"node {node}"))
    once = {s.cpus: s for s in reversed(out)}
    return [s for s in once.values() if s.threads and tuple(sorted(s.cpus)) != every]


def tried(
    target: Target,
    use_threads: Callable[[int], None],
    settings: Sequence[Setting],
    *,
    seconds: float | None = None,
    tick: Callable[[str], None] = lambda _: None,
    spread: Target | None = None,
    affinity: Callable[[], Iterator[Affinity]] | None = None,
    clock: Clock = perf_counter,
) -> list[Trial]:
    """Each setting in every round, there and back, so that a busy moment hits them alike; of the rounds the
    median; one far behind the others in the first round has no more. seconds: for all of them, about; None:
    SECONDS. spread: the same model with its weights on all memory nodes, for settings that ask for it. tick:
    told after every turn; what it raises ends the trials. Leaves the threads where they may run as before;
    what number they are is for the caller to set back."""
    with ExitStack() as stack:
        keep_to = stack.enter_context(contextmanager(affinity or whereabouts)())
        usual = other = stack.enter_context(closing(Trials(target, clock)))
        if spread is not None:
            other = stack.enter_context(closing(Trials(spread, clock)))
            other.turn(min(PROMPT[0], other.longest), PASSES[0])  # its weights come into memory, too
        turns = [other.turn if setting.spread else usual.turn for setting in settings]
        return _run(
            turns, usual, use_threads, keep_to, settings, SECONDS if seconds is None else seconds, tick
        )


def _run(
    turns: Sequence[Callable[[int, int], tuple[float, float]]],
    usual: Trials,
    use_threads: Callable[[int], None],
    keep_to: Affinity,
    settings: Sequence[Setting],
    seconds: float,
    tick: Callable[[str], None],
) -> list[Trial]:
    """turns: what times a prompt and some passes, for each setting."""
    length, passes = min(PROMPT[0], usual.longest), PASSES[0]
    usual.turn(length, passes)  # weights come into memory
    a_token, a_pass = usual.turn(length, passes)
    turn = seconds / (ROUNDS * len(settings)) / 2  # half of it for either
    length = min(usual.longest, max(length, int(turn / a_token)))
    passes = min(usual.passes, max(passes, int(turn / a_pass)))
    taken: list[list[tuple[float, float]]] = [[] for _ in settings]
    for round_ in range(ROUNDS):
        order = range(len(settings)) if round_ % 2 == 0 else reversed(range(len(settings)))
        fastest = min((times[0][1] for times in taken if times), default=0.0)
        for i in order:
            if taken[i] and taken[i][0][1] > FAR * fastest:
                tick(TURN)
                continue
            keep_to(frozenset(settings[i].cpus))
            use_threads(settings[i].threads)
            turns[i](1, 1)  # threads are made, and go to their places
            keep_to(frozenset(settings[i].cpus))
            taken[i].append(turns[i](length, passes))
            tick(TURN)
    speeds = [tuple(1 / median_low(times) for times in zip(*some, strict=True)) for some in taken]
    best = [max(speed[k] for speed in speeds) for k in (0, 1)]
    return [
        Trial(setting, prompt, decode, prompt / best[0], decode / best[1])
        for setting, (prompt, decode) in zip(settings, speeds, strict=True)
    ]


class Trials:
    """Owns one session."""

    def __init__(self, target: Target, clock: Clock) -> None:
        self._target, self._clock = target, clock
        self._session = target.open()
        n_ctx = target.caps.n_ctx
        self._depth = max(1, min(DEPTH, n_ctx // 4))
        self.longest = max(1, min(PROMPT[1], n_ctx // 2))
        self.passes = max(1, min(PASSES[1], n_ctx // 2))
        length = 2 * self.longest + DEPTH + PASSES[1]
        self._text: list[int] = np.random.default_rng(0).integers(target.vocab.size, size=length).tolist()
        self._at = 0

    def close(self) -> None:
        release(self._target, self._session)

    def turn(self, length: int, passes: int) -> tuple[float, float]:
        """Seconds a token of a prompt of so many tokens, and of a pass of one token."""
        self._at = (self._at + 1) % self.longest  # another first token: nothing is in the cache
        text = self._text[self._at :]
        began = self._clock()
        self._anew(text[:length])
        read = self._clock() - began
        self._anew(text[: self._depth])
        began = self._clock()
        for i in range(passes):
            self._forward()
            self._session.keep((), text[self._depth + i])
        return max(read / length, 1e-9), max((self._clock() - began) / passes, 1e-9)

    def _anew(self, text: Sequence[int]) -> None:
        self._session.close()
        self._session = self._target.open()
        self._session.extend(text)
        self._forward()

    def _forward(self) -> None:
        self._target.forward([(self._session, EMPTY)], Want())


def best(trials: Sequence[Trial]) -> Trial:
    """The fastest at decoding; of those that are alike the one of the fewest threads: left to the system
    rather than kept to processors, and that rather than with memory spread."""
    good = [trial for trial in trials if trial.decode_ratio >= 1 - ALIKE]

    def cost(trial: Trial) -> tuple[float, ...]:
        setting = trial.setting
        return setting.threads, setting.spread, len(setting.cpus) > 0, -trial.decode

    return min(good, key=cost)


def pinnable() -> bool:
    return hasattr(os, "sched_setaffinity") and Path("/proc/self/task").is_dir()


def whereabouts() -> Iterator[Affinity]:
    """Keeps all threads of this process to some processors (where the set is empty, to what was theirs), and
    gives each its own back in the end. An engine's threads are made once and stay where they were made."""
    if not pinnable():
        yield _nowhere
        return
    before = {}
    for task in _tasks():
        with contextlib.suppress(OSError):  # it is over by now
            before[task] = os.sched_getaffinity(task)
    usual = os.sched_getaffinity(0)

    def keep_to(cpus: frozenset[int]) -> None:
        for task in _tasks():
            with contextlib.suppress(OSError):  # it is over by now, or a container forbids it
                os.sched_setaffinity(task, cpus or before.get(task, usual))

    try:
        yield keep_to
    finally:
        keep_to(frozenset())


def _nowhere(_cpus: frozenset[int]) -> None:
    """This system lets nobody choose."""


def _tasks() -> list[int]:
    return [int(entry.name) for entry in Path("/proc/self/task").iterdir()]
