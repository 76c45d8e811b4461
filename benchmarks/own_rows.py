"""What the target's own rows are worth as drafts: `python benchmarks/own_rows.py [--target FILE] [-n 8]`.

Lookahead decoding, greedily, by suite: tokens a step, rows a step (the root's, those of the draft and of the
probes), microseconds a proposal, and tokens/s over plain decoding in the same run. Every item is decoded in
every way before the next, so that a machine that slows down does so for all. Beside it prompt lookup, and
lookahead without a window, which is left with the n-grams of the text.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from paceline.backends.llama_cpp import LlamaTarget
from paceline.bench.suites import workload
from paceline.drafters.lookahead import LookaheadDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.none import NoDrafter
from paceline.models import zoo
from paceline.speculative.interfaces import Budget, Drafter
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest


@dataclass
class Way:
    """One drafter and its budget, and what came of it."""

    name: str
    make: Callable[[], Drafter]
    budget: Budget
    tokens: int = 0
    steps: int = 0
    rows: int = 0
    draft_seconds: float = 0.0
    seconds: float = 0.0

    def run(self, target: LlamaTarget, drafter: Drafter, prompt: Sequence[int], n: int) -> None:
        request = start_request(target, drafter, GenerationRequest(prompt=prompt, max_tokens=n))
        began = perf_counter()
        for _, step in decode(target, drafter, FixedPolicy(self.budget), [request]):
            self.tokens += len(step.tokens)
            self.steps += 1
            self.rows += 1 + len(step.tree)
            self.draft_seconds += step.times.draft
        self.seconds += perf_counter() - began
        request.close()

    def line(self, plain: Way) -> str:
        return (
            f"  {self.name:28} {self.tokens / self.steps:6.2f} {self.rows / self.steps:6.1f}"
            f" {self.draft_seconds / self.steps * 1e6:6.0f}"
            f"  {self.tokens / self.seconds / (plain.tokens / plain.seconds):6.2f}"
        )


def lookahead(window: int, level: int, guesses: int) -> Way:
    """With room for all of it."""
    depth = level - 1 + max(0, window - 2)
    budget = Budget(depth, (window + guesses) * (level - 1), window + guesses)
    return Way(
        f"lookahead {window},{level},{guesses}", lambda: LookaheadDrafter(window, level, guesses), budget
    )


def ways() -> list[Way]:
    return [
        Way("plain", NoDrafter, Budget(0, 0)),
        Way("lookup, 7 tokens", lambda: LookupDrafter(3, 5), Budget(7, 7)),
        lookahead(3, 3, 3),
        lookahead(0, 3, 3),
        lookahead(7, 5, 7),
        lookahead(0, 5, 7),
        lookahead(15, 5, 15),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=zoo.target_path())
    parser.add_argument("--size", choices=["tiny", "full"], default="tiny", help="which items of a suite")
    parser.add_argument("--suites", nargs="+", default=["code", "json", "prose"])
    parser.add_argument("-n", type=int, default=8, help="items a suite")
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    target = LlamaTarget(args.target, threads=args.threads)
    for suite in args.suites:
        items = workload.sample_items(workload.filter_size(workload.load(suite), args.size), args.n)
        tried = [(way, way.make()) for way in ways()]
        for item in items:
            prompt = target.text.encode(item.prompt)
            for way, drafter in tried:
                way.run(target, drafter, prompt, item.max_tokens)
        print(f"{f'{suite}: {len(items)} items':30} tokens   rows  draft   speed")
        print(f"{'':30} a step a step     us   ratio")
        for way, _ in tried:
            print(way.line(tried[0][0]), flush=True)
    target.close()


if __name__ == "__main__":
    main()
