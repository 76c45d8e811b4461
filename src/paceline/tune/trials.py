"""Measurements of a tune: candidates answer the same items in turns, and only lossless ones get a speed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.bench.bench import TIMED_MAX_TOKENS, context_for
from paceline.bench.gate import Contestant
from paceline.bench.method import PLAIN
from paceline.bench.paceline_system import LoadedModels, PacelineSystem
from paceline.bench.prompts import RequestBuilder
from paceline.bench.provenance import provenance
from paceline.bench.runner import Runner, Watch
from paceline.bench.suites import workload
from paceline.bench.suites.workload import GROUPS, Item
from paceline.bench.summary import ratio, summarize
from paceline.doctor.drafts import TASKS
from paceline.drafts import kind_of
from paceline.fits import MTP
from paceline.hardware.threads import choose_threads
from paceline.models.headers.header import facts_or_note
from paceline.plan import model_files
from paceline.report.bench import MIN_ITEMS, overall
from paceline.settings import AUTO, Drafting
from paceline.speculative.sampling import Sampling
from paceline.tune.candidates import PLAIN_DECODING, Candidate
from paceline.tune.plan import TunePlan
from paceline.tune.record import Stage, TuneRecord

MAX_DRAFT = 32  # tokens
Result = dict[str, Any]
Point = tuple[Candidate, Result]


class Trials:
    """The loaded models and the items of a tune. tuning, held_out: the items.
    drafts: files of draft models and heads. Raises UsageError before anything is loaded."""

    def __init__(self, plan: TunePlan, record: TuneRecord, watch: Watch) -> None:
        self.plan, self.record, self._watch = plan, record, watch
        self.drafts = [Path(draft) for draft in plan.drafts]
        self._target, _ = model_files(plan.models.target, None, ())
        self._facts = facts_or_note(self._target, lambda _: None)
        self._suite = plan.suite or self._suite_of_task()
        self._items = workload.load(self._suite)

    def _suite_of_task(self) -> str:
        """Return the suites of the task; for a model without a chat template, texts to complete."""
        suite = TASKS[self.plan.task]
        if self._facts is not None and self._facts.chat_template:
            return suite
        text = suite.removeprefix("real-")
        return "toy" if suite == "real" else text if text in GROUPS["toy"] else suite

    def load(self, stack: ExitStack) -> None:
        """Load the models until the stack is closed, choose the items, and begin the time and the record."""
        plan = self.plan
        n_ctx = plan.models.engine.n_ctx or context_for(self._items, self._facts)
        engine = replace(plan.models.engine, n_ctx=n_ctx)
        drafting = Drafting(drafters=(AUTO,), n_draft=MAX_DRAFT)
        self.options = replace(plan.models, target=self._target, engine=engine, drafting=drafting)
        # The target computes a sidecar of its own layers; other drafts are their methods'.
        self._sidecar = next((draft for draft in self.drafts if kind_of(draft) == MTP), None)
        self.models = stack.enter_context(LoadedModels(self.options, self._sidecar, keep_prompts=True))
        llm, sampling = self.models.plain, Sampling(temperature=plan.temperature)
        prompts = RequestBuilder(llm, n=None, sampling=sampling, seed=plan.seed)
        self.runner = Runner(self.models, PLAIN_DECODING.method, prompts, self._watch)
        stack.callback(self.runner.close)
        size = "full" if llm.target.caps.n_ctx >= 4096 else "tiny"
        limit = min(plan.n, TIMED_MAX_TOKENS)
        items = [
            replace(item, max_tokens=min(item.max_tokens, limit))
            for item in workload.interleaved(workload.filter_size(self._items, size))
        ]
        self.tuning, self.held_out = split(items)
        self.runner.warm_up(items)
        request = {"n": plan.n, "temperature": plan.temperature, "seed": plan.seed}
        self.record.begin(provenance(llm, request) | {"suite": self._suite})
        self.start, self.seconds = perf_counter(), 60 * plan.minutes

    @property
    def threads(self) -> int:
        return choose_threads(self.options.engine.threads)

    def end_of(self, share: float) -> float:
        """Return the time by which a share of the minutes has passed."""
        return self.start + share * self.seconds

    def measure(
        self, stage: str, candidates: Sequence[Candidate], items: Sequence[Item], until: float
    ) -> list[Result]:
        """Return the results of plain decoding and the candidates, or those of an interrupted tune."""
        stored = self.record.stages.setdefault(stage, Stage())
        if stored.results is not None:
            return stored.results
        if stored.groups:  # of those that were measured before
            candidates = [one for one in candidates if one.name in stored.groups[0].measurements]
        runner = self.runner
        del runner.entries[1:]
        with ExitStack() as stack:
            for candidate in candidates:
                models = self.models
                if candidate.engine:
                    engine = replace(self.options.engine, **candidate.engine)
                    options = replace(self.options, engine=engine)
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

    def points(
        self, stage: str, candidates: Sequence[Candidate], items: Sequence[Item], until: float
    ) -> list[Point]:
        """Return the candidates with their results."""
        by_name = {one["system"]: one for one in self.measure(stage, candidates, items, until)}
        return [(candidate, by_name[candidate.name]) for candidate in candidates]

    def value(self, name: str, category: str = "") -> float:
        """Return the speedup of a candidate over plain decoding in all stages so far."""
        groups = [group for stage in self.record.stages.values() for group in stage.groups]
        gain = ratio([group for group in groups if category in ("", group.category)], name, PLAIN)
        return 0.0 if gain is None else gain.value


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


def speedup(result: Mapping[str, Any]) -> float:
    return result["speedup"]["value"] if result["lossless"] and result["speedup"] else 0.0
