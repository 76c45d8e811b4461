"""What rows cost in PyTorch's kernels, beside llama.cpp on the same model: T(n) / T(1) for n = 1 to 16.

    python benchmarks/torch_rows.py -m 1B-BF16.gguf [--llama 1B-Q8_0.gguf,1B-Q4_0.gguf] [-t 2] [--md]

The model is read once for each of --dtypes; passes of all row counts take turns, behind a text of --depth
tokens, and the median counts. "T(1)" is over the first kernel's.
A machine with nothing else to do, please.
"""

from __future__ import annotations

import argparse
import gc
from collections.abc import Sequence
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

from paceline.loading import load
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY, chain

PROMPT = "The river had been rising for three days, and on the fourth the people of the village began to"
DTYPES = "float32,bfloat16"


def times(target: Any, text: list[int], rows: Sequence[int], rounds: int) -> dict[int, float]:
    """Median seconds of a pass over so many rows."""
    session = target.open()
    session.extend(text)
    while session.pending_tokens:
        target.forward(
            [(session, min(session.pending_tokens, target.caps.max_prefill_tokens))], RequiredOutputs()
        )
    took: dict[int, list[float]] = {n: [] for n in rows}
    for _ in range(rounds + 1):
        for n in rows:
            tree = chain(text[: n - 1], "rows") if n > 1 else EMPTY
            began = perf_counter()
            out = target.forward([(session, tree)], RequiredOutputs())[0]
            out.argmax(n - 1)
            took[n].append(perf_counter() - began)
            session.rollback()
    session.close()
    return {n: median(some[1:]) for n, some in took.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", required=True, help="a GGUF file or folder that transformers reads")
    parser.add_argument("--llama", default="", help="GGUF files for llama.cpp")
    parser.add_argument("--dtypes", default=DTYPES)
    parser.add_argument("--rows", default="1,2,3,4,5,6,8,12,16")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--depth", type=int, default=128)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--md", action="store_true")
    arguments = parser.parse_args()
    rows = [int(n) for n in arguments.rows.split(",")]
    model = arguments.model if Path(arguments.model).is_dir() else f"hf:{arguments.model}"
    given: list[tuple[str, dict[str, Any]]] = [
        (f"llama.cpp {Path(path).stem}", {"target": path})
        for path in filter(None, arguments.llama.split(","))
    ]
    for dtype in filter(None, arguments.dtypes.split(",")):
        given.append((f"torch {dtype}", {"target": model, "dtype": dtype}))
    base = 0.0
    bar = " | " if arguments.md else "  "
    print(bar.join(["", f"{'kernel':28}", "T(1)", *(f"{n:>4}" for n in rows), ""]).strip(" "))
    if arguments.md:
        print("|---" * (len(rows) + 2) + "|")
    for name, how in given:
        with load(**how, drafters="none", n_ctx=512, threads=arguments.threads) as llm:
            target: Any = llm.target
            text = (llm.tokens(PROMPT) * (1 + arguments.depth // 16))[: arguments.depth]
            took = times(target, text, rows, arguments.rounds)
            base = base or took[1]
            curve = [f"{took[n] / took[1]:4.2f}" for n in rows]
            cells = ["", f"{name:28}", f"{took[1] / base:4.2f}", *curve, ""]
            print(bar.join(cells).strip(" "), flush=True)
            del target
        gc.collect()


if __name__ == "__main__":
    main()
