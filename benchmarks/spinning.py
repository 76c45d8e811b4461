"""How long OpenMP's threads should spin at a barrier: decoding on a calm and on a busy machine.

    python benchmarks/spinning.py [-m zoo:smollm2] [-n 200] [--rounds 5] [--counts default,500,2000,passive]

Each GOMP_SPINCOUNT decodes in a process of its own, in turns, next to 0, 1 and 2 busy loops (`--busy`).
Prints the median tokens/s of plain decoding relative to libgomp's default, which is 300,000. Measure on a
machine where nothing else computes.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections import defaultdict
from statistics import median

PROMPT = "Count to one hundred."


def environment(count: str) -> dict[str, str]:
    """Return the environment for a count of spins, "default" or "passive"."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("GOMP_", "OMP_"))}
    if count == "passive":
        return clean | {"OMP_WAIT_POLICY": "passive"}
    return clean | {"GOMP_SPINCOUNT": "300000" if count == "default" else count}


def speed(model: str, n: int, count: str) -> float:
    """Return the tokens per second of plain decoding in a new process."""
    options = ["-m", model, "--draft", "none", "-n", str(n), "--ignore-eos", "--json", PROMPT]
    done = subprocess.run(
        [sys.executable, "-m", "paceline", "run", *options],
        env=environment(count),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        check=True,
    )
    return float(json.loads(done.stdout)["tokens_per_second"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("-m", "--model", default="zoo:smollm2")
    parser.add_argument("-n", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--counts", default="default,500,2000,passive")
    parser.add_argument("--busy", default="0,1,2")
    given = parser.parse_args()
    counts = given.counts.split(",")
    print("busy loops  " + "".join(f"{count:>10}" for count in counts))
    for busy in map(int, given.busy.split(",")):
        loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(busy)]
        found = defaultdict[str, list[float]](list)
        try:
            for _ in range(given.rounds):
                for count in counts:
                    found[count].append(speed(given.model, given.n, count))
        finally:
            for loop in loops:
                loop.kill()
                loop.wait()
        base = median(found[counts[0]])
        print(
            f"{busy:10}  " + "".join(f"{median(found[count]) / base:10.2f}" for count in counts), flush=True
        )


if __name__ == "__main__":
    main()
