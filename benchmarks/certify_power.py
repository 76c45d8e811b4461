"""What `paceline certify` catches, how surely, and with how many draws: the table in docs/exactness.md.

    python benchmarks/certify_power.py [-n 20] [--jobs 2] [--only WORDS ...] [--sound]

The embedded pair. Each classic mistake (tests/planted.py) is planted in the loop, and the sampled check run
with its default size and other seeds each time: how often it was caught, what it was caught by, how many runs
that took (half of the times; at the most), and the processor's seconds. --sound: systems that are
exact, instead: how often they were refused, and the smallest p-value of all beside its limit. -n 3 is a quick
look. The models' rows are computed once; nothing else depends on the machine.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path
from statistics import median
from time import process_time

import numpy as np

from paceline.bench.certify.certificate import ALL_SAMPLERS, RECORDED_ROWS, CertifyPlan, extend_texts
from paceline.bench.certify.held import Context, ContextRow, FixedRowsTarget, record_rows, recorded_places
from paceline.bench.certify.sampled import SampledCheck, check_sampled
from paceline.loading import load
from paceline.models import zoo

sys.path.append(str(Path(__file__).parents[1] / "tests"))
from planted import CHAIN, GREEDY, TREE, Mistake, loop, mistakes

SOUND = {
    "chain": CHAIN,
    "chain, p_min 0": replace(CHAIN, p_min=0.0),
    "chain, token rule": replace(CHAIN, verify="token"),
    "tree": TREE,
    "tree, recursive": replace(TREE, verify="recursive"),
    "deterministic drafts": GREEDY,
}
PLAN = CertifyPlan()
_pair: tuple[FixedRowsTarget, FixedRowsTarget, ContextRow, list[Context]]


def hold() -> None:
    """The embedded pair's rows along its answers to the built-in prompts, once in each process."""
    global _pair
    place = ContextRow()
    with load(zoo.target_path(), zoo.draft_path(), "model", threads=1) as llm:
        assert llm.draft is not None
        texts = []
        for prompt in PLAN.prompts:
            tokens = llm.tokens(prompt)
            texts.append([*tokens, *llm.generate(tokens, plain=True, max_tokens=PLAN.n).tokens])
        texts = extend_texts(texts, llm.target.caps.n_ctx)
        rows, theirs = (
            [record_rows(m, text, RECORDED_ROWS) for text in texts] for m in (llm.target, llm.draft)
        )
        target, draft = (
            FixedRowsTarget(m, np.concatenate(r), place) for m, r in ((llm.target, rows), (llm.draft, theirs))
        )
    _pair = target, draft, place, recorded_places(texts, rows)


def checked(mistake: Mistake, seed: int) -> tuple[SampledCheck, float]:
    target, draft, place, places = _pair
    began = process_time()
    with mistake.plant():
        made = loop(mistake.drafting, target, draft, place, ALL_SAMPLERS, mistake.change)
        found = check_sampled(made, places, PLAN.contexts, PLAN.runs, seed, lambda: None)
    return found, process_time() - began


def all_mistakes() -> dict[str, Mistake]:
    return mistakes(_pair[0].vocab.size) | {f"sound: {name}": Mistake(d) for name, d in SOUND.items()}


def one(job: tuple[str, int]) -> tuple[SampledCheck, float]:
    return checked(all_mistakes()[job[0]], job[1])


def caught_by(found: SampledCheck) -> str:
    if found.overruns:
        return "ends"
    if found.ties:
        return "ties"
    return min(found.p_values, key=lambda test: min(found.p_values[test])).replace("_", " ")


def rows_of(name: str, results: list[tuple[SampledCheck, float]]) -> Iterator[str]:
    caught = [found for found, _ in results if not found.passed]
    runs = [found.runs for found, _ in results]
    least = min(min(map(min, found.p_values.values())) / found.level for found, _ in results)
    by = ", ".join(test for test, _ in Counter(map(caught_by, caught)).most_common())
    seconds = max(time for _, time in results)
    yield f"| {name} | {by or '-'} | {len(caught)} of {len(results)} | {median(runs):,.0f}; {max(runs):,} |"
    yield f" {seconds:.0f} | {least:.1g} |\n"


def main() -> None:
    parser = argparse.ArgumentParser(description="How surely certify catches classic mistakes.")
    parser.add_argument("-n", type=int, default=20, help="repetitions of each")
    parser.add_argument("--jobs", type=int, default=1, help="processes")
    parser.add_argument("--only", action="append", help="mistakes whose names have these words in them")
    parser.add_argument("--sound", action="store_true", help="exact systems instead of mistakes")
    args = parser.parse_args()
    names = [f"sound: {name}" for name in SOUND] if args.sound else list(mistakes(2))
    print("| mistake | caught by | caught | runs: median; most | seconds | least p / limit |")
    print("|---|---|---|---|---|---|", flush=True)
    with ProcessPoolExecutor(args.jobs, get_context("spawn"), hold) as pool:
        for name in names:
            if any(words in name for words in args.only or [""]):
                results = list(pool.map(one, [(name, seed) for seed in range(args.n)]))
                print("".join(rows_of(name, results)), end="", flush=True)


if __name__ == "__main__":
    main()
