"""Which number of threads, and on which processors, reads prompts and decodes fastest: tried with a model."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.core.ports import Target
from paceline.core.timer import Clock, Progress, Timer, in_rounds, medians, unseen
from paceline.machine.hardware.containers import Limits
from paceline.machine.hardware.cores import EFFICIENCY, PERFORMANCE, Cores
from paceline.machine.hardware.threads import advise

STAGE = "setting"  # of a progress bar
ROUNDS = 3
SECONDS = 6.0  # about; a large model takes longer
PROMPT = (16, 256)  # tokens of one that is read: at least, at most
PASSES = (2, 48)  # of one token each, likewise
DEPTH = 16  # tokens that these come after
MOST = 12  # settings
ALIKE = 0.03  # a difference that three rounds cannot tell from none
FAR = 3.0  # times the fastest one's seconds in the first round, which no other round makes up for

Affinity = Callable[[frozenset[int]], None]


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
    progress: Progress = unseen,
    spread: Target | None = None,
    clock: Clock = perf_counter,
) -> list[Trial]:
    """Of each setting the median of the rounds; one far behind the others in the first has no more. spread:
    the same model with its weights on all memory nodes, for settings that ask for it. Leaves the threads
    where they may run as before; what number they are is for the caller to set back."""
    with ExitStack() as stack:
        keep_to = stack.enter_context(affinity())
        usual = other = stack.enter_context(closing(Timer(target, clock)))
        half = max(1, target.caps.n_ctx // 2)
        length, passes = min(PROMPT[0], half), min(PASSES[0], half)
        _read_and_decode(usual, length, passes)  # weights come into memory
        if spread is not None:
            other = stack.enter_context(closing(Timer(spread, clock)))
            _read_and_decode(other, length, passes)  # its own, too
        a_token, a_pass = _read_and_decode(usual, length, passes)
        share = SECONDS / (ROUNDS * len(settings)) / 2  # of a setting in a round: half of it for either
        length = min(PROMPT[1], half, max(length, int(share / a_token)))
        passes = min(PASSES[1], half, max(passes, int(share / a_pass)))
        taken: list[list[tuple[float, float]]] = [[] for _ in settings]
        for i in in_rounds(len(settings), ROUNDS, progress):
            setting, samples = settings[i], taken[i]
            if samples and samples[0][1] > FAR * min(others[0][1] for others in taken):
                continue
            timer = other if setting.spread else usual
            keep_to(frozenset(setting.cpus))
            use_threads(setting.threads)
            _read_and_decode(timer, 1, 1)  # threads are made, and go to their places
            keep_to(frozenset(setting.cpus))
            samples.append(_read_and_decode(timer, length, passes))
    speeds = [tuple(1 / seconds for seconds in medians(samples)) for samples in taken]
    best = [max(speed[k] for speed in speeds) for k in (0, 1)]
    return [
        Trial(setting, prompt, decode, prompt / best[0], decode / best[1])
        for setting, (prompt, decode) in zip(settings, speeds, strict=True)
    ]


def _read_and_decode(timer: Timer, length: int, passes: int) -> tuple[float, float]:
    """Seconds a token of a new prompt of so many tokens, and of a pass over one row after a short one."""
    timer.renew()
    a_token = timer.read(length) / length
    timer.read(min(DEPTH, length))
    return a_token, sum(timer.rows(1) for _ in range(passes)) / passes


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


@contextmanager
def affinity() -> Iterator[Affinity]:
    """Keeps all threads of this process to some processors (where the set is empty, to what was theirs), and
    gives each its own back in the end. An engine's threads are made once and stay where they were made."""
    if not pinnable():
        yield lambda _cpus: None  # this system lets nobody choose
        return
    before = {}
    for task in _tasks():
        with suppress(OSError):  # it is over by now
            before[task] = os.sched_getaffinity(task)
    usual = os.sched_getaffinity(0)

    def keep_to(cpus: frozenset[int]) -> None:
        for task in _tasks():
            with suppress(OSError):  # it is over by now, or a container forbids it
                os.sched_setaffinity(task, cpus or before.get(task, usual))

    try:
        yield keep_to
    finally:
        keep_to(frozenset())


def _tasks() -> list[int]:
    return [int(entry.name) for entry in Path("/proc/self/task").iterdir()]
