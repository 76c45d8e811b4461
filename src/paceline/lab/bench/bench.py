"""The bench: every system answers the same requests in turn, and only what passed the gate has a speed."""

from __future__ import annotations

import hashlib
import json
import math
import tempfile
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.assemble import choose
from paceline.core.errors import PacelineError, UsageError
from paceline.core.sampling import Sampling
from paceline.engines.openers import place_of
from paceline.lab.bench import peers
from paceline.lab.bench.forecast import Work
from paceline.lab.bench.history import History
from paceline.lab.bench.kept import Kept
from paceline.lab.bench.measurement import Group
from paceline.lab.bench.method import PLAIN, changed, parse_all
from paceline.lab.bench.models import Models
from paceline.lab.bench.outcome import Record
from paceline.lab.bench.outlook import Outlook, Prospect
from paceline.lab.bench.plan import Plan, suite_for
from paceline.lab.bench.prompts import Prompts
from paceline.lab.bench.record import Result
from paceline.lab.bench.summary import Row, summarize
from paceline.lab.bench.sweep import DRAFTER, Point, every_drafter, parse
from paceline.lab.bench.turns import Tick, Turns, Watch
from paceline.lab.provenance import provenance
from paceline.lab.replay.recording import Recorder
from paceline.lab.workload import Item, load, of_size, sampled
from paceline.machine.models.header import read as read_header
from paceline.makers import Corpora
from paceline.system.scratch import scratch_folder
from paceline.zoo.quantize import quantize

VARIED = {
    "threads": ("threads", "flash_attention"),
    "draft-type": ("draft",),
}  # of the provenance, by a sweep
PATIENCE = 1.2  # of the time that was given or announced: when items are left out
LONG, LONGEST_CONTEXT = 12_000, 8_192  # characters of an item that want a longer context, and tokens of it
FULL_CONTEXT = 4096  # a target with less is asked the tiny items of a suite


def unannounced(_: Outlook) -> None:
    """Nobody wants to know."""


@contextmanager
def unwatched(_: Mapping[str, int]) -> Iterator[Tick]:
    yield lambda _: None


