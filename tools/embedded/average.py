"""Average two checkpoints of one run: `python -m tools.embedded.average --runs runs/a runs/b --out runs/c`.

The weights of two points on one path of training, averaged, mostly do better than either (Izmailov et al.
2018, arXiv:1803.05407; of fine-tuned models: Wortsman et al. 2022, arXiv:2203.05482). Of two that began apart
they do not: what one calls its first channel is another's hundredth.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

Weights = dict[str, Any]


def between(first: Weights, second: Weights, share: float) -> Weights:
    """`share` of the second and the rest of the first, tensor by tensor; names and shapes are the same."""
    if shapes_of(first) != shapes_of(second):
        raise ValueError("the two are of different shapes")
    return {name: (1 - share) * value + share * second[name] for name, value in first.items()}


def shapes_of(weights: Weights) -> dict[str, tuple[int, ...]]:
    return {name: tuple(value.shape) for name, value in weights.items()}


def average(runs: tuple[Path, Path], share: float, out: Path) -> None:
    """Begin a run in `out` at the average; refuses to replace a run."""
    import torch

    from tools.embedded.restore import begin

    first, second = (torch.load(run / "checkpoint.pt") for run in runs)
    tokenizers = [(run / "tokenizer.json").read_text("utf-8") for run in runs]
    if tokenizers[0] != tokenizers[1]:
        raise SystemExit(f"{runs[0]} and {runs[1]} have different tokenizers: not two points of one run")
    weights = {role: between(first[role], second[role], share) for role in ("target", "draft")}
    begin(out, tokenizers[0], weights)


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.embedded.average", description="Average checkpoints."
    )
    parser.add_argument("--runs", type=Path, nargs=2, required=True, help="the folders of the two runs")
    parser.add_argument("--share", type=float, default=0.5, help="the second one's share, 0 to 1")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the new run")
    args = parser.parse_args()
    average((args.runs[0], args.runs[1]), args.share, args.out)


if __name__ == "__main__":
    main()
