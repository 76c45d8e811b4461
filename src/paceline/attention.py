"""Flash attention or none, on a processor: tried with a model this once, and kept.

It goes through the cache once for every row, and needs no room for what all rows make of all of it. llama.cpp
takes it where it is left the choice. Prompts are faster with it; a pass over the few rows of a draft may take
half of the time without, or hardly less (docs/log/costs.md)."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median_low
from time import perf_counter
from typing import Any

import numpy as np

from paceline.core.errors import ModelError
from paceline.core.measuring import release
from paceline.core.ports import Target, Want
from paceline.core.tree import EMPTY, chain
from paceline.costing import NOISY, Warn, goes_without_flash, key_of, progress, to_stderr
from paceline.engines.engine import Engine, FlashAttention, Setup
from paceline.machine.hardware.bandwidth import free_memory
from paceline.machine.home import kept_at, write_whole

FORMAT = 1
TURN = "attention"  # of a progress bar
ROUNDS = 3
DEPTH = 512  # tokens of the prompt, that passes come after
ROWS = 8  # of a pass that verifies a draft
# Tokens of a prompt to be read for every two passes, one over a single row and one over ROWS. Judgement.
READ = 8
ALIKE = 0.05  # so much more a request may take with flash attention: it needs less memory
# When a model is loaded for the first time: seconds for reading a prompt, and its length at most and at
# least. Where less can be read it is not tried, since nothing would be seen of it.
QUICK, SHORT, SHORTEST = 1.0, 256, 128
START = 16  # tokens: how a prompt is begun whose length is not known yet
SHARE = 4  # scores may take one over this of the free memory
DOING = "trying flash attention and none here, this once"

Clock = Callable[[], float]
Tick = Callable[[str], None]


@dataclass(frozen=True)
class Attention:
    """prompt: tokens a second, of one of `depth` tokens. token, draft: seconds of a pass after it over one
    row and over `rows`. noise: what the former usually took over the least it did."""

    flash: bool
    depth: int
    rows: int
    prompt: float
    token: float
    draft: float
    noise: float = 1.0

    @property
    def request(self) -> float:
        """Seconds of what a request asks for: READ tokens of a prompt, and both passes."""
        return READ / self.prompt + self.token + self.draft

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def settle(target: Engine, *, warn: Warn = to_stderr) -> None:
    """Let an engine that was just loaded go without flash attention where that was left open and is faster
    here: as was found before, or is in a few seconds now, with a line on the terminal."""
    if not isinstance(target, FlashAttention) or not left_open(target):
        return
    if target.caps.rollback != "free" or target.caps.n_ctx < 2 * SHORTEST:
        return
    flash = recall(target)
    if flash or SHARE * target.scores() > free_memory():
        return
    try:
        if flash is None:
            with progress(DOING, quiet=False) as tell:
                found = try_both(target, _Shares(tell), seconds=QUICK)
            flash = keep(target, found, warn)
        if not flash:
            target.use_flash_attention(False)
    except ModelError as error:
        warn(f"{error}; flash attention stays on")


def left_open(model: Setup) -> bool:
    """Whether flash attention is a matter of speed, and was not said."""
    given = model.settings
    goes = goes_without_flash(given.get("gpu_layers", 0), given.get("cache_type", "f16"))
    return goes and given.get("flash_attention") is None and not given.get("exact_rows", 0)


def settled(model: Setup) -> bool | None:
    """What `settle` would choose for a model that is run like this, by what is known already."""
    return False if left_open(model) and recall(model) is False else model.settings.get("flash_attention")


def try_both(
    target: FlashAttention, tick: Tick = lambda _: None, *, seconds: float = math.inf
) -> list[Attention]:
    """With the weights of `target`, which is left alone. Raises ModelError where no context can be made. For
    tick and seconds see `tried`."""
    n_ctx = min(2 * (DEPTH if seconds == math.inf else SHORT), target.caps.n_ctx)
    with (
        closing(target.sibling(n_ctx=n_ctx, flash_attention=None)) as on,  # as llama.cpp chooses
        closing(target.sibling(n_ctx=n_ctx, flash_attention=False)) as off,
    ):
        return tried({True: on, False: off}, tick, seconds=seconds)


def tried(
    targets: Mapping[bool, Target],
    tick: Tick = lambda _: None,
    clock: Clock = perf_counter,
    *,
    seconds: float = math.inf,
) -> list[Attention]:
    """targets: one model, by whether it has flash attention. They take turns; of the rounds the median. tick:
    told after every turn; what it raises ends it. seconds: for a prompt of as many tokens as can be read
    in these, which each reads once; nothing is tried where that are too few."""
    taken: dict[bool, list[tuple[float, float, float]]] = {flash: [] for flash in targets}
    with ExitStack() as stack:
        trials = {
            flash: stack.enter_context(closing(_Trial(target, clock))) for flash, target in targets.items()
        }
        if seconds < math.inf:
            depth = trials[True].within(seconds)
            if depth < SHORTEST:
                return []
            for trial in trials.values():
                trial.depth = depth
        for round_ in range(ROUNDS):
            for flash in sorted(trials, reverse=round_ % 2 == 0):
                taken[flash].append(trials[flash].turn(anew=round_ == 0 or seconds == math.inf))
                tick(TURN)
    out = []
    for flash, some in taken.items():
        prompts, tokens, drafts = zip(*some, strict=True)
        prompt, token, draft = map(median_low, (prompts, tokens, drafts))
        trial = trials[flash]
        out.append(Attention(flash, trial.depth, trial.rows, prompt, token, draft, token / min(tokens)))
    return out


def best(tried: Sequence[Attention]) -> Attention:
    """The faster one for a request; of those that are alike the one with flash attention."""
    least = min(one.request for one in tried)
    return max((one for one in tried if one.request <= least * (1 + ALIKE)), key=lambda one: one.flash)


def recall(model: Setup) -> bool | None:
    """Which was kept for a model that is run like this; None where none was, or none that can be used: it is
    tried again in a moment."""
    key = _key(model)
    try:
        said = json.loads(path_of(key).read_bytes())
        good = said["format"] == FORMAT and said["key"] == json.loads(json.dumps(key))
        flash = said["flash"]
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return None
    return flash if good and type(flash) is bool else None


def keep(model: Setup, found: Sequence[Attention], warn: Warn) -> bool:
    """The best, for whatever loads the model next; flash attention where nothing was tried. Of a machine too
    busy to tell it is flash attention, nothing is kept, and `warn` is told, as where the disk refuses."""
    if any(one.noise >= NOISY for one in found):
        warn("the machine is too busy to tell whether flash attention is faster: nothing is kept")
        return True
    key, flash = _key(model), not found or best(found).flash
    path = path_of(key)
    said = {"format": FORMAT, "key": key, "flash": flash, "tried": [one.as_dict() for one in found]}
    try:
        write_whole(path, json.dumps(said, allow_nan=False))
    except OSError as error:
        warn(f"{path}: cannot be written ({error.strerror}); flash attention is tried again next time")
    return flash


def path_of(key: Mapping[str, Any]) -> Path:
    """Where the choice is kept of what `key` tells."""
    return kept_at("attention", key)


def _key(model: Setup) -> dict[str, Any]:
    """What the choice depends on: all that a target's costs do but the choice."""
    return key_of(model, "target") | {"flash_attention": None}


