"""The bench: systems answer the same requests in turn, and only lossless ones get a speed."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import asdict, replace
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
from paceline.bench.run_file import Run
from paceline.bench.runner import Runner, Tick, Watch
from paceline.bench.suites.workload import Item, filter_size, interleaved, length, load, sample_items
from paceline.bench.summary import summarize
from paceline.models.headers.facts import ModelFacts
from paceline.models.headers.header import facts_or_note
from paceline.plan import model_files
from paceline.report.bench import overall
from paceline.settings import AUTO, Drafting
from paceline.speculative.errors import UsageError
from paceline.storage.corpora import Corpora

LONG_ITEM_CHARACTERS = 12_000  # an item of this length needs a longer context
LONGEST_CONTEXT = 8192  # tokens
FULL_CONTEXT = 4096  # a target with a shorter context gets the tiny items of a suite
TIMED_MAX_TOKENS = 128  # tokens of an answer under a time limit
GATE_TIME_SHARE = 1 / 3  # of a time limit, for the gate of a sampled bench


def unwatched(_: Mapping[str, int]) -> AbstractContextManager[Tick]:
    return nullcontext(lambda _: None)


def context_for(items: Sequence[Item], facts: ModelFacts | None) -> int:
    """Return a context length for the longest prompts; 0 leaves it to the model."""
    if facts is None or max(map(length, items)) < LONG_ITEM_CHARACTERS:
        return 0
    return min(LONGEST_CONTEXT, facts.n_ctx or 0)


class Bench:
    """A bench from its plan to its run.
    file: a new file for the measurements. stored: a run to continue in its file. watch: called with the
    amount of work of each phase. recorder: records the plain answers. Raises UsageError for a plan that
    cannot be run and BaselineError for a missing program, before anything is loaded."""

    def __init__(
        self, plan: BenchPlan, *, file: Path | None = None, stored: Run | None = None,
        watch: Watch = unwatched, recorder: Recorder | None = None,
    ) -> None:  # fmt: skip
        self._watch, self._recorder = watch, recorder
        self._file = file if stored is None else stored.path
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
        self._every, self.run = load(plan.suite), Run(plan.as_dict())
        if stored is not None:  # its path is set when it is known to be of the same models
            self.run = replace(stored, path=None, status="running", results=[])

    def measure(self) -> Run:
        """Measure and return the run, after Ctrl-C with the results so far."""
        run = self.run
        try:
            with ExitStack() as stack:
                self._measure(stack)
            run.status = "done"
        except KeyboardInterrupt:
            run.status = "interrupted"
        if run.results:
            run.append({name: getattr(run, name) for name in ("status", "results", "sample")})
        return run

    def _measure(self, stack: ExitStack) -> None:
        plan, run = self._plan, self.run
        longest = max(method.drafting.n_draft for method in self._methods)
        # Passes of one shape (exact_greedy) fit the longest draft.
        n_ctx = plan.models.engine.n_ctx or context_for(self._every, self._facts)
        engine = replace(plan.models.engine, n_ctx=n_ctx)
        drafting = Drafting(drafters=(AUTO,), n_draft=longest)
        options = replace(plan.models, target=self._target, engine=engine, drafting=drafting)
        models = stack.enter_context(LoadedModels(options, self._draft, keep_prompts=plan.keep_prompts))
        items, target = self._items(models), models.plain.target
        prompts = RequestBuilder(models.plain, n=plan.n or None, sampling=plan.sampling, seed=plan.seed)
        if self._recorder is not None:
            self._recorder.begin(target.vocab, target.name)
        runner = Runner(models, self._methods[0], prompts, self._watch)
        stack.callback(self._close, runner)
        runner.warm_up(items)
        runner.add(self._methods[1:])
        given = asdict(engine)
        actual = {"n_ctx": target.caps.n_ctx, "flash_attention": target.settings.get("flash_attention")}
        systems.join(
            runner.entries, self._baselines, self._methods, self._target, self._draft, given | actual,
            samples=not plan.sampling.greedy,
        )  # fmt: skip
        self._begin(runner, given)
        start, seconds = perf_counter(), 60 * plan.minutes or math.inf
        if not plan.sampling.greedy:
            items = runner.check(items, plan.sampling, plan.seed, start + GATE_TIME_SHARE * seconds)
        for group in runner.rounds(items, plan.rounds, list(run.groups), start + seconds):
            run.groups.append(group)
            run.append(asdict(group))
        if self._recorder is not None:
            runner.record(self._recorder, items)

    def _close(self, runner: Runner) -> None:
        """End the systems, and add what they were measured to the run."""
        run, rows = self.run, [entry.row for entry in runner.entries]
        runner.close()
        run.skipped, run.reading = runner.skipped, runner.reading
        # With cached prompts the time to the first token means nothing.
        meaningless = {"ttft": None} if self._plan.keep_prompts else {}
        if run.groups:
            run.results = [asdict(one) | meaningless for one in summarize(rows, run.groups, PLAIN)]
            run.sample = self._sample(runner)

    def _sample(self, runner: Runner) -> dict[str, Any]:
        """Return the last answer of the fastest lossless drafted method of ours."""
        samples = {one.name: one.sample for one in runner.systems if one.sample}
        drafted = [one for one in overall(self.run.results) if one["speedup"] and one["system"] in samples]
        if not drafted:
            return {}
        name = max(drafted, key=lambda one: float(one["speedup"]["value"]))["system"]
        return {"system": name, "parts": samples[name]}

    def _items(self, models: LoadedModels) -> list[Item]:
        """Return the items for the model's size, with a time limit in the order of `interleaved`."""
        plan = self._plan
        size = plan.size or ("tiny" if models.plain.target.caps.n_ctx < FULL_CONTEXT else "full")
        items = filter_size(self._every, size)
        if plan.items:
            items = sample_items(items, plan.items)
        if not plan.minutes:
            return items
        items = list(interleaved(items))
        if not plan.n:
            items = [replace(item, max_tokens=min(item.max_tokens, TIMED_MAX_TOKENS)) for item in items]
        if single := [item for item in items if not item.session]:  # the first is measured in any case
            items.insert(0, items.pop(items.index(min(single, key=length))))
        return items

    def _begin(self, runner: Runner, given: Mapping[str, Any]) -> None:
        """Begin a run, or continue one that was measured under the same conditions."""
        run, plan = self.run, self._plan
        text = json.dumps([asdict(item) for item in self._every], sort_keys=True)
        request = {name: getattr(plan, name) for name in ("size", "items", "n", "seed")}
        # Two suites may share a name.
        request |= {"questions": hashlib.sha256(text.encode()).hexdigest()[:16], **asdict(plan.sampling)}
        engine = {n: given.get(n) for n in ("flash_attention", "cache_type", "gpu_layers", "kernels")}
        details = {"suite": plan.suite, "engine_settings": engine, "baselines": runner.baselines}
        now = json.loads(json.dumps(provenance(runner.llm, request) | details))
        unlike = [name for name in now if now[name] != run.provenance.get(name)]
        if run.started and unlike:
            raise UsageError(f"{self._file}: cannot go on, its {', '.join(unlike)} differed: measure anew")
        run.provenance = now
        if run.started:
            run.path = self._file
        elif self._file is not None:
            run.begin(self._file)