class Bench:
    """One bench over all points of its sweep. history: where measurements are kept as they come. run: one
    of its runs, to go on with. watch: told how much work each phase is, and of each piece of it that is
    done. recorder: told every plain answer. announce: told what will be done, before it is. Raises
    UsageError for a plan that cannot be carried out and PeerError for a program that is not there, before
    anything is loaded."""

    def __init__(
        self,
        plan: Plan,
        *,
        history: History | None = None,
        run: int | None = None,
        watch: Watch = unwatched,
        recorder: Recorder | None = None,
        announce: Callable[[Outlook], object] = unannounced,
    ) -> None:
        self._watch, self._recorder, self._announce = watch, recorder, announce
        self._plan = plan
        self._sweep = parse(plan.sweep)
        text = plan.methods
        if plan.sweep == DRAFTER:
            stores = Corpora.find(plan.models.get("corpora", ())).stores
            has_draft = "draft" in plan.models or plan.models.get("target") is None
            text = every_drafter(has_draft, bool(stores))
        self._methods = parse_all(text, plan.drafting)
        self._peers = peers.parse(plan.peers)
        peers.require(self._peers)
        self._target, self._draft = self._files()
        self._plan = plan = replace(plan, suite=plan.suite or suite_for(self._target))
        self.record = Record(plan, run=run)
        self._kept = Kept(history, self.record)
        for point in self._sweep.points:
            self._sampling(point)
            for method in self._methods:
                changed(method, **point.drafting)
        self._items = load(plan.suite)
        self._stack = ExitStack()
        self._models: Models | None = None
        self._given: dict[str, Any] = {}
        self._recorded: set[Hashable] = set()
        self._begun = False  # until then a run to go on with stays as it was
        self._until, self._told = math.inf, False

    def _files(self) -> tuple[Path, Path | None]:
        needed = any(method.needs_draft for method in self._methods)
        used = any(method.uses_draft for method in self._methods)
        models = self._plan.models
        target, draft, _ = choose(models.get("target"), models.get("draft"), ["model" if used else "lookup"])
        if needed and draft is None:
            raise UsageError("the drafter 'model' needs a draft model: give one (-md)")
        if draft is not None and not used:
            raise UsageError("a draft model is given (-md), but no method names 'model'")
        if draft is None and any(point.draft_type for point in self._sweep.points):
            raise UsageError("--sweep draft-type quantises a draft model: name 'model' among the methods")
        assert target is not None  # choose() fills it in
        return Path(target), None if draft is None else Path(draft)

    def _sampling(self, point: Point) -> Sampling:
        sampling = self._plan.sampling
        return sampling if point.temperature is None else replace(sampling, temperature=point.temperature)

    def measure(self) -> Record:
        """Measure all there is; after Ctrl-C, what there is so far, with the status "interrupted"; after an
        error at a later point of a sweep the points before it, with the status "failed"."""
        record = self.record
        try:
            with self._stack:
                self._measure()
        except BaseException as error:
            record.status = "failed"
            if not (self._begun and record.results and isinstance(error, PacelineError)):
                raise
            record.broken = error
        finally:
            if self._begun:
                self._kept.finish()
        return record

    def _measure(self) -> None:
        done: list[tuple[Point, Sequence[Result]]] = []
        while self.record.status == "running" and (point := self._sweep.after(done)) is not None:
            results = self._stored(len(done), point)
            if results is None:
                results = self._measured(len(done), point)
            self.record.results += results
            done.append((point, results))
        if self.record.status == "running":
            self.record.status = "done"
            self._begun = True
        self._kept.restore_provenance()

    def _stored(self, at: int, point: Point) -> list[Result] | None:
        """The results of a point that an earlier try at this run has finished; None where it has not."""
        rows = self._kept.rows(at, [method.name for method in self._methods])  # other programs follow
        if not rows:
            return None
        self.record.groups.append(self._kept.groups(at))
        return self._summarized(point, rows, self.record.groups[-1])

    def _measured(self, at: int, point: Point) -> list[Result]:
        record, groups = self.record, list[Group]()
        with ExitStack() as turn:
            turns: Turns | None = None
            try:
                models = self._load(point)
                every = self._of_size(models)
                prospect = self._prospect(models, point)
                items = self._chosen(every, self._prompts(models, every, point), prospect)
                prompts = self._prompts(models, items, point)
                watch, keep = self._watch_at(point), self._plan.keep_prompts
                forecast = None if prospect is None else prospect.forecast
                turns = Turns(models, self._methods[0], prompts, watch, keep_prompts=keep, forecast=forecast)
                turn.callback(turns.close)
                if prospect is not None and not self._told:
                    self._tell(replace(prospect, plan=self._plan).tell(every, items, prompts))
                streamed = self._streams(point)
                if streamed:
                    turns.ask_first(items)
                else:
                    turns.ask_plainly(items, point.batch)
                    self._record(turns)
                self._join(turns, point, models)
                self._begin(turns)
                groups = self._kept.groups(at)
                done = {(group.round, group.item) for group in groups}
                if streamed:
                    measuring = turns.streamed(items, done, self._until)
                else:
                    turns.check(self._sampling(point), self._plan.seed)
                    measuring = turns.rounds(self._plan.rounds, done)
                for group in measuring:
                    groups.append(group)
                    self._kept.add(at, group)
                if streamed:
                    self._record(turns)
            except KeyboardInterrupt:
                record.status = "interrupted"
            rows = list[Row]()
            if turns is not None:
                rows = [entry.row for entry in turns.entries]
                record.skipped = list(dict.fromkeys([*record.skipped, *turns.skipped]))
                record.reading += turns.reading
        if record.status == "running":
            self._kept.finish_point(at, rows)
        self.record.groups.append(groups)
        return self._summarized(point, rows, groups) if groups else []

    def _summarized(self, point: Point, rows: Sequence[Row], groups: Sequence[Group]) -> list[Result]:
        """Where prompts are kept, the time to the first token says nothing."""
        results = summarize(point.at, rows, groups, PLAIN)
        return [replace(one, ttft=None) for one in results] if self._plan.keep_prompts else results

    def _record(self, turns: Turns) -> None:
        if self._recorder is not None:
            turns.record(self._recorder, self._recorded)

    def _streams(self, point: Point) -> bool:
        """Whether all of an item can be done at once: what a learner draws from it, or another program, would
        want a round of its own."""
        plan = self._plan
        alone = point.batch == 1 and not self._peers
        return plan.keep_prompts and plan.rounds == 1 and alone and self._sampling(point).greedy

    def _prospect(self, models: Models, point: Point) -> Prospect | None:
        """None where nobody wants to know how long it takes."""
        if not self._plan.minutes and self._announce is unannounced:
            return None
        systems = len(self._methods) + len(self._peers)
        return Prospect(self._plan, models, systems, len(self._sweep.points), self._streams(point))

    def _tell(self, outlook: Outlook) -> None:
        """What will be done; from now on the time runs."""
        self._told = True
        self._announce(outlook)
        if self._plan.minutes:
            given = max(60 * self._plan.minutes, outlook.seconds)
            self._until = perf_counter() + PATIENCE * given

    def _watch_at(self, point: Point) -> Watch:
        """Says where in a sweep the work is."""
        label = ", ".join(f"{name} {value}" for name, value in point.at.items())
        if not label:
            return self._watch

        @contextmanager
        def watch(work: Mapping[str, int]) -> Iterator[Tick]:
            named = (work if isinstance(work, Work) else Work({}, **work)).named(
                lambda kind: f"{label}: {kind}"
            )
            with self._watch(named) as tick:
                yield lambda kind: tick(f"{label}: {kind}")

        return watch

    def _prompts(self, models: Models, items: Sequence[Item], point: Point) -> Prompts:
        plan = self._plan
        return Prompts(
            models.plain,
            items,
            n=plan.n or None,
            depth=point.depth,
            ignore_eos=plan.ignore_eos,
            sampling=self._sampling(point),
            seed=plan.seed,
        )

    def _join(self, turns: Turns, point: Point, models: Models) -> None:
        """The drafted methods, and the other programs."""
        methods = [changed(method, **point.drafting) for method in self._methods]
        draft = self._drafted(point)
        turns.add(methods[1:], draft)
        usual = {"threads": None, "cache_type": "f16", "gpu_layers": 0}
        target = models.plain.target
        ours = {"n_ctx": target.caps.n_ctx, "flash_attention": target.settings.get("flash_attention")}
        place = partial(
            peers.Place,
            target=self._target,
            draft=draft,
            engine=usual | self._given | ours,
            parallel=point.batch,
        )
        peers.join(turns.entries, self._peers, methods, place)

    def _load(self, point: Point) -> Models:
        """The models as the point wants them: loaded again only where that is another way."""
        # Passes of one shape (exact_greedy) are as wide as the longest draft.
        longest = max(changed(method, **point.drafting).drafting.n_draft for method in self._methods)
        given = {**self._plan.models, **point.models, "target": self._target, "n_draft": longest}
        if not given.get("n_ctx"):
            given["n_ctx"] = self._context()
        if self._models is None or given != self._given:
            self._stack.close()
            self._models, self._given = self._stack.enter_context(Models(given)), given
        return self._models

    def _context(self) -> int:
        """As long as the suite's prompts want it, where the model has it; 0 leaves it to the model."""
        longest = max(sum(len(said or "") for _, said in item.messages) for item in self._items)
        if longest < LONG:
            return 0
        try:
            return min(LONGEST_CONTEXT, read_header(place_of(self._target), tokens=False).n_ctx or 0)
        except (PacelineError, OSError):
            return 0

    def _drafted(self, point: Point) -> Path | None:
        if self._draft is None or not point.draft_type:
            return self._draft
        folder = self._stack.enter_context(scratch_folder(Path(tempfile.gettempdir())))
        out = folder / f"{self._draft.stem}-{point.draft_type}.gguf"
        quantize(self._draft, out, point.draft_type)
        return out

    def _of_size(self, models: Models) -> list[Item]:
        """All items that are made for such a model."""
        plan = self._plan
        n_ctx = models.plain.target.caps.n_ctx
        size = plan.size or ("tiny" if n_ctx < FULL_CONTEXT else "full")
        fitting = of_size(self._items, size)
        if not fitting:
            raise UsageError(f"suite {plan.suite}: has no {size} items; choose another --size")
        return sampled(fitting, plan.items) if plan.items else fitting

    def _chosen(self, every: Sequence[Item], prompts: Prompts, prospect: Prospect | None) -> Sequence[Item]:
        """Those that fit into the time, the same ones at every point of a sweep, and when a run goes on."""
        plan = self._plan
        if plan.only:
            known = {item.id: item for item in every}
            if missing := [id_ for id_ in plan.only if id_ not in known]:
                raise UsageError(f"suite {plan.suite}: has no item {missing[0]} any more: measure anew")
            return [known[id_] for id_ in plan.only]
        if not plan.minutes or prospect is None:
            return every
        choice = prospect.choose(every, prompts)
        only = tuple(item.id for item in choice.items)
        self._plan = self.record.plan = replace(plan, n=choice.tokens, only=only)
        return choice.items

    def _begin(self, turns: Turns) -> None:
        record, plan = self.record, self._plan
        if record.provenance:
            return
        asked = {"size": plan.size, "items": plan.items, "n": plan.n, "ignore_eos": plan.ignore_eos}
        if plan.only:
            asked |= {"chosen": digest([item for item in self._items if item.id in plan.only])}
        request = asked | {"seed": plan.seed, "questions": digest(self._items), **asdict(plan.sampling)}
        names = ("flash_attention", "cache_type", "gpu_layers", "kernels")
        engine = {name: self._given.get(name) for name in names}
        known = {"suite": plan.suite, "engine_settings": engine, "peers": turns.peers}
        record.provenance = provenance(turns.llm, request) | known
        self._kept.begin(("drafting", "exact_rows", *VARIED.get(self._sweep.name, ())))
        self._begun = True


def digest(items: Sequence[Item]) -> str:
    """Tells two suites of one name apart."""
    text = json.dumps([asdict(item) for item in items], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
