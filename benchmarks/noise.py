"""What it is worth to a draft model to know the noise that the target draws with (speculative/rng.py).

    python benchmarks/noise.py [--workloads code,agent] [--temperatures 0.7,1] [--items 4] [-n 96] [--replays]

The embedded pair. For each workload and temperature, at every token of texts that the target draws: how
often the draft model's first guess is what is drawn, and one of its first two, where it guesses its likeliest
tokens and where it runs the target's race; how often a sampled guess would be accepted (the token rule: the
sum of min(p, q), q at the same temperature); and the log loss, in bits, of how sure the race is of its first
guess. --replays: the speed of `auto` over plain decoding too, by replay without the noise and with it, by the
cost curves of benchmarks/rate.py. Nothing depends on the clock.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import log2
from pathlib import Path

import numpy as np
from never_slower import WORKLOADS, record_plainly, speed
from rate import CURVES, predicted

from paceline.api import LLM
from paceline.backends.recorded import Recording
from paceline.bench.replay import traces
from paceline.bench.replay.recording import Recorder
from paceline.bench.replay.traces import Trace
from paceline.loading import load
from paceline.models import zoo
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.sampling import Logits, Sampling, filter_top_k, probabilities
from paceline.speculative.tree import EMPTY


@dataclass
class Guessed:
    """Of one token: whether the first guess, and one of two, was right by the draft's own odds and in the
    race; the chance of a sampled one; the bits that the race's surprise took."""

    likeliest: bool
    two: bool
    raced: bool
    two_raced: bool
    sampled: float
    bits: float


def rows(llm: LLM, recording: Recording) -> Iterator[Logits]:
    """What a model says at each token of a recording, before it."""
    session = llm.target.open()
    session.extend(recording.prompt)
    for token in recording.tokens:
        yield llm.target.forward([(session, EMPTY)], RequiredOutputs())[0].logits(0)
        session.commit((), token)
    session.close()


def guesses(target: LLM, draft: LLM, recording: Recording) -> Iterator[Guessed]:
    noise = recording.gumbel_noise
    assert noise is not None  # it was drawn
    both = zip(rows(target, recording), rows(draft, recording), recording.tokens, strict=True)
    for place, (said, guessed, token) in enumerate(both, len(recording.prompt)):
        p, q = (probabilities(row[: len(said)], noise.sampling, ()) for row in (said, guessed[: len(said)]))
        best = filter_top_k(q, 2)
        ids, perturbed = noise.at(place).perturbed(guessed[: len(said)], 0)
        order = np.argsort(-perturbed)
        target_distribution = np.exp(perturbed - perturbed.max())
        sure = float(np.clip((target_distribution / target_distribution.sum()).max(), 0.01, 0.99))
        right = bool(ids[order[0]] == token)
        yield Guessed(
            bool(best[0] == token),
            bool(token in best),
            right,
            bool(token in ids[order[:2]]),
            float(np.minimum(p, q).sum()),
            -log2(sure if right else 1 - sure),
        )


def over_plain(trace: Trace, target: LLM, curve: dict[int, float]) -> float:
    results = predicted([trace], "auto", target, zoo.draft_path(), curve)
    auto, plain = (next(one for one in results if one["method"] == name) for name in ("auto", "plain"))
    return speed(auto) / speed(plain)


def without_noise(trace: Trace) -> Trace:
    requests = [replace(one, recording=replace(one.recording, gumbel_noise=None)) for one in trace.requests]
    return replace(trace, requests=requests)


def mean(of: Sequence[Guessed], name: str) -> float:
    return sum(float(getattr(one, name)) for one in of) / len(of)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--workloads", default="code,agent")
    parser.add_argument("--temperatures", default="0.7,1")
    parser.add_argument("--items", type=int, default=4)
    parser.add_argument("-n", "--n-predict", type=int, default=96)
    parser.add_argument("--replays", action="store_true")
    arguments = parser.parse_args()
    print("workload  temp  first of two: likeliest    raced         sampled  bits", end="")
    print("".join(f"  {name + ' without, with':20}" for name in CURVES) if arguments.replays else "")
    with (
        tempfile.TemporaryDirectory() as folder,
        load(drafters="none") as target,
        load(zoo.draft_path(), drafters="none") as draft,
    ):
        for name in arguments.workloads.split(","):
            for temperature in map(float, arguments.temperatures.split(",")):
                file = Path(folder) / f"{name}-{temperature}.jsonl"
                sampling = Sampling(temperature=temperature)
                record_plainly(target, Recorder(file, print), WORKLOADS[name][0], sampling, arguments)
                trace = traces.read(file, target.target.text)
                of = [one for r in trace.requests for one in guesses(target, draft, r.recording)]
                print(
                    f"{name:8}  {temperature:4}                {mean(of, 'likeliest'):.2f}, "
                    f"{mean(of, 'two'):.2f}    {mean(of, 'raced'):.2f}, {mean(of, 'two_raced'):.2f}    "
                    f"{mean(of, 'sampled'):.2f}     {mean(of, 'bits'):.2f}",
                    end="",
                    flush=True,
                )
                for curve in CURVES.values() if arguments.replays else ():
                    gains = [over_plain(one, target, curve) for one in (without_noise(trace), trace)]
                    print(f"  {gains[0]:.2f}, {gains[1]:.2f}          ", end="", flush=True)
                print()


if __name__ == "__main__":
    main()
