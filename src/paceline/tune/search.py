"""The search: replays of settings, knock-out rounds with the model, then settings of the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.backends.recorded import Recording
from paceline.bench.replay.draft_memo import DraftMemo
from paceline.bench.replay.replay import ReplayContext
from paceline.drafter_table import DRAFT
from paceline.drafts import kind_of
from paceline.hardware.threads import logical_cores, physical_cores
from paceline.settings import AUTO
from paceline.speculative.errors import PacelineError
from paceline.storage.corpora import Corpora
from paceline.tune.candidates import DEFAULT, Candidate, draft_methods, method_of, settings_of
from paceline.tune.plan import Sweep, engine_changes
from paceline.tune.record import Stage
from paceline.tune.replays import COPIERS, WITH_DRAFT, search_replays
from paceline.tune.trials import Trials, speedup

REPLAY_SHARE, ROUNDS_SHARE, ENGINE_SHARE = 0.2, 0.6, 0.75  # of the time: the ends of the phases
FINALISTS, MAX_ROUNDS = 3, 6
MIN_ENGINE_GAIN = 1.02


def search(trials: Trials) -> Candidate:
    """Return the best candidate on the items to tune on."""
    for item in trials.tuning:
        if perf_counter() < trials.end_of(REPLAY_SHARE / 2) or len(trials.runner.requests) < 2:
            trials.runner.prepare(item)
    each = (perf_counter() - trials.start) / max(1, len(trials.runner.requests))  # seconds of an answer
    replayed = [] if trials.plan.temperature else _replayed(trials)
    first = [DEFAULT, *replayed[:1], *_with_drafts(trials), *replayed]
    n = int((trials.end_of(ROUNDS_SHARE) - perf_counter()) / 3 / max(each, 1e-3))  # in the first round
    candidates = list({candidate.name: candidate for candidate in first}.values())
    best = _knock_out(trials, candidates[: max(FINALISTS, n)])
    for engine in engines_to_try(trials):
        (name, value), *_ = engine.items()
        if perf_counter() < trials.end_of(ENGINE_SHARE):
            stage, changed = f"engine {name}={value}", replace(best, engine={**best.engine, **engine})
            try:
                points = trials.points(stage, [best, changed], trials.tuning, trials.end_of(ENGINE_SHARE))
            except PacelineError as error:  # not every model has every type of cache
                trials.record.end(stage, results=[], note=str(error))
                continue
            if speedup(points[1][1]) > MIN_ENGINE_GAIN * speedup(points[0][1]):
                best = changed
    return best


def _with_drafts(trials: Trials) -> list[Candidate]:
    found = []
    for draft in trials.drafts:
        replayed = kind_of(draft) == DRAFT and not trials.plan.temperature
        for method in draft_methods(draft, trials.plan.drafting, replayed=replayed):
            label = draft.stem if len(trials.drafts) > 1 or AUTO in method.name else ""
            found.append(Candidate(method, label=label))
    return found


def _knock_out(trials: Trials, alive: list[Candidate]) -> Candidate:
    """Return the best of rounds of more and more items, of which the faster half goes on."""
    until, n, at, number = trials.end_of(ROUNDS_SHARE), 1, 0, 1
    while len(alive) > 1 and (number == 1 or (number <= MAX_ROUNDS and perf_counter() < until)):
        items = [trials.tuning[i % len(trials.tuning)] for i in range(at, at + n)]
        results = trials.measure(f"round {number}", alive, items, until)
        lossless = {result["system"] for result in results if result["lossless"]}
        alive = [one for one in alive if one.name in lossless] or alive[:1]
        alive.sort(key=lambda one: -trials.value(one.name))
        alive = alive[: max(FINALISTS, (len(alive) + 1) // 2)]
        number, at, n = number + 1, at + n, min(2 * n, len(trials.tuning))
    return alive[0]


def engines_to_try(trials: Trials) -> Iterator[dict[str, Any]]:
    """Yield settings of the engine that are worth a try, one change each, without those that were given."""
    given = engine_changes(trials.plan.models.engine)
    threads = {physical_cores(), logical_cores()} - {trials.threads}
    values = {
        "threads": sorted(threads), "placement": Sweep.parse("placement").values[1:], "cache_type": ["q8_0"]
    }  # fmt: skip
    for name, tried in values.items():
        yield from ({name: value} for value in tried if name not in given)


def _replayed(trials: Trials) -> list[Candidate]:
    """Return the best methods by replays of plain answers, those of each draft first; of a stored record,
    its own."""
    stage = trials.record.stages.setdefault("replay", Stage())
    if not stage.candidates:
        runner, models = trials.runner, trials.models
        recordings = [
            Recording(request.tokens, runner.plain.greedy_tokens[id_])
            for id_, request in runner.requests.items()
        ]
        target = models.plain.target
        corpora = Corpora.find(trials.options.corpora, target.vocab)
        drafts = [draft for draft in trials.drafts if kind_of(draft) == DRAFT]
        found = list[tuple[float, Any]]()
        for n, draft in enumerate([*drafts, None]):
            model, drafters = None, COPIERS
            if draft is not None:
                drafters = WITH_DRAFT
                model = DraftMemo(models.llm(method_of({"drafters": ("model",)}, draft)).draft)
            costs = models.pass_costs(draft)
            context = ReplayContext(target.vocab, target.text, corpora, model, costs)
            left = (trials.end_of(REPLAY_SHARE) - perf_counter()) / (len(drafts) + 1 - n)
            found += search_replays(
                recordings, context, drafters, trials.plan.drafting, draft=draft, seed=trials.plan.seed,
                n=FINALISTS, seconds=max(1.0, left),
            )  # fmt: skip
        candidates = [[gain, settings_of(one), one.draft and str(one.draft)] for gain, one in found]
        note = "predicted from recorded answers"
        if found:
            gain, best = max(found, key=lambda pair: pair[0])
            note += f"; the best: {best.name}, {gain:.2f}x"
        trials.record.end("replay", candidates=candidates, note=note, results=[])
    several, replayed = len(trials.drafts) > 1, []
    for _, settings, name in stage.candidates:
        path = name and Path(name)
        replayed.append(Candidate(method_of(settings, path), label=path.stem if path and several else ""))
    return replayed
