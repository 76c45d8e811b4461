"""Sweeps and the search: candidates answer the same items in turns, and only lossless ones get a speed."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.backends.recorded import Recording
from paceline.backends.registry import quantised
from paceline.bench.bench import TIMED_MAX_TOKENS, context_for, unwatched
from paceline.bench.gate import Contestant
from paceline.bench.method import PLAIN, Method
from paceline.bench.paceline_system import LoadedModels, PacelineSystem
from paceline.bench.prompts import RequestBuilder
from paceline.bench.provenance import provenance
from paceline.bench.replay.replay import ReplayContext
from paceline.bench.runner import Runner, Watch
from paceline.bench.suites import workload
from paceline.bench.suites.workload import GROUPS, Item
from paceline.bench.summary import Interval, ratio, summarize
from paceline.bench.system import ItemMeasurements
from paceline.doctor.drafts import TASKS
from paceline.drafter_table import DRAFT
from paceline.drafts import kind_of
from paceline.fits import MTP, drafters_of
from paceline.hardware.threads import choose_threads, logical_cores, physical_cores
from paceline.models.headers.header import facts_or_note
from paceline.plan import machine, model_files
from paceline.report.bench import MIN_ITEMS, overall
from paceline.settings import AUTO, Drafting
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling import Sampling
from paceline.speculative.validation import unknown
from paceline.storage.corpora import Corpora
from paceline.storage.profiles import Profile
from paceline.system.locks import run_lock
from paceline.tune import record as records
from paceline.tune.plan import ADAPTIVE, ENGINE_SETTINGS, QUANTISATION, Sweep, TunePlan, engine_changes
from paceline.tune.record import Stage, TuneRecord
from paceline.tune.search import draft_methods, method_of, search_copiers, settings_of

LONGEST_DRAFT = 32  # tokens
K_UP, K_DOWN = (8, 12, 16, 24), (4, 2)
GOOD_ACCEPTANCE = 0.6  # from which longer drafts are tried
MIN_GAIN = 1.02  # of a longer draft, or over the defaults; below it the curve is flat
REPLAY_SHARE, ROUNDS_SHARE, THREADS_SHARE = 0.15, 0.6, 0.7  # of the time: the ends of the phases
FINALISTS, MAX_ROUNDS = 3, 6
DEFAULT_METHOD = method_of({"drafters": (AUTO,)})  # what a model has without a profile
PLAIN_METHOD = method_of({"drafters": ("none",)})


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method. engine: settings of its own, for which the model is loaded again. label: of its draft, if
    there are several."""

    method: Method
    engine: Mapping[str, Any] = field(default_factory=dict)
    label: str = ""

    @property
    def name(self) -> str:
        label = [self.label] if self.label else []
        return ":".join(
            [self.method.name, *label, *(f"{name}={value}" for name, value in self.engine.items())]
        )


Point = tuple[Candidate, dict[str, Any]]  # with its result


