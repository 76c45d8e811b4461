"""What a pass takes that eight sessions share, and what a pass of another thread takes: ratios in one run.

    python benchmarks/shared_passes.py [-m MODEL] [-md DRAFT] [-t THREADS] [--rounds 5]

Threads: one
loads and measures a model, another decodes, with and without OpenMP's helpers of the first
(system/helpers.py). Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import threading
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter

from paceline.backends.llama_cpp import LlamaTarget, binding
from paceline.backends.llama_cpp.session import LlamaSession
from paceline.hardware.threads import choose_threads
from paceline.models import zoo
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY, chain
from paceline.system.forks import OpenMPThreads

SESSIONS, PASSES = 16, 11
TEXT = "The river runs down to the sea, and the stones are cold in the morning. " * 10


def opened(target: LlamaTarget, name: str) -> LlamaSession:
    session = target.open()
    session.extend(target.text.encode(f"{name}: {TEXT}"))
    target.forward([(session, session.pending_tokens)], RequiredOutputs())
    return session


def seconds(target: LlamaTarget, sessions: Sequence[LlamaSession], drafted: Sequence[int]) -> float:
    """Of a pass in which each verifies a draft of so many tokens, the median."""
    taken = []
    trees = [chain(range(5, 5 + n), "filler") if n else EMPTY for n in drafted]
    for _ in range(PASSES):
        began = perf_counter()
        target.forward(list(zip(sessions, trees, strict=True)), RequiredOutputs())
        taken.append(perf_counter() - began)
        for session in sessions:
            session.commit((), 7)
    return median(taken)


def shared(model: Path, threads: int) -> dict[str, float]:
    target = LlamaTarget(model, n_ctx=1024, threads=threads, sessions=SESSIONS)
    try:
        all_ = [opened(target, f"Request {at}") for at in range(SESSIONS)]
        eight = all_[:8]
        return {
            "eight sessions": seconds(target, eight, [0] * 8),
            "eight sessions, every second of sixteen": seconds(target, all_[::2], [0] * 8),
            "a draft of four in one of the eight": seconds(target, eight, [4] + [0] * 7),
            "drafts of four, two and three in three of them": seconds(
                target, eight, [4, 0, 2, 0, 3, 0, 0, 0]
            ),
            "drafts of four in all": seconds(target, eight, [4] * 8),
            "one session": seconds(target, all_[:1], [0]),
            "one session, a draft of four": seconds(target, all_[:1], [4]),
            "one session, a draft of seven": seconds(target, all_[:1], [7]),
        }
    finally:
        target.close()


def beside_another_thread(model: Path, threads: int, *, keeps: bool) -> float:
    """Seconds of a pass of a thread, over those of the one that has decoded before it. keeps: its helpers."""
    target = LlamaTarget(model, n_ctx=1024, threads=threads)
    known = binding._helpers
    if keeps:
        binding._helpers = OpenMPThreads(None)
    try:
        taken: list[float] = []

        def decode() -> None:
            session = opened(target, "Request")
            taken.append(seconds(target, [session], [0]))
            session.close()

        decode()
        thread = threading.Thread(target=decode)
        thread.start()
        thread.join()
        return taken[1] / taken[0]
    finally:
        binding._helpers = known
        binding.helpers().release()
        target.close()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", type=Path, help="default: SmolLM2")
    parser.add_argument("-md", dest="draft", type=Path, help="default: SmolLM2's")
    parser.add_argument("-t", type=int)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    threads = choose_threads(args.t)
    model, draft = args.m or zoo.path("smollm2"), args.draft or zoo.path("smollm2-draft")
    rounds = [shared(model, threads) for _ in range(args.rounds)]
    first = next(iter(rounds[0]))
    print("| a pass of | time |\n|---|---|")
    for name in rounds[0]:
        print(f"| {name} | {median(one[name] / one[first] for one in rounds):.2f} |")
    print("\n| another thread's pass | the helpers of the first stay | they go |\n|---|---|---|")
    for file in (model, draft):
        ratios: list[list[float]] = [[], []]
        for _ in range(args.rounds):
            for at, keeps in enumerate((True, False)):
                ratios[at].append(beside_another_thread(file, threads, keeps=keeps))
        print(f"| {file.stem} | {median(ratios[0]):.2f} | {median(ratios[1]):.2f} |")


if __name__ == "__main__":
    main()
