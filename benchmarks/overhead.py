"""What Paceline itself costs a step, apart from the models: target below 300 microseconds.

    python benchmarks/overhead.py [--json]

First the loop over an engine that computes nothing, with a 32,768-token vocabulary, greedy; then the Python
side of the llama.cpp engine (planning the batch, reading rows, moving cache cells), with llama_decode's time
taken off. Medians over all steps of a run. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Any

import numpy as np

import paceline
from paceline.core.decode import advance, start
from paceline.core.policy import Fixed
from paceline.core.ports import Budget, Caps, Drafter, Features, Memory, Target, Want
from paceline.core.sampling import argmax
from paceline.core.tree import EMPTY, DraftTree, chain
from paceline.core.vocab import Vocab
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.none import NoDrafter, NoMemory

N_VOCAB = 32768
STEPS = 2000
TARGET_MICROSECONDS = 300


class StillSession:
    """A session without a model behind it."""

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._tree = EMPTY

    def prefill(self, tokens: Sequence[int]) -> None:
        self.tokens = list(tokens)

    def keep(self, path: Sequence[int], root: int) -> None:
        self.tokens += [*(self._tree.tokens[node] for node in path), root]

    def close(self) -> None: ...


class StillTarget:
    """Its rows are noise made beforehand; `likeliest` is the argmax of each."""

    def __init__(self, rows: int = 64) -> None:
        self.vocab = Vocab(N_VOCAB, "none", None, frozenset(), False, False, lambda _: b"")
        self.caps = Caps(branch=64, rewind=True, batch=64, rows=512, n_ctx=10**9)
        self.rows = np.random.default_rng(0).normal(size=(rows, N_VOCAB)).astype(np.float32)
        self.likeliest = [int(row.argmax()) for row in self.rows]

    def open(self) -> StillSession:
        return StillSession()

    def forward(self, batch: Sequence[tuple[StillSession, DraftTree]], want: Want) -> list[StillForward]:
        for session, tree in batch:
            session._tree = tree
        return [StillForward(self.rows)] * len(batch)

    def close(self) -> None: ...


class StillForward:
    features = Features()

    def __init__(self, rows: np.ndarray) -> None:
        self._rows = rows

    def argmax(self, row: int) -> int:
        return argmax(self._rows[row])

    def logits(self, row: int) -> np.ndarray:
        out: np.ndarray = self._rows[row]
        return out


class Right:
    """Drafts exactly what StillTarget will say."""

    name = "right"
    wants = Want()

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tree = chain(tokens, self.name)

    def open(self, prompt: Sequence[int], seed: int) -> Memory:
        return NoMemory()

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> list[DraftTree]:
        return [self._tree] * len(batch)

    def close(self) -> None: ...


def loop_microseconds(target: Target, drafter: Drafter, n_draft: int, requests: int = 1) -> float:
    """Median time of one step of the loop, per request."""
    policy = Fixed(Budget(n_draft, n_draft))
    prompt = list(range(500)) * 2
    batch = [start(target, drafter, prompt, max_tokens=10**9) for _ in range(requests)]
    times = []
    for _ in range(STEPS // requests):
        began = perf_counter()
        advance(target, drafter, policy, batch)
        times.append((perf_counter() - began) / requests)
    return statistics.median(times) * 1e6


def engine_microseconds(drafters: str, n_draft: int) -> tuple[float, float]:
    """Median time of a step on the embedded target without llama_decode, and with it."""
    with paceline.load(drafters=drafters, n_draft=n_draft, n_ctx=2048) as llm:
        inside = 0.0
        decode: Callable[[Any], int] = llm.target._batch.decode

        def timed(context: Any) -> int:
            nonlocal inside
            began = perf_counter()
            code = decode(context)
            inside += perf_counter() - began
            return code

        llm.target._batch.decode = timed  # type: ignore[method-assign]  # measured from outside
        request = start(llm.target, llm.drafter, llm.tokens("def main():\n    " * 8), max_tokens=10**6)
        own, whole = [], []
        for _ in range(150):
            began, inside = perf_counter(), 0.0
            advance(llm.target, llm.drafter, llm.policy, [request])
            took = perf_counter() - began
            own.append(took - inside)
            whole.append(took)
        request.close()
    return statistics.median(own) * 1e6, statistics.median(whole) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    arguments = parser.parse_args()
    target = StillTarget()
    loop = {
        "plain": loop_microseconds(target, NoDrafter(), 0),
        "lookup, nothing found": loop_microseconds(target, LookupDrafter(3, 3), 8),
        "8 drafted, all accepted": loop_microseconds(target, Right(target.likeliest[:8]), 8),
        "24 drafted, all accepted": loop_microseconds(target, Right(target.likeliest[:24]), 24),
        "8 drafted, all accepted, 8 requests": loop_microseconds(target, Right(target.likeliest[:8]), 8, 8),
    }
    engine = {
        f"{name}, n_draft {n}": engine_microseconds(name, n) for name, n in (("none", 8), ("lookup", 8))
    }
    if arguments.json:
        json.dump(
            {"loop_microseconds": loop, "engine_microseconds": engine, "target": TARGET_MICROSECONDS},
            sys.stdout,
        )
        print()
        return
    print(f"the loop, {N_VOCAB:,} tokens, greedy (target: below {TARGET_MICROSECONDS} us a step)")
    for name, microseconds in loop.items():
        print(f"  {microseconds:7.1f} us  {name}")
    print("loop and llama.cpp engine without llama_decode, embedded target")
    for name, (own, whole) in engine.items():
        print(f"  {own:7.1f} us  {name}: {own / whole:.1%} of a step")


if __name__ == "__main__":
    main()
