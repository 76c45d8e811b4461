"""How long drafters take to index a prompt, for which a server's whole batch waits.

    python benchmarks/opening.py [-n 8000] [--rounds 5]

A prompt of n tokens, a quarter of which is said twice. For every drafter that copies: the milliseconds of
`open`, and the microseconds of a proposal of eight tokens at its end; the least of the rounds.
"""

from __future__ import annotations

import argparse
import random
from time import perf_counter
from typing import Any

from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.speculative.interfaces import Budget


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-n", type=int, default=8000)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    draw = random.Random(0)
    said = [draw.randrange(50_000) for _ in range(args.n // 4)]
    prompt = said + [draw.randrange(50_000) for _ in range(args.n // 2)] + said
    drafters: list[Any] = [SuffixDrafter(), LookupDrafter(3, 5), NgramDrafter()]
    print(f"{'drafter':8}  open, ms  propose, us")
    for drafter in drafters:
        opening, proposing = [], []
        for _ in range(args.rounds):
            began = perf_counter()
            memory = drafter.open(prompt, 0)
            opening.append(perf_counter() - began)
            began = perf_counter()
            drafter.propose([(memory, Budget(depth=8, nodes=8))])
            proposing.append(perf_counter() - began)
        print(f"{drafter.name:8}  {min(opening) * 1e3:8.1f}  {min(proposing) * 1e6:11.0f}")


if __name__ == "__main__":
    main()
