"""A tune from its plan to its record: a sweep or a search, the check on held-out prompts, the profile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from datetime import date
from pathlib import Path

from paceline.bench.bench import unwatched
from paceline.bench.method import PLAIN
from paceline.bench.runner import Watch
from paceline.bench.summary import Interval, ratio
from paceline.bench.system import ItemMeasurements
from paceline.doctor.drafts import TASKS
from paceline.plan import machine
from paceline.report.bench import MIN_ITEMS
from paceline.speculative.validation import unknown
from paceline.storage.profiles import Profile
from paceline.system.locks import run_lock
from paceline.tune import record as records
from paceline.tune.candidates import DEFAULT, PLAIN_DECODING, Candidate, settings_of
from paceline.tune.plan import Sweep, TunePlan, engine_changes
from paceline.tune.record import TuneRecord
from paceline.tune.search import search
from paceline.tune.sweep import SweepRunner
from paceline.tune.trials import Trials

MIN_GAIN = 1.02  # over the defaults


class Tuning:
    """A tune from its plan to its record. stored: an interrupted record to continue.
    Raises UsageError for a plan that cannot be run, before anything is loaded."""

    def __init__(
        self, plan: TunePlan, *, file: Path | None = None, stored: TuneRecord | None = None,
        watch: Watch = unwatched,
    ) -> None:  # fmt: skip
        if plan.task not in TASKS:
            raise unknown("task", plan.task, TASKS)
        self.plan = plan
        self.record = stored or TuneRecord(plan.as_dict(), file)
        self._trials = Trials(plan, self.record, watch)
        self._sweeps = SweepRunner(self._trials)

    def run(self) -> TuneRecord:
        """Measure, decide, save the profile, and return the record; after Ctrl-C that of what was done."""
        plan = self.plan
        try:
            with ExitStack() as stack:
                stack.enter_context(run_lock(records.new_path().parent))  # two would disturb each other
                self._trials.load(stack)
                if plan.sweeps:
                    best = [self._sweeps.run(Sweep.parse(text)) for text in plan.sweeps][-1]
                    if plan.profile:
                        self._conclude(best)
                else:
                    self._conclude(search(self._trials))
        except KeyboardInterrupt:
            self.record.conclude(status="interrupted")
        return self.record

    @property
    def skipped(self) -> list[str]:
        """The reasons of items that were not measured."""
        return list(dict.fromkeys(self._trials.runner.skipped))

    def _conclude(self, best: Candidate) -> None:
        """Compare the best with the defaults on held-out prompts, and save what is fastest as a profile."""
        trials = self._trials
        candidates = [DEFAULT] if best.name in (DEFAULT.name, PLAIN) else [DEFAULT, best]
        results = trials.measure("held out", candidates, trials.held_out, trials.end_of(1.0))
        groups = self.record.stages["held out"].groups
        lossless = {result["system"]: result["lossless"] for result in results}
        measured = {name: _gain(groups, name, PLAIN) for name in (DEFAULT.name, best.name)}
        over_default = _gain(groups, best.name, DEFAULT.name) if best.name in lossless else None
        n_items = len({group.item for group in groups})
        chosen, why = decide(best.name, DEFAULT.name, measured, over_default, n_items)
        if not lossless.get(chosen, True):
            chosen, why = DEFAULT.name, f"{chosen} was not lossless on held-out prompts"
        profile = None
        if self.plan.save and chosen != DEFAULT.name and n_items >= MIN_ITEMS:
            profile = self._profile(best if chosen == best.name else PLAIN_DECODING, measured)
            profile.save()
        self.record.conclude(
            status="done", chosen=chosen, why=why, items=n_items,
            speedups={name: gain and asdict(gain) for name, gain in measured.items()},
            over_default=over_default and asdict(over_default),
            profile=profile and {"name": profile.name, "file": str(profile.path), "command": profile.command},
        )  # fmt: skip

    def _profile(self, best: Candidate, measured: Mapping[str, Interval | None]) -> Profile:
        method, plan = best.method, self.plan
        settings = settings_of(method)
        draft = method.draft if method.uses_draft else None
        if draft is not None:
            settings["draft"] = str(draft.absolute()) if draft.exists() else str(draft)
        settings |= {**engine_changes(plan.models.engine), **best.engine, **plan.role}
        target = self._trials.models.plain.target
        identity = {"name": target.name, "fingerprint": target.identity()["model"]}
        return Profile(
            plan.profile or plan.task, plan.task, identity, machine(), settings,
            tuned=date.today().isoformat(),
            measured={name: gain and asdict(gain) for name, gain in measured.items()},
        )  # fmt: skip


def _gain(groups: Sequence[ItemMeasurements], name: str, base: str) -> Interval | None:
    return None if name == base or not groups else ratio(groups, name, base)


def decide(
    best: str, default: str, over_plain: Mapping[str, Interval | None], over_default: Interval | None, n: int
) -> tuple[str, str]:
    """Return the choice among plain decoding, the default and the best of the search, and the reason.
    over_plain, over_default: speedups on held-out prompts. n: number of prompts."""
    gains = {name: gain.value for name, gain in over_plain.items() if gain is not None}
    if n < MIN_ITEMS:
        return default, f"too few held-out prompts were measured ({n} of {MIN_ITEMS}): more --minutes"
    if not gains or max(gains.values()) <= 1.0:
        return PLAIN, "nothing was faster than plain decoding on held-out prompts: don't speculate"
    over = 0.0 if best == default or over_default is None else over_default.value
    if over < MIN_GAIN or gains.get(best, 0.0) <= 1.0:
        return default, "nothing was clearly faster than the defaults on held-out prompts"
    return best, f"{over:.2f}x the defaults on held-out prompts"
