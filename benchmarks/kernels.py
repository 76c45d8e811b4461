"""What passes of few rows cost with kernels of our own and with llama.cpp's: ratios within one run.

    python benchmarks/kernels.py [--types Q4_0,Q4_K_M,Q8_0] [--params 1B] [--depths 256,2048] [-t N] [--md]
    python benchmarks/kernels.py --types shipped        SmolLM2 as it ships (135M, Q4_1)

SmolLM2 is inflated to so many parameters and quantised (build/kernels/, kept). Both targets of a type are
open at once, and passes of both take turns; the median of each counts. Columns: the cost of so many rows over
one row; one row, and a prompt of 512 tokens, over llama.cpp's. `equal` says whether the rows of a draft are
those of plain decoding to the last bit. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import ctypes
import os
import sys
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from time import perf_counter

import llama_cpp
import numpy as np
from gguf import LlamaFileType

from paceline.backends.llama_cpp import LlamaTarget
from paceline.backends.logit_drift import teacher_forced_logits
from paceline.hardware.threads import choose_threads
from paceline.models import zoo
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY, chain

sys.path.append(str(Path(__file__).parents[1]))  # for tools

from tools.inflate import inflate, parse_count

ROWS = (1, 2, 3, 4, 6, 8, 12, 16)
SHOWN = (2, 4, 8, 16)
PROMPT, ROUNDS, SHIPPED = 512, 5, "shipped"
FOLDER = Path("build/kernels")


@dataclass
class Reading:
    """Seconds of one target: of a prompt, and by depth and rows of a pass."""

    target: LlamaTarget
    prompt: list[float] = field(default_factory=list)
    passes: dict[int, dict[int, list[float]]] = field(default_factory=dict)

    def one(self, depth: int) -> float:
        return median(self.passes[depth][1])

    def relative(self, depth: int, rows: int) -> float:
        return median(self.passes[depth][rows]) / self.one(depth)

    def read_prompt(self, tokens: Sequence[int]) -> None:
        self.target.forget()
        with closing(self.target.open()) as session:
            session.extend(list(tokens[: PROMPT + 1]))
            began = perf_counter()
            self.target.forward([(session, PROMPT)], RequiredOutputs())
            self.prompt.append(perf_counter() - began)

    def pass_over(self, session: object, depth: int, rows: int) -> None:
        tree = chain(range(5, 4 + rows), "filler") if rows > 1 else EMPTY
        began = perf_counter()
        self.target.forward([(session, tree)], RequiredOutputs())  # type: ignore[list-item]
        seconds = perf_counter() - began
        self.passes.setdefault(depth, {}).setdefault(rows, []).append(seconds)
        session.rollback()  # type: ignore[attr-defined]


def model(kind: str, params: str) -> Path:
    if kind == SHIPPED:
        return zoo.path("smollm2")
    FOLDER.mkdir(parents=True, exist_ok=True)
    out, whole = FOLDER / f"smollm2-{params}-{kind}.gguf", FOLDER / f"smollm2-{params}-BF16.gguf"
    if not whole.exists():
        print(f"writing {whole}", file=sys.stderr)
        inflate(zoo.path("smollm2"), whole, parse_count(params), "BF16")
    if not out.exists():
        print(f"writing {out}", file=sys.stderr)
        quantise(whole, out, kind)
    return out


def quantise(whole: Path, out: Path, kind: str) -> None:
    how = llama_cpp.llama_model_quantize_default_params()
    how.ftype = LlamaFileType[f"MOSTLY_{kind}"]
    if llama_cpp.llama_model_quantize(os.fsencode(whole), os.fsencode(out), ctypes.byref(how)):
        raise SystemExit(f"llama.cpp cannot write {out}")


def measure(path: Path, depths: Sequence[int], threads: int) -> tuple[Reading, Reading, bool]:
    """With kernels of our own, and without."""
    tokens = np.random.default_rng(0).integers(5, 20_000, max(*depths, PROMPT) + 2).tolist()
    with ExitStack() as stack:
        both = []
        for kernels in (True, False):
            target = LlamaTarget(path, n_ctx=max(*depths, PROMPT) + 64, threads=threads, kernels=kernels)
            both.append(Reading(stack.enter_context(closing(target))))
        ours, theirs = both
        for _ in range(3):
            for reading in both:
                reading.read_prompt(tokens)
        for depth in depths:
            with ExitStack() as sessions:
                opened = []
                for reading in both:
                    session = sessions.enter_context(closing(reading.target.open()))
                    session.extend(tokens[: depth + 1])
                    reading.target.forward([(session, session.pending_tokens)], RequiredOutputs())
                    opened.append((reading, session))
                for rows in ROWS:
                    for _ in range(ROUNDS):
                        for reading, session in opened:
                            reading.pass_over(session, depth, rows)
        one, several = (teacher_forced_logits(ours.target, tokens[:64], 32, n) for n in (1, 8))
        return ours, theirs, bool(np.array_equal(one, several))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--types", default="Q4_0,Q4_K_M,Q5_K_M,Q6_K,Q8_0,BF16")
    parser.add_argument("--params", default="1B")
    parser.add_argument("--depths", default="256,2048")
    parser.add_argument("-t", type=int)
    parser.add_argument("--md", action="store_true", help="as a table for a page")
    args = parser.parse_args()
    depths = [int(depth) for depth in args.depths.split(",")]
    threads = choose_threads(args.t)
    titles = ["type", "depth", *(f"{n} rows" for n in SHOWN), *(f"llama.cpp's {n}" for n in SHOWN)]
    titles += ["one row over", "prompt over", "equal"]
    lead, between, end = ("| ", " | ", " |") if args.md else ("", "  ", "")
    print(lead + between.join(titles) + end)
    if args.md:
        print("|---" * len(titles) + "|")
    for kind in args.types.split(","):
        ours, theirs, equal = measure(model(kind, args.params), depths, threads)
        for depth in depths:
            cells = [kind, str(depth)]
            cells += [f"{reading.relative(depth, n):.2f}" for reading in (ours, theirs) for n in SHOWN]
            cells.append(f"{theirs.one(depth) / ours.one(depth):.2f}")
            cells += [f"{median(theirs.prompt) / median(ours.prompt):.2f}", "yes" if equal else "no"]
            widths = [0 if args.md else len(title) for title in titles]
            row = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
            print(lead + between.join(row) + end, flush=True)


if __name__ == "__main__":
    main()
