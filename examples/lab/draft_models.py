"""Which draft model pays, and why: acceptance against cost.

    python examples/lab/draft_models.py [-n TOKENS] [-m TARGET]

The same target with its draft in three weight types, and with a copy of itself, which guesses nearly
everything right and costs what it saves. Theory gets acceptance and costs as measured here, and says what
they should come to; what they did come to was measured too.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from time import perf_counter

import paceline
from paceline.bench.text_comparison import judge
from paceline.models import zoo
from paceline.models.headers.gguf_file import GGUFFile
from paceline.report.table import number, write_table
from paceline.speculative import speedup_formulas as theory
from paceline.speculative.interfaces import RequiredOutputs, Target
from paceline.speculative.tree import chain

sys.path.append(str(Path(__file__).parents[2]))  # for tools

from tools.inflate import write_widened
from tools.layout import read_layout

PROMPT = Path(__file__).parents[1] / "prompt.txt"
LONGEST = 8
TRIED = (2, 4, 7)  # K that are really run
LEAST = 16
REPEATS = 9


def drafts(folder: Path, target: Path) -> Iterator[tuple[str, Path]]:
    yield "draft F16", zoo.draft_path()
    file = GGUFFile(zoo.draft_path())
    layout = read_layout(file)
    for ftype in ("Q8_0", "Q4_0"):
        out = folder / f"draft-{ftype}.gguf"
        write_widened(file, layout, layout, out, ftype)
        yield f"draft {ftype}", out
    yield "the target itself", target


def pass_costs(target: Target, text: Sequence[int]) -> dict[int, float]:
    """Median seconds of a pass over 1 to LONGEST + 1 rows after `text`; which tokens they hold is all one."""
    costs = {}
    session = target.open()
    session.extend(text)
    target.forward([(session, session.pending_tokens)], RequiredOutputs())  # the text itself is not timed
    for rows in range(1, LONGEST + 2):
        tree = chain(text[1:rows], "timing")
        seconds = []
        for _ in range(REPEATS):
            began = perf_counter()
            target.forward([(session, tree)], RequiredOutputs())
            seconds.append(perf_counter() - began)
            session.commit((), text[0])
        costs[rows] = statistics.median(seconds)
    session.close()
    return costs


@dataclass(frozen=True)
class Trial:
    """A draft as measured. acceptance, cost: a and c, of all runs together. speedups: of each K that was run.
    said: whether its outputs were plain output."""

    acceptance: float
    cost: float
    speedups: dict[int, float]
    said: str


def trial(llm: paceline.LLM, prompt: Sequence[int], n: int) -> Trial:
    """Plain and drafted decoding in turns. Raises LosslessError where outputs differ by more than rounding
    explains."""
    llm.generate(prompt, max_tokens=LEAST)  # both models come into memory, the prompt into both caches
    plain, drafted, said = [], [], []
    for k in TRIED:
        pair = paceline.LLM(llm.target, llm.drafter, replace(llm.drafting, n_draft=k), llm.draft)
        plain.append(pair.generate(prompt, max_tokens=n, ignore_eos=True, plain=True))
        drafted.append(pair.generate(prompt, max_tokens=n, ignore_eos=True))
        judgement = judge(pair, prompt, plain[-1].tokens, drafted[-1].tokens, paceline.Sampling())
        judgement.require_lossless()
        said.append(judgement.verdict)
    a = theory.acceptance(sum(d.stats.accepted for d in drafted), sum(d.stats.rejected for d in drafted))
    assert a is not None, "nothing was drafted"
    one = sum(p.stats.forward_seconds for p in plain) / sum(p.stats.steps for p in plain)
    each = sum(d.stats.draft_seconds for d in drafted) / sum(d.stats.drafted for d in drafted)
    speeds = [d.tokens_per_second / p.tokens_per_second for p, d in zip(plain, drafted, strict=True)]
    differing = [f"K = {k} {words}" for k, words in zip(TRIED, said, strict=True) if words != "yes"]
    return Trial(a, each / one, dict(zip(TRIED, speeds, strict=True)), "; ".join(differing) or "yes")


def why(tried: Trial, curve: dict[int, float]) -> str:
    """What theory says of a draft. curve: the cost of passes over so many rows, in passes over one."""
    a, c = tried.acceptance, tried.cost
    free = theory.best_n_draft(a, c, longest=LONGEST)
    real = theory.best_n_draft(a, c, curve.__getitem__, longest=LONGEST)
    if free == 0:
        return "no K pays: a drafted token costs at least what it saves (c >= a)"
    if real == 0:
        gain = theory.speedup(a, free, c)
        return f"no K pays: were verifying free of charge, K = {free} would gain {gain:.2f}x"
    gain = theory.speedup(a, real, c, curve[real + 1])
    return f"K = {real} pays: {gain:.2f}x"


def report(trials: dict[str, Trial], curve: dict[int, float]) -> None:
    print("measured: acceptance a, cost c of a drafted token in passes of the target, speedup at K")
    rows = [
        (name, *map(number, (tried.acceptance, tried.cost, *tried.speedups.values())))
        for name, tried in trials.items()
    ]
    write_table(("", "a", "c", *(f"K = {k}" for k in TRIED)), rows, sys.stdout, 1)
    for name, tried in trials.items():
        print(f"{name}: output identical: {tried.said}")
    print()
    print("in theory, with that a, that c and those passes")
    for name, tried in trials.items():
        print(f"{name}: {why(tried, curve)}")
    print()
    gain, k, name = max(
        (gain, k, name) for name, tried in trials.items() for k, gain in tried.speedups.items()
    )
    slower = ": plain decoding is faster" if gain < 1 else ""
    print(f"measured best: {name}, K = {k}, {gain:.2f}x{slower}")


def main() -> None:
    parser = argparse.ArgumentParser(description="Which draft model pays, and why.")
    parser.add_argument("-n", type=int, default=96, help="tokens to decode (default: 96)")
    parser.add_argument("-m", type=Path, help="a GGUF target made by `python -m tools.inflate`")
    parser.add_argument("-t", type=int, help="threads (default: one a physical core)")
    options = parser.parse_args()
    if options.n < LEAST:
        parser.error(f"-n {options.n}: must be at least {LEAST}")
    target, prompt = options.m or zoo.target_path(), PROMPT.read_text()

    with paceline.load(target, drafters="none", threads=options.t) as llm:
        seconds = pass_costs(llm.target, llm.tokens(prompt))
    curve = {rows: cost / seconds[1] for rows, cost in seconds.items()}
    print("measured: a pass of the target over so many rows, in passes over one")
    write_table([f"{rows}" for rows in curve], [[number(cost) for cost in curve.values()]], sys.stdout, 0)
    print()

    trials = {}
    with TemporaryDirectory() as folder:
        for name, path in drafts(Path(folder), target):
            with paceline.load(target, path, drafters="model", p_min=0.0, threads=options.t) as llm:
                trials[name] = trial(llm, llm.tokens(prompt), options.n)
    report(trials, curve)


if __name__ == "__main__":
    main()
