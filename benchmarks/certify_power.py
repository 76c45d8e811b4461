"""How surely `paceline certify` catches mistakes: the table in docs/exactness.md.

    python benchmarks/certify_power.py [-n 10] [--jobs 2] [--only WORDS ...] [--sound]

The embedded pair. Each classic mistake (tests/planted.py) is planted in the loop or the cache, and the
sampled or the state check run with its default size and other seeds each time: how often it was caught, what
it was caught by, the tests' smallest p-value relative to the limit (in the worst repetition), and the
processor's seconds. --sound: exact systems instead. -n 3 is a quick look.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from time import process_time

import numpy as np

from paceline.backends.llama_cpp import LlamaTarget
from paceline.bench.certify.certificate import ALL_SAMPLERS, RECORDED_ROWS, CertifyPlan, extend_texts
from paceline.bench.certify.fixed_rows import (
    Context,
    ContextRow,
    FixedRowsTarget,
    record_rows,
    recorded_places,
)
from paceline.bench.certify.sampled import check_sampled
from paceline.bench.certify.state import check_state
from paceline.loading import load
from paceline.models import zoo
from paceline.settings import Drafting

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from planted import CHAIN, GREEDY, STATE_MISTAKES, TREE, Mistake, loop, mistakes

SOUND = {
    f"sound: {name}": Mistake(drafting)
    for name, drafting in {
        "chain": CHAIN,
        "chain, p_min 0": replace(CHAIN, p_min=0.0),
        "chain, token rule": replace(CHAIN, verify="token"),
        "tree": TREE,
        "tree, recursive": replace(TREE, verify="recursive"),
        "deterministic drafts": GREEDY,
    }.items()
}
PLAN = CertifyPlan()
_pair: tuple[FixedRowsTarget, FixedRowsTarget, ContextRow, list[Context]]
_texts: list[list[int]]
Found = tuple[str, float, float]  # the test that caught it, or ""; the least p / limit; seconds


def record() -> None:
    """The embedded pair's rows along its answers to the built-in prompts, once in each process."""
    global _pair, _texts
    place = ContextRow()
    with load(zoo.target_path(), zoo.draft_path(), "model", threads=1) as llm:
        assert llm.draft is not None
        texts = []
        for prompt in PLAN.prompts:
            tokens = llm.tokens(prompt)
            texts.append([*tokens, *llm.generate(tokens, plain=True, max_tokens=PLAN.n).tokens])
        _texts = texts = extend_texts(texts, llm.target.caps.n_ctx)
        rows, theirs = (
            [record_rows(m, text, RECORDED_ROWS) for text in texts] for m in (llm.target, llm.draft)
        )
        target, draft = (
            FixedRowsTarget(m, np.concatenate(r), place) for m, r in ((llm.target, rows), (llm.draft, theirs))
        )
    _pair = target, draft, place, recorded_places(texts, rows)


def sampled(mistake: Mistake, seed: int) -> tuple[str, float]:
    target, draft, place, places = _pair
    with mistake.plant():
        made = loop(mistake.drafting, target, draft, place, ALL_SAMPLERS, mistake.change)
        found = check_sampled(made, places, PLAN.contexts, PLAN.runs, seed, lambda: None)
    least = {test: min(values) / found.level for test, values in found.p_values.items()}
    by = "ends" if found.overruns else "ties" if found.ties else min(least, key=lambda test: least[test])
    return "" if found.passed else by.replace("_", " "), min(least.values())


def state(name: str, seed: int) -> tuple[str, float]:
    budget, n_ctx = Drafting(width=3).budget, 8192  # trees; with room for cells that stay
    with STATE_MISTAKES[name](), closing(LlamaTarget(zoo.target_path(), n_ctx=n_ctx, sessions=2)) as target:
        found = check_state(
            target, _texts, budget, 0.0, sequences=PLAN.sequences, seed=seed, tick=lambda: None
        )
    return "" if found.passed else "state", 0.0


def one(job: tuple[str, int]) -> Found:
    name, seed = job
    began = process_time()
    every = SOUND | mistakes(_pair[0].vocab.size)
    found = sampled(every[name], seed) if name in every else state(name, seed)
    return *found, process_time() - began


def main() -> None:
    parser = argparse.ArgumentParser(description="How surely certify catches classic mistakes.")
    parser.add_argument("-n", type=int, default=10, help="repetitions of each")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", action="append", help="mistakes whose names have these words in them")
    parser.add_argument("--sound", action="store_true", help="exact systems instead of mistakes")
    args = parser.parse_args()
    print("| mistake | caught by | caught | least p / limit | seconds |\n|---|---|---|---|---|", flush=True)
    with ProcessPoolExecutor(args.jobs, get_context("spawn"), record) as pool:
        for name in SOUND if args.sound else [*mistakes(2), *STATE_MISTAKES]:
            if any(words in name for words in args.only or [""]):
                tests, least, seconds = zip(*pool.map(one, [(name, i) for i in range(args.n)]), strict=True)
                by = ", ".join(test for test, _ in Counter(filter(None, tests)).most_common()) or "-"
                caught = f"{len(tests) - tests.count('')} of {len(tests)}"
                extreme = min(least) if args.sound else max(least)
                print(f"| {name} | {by} | {caught} | {extreme:.1g} | {max(seconds):.0f} |", flush=True)


if __name__ == "__main__":
    main()
