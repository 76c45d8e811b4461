"""What rows cost in PyTorch's kernels, beside llama.cpp on the same model: T(n) / T(1) for n = 1 to 16.

    python benchmarks/torch_rows.py -m 1B-BF16.gguf [--llama 1B-Q8_0.gguf,1B-Q4_0.gguf] [-t 2] [--md]

The model is read once for each of --dtypes (bfloat16, bfloat16+compile, ...); passes of all row counts take
turns, behind a text of --depth tokens, and the median counts. "T(1)" is over the first kernel's. The quality
of the packed types is how often they say what bfloat16 says behind its own text (greedy), and the mean
divergence of their probabilities from its, in nats.
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

import numpy as np

from paceline.assemble import load
from paceline.core.ports import Want
from paceline.core.tree import EMPTY, chain

PROMPT = "The river had been rising for three days, and on the fourth the people of the village began to"
DTYPES = "float32,bfloat16,int8,int4"
COMPILED = "+compile"


def times(target: Any, text: list[int], rows: Sequence[int], rounds: int) -> dict[int, float]:
    """Median seconds of a pass over so many rows."""
    session = target.open()
    session.extend(text)
    while session.unread:
        target.forward([(session, min(session.unread, target.caps.chunk))], Want())
    took: dict[int, list[float]] = {n: [] for n in rows}
    for _ in range(rounds + 1):
        for n in rows:
            tree = chain(text[: n - 1], "rows") if n > 1 else EMPTY
            began = perf_counter()
            out = target.forward([(session, tree)], Want())[0]
            out.argmax(n - 1)
            took[n].append(perf_counter() - began)
            session.rollback()
    session.close()
    return {n: median(some[1:]) for n, some in took.items()}


def logits(target: Any, text: list[int], answer: list[int]) -> np.ndarray:
    """[tokens of the answer, n_vocab]: what is said at each of its places."""
    target.forget()
    session = target.open()
    session.extend(text)
    out = target.forward([(session, chain(answer[:-1], "answer"))], Want())[0]
    rows = np.stack([np.array(out.logits(row), np.float64) for row in range(len(answer))])
    session.close()
    return rows


def log_softmax(rows: np.ndarray) -> np.ndarray:
    shifted = rows - rows.max(-1, keepdims=True)
    out: np.ndarray = shifted - np.log(np.exp(shifted).sum(-1, keepdims=True))
    return out


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
    parser.add_argument("-n", type=int, default=64, help="tokens that quality is judged by")
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
        how = {"dtype": dtype.removesuffix(COMPILED), "compile": dtype.endswith(COMPILED)}
        given.append((f"torch {dtype}", {"target": model, **how}))
    base, reference, answer = 0.0, None, list[int]()
    bar = " | " if arguments.md else "  "
    print(bar.join(["", f"{'kernel':28}", "T(1)", *(f"{n:>4}" for n in rows), "agrees", "KL", ""]).strip(" "))
    if arguments.md:
        print("|---" * (len(rows) + 4) + "|")
    for name, how in given:
        with load(**how, drafters="none", n_ctx=512, threads=arguments.threads) as llm:
            target: Any = llm.target
            text = (llm.tokens(PROMPT) * (1 + arguments.depth // 16))[: arguments.depth]
            took = times(target, text, rows, arguments.rounds)
            base = base or took[1]
            agrees = divergence = "-"
            if name.startswith("torch"):
                question = llm.tokens(PROMPT)
                if reference is None and name == "torch bfloat16":
                    answer = list(llm.generate(question, max_tokens=arguments.n, ignore_eos=True).tokens)
                    reference = logits(target, question, answer)
                elif reference is not None:
                    said, p = log_softmax(logits(target, question, answer)), log_softmax(reference)
                    agrees = f"{(said.argmax(-1) == p.argmax(-1)).mean():.2f}"
                    divergence = f"{(np.exp(p) * (p - said)).sum(-1).mean():.4f}"
            curve = [f"{took[n] / took[1]:4.2f}" for n in rows]
            cells = ["", f"{name:28}", f"{took[1] / base:4.2f}", *curve, agrees, divergence, ""]
            print(bar.join(cells).strip(" "), flush=True)
            del target
        gc.collect()


if __name__ == "__main__":
    main()
