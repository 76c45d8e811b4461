"""What Paceline itself costs a step, apart from the models: target below 300 microseconds.

    python benchmarks/overhead.py [--json]

First the loop and the drafter over models that compute nothing, with a 32,768-token vocabulary, greedy: what
a drafter does with a draft model's rows counts, the draft model itself does not. Then the Python side of
the llama.cpp engine (planning the batch, reading rows, moving cache cells), with llama_decode's time taken
off. Medians over all steps of a run. Run it on an idle machine.
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
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.interfaces import (
    Budget,
    Caps,
    Drafter,
    DrafterState,
    RequiredOutputs,
    Session,
    Target,
)
from paceline.speculative.loop import advance_requests, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest, NoDrafterState
from paceline.speculative.tree import EMPTY, DraftTree, chain
from paceline.speculative.vocabulary import Vocab

N_VOCAB = 32768
STEPS = 2000
MODEL_STEPS = 200  # few, so that the context stays near the prompt's length
TARGET_MICROSECONDS = 300


class StillSession:
    """A session without a model behind it."""

    pending_tokens = 0

    def __init__(self) -> None:
        self.tokens: list[int] = []
        self._tree = EMPTY

    def extend(self, tokens: Sequence[int]) -> None:
        self.tokens += tokens

    def commit(self, path: Sequence[int], root: int) -> None:
        self.tokens += [*(self._tree.tokens[node] for node in path), root]

    def close(self) -> None: ...


class StillTarget:
    """Its rows are noise made beforehand; `likeliest` is the argmax of each.

    wander: start each forward at another row, so that plain decoding never emits three tokens in a row
    for the second time. Otherwise every forward starts at row 0.
    """

    def __init__(self, rows: int = 61, wander: bool = False) -> None:
        self.vocab = Vocab(N_VOCAB, "none", None, frozenset(), False, False, lambda _: b"", lambda _: b"")
        self.origin = "none"
        self.caps = Caps(
            max_branches=64,
            rollback="free",
            max_sessions=64,
            max_batch_tokens=512,
            max_prefill_tokens=512,
            n_ctx=10**9,
        )
        self.rows = np.random.default_rng(0).normal(size=(rows, N_VOCAB)).astype(np.float32)
        self.likeliest = [int(row.argmax()) for row in self.rows]
        self._wander = wander
        self._forwards = 0

    def open(self, beside: Session | None = None) -> StillSession:
        return StillSession()

    def forward(
        self, batch: Sequence[tuple[StillSession, DraftTree | int]], want: RequiredOutputs
    ) -> list[StillForward]:
        for session, tree in batch:
            assert isinstance(tree, DraftTree)
            session._tree = tree
        return [StillForward(self.rows, self._first() if self._wander else 0)] * len(batch)

    def _first(self) -> int:
        """Round after round over all rows, each with a longer stride than the last. The number of rows is
        prime: each round visits every row, and three rows tell the stride and the place in the round."""
        n, k = len(self.rows), self._forwards
        self._forwards += 1
        return k * (1 + k // n) % n

    def forget(self) -> None:
        """Nothing is kept."""

    def close(self) -> None: ...


class StillForward(LogitsOutput):
    def __init__(self, rows: np.ndarray, first: int) -> None:
        super().__init__()
        self._rows = rows
        self._first = first

    def logits(self, row: int) -> np.ndarray:
        out: np.ndarray = self._rows[(self._first + row) % len(self._rows)]
        return out


class Right:
    """Drafts exactly what StillTarget will say, as a new tree every time."""

    name = "right"
    required_outputs = RequiredOutputs()

    def __init__(self, tokens: Sequence[int]) -> None:
        self._tokens = tokens

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> DrafterState:
        return NoDrafterState()

    def propose(self, batch: Sequence[tuple[Any, Budget]]) -> list[DraftTree]:
        return [chain(self._tokens, self.name) for _ in batch]

    def close(self) -> None: ...


def loop_microseconds(
    target: Target,
    drafter: Drafter,
    accepted: int,
    n_draft: int,
    requests: int = 1,
    n_prompt: int = 1000,
    steps: int = STEPS,
) -> float:
    """Median time of one step of the loop, per request. accepted: the tokens every step must draft and
    accept, so that no case measures something else than its name says."""
    policy = FixedPolicy(Budget(n_draft, n_draft))
    prompt = list(range(n_prompt))  # nothing in it repeats
    batch = [
        start_request(target, drafter, GenerationRequest(prompt=prompt, max_tokens=10**9))
        for _ in range(requests)
    ]
    times = []
    for _ in range(steps // requests):
        began = perf_counter()
        done = advance_requests(target, drafter, policy, batch)
        times.append((perf_counter() - began) / requests)
        for _, step in done:
            assert len(step.path) == sum(step.drafted.values()) == accepted, step
    for request in batch:
        request.close()
    return statistics.median(times) * 1e6


def engine_microseconds(drafters: str, n_draft: int) -> tuple[float, float]:
    """Median time of a step on the embedded target without llama_decode, and with it."""
    with paceline.load(drafters=drafters, n_draft=n_draft, n_ctx=2048) as llm:
        inside = 0.0
        decode: Callable[[Any], int] = llm.target._decoder.batch.decode  # type: ignore[attr-defined]

        def timed(context: Any) -> int:
            nonlocal inside
            began = perf_counter()
            code = decode(context)
            inside += perf_counter() - began
            return code

        llm.target._decoder.batch.decode = timed  # type: ignore[attr-defined]  # measured from outside
        request = start_request(
            llm.target,
            llm.drafter,
            GenerationRequest(prompt=llm.tokens("def main():\n    " * 8), max_tokens=10**6),
        )
        own, whole = [], []
        for _ in range(150):
            began, inside = perf_counter(), 0.0
            advance_requests(llm.target, llm.drafter, llm.policy, [request])
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
    eight, many = Right(target.likeliest[:8]), Right(target.likeliest[:24])
    model = ModelDrafter(StillTarget(), N_VOCAB)
    loop = {
        "plain": loop_microseconds(StillTarget(wander=True), NoDrafter(), 0, 0),
        "lookup, nothing found": loop_microseconds(StillTarget(wander=True), LookupDrafter(3, 3), 0, 8),
        "8 drafted, all accepted": loop_microseconds(target, eight, 8, 8),
        "24 drafted, all accepted": loop_microseconds(target, many, 24, 24),
        "8 drafted, all accepted, 8 requests": loop_microseconds(target, eight, 8, 8, requests=8),
    }
    for n in (1024, 32768):
        name = f"8 drafted by a model, all accepted, prompt of {n:,}"
        loop[name] = loop_microseconds(target, model, 8, 8, n_prompt=n, steps=MODEL_STEPS)
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
