"""The bench: systems answer the same requests in turn, and only lossless ones get a speed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.bench import run_file, systems
from paceline.bench.method import PLAIN, check_draft, parse_all
from paceline.bench.paceline_system import LoadedModels
from paceline.bench.plan import BenchPlan
from paceline.bench.prompts import RequestBuilder
from paceline.bench.provenance import provenance
from paceline.bench.replay.recording import Recorder
from paceline.bench.run_file import Status, StoredRun
from paceline.bench.runner import Runner, Tick, Watch
from paceline.bench.suites.workload import Item, filter_size, interleaved, length, load, sample_items
from paceline.bench.summary import BenchResult, summarize
from paceline.bench.system import ItemMeasurements
from paceline.models.headers.header import facts_or_note
from paceline.plan import model_files
from paceline.settings import AUTO, Drafting
from paceline.speculative.errors import UsageError
from paceline.storage.corpora import Corpora

LONG_ITEM_CHARACTERS = 12_000  # an item of this length needs a longer context
LONGEST_CONTEXT = 8192  # tokens
FULL_CONTEXT = 4096  # a target with a shorter context gets the tiny items of a suite
TIMED_MAX_TOKENS = 128  # tokens of an answer under a time limit
GATE_TIME_SHARE = 1 / 3  # of a time limit, for the gate of a sampled bench


@dataclass
class BenchRecord:
    """The results of a bench.
    file: of the run, if it has begun. skipped: reasons of items that were not measured. reading: tokens and
    seconds of prefills. lost: error of a failed write to the file."""

    plan: BenchPlan
    provenance: dict[str, Any] = field(default_factory=dict)
    status: Status = "running"
    file: Path | None = None
    results: list[BenchResult] = field(default_factory=list)
    groups: list[ItemMeasurements] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    reading: list[tuple[int, float]] = field(default_factory=list)
    lost: str = ""

    def as_dict(self) -> dict[str, Any]:
        n, seconds = sum(n for n, _ in self.reading), sum(took for _, took in self.reading)
        return {
            "file": None if self.file is None else str(self.file),
            "status": self.status,
            "plan": self.plan.as_dict(),
            "results": [asdict(result) for result in self.results],
            "skipped": self.skipped,
            "prompt_speed": n / seconds if seconds > 0 else None,  # tokens/s of prefills
            "measurements": [
                {"round": group.round, "item": group.item, "category": group.category} | measurement
                for group in self.groups
                for measurement in group.measurements.values()
            ],
            "provenance": self.provenance,
        }


def unwatched(_: Mapping[str, int]) -> AbstractContextManager[Tick]:
    return nullcontext(lambda _: None)


class Bench:
    """A bench from its plan to its record.
    file: a new file for the measurements. stored: a run to continue in its file. watch: called with the
    amount of work of each phase. recorder: records the plain answers. Raises UsageError for a plan that
    cannot be run and BaselineError for a missing program, before anything is loaded."""

    def __init__(
        self,
        plan: BenchPlan,
        *,
        file: Path | None = None,
        stored: StoredRun | None = None,
        watch: Watch = unwatched,
        recorder: Recorder | None = None,
    ) -> None:
        self._watch, self._recorder = watch, recorder
        self._file, self._stored = file, stored
        if file is not None:
            run_file.require_new(file)
        self._methods = parse_all(plan.methods, plan.drafting)
        self._baselines = systems.parse(plan.baselines)
        Corpora.find(plan.models.corpora)  # raises for a name that is none
        used = [name for method in self._methods for name in method.drafting.drafters]
        self._target, self._draft = model_files(plan.models.target, plan.models.draft, used)
        check_draft(self._methods, self._draft is not None)
        # Real requests for a model with a chat template, otherwise texts to complete. Without facts it is the
        # toy model, or a file that loading will report.
        self._facts = facts = facts_or_note(self._target, lambda _: None)
        suite = plan.suite or ("real" if facts is not None and facts.chat_template else "toy")
        self._plan = plan = replace(plan, suite=suite)
        self.record = BenchRecord(plan)
        self._every = load(plan.suite)

    def measure(self) -> BenchRecord:
        """Run the bench and return its record, after Ctrl-C with the results so far."""
        with ExitStack() as stack:
            self._measure(stack)
        record = self.record
        if record.results:
            self._append({"status": record.status, "results": [asdict(result) for result in record.results]})
        return record

    def _measure(self, stack: ExitStack) -> None:
        plan, record = self._plan, self.record
        longest = max(method.drafting.n_draft for method in self._methods)
        # Passes of one shape (exact_greedy) fit the longest draft.
        engine = replace(plan.models.engine, n_ctx=plan.models.engine.n_ctx or self._context())
        drafting = Drafting(drafters=(AUTO,), n_draft=longest)
        options = replace(plan.models, target=self._target, engine=engine, drafting=drafting)
        turns: Runner | None = None
        try:
            models = LoadedModels(options, self._draft, keep_prompts=plan.keep_prompts)
            stack.enter_context(models)
            items = self._items(models)
            prompts = RequestBuilder(models.plain, n=plan.n or None, sampling=plan.sampling, seed=plan.seed)
            if self._recorder is not None:
                self._recorder.begin(models.plain.target.vocab, models.plain.target.name)
            turns = Runner(models, self._methods[0], prompts, self._watch)
            stack.callback(turns.close)
            turns.warm_up(items)
            turns.add(self._methods[1:])
            target = models.plain.target
            actual = {"n_ctx": target.caps.n_ctx, "flash_attention": target.settings.get("flash_attention")}
            given = asdict(engine)
            systems.join(
                turns.entries, self._baselines, self._methods, self._target, self._draft, given | actual,
                samples=not plan.sampling.greedy,
            )  # fmt: skip
            self._begin(turns, given)
            start, seconds = perf_counter(), 60 * plan.minutes or math.inf
            if not plan.sampling.greedy:
                items = turns.check(items, plan.sampling, plan.seed, start + GATE_TIME_SHARE * seconds)
            for group in turns.rounds(items, plan.rounds, list(record.groups), start + seconds):
                record.groups.append(group)
                self._append(asdict(group))
            if self._recorder is not None:
                turns.record(self._recorder, items)
            record.status = "done"
        except KeyboardInterrupt:
            record.status = "interrupted"
        if turns is not None:
            record.skipped, record.reading = turns.skipped, turns.reading
            if record.groups:
                results = summarize([entry.row for entry in turns.entries], record.groups, PLAIN)
                # With cached prompts the time to the first token means nothing.
                record.results = [replace(one, ttft=None) if plan.keep_prompts else one for one in results]

    def _append(self, line: Mapping[str, Any]) -> None:
        """Write to the file. A write error is reported in the record and does not end the bench."""
        if self.record.file is None or self.record.lost:
            return
        try:
            run_file.append(self.record.file, line)
        except OSError as error:
            self.record.lost = error.strerror or str(error)

    def _context(self) -> int:
        """Return a context length for the suite's longest prompts; 0 leaves it to the model."""
        if self._facts is None or max(map(length, self._every)) < LONG_ITEM_CHARACTERS:
            return 0
        return min(LONGEST_CONTEXT, self._facts.n_ctx or 0)

    def _items(self, models: LoadedModels) -> list[Item]:
        """Return the items for the model's size, with a time limit in the order of `interleaved`."""
        plan = self._plan
        size = plan.size or ("tiny" if models.plain.target.caps.n_ctx < FULL_CONTEXT else "full")
        fitting = filter_size(self._every, size)
        if plan.items:
            fitting = sample_items(fitting, plan.items)
        if not plan.minutes:
            return fitting
        items = list(interleaved(fitting))
        if not plan.n:
            items = [replace(item, max_tokens=min(item.max_tokens, TIMED_MAX_TOKENS)) for item in items]
        single = [item for item in items if not item.session]
        if single:  # the first item is measured even if its time is over
            items.insert(0, items.pop(items.index(min(single, key=length))))
        return items

    def _begin(self, turns: Runner, given: Mapping[str, Any]) -> None:
        """Start a run, or continue one that was measured under the same conditions."""
        record, plan, stored = self.record, self._plan, self._stored
        text = json.dumps([asdict(item) for item in self._every], sort_keys=True)
        request = {name: getattr(plan, name) for name in ("size", "items", "n", "seed")}
        # Two suites may share a name.
        request |= {"questions": hashlib.sha256(text.encode()).hexdigest()[:16], **asdict(plan.sampling)}
        engine = {n: given.get(n) for n in ("flash_attention", "cache_type", "gpu_layers", "kernels")}
        details = {"suite": plan.suite, "engine_settings": engine, "baselines": turns.baselines}
        record.provenance = provenance(turns.llm, request) | details
        if stored is not None:
            now = json.loads(json.dumps(record.provenance))
            if unlike := [name for name in now if now[name] != stored.provenance.get(name)]:
                fields = ", ".join(unlike)
                raise UsageError(f"{stored.path}: cannot go on, its {fields} differed: measure anew")
            record.file, record.groups = stored.path, stored.groups
        elif self._file is not None:
            run_file.begin(self._file, plan.as_dict(), record.provenance)
            record.file = self._file if self._file.is_file() else None  # and no device
