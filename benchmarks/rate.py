"""The rule on recorded answers, by given cost curves: how near it comes to the best, without a large model.

    python benchmarks/rate.py [--curves CURVES.json] [--items 8] [-n 128] [--methods auto,...]
    python benchmarks/rate.py --of smollm2 --workloads real-code,real-edit

The embedded target (or another of the zoo's) answers five workloads once (inflated targets say the same);
then replays predict, for each cost curve, the speed of `auto`, of every fixed setting (one drafter, a fixed
length, a fixed p_min), and what an oracle would reach with the same proposals. The draft model really
runs. Nothing depends on the clock: the same command prints the same figures. "again" is `auto` on the same
texts once more, with all that it has learned of guesses, while drafters have forgotten the texts: more than a
better beginning can bring. The curves are those of targets of 1B on two AVX-512 cores, as measured with
llama.cpp's kernels, and one with kernels of our own on two AVX2 cores, unless a file of {name: {rows:
seconds}} is given. `benchmarks/never_slower.py` measures the same with real passes.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Sequence
from contextlib import closing
from math import exp, log
from pathlib import Path
from typing import Any

from never_slower import (
    AUTO,
    COPIED,
    GUESSED,
    SURE,
    WORKLOADS,
    drafts_of,
    record_plainly,
    replayed,
    speed,
    workload_of,
)
from oracle import share_of_bound

from paceline.api import LLM
from paceline.bench.replay import traces
from paceline.bench.replay.recording import Recorder
from paceline.bench.replay.replay import MethodReplay, Record, ReplayContext, methods_of
from paceline.bench.replay.traces import Trace
from paceline.loading import load
from paceline.models import zoo
from paceline.speculative.policy.costs import DecodingCosts, PassCosts
from paceline.speculative.sampling import Sampling

CURVES: dict[str, dict[int, float]] = {
    "Q4_0": {
        1: 0.0184, 2: 0.0329, 3: 0.0496, 4: 0.037, 5: 0.0498, 6: 0.0665, 7: 0.0843, 8: 0.0661, 9: 0.0962,
        10: 0.113, 12: 0.0908, 16: 0.0972, 17: 0.1127, 32: 0.18,
    },
    "Q8_0": {
        1: 0.027, 2: 0.0551, 3: 0.0635, 4: 0.0691, 5: 0.0967, 6: 0.1026, 7: 0.1091, 8: 0.0875, 9: 0.108,
        12: 0.1107, 16: 0.1431, 32: 0.2484,
    },
    "BF16": {
        1: 0.045, 2: 0.0536, 3: 0.0594, 4: 0.0644, 5: 0.0657, 6: 0.0675, 7: 0.0707, 8: 0.0711, 9: 0.0765,
        12: 0.0855, 16: 0.1035, 32: 0.162,
    },
    "ours": {
        1: 0.0432, 2: 0.0437, 3: 0.0485, 4: 0.0567, 5: 0.0662, 6: 0.0748, 7: 0.0773, 8: 0.0887, 9: 0.1155,
        10: 0.1169, 12: 0.1414, 16: 0.1947, 17: 0.214, 24: 0.26, 32: 0.36,
    },
}  # fmt: skip
# Between passes of such a target, where they take half as long again as one after the other.
DRAFT = {1: 0.00085, 2: 0.0012, 4: 0.00145, 8: 0.002}
SMOLLM2_DRAFT = {1: 0.0013, 2: 0.0018, 4: 0.0019, 8: 0.0024}
STEP = 0.0003


def costs(curve: dict[int, float], draft: Path) -> DecodingCosts:
    passes = DRAFT if draft == zoo.draft_path() else SMOLLM2_DRAFT
    return DecodingCosts(PassCosts({256: curve}), PassCosts({256: passes}), STEP)


def predicted(
    recorded: Sequence[Trace], methods: str, llm: LLM, draft: Path, curve: dict[int, float]
) -> list[Record]:
    """By replay, with the draft."""
    model = load(draft, drafters="none").target  # who replays with it closes it
    return replayed(recorded, methods, llm.target, model, costs(curve, draft))


def bound_share(
    recorded: Sequence[Trace], name: str, llm: LLM, draft: Path, curve: dict[int, float]
) -> float:
    method = methods_of(name, {}, draft=True, costs=True)[-1]
    with closing(load(draft, drafters="none").target) as model:
        means = ReplayContext(llm.target.vocab, llm.target.text, draft=model, costs=costs(curve, draft))
        return share_of_bound(recorded, method, means)


def again(recorded: Sequence[Trace], llm: LLM, draft: Path, curve: dict[int, float]) -> float:
    """Tokens a second of `auto` with experience of these very texts."""
    model = load(draft, drafters="none").target
    means = ReplayContext(llm.target.vocab, llm.target.text, draft=model, costs=costs(curve, draft))
    recordings = [request.recording for trace in recorded for request in trace.requests]
    lane = MethodReplay(methods_of(AUTO, {}, draft=True, costs=True)[-1], recordings, means)
    try:
        lane.forget()
        for recording in recordings:
            lane.play(recording)
        # The rule, and all that it has learned.
        rate: dict[str, Any] = vars(lane.policy)
        learned = dict(rate)
        lane.forget()
        rate.update(learned)
        second = [lane.play(recording) for recording in recordings]
        return sum(one.tokens for one in second) / sum(one.seconds or 0.0 for one in second)
    finally:
        lane.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--of", default="target", help="which of the zoo's models")
    parser.add_argument("--longest", type=int, default=0, help="tokens of a prompt, about")
    parser.add_argument("--curves", type=Path)
    parser.add_argument("--methods", default="auto", help="of which the first is compared")
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--items", type=int, default=0)
    parser.add_argument("-n", "--n-predict", type=int, default=128)
    arguments = parser.parse_args()
    curves = CURVES
    if arguments.curves is not None:
        told = json.loads(arguments.curves.read_text())
        curves = {name: {int(n): s for n, s in curve.items()} for name, curve in told.items()}
    grid = ",".join([*COPIED, *SURE, *GUESSED])
    ratios: list[float] = []
    print("curve workload  over plain  best fixed                       over it  again   bound")
    with tempfile.TemporaryDirectory() as folder, load(zoo.path(arguments.of), drafters="none") as llm:
        draft = drafts_of(arguments)
        for workload in arguments.workloads.split(","):
            suite, temperature = workload_of(workload)
            file = Path(folder) / f"{workload}.jsonl"
            record_plainly(llm, Recorder(file, print), suite, Sampling(temperature=temperature), arguments)
            recorded = [traces.read(file, llm.target.text)]
            for name, curve in curves.items():
                both = [
                    predicted(recorded, methods, llm, draft, curve) for methods in (grid, arguments.methods)
                ]
                plain = next(speed(one) for one in both[0] if one["method"] == "plain")
                best = max(both[0], key=speed)
                twice = again(recorded, llm, draft, curve) / speed(best)
                for one in both[1]:
                    if one["method"] == "plain":
                        continue
                    reached = bound_share(recorded, one["method"], llm, draft, curve)
                    over = speed(one) / speed(best)
                    ratios += [over] * (one["method"] == arguments.methods.split(",")[0])
                    print(
                        f"{name:5} {workload:8} {speed(one) / plain:6.2f}x     {speed(best) / plain:4.2f}x "
                        f"{best['method']:26} {over:5.2f} {twice:8.2f} {reached:7.2f}  "
                        f"{one['method']}",
                        flush=True,
                    )
    mean = exp(sum(map(log, ratios)) / len(ratios))
    print(f"over the best fixed setting: geometric mean {mean:.3f}, least {min(ratios):.3f}")


if __name__ == "__main__":
    main()
