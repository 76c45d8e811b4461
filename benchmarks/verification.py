"""What verification costs a step, by rule and vocabulary: `python benchmarks/verification.py`.

Drafts of 7 tokens (a chain) or 2 x 2 (a tree) whose q resembles p; medians over all runs of one rule. Beside
them what plain sampling costs a token. No model is involved.
"""

from __future__ import annotations

import statistics
from time import perf_counter

import numpy as np

from paceline.settings import CHAIN_ONLY_RULES
from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.rng import SeededRng
from paceline.speculative.sampling import Probabilities, Sampling, probabilities
from paceline.speculative.tree import EMPTY, ROOT, DraftTree
from paceline.speculative.verify import VERIFICATION_RULES, verify

SAMPLINGS = {
    "temperature 0.8": Sampling(temperature=0.8),
    "top-k 40, top-p 0.95": Sampling(temperature=0.8, top_k=40, top_p=0.95),
}
RUNS = 60
CHAIN = tuple(range(-1, 6))
TREE = (ROOT, ROOT, 0, 0, 1, 1)


class Held(LogitsOutput):
    def __init__(self, rows: np.ndarray) -> None:
        self.rows = rows

    def argmax(self, row: int) -> int:
        return int(self.rows[row].argmax())

    def logits(self, row: int) -> np.ndarray:
        out: np.ndarray = self.rows[row]
        return out


def draft(rows: np.ndarray, parents: tuple[int, ...], rng: SeededRng) -> DraftTree:
    """Every node drawn from its own noisy copy of the row above it."""
    tokens: list[int] = []
    q: list[Probabilities] = []
    for node, parent in enumerate(parents):
        row = probabilities(rows[parent + 1] + 0.1, Sampling(temperature=1.0, top_k=10), ())
        for other in range(node):
            if parents[other] == parent:
                row[tokens[other]] = 0.0
        row /= row.sum()
        tokens.append(rng.draw(row))
        q.append(row)
    n = len(tokens)
    return DraftTree(tuple(tokens), parents, (0.5,) * n, ("bench",) * n, q=tuple(q))


def main() -> None:
    for n_vocab in (32_768, 151_936):
        random = np.random.default_rng(0)
        rows = (random.normal(size=(8, n_vocab)) * 2.5).astype(np.float32)
        for name, sampling in SAMPLINGS.items():
            print(f"{n_vocab:,} tokens, {name}: microseconds a step (accepted tokens)")
            for rule in ("plain", *VERIFICATION_RULES):
                rng, times, accepted = SeededRng(0), [], 0
                for _ in range(RUNS):
                    tree = EMPTY
                    if rule != "plain":
                        tree = draft(rows, CHAIN if rule in CHAIN_ONLY_RULES else TREE, rng)
                    began = perf_counter()
                    named = "auto" if rule == "plain" else rule
                    verdict = verify(tree, Held(rows), sampling, [], rng, named)
                    times.append(perf_counter() - began)
                    accepted += len(verdict.path)
                print(f"  {rule:10} {statistics.median(times) * 1e6:8.0f} ({accepted / RUNS:.2f})")


if __name__ == "__main__":
    main()
