"""Replays of recorded requests by several methods through the real decoding loop."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count
from time import perf_counter
from typing import Any, NamedTuple

from paceline.backends.recorded import Recording, ReplayTarget
from paceline.bench.method import PLAIN, Method, check_draft, parse_all
from paceline.bench.replay.simulated import SimulatedTarget, VirtualClock
from paceline.bench.replay.traces import Trace, TraceRequest
from paceline.bench.summary import bootstrap_ratios
from paceline.drafter_factory import make_drafter, make_policy
from paceline.engine import InferenceEngine, Stream
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import LearningDrafter, RequiredOutputs, Target
from paceline.speculative.loop import Clock
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.request import GenerationRequest
from paceline.speculative.stats import SourceStats, Stats
from paceline.speculative.vocabulary import Vocab
from paceline.storage.corpora import NO_CORPORA, Corpora
from paceline.system.home import file_fingerprint, to_stderr

FORMAT = 3  # of the JSON; raised when a key changes its meaning or is removed
REQUEST_PHASE = "replaying"
Record = dict[str, Any]
MAX_TOKENS_UNLIMITED = 1 << 30  # tokens; drafters must not know where the recording ends


@dataclass(frozen=True)
class ReplayContext:
    """Resources shared by the methods of a replay. costs: of passes; None predicts no speeds."""

    vocab: Vocab
    text: object = None
    corpora: Corpora = NO_CORPORA
    draft: Target | None = None
    costs: DecodingCosts | None = None


def replay_recording(engine: InferenceEngine, recording: Recording) -> Stats:
    """Decode one recording to its end."""
    request = GenerationRequest(
        prompt=recording.prompt, max_tokens=MAX_TOKENS_UNLIMITED, ignore_eos=True,
        should_stop=stop_after(len(recording.tokens)),
    )  # fmt: skip
    with Stream(engine, request) as stream:
        active = stream.handle.scheduled.active
        assert active is not None  # the stream has begun
        active.gumbel_noise = recording.gumbel_noise
        for _ in stream:
            pass
    assert tuple(stream.handle.tokens) == recording.tokens, f"{engine.drafter.name}: another text"
    return stream.handle.stats


def stop_after(n: int) -> Callable[[int], bool]:
    """Return a stop condition that is true at the n-th token."""
    numbers = count(1)
    return lambda _token: next(numbers) == n


class MethodReplay:
    """A method with its drafter, engine and counts by source. recordings: all that will be replayed."""

    def __init__(self, method: Method, recordings: Sequence[Recording], context: ReplayContext) -> None:
        self.method, self.context = method, context
        self.by_source: dict[str, SourceStats] = {}
        target: Target = ReplayTarget(context.vocab, recordings, context.text)
        clock: Clock = perf_counter
        draft, costs = context.draft, context.costs
        if costs is not None:
            clock = virtual = VirtualClock()
            target = SimulatedTarget(target, costs.target, virtual, costs.step)
            if draft is not None and costs.draft is not None:
                draft = SimulatedTarget(draft, costs.draft, virtual)
        made = make_drafter(method.drafting, target, draft, context.corpora, costs, to_stderr)
        self.drafter, self.drafting = made
        # A copy: what the policy learns must not change the simulated costs.
        self.policy = make_policy(self.drafting, copy.deepcopy(costs), clock)
        self.engine = InferenceEngine(target, self.drafter, self.policy, clock=clock, detokenize=False)

    def forget(self) -> None:
        self.policy.forget()
        if isinstance(self.drafter, LearningDrafter):
            self.drafter.forget()

    def play(self, recording: Recording) -> Stats:
        stats = replay_recording(self.engine, recording)
        for name, source in stats.by_source.items():
            sums = self.by_source.setdefault(name, SourceStats())
            for what, n in vars(source).items():
                setattr(sums, what, getattr(sums, what) + n)
        return stats

    def close(self) -> None:
        self.drafter.close()


class ReplayedRequest(NamedTuple):
    """A request with its counts. group: its conversation. plain: its counts without drafts, if
    speeds are predicted."""

    request: TraceRequest
    group: object
    stats: Stats
    plain: Stats | None = None


def sum_requests(played: Sequence[ReplayedRequest]) -> Record:
    """Return the sums over some requests. predicted: speeds by the costs of passes, without those of prompts;
    the speedup is over plain decoding of the same requests."""
    columns: list[list[float]] = [
        [getattr(one.stats, name) for one in played] for name in ("tokens", "steps")
    ]
    pairs = [(0, 1)]
    if plain := [one.plain.seconds for one in played if one.plain]:
        columns += [[one.stats.seconds for one in played], plain]
        pairs += [(0, 2), (3, 2)]
    ratios = [lambda sums, a=a, b=b: sums[a] / sums[b] for a, b in pairs]
    per_step, *speeds = map(asdict, bootstrap_ratios(columns, [one.group for one in played], ratios))
    drafted, accepted = (sum(getattr(one.stats, name) for one in played) for name in ("drafted", "accepted"))
    predicted = None
    if speeds:
        predicted = {"seconds": sum(columns[2]), "tokens_per_second": speeds[0], "speedup": speeds[1]}
    return {
        "requests": len(played),
        "n_prompt": sum(len(one.request.recording.prompt) for one in played),
        "n_tokens": sum(columns[0]),
        "steps": sum(columns[1]),
        "drafted": drafted,
        "accepted": accepted,
        "acceptance_rate": accepted / drafted if drafted else None,
        "tokens_per_step": per_step,
        "predicted": predicted,
    }


def by_category(played: Sequence[ReplayedRequest]) -> dict[str, Record]:
    """Return the sums of each category; empty if no request has a category."""
    names = list(dict.fromkeys(one.request.category for one in played))
    if names == [""]:
        return {}
    return {name: sum_requests([one for one in played if one.request.category == name]) for name in names}


def methods_of(
    text: str, settings: Mapping[str, Any], *, draft: bool = False, costs: bool = False
) -> list[Method]:
    """Parse a comma-separated list of methods. draft, costs: whether a draft model and pass costs are known.
    With costs plain decoding is always included, as the base of speedups."""
    named = {part.strip() for part in text.split(",")}
    if not any(named):
        raise UsageError("no method named: give some, e.g. --methods lookup")
    methods = [m for m in parse_all(text, settings) if not m.plain or costs or named & {PLAIN, "none"}]
    check_draft(methods, draft)
    for method in methods:
        if method.drafting.policy == "goodput" and not method.plain and not costs:
            advice = "give a curve (--cost-curve FILE; `paceline doctor --json` prints one), or policy=fixed"
            raise UsageError(f"method {method.name!r}: drafts what pays by what passes cost: {advice}")
    return methods


class Replay:
    """All requests of all traces with all methods. Every method replays a request before the next begins,
    so that an interrupted replay compares the same requests.
    fresh: learning drafters forget before each request, not only before each file. Raises UsageError for a
    method that needs target output that was not recorded, or a cost that is unknown."""

    def __init__(
        self, traces: Sequence[Trace], methods: Sequence[Method], context: ReplayContext, *,
        fresh: bool = False,
    ) -> None:  # fmt: skip
        self.traces, self.costs, self.fresh = traces, context.costs, fresh
        self._requests = [(file, request) for file, trace in enumerate(traces) for request in trace.requests]
        recordings = [one.recording for _, one in self._requests]
        paid = [method.name for method in methods if context.draft is not None and method.uses_draft]
        if paid and self.costs is not None and self.costs.draft is None:
            advice = "measure both (`paceline doctor -m TARGET -md DRAFT --json`), or leave 'model' out"
            raise UsageError(f"method {paid[0]!r}: the cost curve knows no draft model; {advice}")
        self._methods = [MethodReplay(method, recordings, context) for method in methods]
        for one in self._methods:
            if one.drafter.required_outputs != RequiredOutputs():
                why = "drafts from what the target computes at every node, which no record holds"
                raise UsageError(f"method {one.method.name!r}: {why}; leave it out")
        self.played: list[list[Stats]] = []  # by request and method

    def work(self) -> dict[str, int]:
        """Return the number of ticks."""
        return {REQUEST_PHASE: len(self._requests)}

    def run(self, tick: Callable[[str], None] = lambda _: None) -> None:
        """Replay all requests. An exception from `tick` ends it; `results` covers the requests before."""
        previous = None
        for file, request in self._requests:
            if self.fresh or file != previous:
                for one in self._methods:
                    one.forget()
            previous = file
            self.played.append([one.play(request.recording) for one in self._methods])
            tick(REQUEST_PHASE)

    def results(self) -> list[Record]:
        """Return a record for each method over the requests that are done. each: results by request."""
        priced = self.costs is not None
        plain = next(i for i, one in enumerate(self._methods) if one.method.plain) if priced else None
        out = []
        for i, method in enumerate(self._methods):
            played = [
                ReplayedRequest(
                    one, (file, one.conversation), stats[i], None if plain is None else stats[plain]
                )
                for (file, one), stats in zip(self._requests, self.played, strict=False)
            ]
            summary = method.policy.summary
            record = {
                "method": method.method.name,
                "drafting": asdict(method.drafting),
                "by_source": {name: asdict(source) for name, source in method.by_source.items()},
                "by_category": by_category(played),
                "each": [
                    {name: getattr(one.stats, name) for name in ("tokens", "steps", "drafted", "accepted")}
                    | {"seconds": one.stats.seconds if priced else None}
                    for one in played
                ],
                "policy": None if summary is None else summary.as_dict(),
            }
            out.append(sum_requests(played) | record)
        return out

    def as_dict(self) -> dict[str, Any]:
        done = len(self.played)
        return {
            "status": "done" if done == len(self._requests) else "interrupted",
            "fresh": self.fresh,
            "costs": None if self.costs is None else self.costs.as_dict(),
            "files": [
                {
                    "file": trace.path.name,
                    "fingerprint": file_fingerprint(trace.path),
                    "requests": len(trace.requests),
                    "unusable": [{"line": line, "reason": why} for line, why in trace.unusable],
                    "n_unusable": trace.n_unusable,
                }
                for trace in self.traces
            ],
            "requests": [
                {name: getattr(one, name) for name in ("id", "line", "category")}
                | {"file": file, "n_prompt": len(one.recording.prompt), "n_tokens": len(one.recording.tokens)}
                for file, one in self._requests[:done]  # file: in "files"
            ],
            "results": self.results(),
        }

    def close(self) -> None:
        for one in self._methods:
            one.close()
