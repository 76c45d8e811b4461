"""Replays of recorded requests by several methods through the real decoding loop.

Every method replays a request before the next request begins, so that an interrupted replay compares the same
requests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

from paceline.bench.method import PLAIN, Method, parse_all
from paceline.bench.replay import record
from paceline.bench.replay.lane import MethodReplay, ReplayContext
from paceline.bench.replay.record import Record, ReplayedRequest, ReplayResult
from paceline.bench.replay.recording import non_default_settings
from paceline.bench.replay.traces import Trace
from paceline.config import Drafting
from paceline.speculative.errors import UsageError
from paceline.system.identity import file_fingerprint

__all__ = ["REQUEST_PHASE", "Replay", "ReplayContext", "methods_of"]

REQUEST_PHASE = "replaying"


def methods_of(
    text: str, settings: Mapping[str, Any], *, draft: bool = False, costs: bool = False
) -> list[Method]:
    """Parse a comma-separated list of methods.

    draft: a draft model is given. costs: pass costs are known; plain decoding is then always included, as the
    base of speedups. Raises UsageError."""
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
    """All requests of all traces with all methods.

    fresh: learning drafters forget before each request, not only before each file. Raises UsageError for a
    method that needs target output that was not recorded, or a cost that is unknown."""

    def __init__(
        self,
        traces: Sequence[Trace],
        methods: Sequence[Method],
        means: ReplayContext,
        *,
        fresh: bool = False,
    ) -> None:
        self.traces, self.means, self.fresh = traces, means, fresh
        self._requests = [(file, one) for file, trace in enumerate(traces) for one in trace.requests]
        recordings = [one.recording for _, one in self._requests]
        paid = [method.name for method in methods if means.draft is not None and method.uses_draft]
        if paid and means.costs is not None and means.costs.draft is None:
            raise UsageError(
                f"method {paid[0]!r}: the cost curve knows no draft model; measure both "
                "(`paceline doctor -m TARGET -md DRAFT --json`), or leave 'model' out"
            )
        self._lanes = [MethodReplay(method, recordings, means) for method in methods]
        recorded = min(min(map(len, recording.top_k), default=0) for recording in recordings)
        for lane in self._lanes:
            if (wanted := lane.drafter.required_outputs.top_k) > recorded:
                raise UsageError(
                    f"method {lane.method.name!r}: drafts from the target's {wanted} likeliest tokens at "
                    "every node, and the record does not hold them (top_k); leave it out, or record them"
                )
        self._played: list[list[ReplayResult]] = []  # by request and method

    def work(self) -> dict[str, int]:
        """Return the number of ticks."""
        return {REQUEST_PHASE: len(self._requests)}

    @property
    def done(self) -> int:
        return len(self._played)

    def run(self, tick: Callable[[str], None] = lambda _: None) -> None:
        """Replay all requests. tick: called after each; an exception from it ends the replay, and `results`
        covers the requests before it."""
        previous = None
        for file, one in self._requests:
            if self.fresh or file != previous:
                for lane in self._lanes:
                    lane.forget()
            previous = file
            self._played.append([lane.play(one.recording) for lane in self._lanes])
            tick(REQUEST_PHASE)

    def results(self) -> list[Record]:
        """Return a record for each method over the requests that are done.

        partial: the drafter reads the target's likeliest tokens at every node, which are known only along the
        recorded tokens. policy: its summary since it last forgot. each: results by request."""
        plain = None
        if self.means.costs is not None:
            plain = next((i for i, lane in enumerate(self._lanes) if lane.method.plain), None)
        groups: dict[tuple[int, int | str], int] = {}
        out = []
        for i, lane in enumerate(self._lanes):
            played = [
                ReplayedRequest(
                    one,
                    groups.setdefault((file, one.conversation), len(groups)),
                    results[i],
                    None if plain is None else results[plain],
                )
                for (file, one), results in zip(self._requests, self._played, strict=False)
            ]
            summary = lane.policy.summary
            out.append(
                record.sum_requests(played)
                | {
                    "method": lane.method.name,
                    "drafting": asdict(lane.drafting),
                    "by_source": {name: asdict(source) for name, source in lane.by_source.items()},
                    "by_category": record.by_category(played),
                    "partial": lane.drafter.required_outputs.top_k > 0,
                    "measured": record.check_prediction(played, recorded_settings(lane.drafting)),
                    "each": [asdict(one.result) for one in played],
                    "policy": None if summary is None else summary.as_dict(),
                }
            )
        return out

    def as_dict(self) -> dict[str, Any]:
        return {
            "status": "done" if self.done == len(self._requests) else "interrupted",
            "fresh": self.fresh,
            "costs": None if self.means.costs is None else self.means.costs.as_dict(),
            "files": [
                {
                    "file": trace.path.name,
                    "fingerprint": file_fingerprint(trace.path),
                    "requests": len(trace.requests),
                    "skipped": trace.skipped,
                    "unusable": [{"line": line, "reason": why} for line, why in trace.unusable],
                    "n_unusable": trace.n_unusable,
                }
                for trace in self.traces
            ],
            "requests": [
                {
                    "file": file,  # in "files"
                    "id": one.id,
                    "line": one.line,
                    "category": one.category,
                    "n_prompt": len(one.recording.prompt),
                    "n_tokens": len(one.recording.tokens),
                }
                for file, one in self._requests[: self.done]
            ],
            "results": self.results(),
        }

    def close(self) -> None:
        for lane in self._lanes:
            lane.close()


def recorded_settings(drafting: Drafting) -> dict[str, Any]:
    """Return the settings as `recording` writes them; plain decoding has only the drafter's name."""
    names = {"drafters": list(drafting.drafters)}
    return names if drafting.drafters == ("none",) else non_default_settings(drafting, Drafting()) | names
