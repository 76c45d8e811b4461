"""Flash attention or none, on a processor: tried with a model this once, and kept.

It goes through the cache once for every row, and needs no room for what all rows make of all of it. llama.cpp
takes it where it is left the choice. Prompts are faster with it; a pass over the few rows of a draft may take
half of the time without, or hardly less (docs/log/costs.md)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from time import perf_counter
from typing import Any

from paceline.backends.interface import Backend, ModelSetup, TunableBackend
from paceline.backends.registry import resolve_kernels
from paceline.hardware.bandwidth import free_memory
from paceline.profiling.pass_costs import (
    MAX_TIMING_JITTER,
    Warn,
    cost_key,
    is_without_flash,
    progress,
    to_stderr,
)
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import Target
from paceline.speculative.policy.pass_timer import (
    Clock,
    PassTimer,
    Progress,
    cold_tokens,
    measurement_order,
    medians,
)
from paceline.system import home

PROGRESS_STAGE = "attention"  # of a progress bar
N_ROUNDS = 3
PROMPT_TOKENS = 512  # tokens of the prompt, that passes come after
DRAFT_BATCH_TOKENS = 8  # of a pass that verifies a draft
# Tokens of a prompt to be read for every two passes, one over a single row and one over ROWS. Judgement.
PREFILL_REPEATS = 8
FLASH_PREFERENCE = 0.05  # so much more a request may take with flash attention: it needs less memory
# When a model is loaded for the first time: seconds for reading a prompt, and its length at most and at
# least. Where less can be read it is not tried, since nothing would be seen of it.
QUICK, SHORT, SHORTEST = 1.0, 256, 128
FIRST_PROMPT_TOKENS = 16  # tokens: how a prompt is begun whose length is not known yet
MAX_MEMORY_FRACTION = 4  # scores may take one over this of the free memory
NOTICE = "trying flash attention and none here, this once"


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
        return PREFILL_REPEATS / self.prompt + self.token + self.draft


def choose_flash_attention(target: Backend, *, warn: Warn = to_stderr) -> None:
    """Let an engine that was just loaded go without flash attention where that was left open and is faster
    here: as was found before, or is in a few seconds now, with a line on the terminal."""
    if not isinstance(target, TunableBackend) or not is_undecided(target):
        return
    if target.caps.rollback != "free" or target.caps.n_ctx < 2 * SHORTEST:
        return
    flash = load(target)
    if flash or MAX_MEMORY_FRACTION * target.attention_score_bytes() > free_memory():
        return
    try:
        if flash is None:
            with progress(NOTICE, quiet=False) as tell:
                tell(PROGRESS_STAGE, 0.0)
                found = measure_both(target, partial(tell, PROGRESS_STAGE), seconds=QUICK)
            flash = store(target, found, warn)
        if not flash:
            target.use_flash_attention(False)
    except ModelError as error:
        warn(f"{error}; flash attention stays on")


def is_undecided(model: ModelSetup) -> bool:
    """Whether flash attention is a matter of speed, and was not said. With kernels of our own it is on."""
    given = model.settings
    goes = is_without_flash(given.get("gpu_layers", 0), given.get("cache_type", "f16"))
    if not goes or given.get("flash_attention") is not None or given.get("exact_rows", 0):
        return False
    return not resolve_kernels(model.path, given.get("kernels", True))


def is_decided(model: ModelSetup) -> bool | None:
    """What `choose_flash_attention` would choose for a model that is run like this, by what is known
    already."""
    return False if is_undecided(model) and load(model) is False else model.settings.get("flash_attention")


def measure_both(
    target: TunableBackend, progress: Progress = cold_tokens, *, seconds: float = math.inf
) -> list[Attention]:
    """With the weights of `target`, which is left alone. Raises ModelError where no context can be made. For
    seconds see `tried`."""
    n_ctx = min(2 * (PROMPT_TOKENS if seconds == math.inf else SHORT), target.caps.n_ctx)
    with (
        closing(target.with_shared_weights(n_ctx=n_ctx, flash_attention=None)) as on,  # as llama.cpp chooses
        closing(target.with_shared_weights(n_ctx=n_ctx, flash_attention=False)) as off,
    ):
        return measure_setting(on, off, progress, seconds=seconds)


def measure_setting(
    on: Target,
    off: Target,
    progress: Progress = cold_tokens,
    clock: Clock = perf_counter,
    *,
    seconds: float = math.inf,
) -> list[Attention]:
    """One model with and without flash attention; of the rounds the median. seconds: for a prompt of as many
    tokens as can be read in these, which each reads once; nothing is tried where that are too few."""
    n_ctx = on.caps.n_ctx
    depth, rows = (
        max(1, min(PROMPT_TOKENS, n_ctx // 2)),
        max(1, min(DRAFT_BATCH_TOKENS, on.caps.max_batch_tokens, n_ctx // 2)),
    )
    taken: list[list[tuple[float, float, float]]] = [[], []]
    with closing(PassTimer(on, clock)) as with_flash, closing(PassTimer(off, clock)) as without:
        if seconds < math.inf:
            depth = _within(seconds, with_flash, depth)
            if depth < SHORTEST:
                return []
        for i in measurement_order(2, N_ROUNDS, progress):
            timer, samples = (with_flash, without)[i], taken[i]
            if samples and seconds < math.inf:
                prompt = samples[0][0]
            else:
                timer.reset()
                prompt = depth / timer.prefill(depth)
            samples.append((prompt, timer.time_pass(1), timer.time_pass(rows)))
    out = []
    for flash, samples in zip((True, False), taken, strict=True):
        prompt, token, draft = medians(samples)
        noise = token / min(token for _, token, _ in samples)
        out.append(Attention(flash, depth, rows, prompt, token, draft, noise))
    return out


def _within(seconds: float, timer: PassTimer, most: int) -> int:
    """How long a prompt may be to be read in so many seconds, by reading one piece by piece, each as long as
    all before it. (In one go flash attention is the faster at it.)"""
    depth, spent, last = min(FIRST_PROMPT_TOKENS, most), 0.0, 0.0
    timer.prefill(depth)  # not counted: weights that were never touched come from the disk
    while depth < most and spent + 2 * last < seconds:
        depth = min(2 * depth, most)
        last = timer.prefill(depth)  # what it has more than before
        spent += last
    return depth


def quicker(tried: Sequence[Attention]) -> Attention:
    """The faster one for a request; of those that are alike the one with flash attention."""
    least = min(one.request for one in tried)
    return max(
        (one for one in tried if one.request <= least * (1 + FLASH_PREFERENCE)), key=lambda one: one.flash
    )


def load(model: ModelSetup) -> bool | None:
    """Which was kept for a model that is run like this; None where none was, or none that can be used: it is
    tried again in a moment."""
    flash = home.load_record("attention", _key(model), lambda value: value["flash"])
    return flash if type(flash) is bool else None


def store(model: ModelSetup, found: Sequence[Attention], warn: Warn) -> bool:
    """Keep the best for whatever loads the model next; flash attention where nothing was tried.
    Of a machine too busy to tell nothing is kept, and `warn` is told."""
    if any(one.noise >= MAX_TIMING_JITTER for one in found):
        warn("the machine is too busy to tell whether flash attention is faster: nothing is kept")
        return True
    flash = not found or quicker(found).flash
    selected = {"flash": flash, "tried": [asdict(one) for one in found]}
    home.write_record("attention", _key(model), selected, warn, "flash attention is tried again next time")
    return flash


def _key(model: ModelSetup) -> dict[str, Any]:
    """What the choice depends on: all that a target's costs do but the choice."""
    return cost_key(model, "target") | {"flash_attention": None}