class Tuning:
    """A tune from its plan to its record. stored: an interrupted record to continue.
    Raises UsageError for a plan that cannot be run, before anything is loaded."""

    def __init__(
        self, plan: TunePlan, *, file: Path | None = None, stored: TuneRecord | None = None,
        watch: Watch = unwatched,
    ) -> None:  # fmt: skip
        self.plan, self._watch = plan, watch
        self.record = stored or TuneRecord(plan.as_dict(), file)
        if plan.task not in TASKS:
            raise unknown("task", plan.task, TASKS)
        self._drafts = [Path(draft) for draft in plan.drafts]
        self._target, _ = model_files(plan.models.target, None, ())
        self._facts = facts_or_note(self._target, lambda _: None)
        self._items = workload.load(plan.suite or self._suite())
        # The points of a sweep draft with the first draft, or copy from the text.
        usual = drafters_of(kind_of(self._drafts[0]))[:1] if self._drafts else ["lookup"]
        self._base = {"drafters": plan.drafters or tuple(usual), **plan.drafting}
        method_of(self._base)

    def _suite(self) -> str:
        """Return the suites of the task; for a model without a chat template, texts to complete."""
        suite = TASKS[self.plan.task]
        if self._facts is not None and self._facts.chat_template:
            return suite
        text = suite.removeprefix("real-")
        return "toy" if suite == "real" else text if text in GROUPS["toy"] else suite

    def run(self) -> TuneRecord:
        """Measure, decide, save the profile, and return the record; after Ctrl-C that of what was done."""
        plan = self.plan
        try:
            with ExitStack() as stack:
                stack.enter_context(run_lock(records.new_path().parent))  # two would disturb each other
                self._load(stack)
                self._start, self._seconds = perf_counter(), 60 * plan.minutes
                if plan.sweeps:
                    best = [self._sweep(Sweep.parse(text)) for text in plan.sweeps][-1]
                    if plan.profile:
                        self._conclude(best)
                else:
                    self._conclude(self._search())
        except KeyboardInterrupt:
            self.record.conclude(status="interrupted")
        return self.record

    @property
    def skipped(self) -> list[str]:
        """The reasons of items that were not measured."""
        return list(dict.fromkeys(self._runner.skipped))

    def _load(self, stack: ExitStack) -> None:
        plan = self.plan
        n_ctx = plan.models.engine.n_ctx or context_for(self._items, self._facts)
        engine = replace(plan.models.engine, n_ctx=n_ctx)
        drafting = Drafting(drafters=(AUTO,), n_draft=LONGEST_DRAFT)
        self._options = replace(plan.models, target=self._target, engine=engine, drafting=drafting)
        # The target computes a sidecar of its own layers; other drafts are their methods'.
        self._sidecar = next((draft for draft in self._drafts if kind_of(draft) == MTP), None)
        self._models = stack.enter_context(LoadedModels(self._options, self._sidecar, keep_prompts=True))
        llm, sampling = self._models.plain, Sampling(temperature=plan.temperature)
        prompts = RequestBuilder(llm, n=None, sampling=sampling, seed=plan.seed)
        self._runner = Runner(self._models, PLAIN_METHOD, prompts, self._watch)
        stack.callback(self._runner.close)
        size = "full" if llm.target.caps.n_ctx >= 4096 else "tiny"
        limit = min(plan.n, TIMED_MAX_TOKENS)
        items = [
            replace(item, max_tokens=min(item.max_tokens, limit))
            for item in workload.interleaved(workload.filter_size(self._items, size))
        ]
        self._tuning, self._held_out = split(items)
        self._runner.warm_up(items)
        request = {"n": plan.n, "temperature": plan.temperature, "seed": plan.seed}
        self.record.begin(provenance(llm, request) | {"suite": plan.suite or self._suite()})

    def _left(self, share: float) -> float:
        """Return the time by which a share of the minutes has passed."""
        return self._start + share * self._seconds

    def _measure(
        self, stage: str, candidates: Sequence[Candidate], items: Sequence[Item], until: float
    ) -> list[dict[str, Any]]:
        """Return the results of the candidates beside plain decoding's, or those of an interrupted tune."""
        stored = self.record.stages.setdefault(stage, Stage())
        if stored.results is not None:
            return stored.results
        if stored.groups:  # of those that were measured before
            candidates = [one for one in candidates if one.name in stored.groups[0].measurements]
        runner = self._runner
        del runner.entries[1:]
        with ExitStack() as stack:
            for candidate in candidates:
                models = self._models
                if candidate.engine:
                    engine = replace(self._options.engine, **candidate.engine)
                    options = replace(self._options, engine=engine)
                    models = stack.enter_context(LoadedModels(options, self._sidecar, keep_prompts=True))
                system = PacelineSystem(replace(candidate.method, name=candidate.name), models)
                runner.entries.append(Contestant(system, candidate.method.drafting.budget, runner.plain))
            if self.plan.temperature:
                runner.check(items[:2], Sampling(temperature=self.plan.temperature), self.plan.seed, until)
            for group in runner.rounds(items, 1, list(stored.groups), until):
                self.record.add(stage, group)
            rows = [entry.row for entry in runner.entries]
        results = [*map(dict, overall([asdict(one) for one in summarize(rows, stored.groups, PLAIN)]))]
        self.record.end(stage, results=results)
        return results

    def _sweep(self, sweep: Sweep) -> Candidate:
        """Measure the points of a sweep, note the conclusion, and return the best."""
        name = f"sweep {sweep.name}"
        if sweep.name == ADAPTIVE:
            points, why = self._adaptive_sweep(name)
        elif sweep.name in ENGINE_SETTINGS:
            method, points, why = method_of(self._base, self._first), [], ""
            for value in sweep.values:  # one more model at a time
                points += self._points(f"{name}={value}", [Candidate(method, {sweep.name: value})])
        elif sweep.name == QUANTISATION:
            points, why = self._quantised_points(name, sweep.values)
        else:
            points, why = self._points(name, [self._point({sweep.name: value}) for value in sweep.values]), ""
        best, result = max(points, key=lambda point: _speedup(point[1]))
        by_category = self._best_by_category([candidate for candidate, _ in points])
        note = f"best: {best.name}, {_text(result)} plain decoding{why and '; ' + why}{by_category}"
        if _speedup(result) <= 1:
            note = f"nothing was faster than plain decoding; {note}"
        self.record.end(next(reversed(self.record.stages)), note=note)
        return best if _speedup(result) > 1 else Candidate(PLAIN_METHOD)

    def _best_by_category(self, points: Sequence[Candidate]) -> str:
        """Return the best point of each kind of content, as a phrase; "" for a single kind."""
        groups = [group for stage in self.record.stages.values() for group in stage.groups]
        kinds = dict.fromkeys(group.category for group in groups)
        best = {kind: max(points, key=lambda one: self._value(one.name, kind)).name for kind in kinds}
        texts = [f"{kind} {name} {self._value(name, kind):.2f}x" for kind, name in best.items()]
        return f"; by content: {', '.join(texts)}" if len(kinds) > 1 else ""

    def _adaptive_sweep(self, name: str) -> tuple[list[Point], str]:
        """Try drafts of 8 tokens, then longer ones while acceptance is good and speed rises, or shorter."""
        points, lengths, why = list[Point](), list(K_UP), ""
        while lengths:
            k = lengths.pop(0)
            points += self._points(f"{name}={k}", [self._point({"n_draft": k})])
            rate = points[-1][1]["acceptance_rate"] or 0.0
            best = max(_speedup(result) for _, result in points[:-1]) if points[:-1] else 0.0
            if _speedup(points[-1][1]) < MIN_GAIN * best:
                return points, f"K={k} is no faster"
            if k >= K_UP[0] and rate < GOOD_ACCEPTANCE:
                lengths = list(K_DOWN) if k == K_UP[0] else []
                why = f"acceptance with K={k} is {rate:.0%}, below {GOOD_ACCEPTANCE:.0%}"
        return points, why

    def _quantised_points(self, name: str, kinds: Sequence[str]) -> tuple[list[Point], str]:
        """Measure a draft model with these types of weights, the first of which is compared with."""
        if self._first is None or kind_of(self._first) != DRAFT:
            raise UsageError(f"--sweep {QUANTISATION}: is of a draft model: give one (-md)")
        files = {kind: quantised(self._first, kind, self._threads) for kind in kinds}
        points = self._points(name, [
            Candidate(method_of(self._base, file), label=kind) for kind, file in files.items()
        ])  # fmt: skip
        reference, rate = points[0][1], points[0][1]["acceptance_rate"] or math.nan
        shares = [
            f"{one.label} has {(result['acceptance_rate'] or 0) / rate:.0%} of its acceptance and "
            f"{_speedup(result) / max(_speedup(reference), 1e-9):.2f} of its speed"
            for one, result in points[1:]
        ]
        return points, f"beside {kinds[0]}, {', '.join(shares)}" if shares else ""

    @property
    def _first(self) -> Path | None:
        return self._drafts[0] if self._drafts else None

    def _point(self, change: Mapping[str, Any]) -> Candidate:
        base = dict(self._base)
        if "n_draft" in change and not {"policy", "p_min"} & base.keys():
            base["policy"] = "fixed"  # others end drafts before the length that is measured
        if "p_min" in change:
            base["policy"] = "p_min"
        return Candidate(method_of({**base, **change}, self._first))

    def _points(self, stage: str, candidates: Sequence[Candidate]) -> list[Point]:
        until = perf_counter() + self._seconds / max(1, len(self.plan.sweeps)) / (
            len(K_UP) if ADAPTIVE in stage.split() else 1
        )
        results = self._measure(stage, candidates, [*self._tuning, *self._held_out], until)
        by_name = {result["system"]: result for result in results}
        return [(candidate, by_name[candidate.name]) for candidate in candidates]

    def _search(self) -> Candidate:
        """Replay settings of copiers, and let the best and those of drafts answer in knock-out rounds."""
        plan = self.plan
        for item in self._tuning:
            if perf_counter() < self._left(REPLAY_SHARE / 2) or len(self._runner.requests) < 2:
                self._runner.prepare(item)
        each = (perf_counter() - self._start) / max(1, len(self._runner.requests))  # seconds of an answer
        replayed = self._replayed() if not plan.temperature else []
        alive = [Candidate(DEFAULT_METHOD), *replayed[:1]]
        for draft in self._drafts:
            alive += [
                Candidate(method, label=draft.stem if len(self._drafts) > 1 or AUTO in method.name else "")
                for method in draft_methods(draft, plan.drafting)
            ]
        until = self._left(ROUNDS_SHARE)
        most = max(FINALISTS, int((until - perf_counter()) / 3 / max(each, 1e-3)))  # in the first round
        alive = list({candidate.name: candidate for candidate in [*alive, *replayed]}.values())[:most]
        n, at, number = 1, 0, 1
        while len(alive) > 1 and (number == 1 or (number <= MAX_ROUNDS and perf_counter() < until)):
            items = [self._tuning[i % len(self._tuning)] for i in range(at, at + n)]
            results = self._measure(f"round {number}", alive, items, until)
            lossless = {result["system"] for result in results if result["lossless"]}
            alive = [one for one in alive if one.name in lossless] or alive[:1]
            alive.sort(key=lambda one: -self._value(one.name))
            alive = alive[: max(FINALISTS, (len(alive) + 1) // 2)]
            number, at, n = number + 1, at + n, min(2 * n, len(self._tuning))
        best = alive[0]
        threads = [n for n in {physical_cores(), logical_cores()} if n != self._threads]
        if threads and perf_counter() < self._left(THREADS_SHARE) and "threads" not in best.engine:
            others = [replace(best, engine={"threads": n}) for n in threads]
            self._measure("threads", [best, *others], self._tuning, self._left(THREADS_SHARE))
            best = max([best, *others], key=lambda one: self._value(one.name))
        return best

    @property
    def _threads(self) -> int:
        return choose_threads(self._options.engine.threads)

    def _replayed(self) -> list[Candidate]:
        """Return the best methods without a draft, by replays of plain answers; those of a stored record."""
        stage = self.record.stages.setdefault("replay", Stage())
        if not stage.candidates:
            runner, models = self._runner, self._models
            recordings = [
                Recording(request.tokens, runner.plain.greedy_tokens[id_])
                for id_, request in runner.requests.items()
            ]
            target = models.plain.target
            corpora = Corpora.find(self._options.corpora, target.vocab)
            context = ReplayContext(target.vocab, target.text, corpora, None, models.pass_costs())
            found = search_copiers(
                recordings, context, self.plan.drafting, seed=self.plan.seed, n=FINALISTS,
                seconds=max(1.0, self._left(REPLAY_SHARE) - perf_counter()),
            )  # fmt: skip
            candidates = [[speedup, settings_of(method)] for speedup, method in found]
            note = f"predicted from recorded answers; the best: {found[0][1].name}, {found[0][0]:.2f}x"
            self.record.end("replay", candidates=candidates, note=note, results=[])
        return [Candidate(method_of(settings)) for _, settings in self.record.stages["replay"].candidates]

    def _value(self, name: str, category: str = "") -> float:
        """Return the speedup of a candidate over plain decoding in all stages so far."""
        groups = [group for stage in self.record.stages.values() for group in stage.groups]
        gain = ratio([group for group in groups if category in ("", group.category)], name, PLAIN)
        return 0.0 if gain is None else gain.value

    def _conclude(self, best: Candidate) -> None:
        """Compare the best with the defaults on held-out prompts, and save what is fastest as a profile."""
        default = Candidate(DEFAULT_METHOD)
        candidates = [default] if best.name in (default.name, PLAIN) else [default, best]
        results = self._measure("held out", candidates, self._held_out, self._left(1.0))
        groups = self.record.stages["held out"].groups
        lossless = {result["system"]: result["lossless"] for result in results}
        measured = {name: self._gain(groups, name, PLAIN) for name in (default.name, best.name)}
        over_default = self._gain(groups, best.name, default.name) if best.name in lossless else None
        n_items = len({group.item for group in groups})
        chosen, why = decide(best.name, default.name, measured, over_default, n_items)
        if not lossless.get(chosen, True):
            chosen, why = default.name, f"{chosen} was not lossless on held-out prompts"
        profile = None
        if self.plan.save and chosen != default.name and n_items >= MIN_ITEMS:
            profile = self._profile(best if chosen == best.name else Candidate(PLAIN_METHOD), measured)
            profile.save()
        self.record.conclude(
            status="done", chosen=chosen, why=why, items=n_items,
            speedups={name: gain and asdict(gain) for name, gain in measured.items()},
            over_default=over_default and asdict(over_default),
            profile=profile and {"name": profile.name, "file": str(profile.path), "command": profile.command},
        )  # fmt: skip

    @staticmethod
    def _gain(groups: Sequence[ItemMeasurements], name: str, base: str) -> Interval | None:
        return None if name == base or not groups else ratio(groups, name, base)

    def _profile(self, best: Candidate, measured: Mapping[str, Interval | None]) -> Profile:
        method, plan = best.method, self.plan
        settings = settings_of(method)
        draft = method.draft if method.uses_draft else None
        if draft is not None:
            settings["draft"] = str(draft.absolute()) if draft.exists() else str(draft)
        settings |= {**engine_changes(plan.models.engine), **best.engine, **plan.role}
        target = self._models.plain.target
        identity = {"name": target.name, "fingerprint": target.identity()["model"]}
        return Profile(
            plan.profile or plan.task, plan.task, identity, machine(), settings,
            tuned=date.today().isoformat(),
            measured={name: gain and asdict(gain) for name, gain in measured.items()},
        )  # fmt: skip


def split(items: Sequence[Item]) -> tuple[list[Item], list[Item]]:
    """Return the items to tune on, and those held out: alternately, MIN_ITEMS of them at least, and items of
    a session together."""
    units: dict[str, list[Item]] = {}
    for item in items:
        units.setdefault(item.session or item.id, []).append(item)
    tuning, held_out = list[Item](), list[Item]()
    for number, unit in enumerate(units.values()):
        is_tuning = number % 2 == 0 and len(tuning) < max(1, len(items) - MIN_ITEMS)
        (tuning if is_tuning else held_out).extend(unit)
    return tuning, held_out


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


def _speedup(result: Mapping[str, Any]) -> float:
    return result["speedup"]["value"] if result["lossless"] and result["speedup"] else 0.0


def _text(result: Mapping[str, Any]) -> str:
    return f"{_speedup(result):.2f}x"
