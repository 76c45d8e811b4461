"""How many requests a second a server takes, and how many replicas take: computed from recorded requests.

    python benchmarks/capacity.py FILE... [-m MODEL.gguf] [-md DRAFT.gguf] --cost-curve CURVE.json
        [--methods plain,lookup,auto] [--sessions 1,4,16] [--ttft 2] [--tpot 0.1] [--within 0.95]
        [--replicas 1,2,4,...,1000] [--think 0] [--rounds 3]

FILE: recorded requests, as `paceline replay` reads them. CURVE.json: what passes cost, as `paceline doctor
--json` measures it; or Q4_0, Q8_0, BF16, the curves of models of 1B that benchmarks/rate.py holds.
Nothing runs but the scheduler, the policy and the drafters that serve (and the draft model, where one is
given), on a clock that the curve moves: the same command prints the same figures. docs/capacity.md tells what
is measured, what is computed, and what is left out.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

import numpy as np
from arrivals import Conversation, Replica, Served, poisson, thinking
from fleet import Curve, capacity, shares
from rate import CURVES
from rate import costs as costs_of_1b

from paceline.backends.recorded import Recording
from paceline.backends.registry import open_engine, open_tokenizer
from paceline.bench.method import Method
from paceline.bench.replay.replay import ReplayContext, methods_of
from paceline.bench.replay.traces import Trace
from paceline.cli.interrupts import Interrupts
from paceline.cli.replay import costs_of, read_traces, vocabulary
from paceline.hardware.threads import choose_threads
from paceline.models import zoo
from paceline.report.table import write_table
from paceline.speculative.errors import PacelineError
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.stats import Stats

LOADS = (0.1, 0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 0.97)  # of what a replica does that is never idle
WARMING = 0.1  # of the time in which conversations begin: what a server does at first is not counted
FLEETS = "1,2,4,8,16,32,64,125,250,500,1000"


@dataclass(frozen=True)
class Limits:
    """ttft, tpot: seconds to the first token, and between tokens. within: the share of requests to keep to
    both."""

    ttft: float
    tpot: float
    within: float

    def missed(self, served: Sequence[Served]) -> float:
        return mean(one.ttft > self.ttft or one.tpot > self.tpot for one in served)


@dataclass(frozen=True)
class Measured:
    """One replica by a method. saturated: requests a second where one always waits, and tokens. at: by load,
    what was served. good: requests a second within the limits."""

    method: str
    sessions: int
    stats: Stats
    saturated: float
    tokens: float
    at: dict[float, list[Served]]
    curve: Curve
    good: float


def conversations(traces: Sequence[Trace]) -> list[Conversation]:
    """In the order of their first requests."""
    out: dict[tuple[int, int | str], list[Recording]] = {}
    for number, trace in enumerate(traces):
        for one in trace.requests:
            out.setdefault((number, one.conversation), []).append(one.recording)
    return list(out.values())


def simulated(
    said: Sequence[Conversation],
    method: Method,
    means: ReplayContext,
    sessions: int,
    given: argparse.Namespace,
) -> Measured:
    limits = Limits(given.ttft, given.tpot, given.within)
    recordings = [one for each in said for one in each]
    with closing(Replica(method, recordings, means, sessions=sessions, chunk=given.chunk)) as replica:
        full = replica.serve(said, [0.0] * len(said), lambda: 0.0)
        seconds, n_tokens = full[-1].end, sum(one.n_tokens for one in full)
        saturated = len(full) / seconds
        at: dict[float, list[Served]] = {}
        for share in LOADS:
            rate = share * saturated
            rounds = [served(replica, said, rate, seed, given) for seed in range(given.rounds)]
            at[rate] = [one for each in rounds for one in each]
        stats = replica.stats
    curve = Curve(tuple(at), tuple(limits.missed(each) for each in at.values()))
    good = capacity(curve, [1.0], 1.0 - limits.within)
    return Measured(method.name, sessions, stats, saturated, n_tokens / seconds, at, curve, good)


def served(
    replica: Replica, said: Sequence[Conversation], rate: float, seed: int, given: argparse.Namespace
) -> Iterator[Served]:
    """Those that arrived while the server had its load: not at the beginning, and not after the last
    conversation has begun. A server that has just started, for its drafters would know the texts."""
    replica.forget()
    now, n = replica.clock.now, sum(map(len, said))
    begins = poisson(len(said), rate * len(said) / n, seed)
    first, last = now + WARMING * begins[-1], now + begins[-1]
    for one in replica.serve(said, begins, thinking(given.think, seed)):
        if first <= one.arrived <= last:
            yield one


def tables(measured: Sequence[Measured], given: argparse.Namespace) -> None:
    print("\nCOMPUTED, one replica: the scheduler that serves, on the curve's clock")
    rows = []
    for one in measured:
        load = max((load for load in one.at if load <= one.good), default=None)
        latency = ["-"] * 4 if load is None else [*quantiles([s.ttft for s in one.at[load]], 2),
                                                  *quantiles([s.tpot for s in one.at[load]], 3)]  # fmt: skip
        length, of = one.stats.acceptance_length, one.stats.acceptance_rate
        rows.append(
            (
                one.method, f"{one.sessions}", f"{one.saturated:.3f}", f"{one.tokens:.1f}",
                "-" if length is None else f"{length:.2f}", "-" if of is None else f"{of:.2f}",
                f"{one.good:.3f}", *latency,
            )
        )  # fmt: skip
    heads = ("method", "sessions", "most requests/s", "tokens/s", "acceptance length", "acceptance rate",
             "within limits: requests/s", "TTFT p50", "p95", "TPOT p50", "p95")  # fmt: skip
    write_table(heads, rows, sys.stdout, 1)
    best = max(measured, key=lambda one: one.good)
    print(f"\nCOMPUTED, many replicas of {best.method} with {best.sessions} sessions")
    rows = []
    for n in numbers(given.replicas):
        parts = shares(n)
        even, ring = (capacity(best.curve, each, 1.0 - given.within) for each in ([1 / n] * n, parts))
        rows.append((f"{n:,}", f"{even:,.2f}", f"{ring:,.2f}", f"{parts.max() * n:.2f}"))
    write_table(
        ("replicas", "spread evenly: requests/s", "by the ring", "busiest, of the mean"), rows, sys.stdout, 0
    )


def quantiles(values: Sequence[float], digits: int) -> list[str]:
    return [f"{value:.{digits}f}" for value in np.quantile(values, (0.5, 0.95))]


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",")]


def about(said: Sequence[Conversation], costs: DecodingCosts, given: argparse.Namespace) -> None:
    every = [one for each in said for one in each]
    prompt, answer = (round(mean(map(len, each))) for each in
                      ([one.prompt for one in every], [one.tokens for one in every]))  # fmt: skip
    print(
        f"MEASURED: {len(every)} recorded requests of {len(said)} conversations, on average {prompt} tokens "
        f"of prompt and {answer} of answer\n"
        f"MEASURED: {given.cost_curve or 'as kept on this machine'}: a pass of "
        + ", ".join(f"{n}: {1e3 * costs.target.seconds(n, 256):.1f} ms" for n in costs.target.rows)
        + f" (rows at depth 256); beyond {costs.target.max_batch_tokens} rows a line\n"
        f"LIMITS: {given.within:.0%} of requests with a first token in {given.ttft:g} s, and "
        f"{given.tpot:g} s between tokens; {given.think:g} s between two turns"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("files", type=Path, nargs="+", metavar="FILE")
    parser.add_argument("-m", "--tokenizer", type=Path)
    parser.add_argument("-md", "--model-draft")
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--chat-template", action="store_true")
    parser.add_argument("--limit", type=int, default=0, help="the first N requests only")
    parser.add_argument("--cost-curve", help="a file, or " + ", ".join(CURVES))
    parser.add_argument("--methods", default="plain,lookup,auto")
    parser.add_argument("--sessions", default="1,4,16", help="requests decoded at once")
    parser.add_argument("--chunk", type=int, default=256, help="tokens of prompts in a pass")
    parser.add_argument("--ttft", type=float, default=2.0)
    parser.add_argument("--tpot", type=float, default=0.1)
    parser.add_argument("--within", type=float, default=0.95)
    parser.add_argument("--replicas", default=FLEETS)
    parser.add_argument("--think", type=float, default=0.0, help="seconds between two turns, on average")
    parser.add_argument("--rounds", type=int, default=3, help="times that all requests arrive, by load")
    given = parser.parse_args()
    try:
        with Interrupts() as interrupts, ExitStack() as stack:
            run(given, interrupts, stack)
    except PacelineError as error:
        sys.exit(f"capacity.py: {error}")


def run(given: argparse.Namespace, interrupts: Interrupts, stack: ExitStack) -> None:
    text = None
    if given.tokenizer is not None:
        text = stack.enter_context(closing(open_tokenizer(given.tokenizer)))
    costs: DecodingCosts | None
    if given.cost_curve in CURVES:
        costs = costs_of_1b(CURVES[given.cost_curve], zoo.draft_path())
    else:
        curve = None if given.cost_curve is None else Path(given.cost_curve)
        costs = costs_of(curve, given.tokenizer, given.model_draft, given.threads)
    methods = methods_of(given.methods, {}, draft=given.model_draft is not None, costs=costs is not None)
    traces = read_traces(given.files, text, given.limit, interrupts, template=given.chat_template)
    said, widest = conversations(traces), max(numbers(given.sessions))
    draft = None
    if given.model_draft is not None:
        threads = choose_threads(given.threads)
        draft = open_engine(Path(given.model_draft), n_ctx=0, threads=threads, sessions=widest)
        stack.callback(draft.close)
    vocab = vocabulary(text, traces, draft)
    means = ReplayContext(vocab, None if text is None else text.text, draft=draft, costs=costs)
    measured = [
        simulated(said, method, means, sessions, given)
        for sessions in numbers(given.sessions)
        for method in methods
    ]
    assert costs is not None  # a replica has asked
    about(said, costs, given)
    tables(measured, given)


if __name__ == "__main__":
    main()
