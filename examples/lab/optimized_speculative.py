"""The same text with drafts: what theory promises, and what was measured beside it.

    python examples/lab/optimized_speculative.py [-n TOKENS] [-m TARGET [-md DRAFT]]

First tokens a step on the toy model, without clocks: the same numbers in every run. Then time on the embedded
pair, or on models of yours. Plain and drafted decoding take turns, and every drafted output is compared with
the plain one.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import paceline
from paceline.bench.text_comparison import judge
from paceline.drafter_factory import make_drafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.models import zoo
from paceline.report.table import number, write_table
from paceline.settings import Drafting
from paceline.speculative import speedup_formulas as theory
from paceline.speculative.interfaces import Budget, Drafter
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.interface import FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.stats import Stats

PROMPT = Path(__file__).parents[1] / "prompt.txt"
LENGTHS = range(2, 17)  # K, drafted tokens a step
LEAST = 16
GREEDY = paceline.Sampling()
VARIED = paceline.Sampling(temperature=1.0)  # a greedy toy soon repeats itself
METHODS = {"lookup": ("lookup",), "model": ("model",), "lookup+model": ("lookup", "model")}


def acceptance(runs: Sequence[Stats]) -> float:
    """Of all runs together."""
    a = theory.acceptance(sum(stats.accepted for stats in runs), sum(stats.rejected for stats in runs))
    assert a is not None, "nothing was drafted"
    return a


def toy_run(drafter: Drafter, k: int, n: int) -> tuple[list[int], Stats]:
    target = paceline.ToyTarget(n_vocab=16, seed=1)
    wanted = GenerationRequest(prompt=[1, 2, 3], max_tokens=n, sampling=VARIED)
    request = start_request(target, drafter, wanted)
    tokens: list[int] = []
    for _, step in decode(target, drafter, FixedPolicy(Budget(depth=k, nodes=k)), [request]):
        tokens += step.tokens
    return tokens, request.stats


def toy(n: int) -> None:
    draft = paceline.ToyTarget(n_vocab=16, seed=1, noise=0.1)  # the target's weights, a little off
    drafter = ModelDrafter(draft, n_vocab=16)
    plain, _ = toy_run(NoDrafter(), 0, n)
    runs = {}
    for k in LENGTHS:
        tokens, runs[k] = toy_run(drafter, k, n)
        assert tokens == plain, f"toy model: drafted output with K = {k} is not plain output"
    a = acceptance(list(runs.values()))
    print(f"toy model and a noisy copy of it: {n} tokens, acceptance a = {a:.2f}")
    rows = [
        (f"{k}", number(theory.expected_tokens(a, k)), "|", number(n / stats.steps))
        for k, stats in runs.items()
    ]
    write_table(("K", "tokens a step in theory", "|", "measured"), rows, sys.stdout, 0)
    print("output identical: yes")


@dataclass(frozen=True)
class Pair:
    """A plain and a drafted run, one right after the other. said: whether their outputs are identical."""

    plain: paceline.Generation
    drafted: paceline.Generation
    said: str

    @property
    def speedup(self) -> float:
        return self.drafted.tokens_per_second / self.plain.tokens_per_second

    @property
    def pass_of_one(self) -> float:
        """Seconds of a pass over one row."""
        return self.plain.stats.forward_seconds / self.plain.stats.steps

    @property
    def cost(self) -> float:
        """c: of drafting a token, in passes over one row."""
        stats = self.drafted.stats
        return stats.draft_seconds / stats.drafted / self.pass_of_one

    @property
    def verify(self) -> float:
        """v: of the passes that verify, in passes over one row."""
        stats = self.drafted.stats
        return stats.forward_seconds / stats.steps / self.pass_of_one


def compare(llm: paceline.LLM, prompt: Sequence[int], n: int, **settings: object) -> Pair:
    """Decode plainly, then with drafts of these settings. Raises LosslessError where outputs differ by more
    than rounding explains."""
    drafter, drafting = make_drafter(Drafting(**settings), llm.target, llm.draft)  # type: ignore[arg-type]
    llm = paceline.LLM(llm.target, drafter, drafting, llm.draft)  # the same models
    plain, drafted = (llm.generate(prompt, max_tokens=n, ignore_eos=True, plain=p) for p in (True, False))
    judgement = judge(llm, prompt, plain.tokens, drafted.tokens, GREEDY)
    judgement.require_lossless()
    return Pair(plain, drafted, judgement.verdict)


def methods(llm: paceline.LLM, prompt: Sequence[int], n: int) -> None:
    rows, said = [], []
    for name, drafters in METHODS.items():
        pair = compare(llm, prompt, n, drafters=drafters)
        stats = pair.drafted.stats
        figures = map(number, (stats.acceptance_rate, stats.acceptance_length))
        rows.append((name, *figures, "|", f"{pair.speedup:.2f}x"))
        said.append(f"{name}: output identical: {pair.said}")
    write_table(("", "acceptance rate", "acceptance length", "|", "measured speedup"), rows, sys.stdout, 1)
    print(*said, sep="\n")


def lengths(llm: paceline.LLM, prompt: Sequence[int], n: int) -> None:
    # p_min 0: the draft never stops early, so that K is K.
    pairs = {k: compare(llm, prompt, n, drafters=("model",), n_draft=k, p_min=0.0) for k in LENGTHS}
    a = acceptance([pair.drafted.stats for pair in pairs.values()])
    print(f"draft model, always K tokens: acceptance a = {a:.2f}")
    rows = []
    for k, pair in pairs.items():
        c, v = pair.cost, pair.verify
        rule_of_thumb = 1.0 / (1.0 - a + a / k)
        predicted = rule_of_thumb, theory.speedup(a, k, c), theory.speedup(a, k, c, v)
        rows.append((f"{k}", number(c), number(v), *map(number, predicted), "|", number(pair.speedup)))
    columns = ("K", "c", "v", "rule of thumb", "Leviathan", "with v", "|", "measured")
    write_table(columns, rows, sys.stdout, 0)
    ties = sum(pair.said != "yes" for pair in pairs.values())
    print(f"output identical: {f'but for {ties} near-ties' if ties else 'yes'}")
    conclude(pairs, a)


def conclude(pairs: dict[int, Pair], a: float) -> None:
    best = max(pairs, key=lambda k: pairs[k].speedup)
    pair = pairs[best]
    if pair.speedup > 1:
        print(f"It pays best with K = {best}: {pair.speedup:.2f}x.")
    else:
        print(f"It does not pay: the best, K = {best}, is {pair.speedup:.2f}x.")
    passes, tokens = best * pair.cost + pair.verify, theory.expected_tokens(a, best)
    print(
        f"Its step costs {best} x {pair.cost:.2f} + {pair.verify:.2f} = {passes:.2f} passes over one row "
        f"and should emit {tokens:.2f} tokens."
    )


def main() -> None:
    parser = argparse.ArgumentParser(description="Speculative decoding in theory and as measured.")
    parser.add_argument("-n", type=int, default=128, help="tokens to decode (default: 128)")
    parser.add_argument("-m", type=Path, help="a GGUF target (default: the embedded one)")
    parser.add_argument("-md", type=Path, help="its draft (default: the embedded one)")
    parser.add_argument("-t", type=int, help="threads (default: one a physical core)")
    options = parser.parse_args()
    if options.n < LEAST:
        parser.error(f"-n {options.n}: must be at least {LEAST}")
    toy(options.n)
    print()
    draft = options.md or zoo.draft_path()
    with paceline.load(options.m, draft, drafters=("lookup", "model"), threads=options.t) as llm:
        prompt = llm.tokens(PROMPT.read_text())
        compare(llm, prompt, LEAST)  # both models come into memory, the prompt into both caches
        names = f"{options.m or 'embedded target'} and {options.md or 'embedded draft'}"
        print(f"{names}: {options.n} tokens, greedy")
        methods(llm, prompt, options.n)
        print()
        lengths(llm, prompt, options.n)


if __name__ == "__main__":
    main()