class _Shares:
    """Ticks, as shares of the time."""

    def __init__(self, tell: Callable[[str, float], None]) -> None:
        self._tell, self._done = tell, 0
        tell(TURN, 0.0)

    def __call__(self, role: str) -> None:
        self._done += 1
        self._tell(role, self._done / (2 * ROUNDS))


class _Trial:
    """Owns one session."""

    def __init__(self, target: Target, clock: Clock) -> None:
        self._target, self._clock = target, clock
        self._session = target.open()
        self.depth = max(1, min(DEPTH, target.caps.n_ctx // 2))
        self.rows = max(1, min(ROWS, target.caps.rows, target.caps.n_ctx // 2))
        length = self.depth + ROUNDS + ROWS
        self._words: list[int] = np.random.default_rng(0).integers(target.vocab.size, size=length).tolist()
        self._at = 0
        self._prompt = 0.0  # tokens a second

    def close(self) -> None:
        release(self._target, self._session)

    def within(self, seconds: float) -> int:
        """How long a prompt may be to be read in so many seconds, by reading one piece by piece, each as long
        as all before it. (In one go flash attention is the faster at it.)"""
        depth, spent, last = min(START, self.depth), 0.0, 0.0
        self._read(self._words[:depth])  # not counted: weights that were never touched come from the disk
        while depth < self.depth and spent + 2 * last < seconds:
            depth = min(2 * depth, self.depth)
            last = self._read(self._words[:depth])  # what it has more than before
            spent += last
        return depth

    def turn(self, *, anew: bool) -> tuple[float, float, float]:
        """Tokens a second of a prompt, read anew or the last one's, and seconds of both passes after it."""
        if anew:
            self._at += 1  # another first token: nothing is in the cache
            self._prompt = self.depth / self._read(self._text)
        return self._prompt, self._pass(1), self._pass(self.rows)

    @property
    def _text(self) -> list[int]:
        return self._words[self._at : self._at + self.depth]

    def _read(self, text: Sequence[int]) -> float:
        began = self._clock()
        n = len(self._session.tokens)
        if text[:n] != list(self._session.tokens):
            self._session.close()
            self._session, n = self._target.open(), 0
        self._session.extend(text[n:])
        self._target.forward([(self._session, EMPTY)], Want())
        return max(self._clock() - began, 1e-9)

    def _pass(self, rows: int) -> float:
        self._session.extend(())
        draft = chain(self._words[: rows - 1], "filler")
        began = self._clock()
        self._target.forward([(self._session, draft)], Want())
        return max(self._clock() - began, 1e-9)
