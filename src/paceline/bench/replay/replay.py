"""Recorded requests through the real loop, for several methods: what each would have accepted, and how fast
it would have been.

Requests are played in their order, and each by every method before the next one: whatever a replay was cut
short by, all methods have played the same requests, and a busy minute is everybody's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from paceline.bench.method import PLAIN, Method, parse_all
from paceline.bench.replay import record
from paceline.bench.replay.lane import MethodReplay, ReplayContext
from paceline.bench.replay.record import MethodResult, RecordedAnswer, ReplayResult
from paceline.bench.replay.recording import changed
from paceline.bench.replay.traces import Trace, TraceRequest
from paceline.config import Drafting
from paceline.speculative.errors import UsageError
from paceline.system.identity import fingerprint

__all__ = ["REQUEST", "Replay", "ReplayContext", "methods_of"]

REQUEST = "replaying"
NOTHING = Drafting(drafters=("none",))
Turn = tuple[Trace, TraceRequest]


def methods_of(
    text: str, settings: Mapping[str, Any], *, draft: bool = False, costs: bool = False
) -> list[Method]:
    """A comma list. draft: there is a draft model. costs: it is known what passes cost; plain decoding then
    is there whether or not it is named, for speeds to be compared with. Raises UsageError."""
    named = {part.strip() for part in text.split(",")}
    methods = [m for m in parse_all(text, settings) if not m.plain or costs or named & {PLAIN, "none"}]
    if all(m.plain for m in methods) and not named & {PLAIN, "none"}:
        raise UsageError("no method named: give some, e.g. --methods lookup")
    for method in methods:
        if method.needs_draft and not draft:
            raise UsageError(
                f"method {method.name!r}: needs a draft model, which runs along the record: give one "
                "(-md FILE.gguf), or leave 'model' out"
            )
        if method.drafting.policy == "rate" and not method.plain and not costs:
            raise UsageError(
                f"method {method.name!r}: drafts what pays by what passes cost: give a curve "
                "(--cost-curve FILE; `paceline doctor --json` prints one), or policy=fixed"
            )
        if windowed := [row.name for row in method.drafting.rows if row.window]:
            raise UsageError(
                f"method {method.name!r}: {windowed[0]} asks about tokens that nobody decoded; leave it out"
            )
    return methods


class Replay:
    """All requests of all traces, by all methods. fresh: a drafter that remembers across requests forgets
    before each of them; otherwise before each file. Raises UsageError for a method that
    needs more of the target than was recorded, or a cost that is not known."""

    def __init__(
        self,
        traces: Sequence[Trace],
        methods: Sequence[Method],
        means: ReplayContext,
        *,
        fresh: bool = False,
    ) -> None:
        self.traces, self.means, self.fresh = traces, means, fresh
        self._turns = [(trace, one) for trace in traces for one in trace.requests]
        recordings = [one.recording for _, one in self._turns]
        self._check_costs(methods)
        self._lanes = [MethodReplay(method, recordings, means) for method in methods]
        known = min(min(map(len, recording.top_k), default=0) for recording in recordings)
        for lane in self._lanes:
            if (wanted := lane.drafter.required_outputs.top_k) > known:
                raise UsageError(
                    f"method {lane.method.name!r}: drafts from the target's {wanted} likeliest tokens at "
                    "every node, and the record does not hold them (top_k); leave it out, or record them"
                )
        self._place = {id(trace): i for i, trace in enumerate(traces)}
        self._played: list[list[ReplayResult]] = []  # by request and method

    def _check_costs(self, methods: Sequence[Method]) -> None:
        means = self.means
        if means.costs is None or means.costs.draft is not None or means.draft is None:
            return
        if paid := [method.name for method in methods if method.uses_draft]:
            raise UsageError(
                f"method {paid[0]!r}: the cost curve knows no draft model; measure both "
                "(`paceline doctor -m TARGET -md DRAFT --json`), or leave 'model' out"
            )

    def work(self) -> dict[str, int]:
        """What there is to do, as `progress` takes it."""
        return {REQUEST: len(self._turns)}

    @property
    def _done(self) -> list[Turn]:
        """Requests that every method has played."""
        return self._turns[: len(self._played)]

    @property
    def done(self) -> int:
        return len(self._played)

    @property
    def complete(self) -> bool:
        return len(self._played) == len(self._turns)

    def run(self, tick: Callable[[str], None] = lambda _: None) -> None:
        """Play what is not played yet. tick: called with REQUEST after each; what it raises ends the replay,
        and `results` tell of what is done."""
        for at in range(len(self._played), len(self._turns)):
            trace, one = self._turns[at]
            if self.fresh or at == 0 or trace is not self._turns[at - 1][0]:
                for lane in self._lanes:
                    lane.forget()
            self._played.append([lane.play(one.recording) for lane in self._lanes])
            tick(REQUEST)

    def answers(self) -> list[RecordedAnswer]:
        """Of what is done."""
        done = self._done
        conversations = [(self._place[id(trace)], conversation(one)) for trace, one in done]
        numbers = {group: i for i, group in enumerate(dict.fromkeys(conversations))}
        return [answer(one, numbers[group]) for (_, one), group in zip(done, conversations, strict=True)]

    def played(self, lane: int) -> list[ReplayResult]:
        return [played[lane] for played in self._played]

    def results(self) -> list[MethodResult]:
        """One a method. Raises UsageError before the first request is done."""
        if not self._played:
            raise UsageError("nothing was replayed yet")
        answers, plain = self.answers(), None
        if self.means.costs is not None:
            plain = next((self.played(i) for i, lane in enumerate(self._lanes) if lane.method.plain), None)
        return [self._result(i, answers, plain) for i in range(len(self._lanes))]

    def _result(
        self, i: int, answers: Sequence[RecordedAnswer], plain: Sequence[ReplayResult] | None
    ) -> MethodResult:
        lane, played = self._lanes[i], self.played(i)
        return MethodResult(
            **vars(record.figures(answers, played, plain)),
            method=lane.method.name,
            drafting=asdict(lane.drafting),
            by_source=lane.by_source,
            by_category=record.by_category(answers, played, plain),
            partial=lane.drafter.required_outputs.top_k > 0,
            checked=record.check(answers, played, recorded_as(lane.drafting)),
            account=lane.policy.account,
            each=tuple(played),
        )

    def as_dict(self) -> dict[str, Any]:
        answers = self.answers()
        return {
            "status": "done" if self.complete else "interrupted",
            "fresh": self.fresh,
            "costs": None if self.means.costs is None else self.means.costs.as_dict(),
            "files": [
                {
                    "file": trace.path.name,
                    "fingerprint": fingerprint(trace.path),
                    "requests": len(trace.requests),
                    "skipped": trace.skipped,
                    "unusable": [{"line": line, "reason": why} for line, why in trace.unusable],
                    "n_unusable": trace.n_unusable,
                }
                for trace in self.traces
            ],
            "requests": [
                {
                    "file": self._place[id(trace)],  # in "files"
                    "id": one.id,
                    "line": one.line,
                    "category": said.category,
                    "n_prompt": said.n_prompt,
                    "n_tokens": len(one.recording.tokens),
                }
                for (trace, one), said in zip(self._done, answers, strict=True)
            ],
            "results": [one.as_dict() for one in self.results()],
        }

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


def conversation(one: TraceRequest) -> int | str:
    """What tells it from the others of its file."""
    return one.session or one.line


def answer(one: TraceRequest, group: int) -> RecordedAnswer:
    times = one.times or {}
    drafting = one.drafting or (recorded_as(NOTHING) if times.get("drafted") == 0 else None)
    return RecordedAnswer(len(one.recording.prompt), group, one.category, times.get("seconds"), drafting)


def recorded_as(drafting: Drafting) -> dict[str, Any]:
    """As `recording` writes it; what does not draft has no settings."""
    names = {"drafters": list(drafting.drafters)}
    return names if drafting.drafters == NOTHING.drafters else changed(drafting, Drafting()) | names
