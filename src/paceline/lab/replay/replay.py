"""Recorded requests through the real loop, for several methods: what each would have accepted.

Requests are played in their order, and each by every method before the next one: whatever a replay was cut
short by, all methods have played the same requests, and a busy minute is everybody's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from paceline.core.decode import decode, start
from paceline.core.errors import ContractError, UsageError
from paceline.core.policy import Fixed, Policy
from paceline.core.ports import Drafter, Learner
from paceline.core.record import Stats, Step
from paceline.core.vocab import Vocab
from paceline.engines.recorded import RecordedTarget, Recording
from paceline.lab.bench.method import PLAIN, Method, parse_all
from paceline.lab.provenance import fingerprint
from paceline.lab.replay.clock import ClockedDrafter
from paceline.lab.replay.record import Played, Result, result
from paceline.lab.replay.traces import Trace
from paceline.makers import NO_CORPORA, Corpora, make_drafter

REQUEST = "replaying"
ENDLESS = 1 << 30  # tokens; a request ends with its recording, which no drafter knows beforehand


def methods_of(text: str, settings: Mapping[str, Any]) -> list[Method]:
    """A comma list; plain decoding only where it is named. Raises UsageError."""
    named = {part.strip() for part in text.split(",")}
    methods = [m for m in parse_all(text, settings) if not m.plain or named & {PLAIN, "none"}]
    if not methods:
        raise UsageError("no method named: give some, e.g. --methods lookup")
    for method in methods:
        if method.needs_draft:
            raise UsageError(
                f"method {method.name!r}: a replay runs no model, so none can draft; leave 'model' out"
            )
        if "lookahead" in method.drafting.drafters:
            raise UsageError(
                f"method {method.name!r}: lookahead asks about tokens that nobody decoded; leave it out"
            )
    return methods


def play(target: RecordedTarget, drafter: Drafter, policy: Policy, recording: Recording) -> Iterator[Step]:
    """One recording, step by step. Raises UsageError for a drafter that needs the model itself, ContractError
    where another text was decoded than was recorded."""
    left = len(recording.tokens)

    def ends(_token: int) -> bool:
        nonlocal left
        left -= 1
        return left == 0

    request = start(target, drafter, recording.prompt, max_tokens=ENDLESS, stop=ends, ignore_eos=True)
    try:
        for _, step in decode(target, drafter, policy, [request]):
            if step.tree.probe:
                raise UsageError(
                    f"{drafter.name}: asks the target about tokens that nobody decoded, so it cannot be "
                    "replayed; leave it out, or measure it with `paceline bench`"
                )
            yield step
        if tuple(request.session.tokens[request.n_prompt :]) != recording.tokens:
            raise ContractError(f"{drafter.name}: decoded another text than was recorded")
    finally:
        request.close()


class Lane:
    """One method's part in a replay: its drafter, and what it has done so far."""

    def __init__(self, method: Method, target: RecordedTarget, corpora: Corpora) -> None:
        self.method, self.target = method, target
        drafter, self.drafting = make_drafter(method.drafting, target, None, corpora)
        self.drafter = ClockedDrafter(drafter)
        self.policy = Fixed(self.drafting.budget)
        self.stats = Stats()

    def forget(self) -> None:
        if isinstance(self.drafter.drafter, Learner):
            self.drafter.drafter.forget()

    def play(self, recording: Recording) -> Played:
        stats = self.stats
        steps, drafted, accepted, drafted_steps = stats.steps, stats.drafted, stats.accepted, 0
        for step in play(self.target, self.drafter, self.policy, recording):
            stats.add(step)
            drafted_steps += len(step.tree) > 0
        return Played(
            tokens=len(recording.tokens),
            steps=stats.steps - steps,
            drafted_steps=drafted_steps,
            drafted=stats.drafted - drafted,
            accepted=stats.accepted - accepted,
        )


class Replay:
    """All requests of all traces, by all methods. fresh: a drafter that remembers across requests forgets
    before each of them; otherwise before each file. text: the tokenizer, where there is one. Raises
    UsageError for a method that needs more of the target than was recorded."""

    def __init__(
        self,
        traces: Sequence[Trace],
        methods: Sequence[Method],
        vocab: Vocab,
        text: Any = None,
        *,
        corpora: Corpora = NO_CORPORA,
        fresh: bool = False,
    ) -> None:
        self.traces = traces
        self.fresh = fresh
        self._requests = [(trace, request) for trace in traces for request in trace.requests]
        recordings = [request.recording for _, request in self._requests]
        self._lanes = [Lane(method, RecordedTarget(vocab, recordings, text), corpora) for method in methods]
        known = min(min(map(len, recording.top_k), default=0) for recording in recordings)
        for lane in self._lanes:
            if (wanted := lane.drafter.wants.top_k) > known:
                raise UsageError(
                    f"method {lane.method.name!r}: drafts from the target's {wanted} likeliest tokens at "
                    "every node, and the record does not hold them (top_k); leave it out, or record them"
                )
        self._place = {id(trace): i for i, trace in enumerate(traces)}
        self._played: list[list[Played]] = []

    def work(self) -> dict[str, int]:
        """What there is to do, as `progress` takes it."""
        return {REQUEST: len(self._requests)}

    @property
    def done(self) -> int:
        """Requests that every method has played."""
        return len(self._played)

    @property
    def complete(self) -> bool:
        return self.done == len(self._requests)

    def run(self, tick: Callable[[str], None] = lambda _: None) -> None:
        """Play what is not played yet. tick: called with REQUEST after each; what it raises ends the replay,
        and `results` tell of what is done."""
        for at in range(self.done, len(self._requests)):
            trace, request = self._requests[at]
            if self.fresh or at == 0 or trace is not self._requests[at - 1][0]:
                for lane in self._lanes:
                    lane.forget()
            self._played.append([lane.play(request.recording) for lane in self._lanes])
            tick(REQUEST)

    def results(self) -> list[Result]:
        """One a method. Raises UsageError before the first request is done."""
        if not self._played:
            raise UsageError("nothing was replayed yet")
        done = self._requests[: self.done]
        groups = [(self._place[id(trace)], request.line) for trace, request in done]
        numbers = {group: i for i, group in enumerate(dict.fromkeys(groups))}
        return [
            result(
                lane.method.name,
                asdict(lane.drafting),
                [len(request.recording.prompt) for _, request in done],
                [played[i] for played in self._played],
                [numbers[group] for group in groups],
                lane.stats.by_source,
                lane.drafter.spent,
                partial=lane.drafter.wants.top_k > 0,
            )
            for i, lane in enumerate(self._lanes)
        ]

    def as_dict(self) -> dict[str, Any]:
        return {
            "status": "done" if self.complete else "interrupted",
            "fresh": self.fresh,
            "files": [
                {
                    "file": trace.path.name,
                    "fingerprint": fingerprint(trace.path),
                    "requests": len(trace.requests),
                    "skipped": trace.skipped,
                }
                for trace in self.traces
            ],
            "requests": [
                {
                    "file": self._place[id(trace)],  # in "files"
                    "id": request.id,
                    "line": request.line,
                    "n_prompt": len(request.recording.prompt),
                    "n_tokens": len(request.recording.tokens),
                }
                for trace, request in self._requests[: self.done]
            ],
            "results": [one.as_dict() for one in self.results()],
        }

    def close(self) -> None:
        for lane in self._lanes:
            lane.drafter.close()
