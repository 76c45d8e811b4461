"""What a copier saves a draft model, and adds behind it: `python benchmarks/cascade.py [--suites code ...]`.

The tokens are real, the seconds are made up, so that a busy machine changes nothing: a pass of the target
takes 1, one of the draft model --draft-pass, and each further row of a pass its share (--target-row,
--draft-row) of one. What a copier takes is left out: some 20 microseconds a guess.

First drafts of a fixed length (p_min): passes of the draft model and rows of these passes, by drafted token
and by token of output. Then the policy goodput, by pass costs: tokens per second over plain decoding. "only
for it" is the vertical part (fewer passes), "only behind it" the horizontal one; the copier is suffix.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from paceline.backends.llama_cpp import LlamaTarget
from paceline.bench.suites import workload
from paceline.drafters.cascade import DEFERRED, CascadeDrafter
from paceline.drafters.compose import ComposedDrafter, PortfolioDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.drafters.none import NoDrafter
from paceline.drafters.suffix import SuffixDrafter
from paceline.models import zoo
from paceline.speculative.interfaces import Budget, Drafter, RequiredOutputs, Session
from paceline.speculative.loop import decode, start_request
from paceline.speculative.policy.costs import DecodingCosts, PassCosts
from paceline.speculative.policy.goodput import GoodputPolicy
from paceline.speculative.policy.interface import DraftPolicy, FixedPolicy
from paceline.speculative.request import GenerationRequest
from paceline.speculative.tree import ROOT, DraftTree

# Passes and rows are the draft model's: by token of its chain, and by token of output.
COLUMNS = (
    ("tokens", "a step"),
    ("drafted", "a step"),
    ("kept", ""),
    ("model's", "a step"),
    ("passes", "of its"),
    ("rows", "of its"),
    ("passes", "a token"),
    ("later's", "kept"),
)


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Metered:
    """A model whose passes take what `cost` says. passes, rows: since they were set to 0."""

    def __init__(self, model: LlamaTarget, clock: Clock) -> None:
        self._model, self._clock = model, clock
        self.vocab, self.caps, self.origin = model.vocab, model.caps, model.origin
        self.cost = PassCosts.flat()
        self.passes = self.rows = 0

    def open(self, beside: Session | None = None) -> Any:
        return self._model.open()

    def forward(self, batch: Sequence[tuple[Any, DraftTree | int]], want: RequiredOutputs) -> Any:
        outs = self._model.forward(batch, want)
        rows = len(
            self._model._decoder.batch
        )  # as it was sent, with what was left of the text before the root
        self.passes, self.rows = self.passes + 1, self.rows + rows
        # The end of a prompt travels with the first pass: it is not the draft's.
        self._clock.now += self.cost.seconds(min(rows, 64), 1)
        return outs

    def forget(self) -> None:
        self._model.forget()

    def close(self) -> None:
        """The models are closed at the end."""


class Vertical(CascadeDrafter):
    """Adds nothing behind the chain."""

    def _defer(self, memory: Any, budget: Budget, tree: DraftTree) -> DraftTree:
        return tree


@dataclass
class Bench:
    target: Metered
    draft: Metered
    clock: Clock
    items: list[tuple[list[int], int]]
    width: int

    def run(self, drafter: Drafter, policy: DraftPolicy) -> str:
        """Fixed drafts: the numbers under COLUMNS. The last: of the tokens behind the draft model's own the
        share that was kept of those whose parent was."""
        stats = self._decoded(drafter, policy)
        passes, rows, steps, model = self.draft.passes, self.draft.rows, stats["steps"], stats["model"]
        numbers = (
            stats["tokens"] / steps,
            stats["drafted"] / steps,
            stats["accepted"] / max(1, stats["drafted"]),
            model / steps,
            passes / max(1, model),
            rows / max(1, model),
            passes / stats["tokens"],
            stats["later"] / max(1, stats["reached"]),
        )
        return "".join(f"{number:9.2f}" for number in numbers)

    def rate(self, drafter: Drafter, costs: DecodingCosts) -> float:
        began = self.clock.now
        policy = GoodputPolicy(costs, width=self.width, clock=self.clock)
        stats = self._decoded(drafter, policy)
        return float(stats["tokens"] / (self.clock.now - began))

    def _decoded(self, drafter: Drafter, policy: DraftPolicy) -> dict[str, int]:
        counted = ("tokens", "steps", "drafted", "accepted", "model", "reached", "later")
        out = dict.fromkeys(counted, 0)
        self.draft.passes = self.draft.rows = 0
        for prompt, n in self.items:
            request = start_request(self.target, drafter, GenerationRequest(prompt=prompt, max_tokens=n))
            for _, step in decode(self.target, drafter, policy, [request], self.clock):
                out["tokens"] += len(step.tokens)
                out["steps"] += 1
                out["drafted"] += len(step.tree)
                out["accepted"] += len(step.path)
                out["model"] += step.proposal.source.count("model")
                tree, right = step.tree, {ROOT, *step.path}
                reached = [i for i, parent in enumerate(tree.parents) if parent in right]
                later = [i in right for i in reached if tree.source[i] == DEFERRED]
                out["reached"] += len(later)
                out["later"] += sum(later)
            request.close()
        return out


def ways(draft: Metered, n_vocab: int, cost: PassCosts | None) -> Iterator[tuple[str, list[Drafter]]]:
    """Drafters in order. cost: of the draft model's passes, which a cascade is told."""

    def model() -> Drafter:
        return ModelDrafter(draft, n_vocab)

    def cascade(copier: Any) -> Drafter:
        return CascadeDrafter(draft, n_vocab, copier, cost=cost)

    yield "model", [model()]
    yield "only for it", [Vertical(draft, n_vocab, SuffixDrafter(), cost=cost)]
    yield "only behind it", [CascadeDrafter(draft, n_vocab, SuffixDrafter(), cost=PassCosts.flat(1.0, 9.0))]
    yield "cascade, lookup", [cascade(LookupDrafter(3, 5))]
    yield "cascade", [cascade(SuffixDrafter())]
    yield "suffix", [SuffixDrafter()]
    yield "suffix, model", [SuffixDrafter(), model()]
    yield "suffix, cascade", [SuffixDrafter(), cascade(SuffixDrafter())]


def fixed(bench: Bench, draft: PassCosts) -> None:
    print(f"{'drafts of at most 7, p_min 0.5':32}" + "".join(f"{first:>9}" for first, _ in COLUMNS))
    print(f"{'':32}" + "".join(f"{second:>9}" for _, second in COLUMNS))
    bench.target.cost = bench.draft.cost = PassCosts.flat()
    for name, drafters in ways(bench.draft, bench.target.vocab.size, draft):
        made = drafters[0] if len(drafters) == 1 else ComposedDrafter(drafters, min_tokens=3)
        print(f"  {name:30} {bench.run(made, FixedPolicy(Budget(7, 7, p_min=0.5)))}", flush=True)


def by_rate(
    bench: Bench, make: Callable[[float, float], DecodingCosts], passes: list[float], rows: list[float]
) -> None:
    names = [name for name, _ in ways(bench.draft, bench.target.vocab.size, None)]
    print("\nrate: over plain decoding           " + "  ".join(f"{name:>15}" for name in names))
    bench.target.cost = make(0.0, 0.0).target
    plain = bench.rate(NoDrafter(), make(1.0, 0.0))
    for each, row in product(passes, rows):
        costs = make(each, row)
        bench.target.cost, bench.draft.cost = costs.target, costs.draft or PassCosts.flat()
        line = []
        for _, drafters in ways(bench.draft, bench.target.vocab.size, costs.draft):
            line.append(bench.rate(PortfolioDrafter(drafters), make(each, row)) / plain)
        shown = "  ".join(f"{speed:15.2f}" for speed in line)
        print(f"  draft pass {each:5.3f}, a row {row:4.2f}    {shown}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", type=Path, default=zoo.target_path())
    parser.add_argument("--draft", type=Path, default=zoo.draft_path())
    parser.add_argument("--suites", nargs="+", default=["code", "json", "agent", "edit", "quote", "prose"])
    parser.add_argument("-n", type=int, default=4, help="items a suite")
    parser.add_argument("--draft-pass", nargs="+", type=float, default=[0.02, 0.1, 0.3])
    parser.add_argument("--draft-row", nargs="+", type=float, default=[0.05, 0.25, 0.8])
    parser.add_argument("--target-row", type=float, default=0.1)
    parser.add_argument("--width", type=int, default=4, help="most leaves by rate; a cascade has one")
    args = parser.parse_args()

    def make(each: float, row: float) -> DecodingCosts:
        small = PassCosts.flat(each, row * each) if each else None
        return DecodingCosts(PassCosts.flat(1.0, args.target_row), small)

    clock = Clock()
    models = [LlamaTarget(path, threads=1) for path in (args.target, args.draft)]
    items = []
    for suite in args.suites:
        chosen = workload.sample_items(workload.filter_size(workload.load(suite), "tiny"), args.n)
        items += [(models[0].text.encode(item.prompt), item.max_tokens) for item in chosen if item.prompt]
    bench = Bench(Metered(models[0], clock), Metered(models[1], clock), clock, items, args.width)
    print(f"{len(items)} items of {', '.join(args.suites)}")
    fixed(bench, PassCosts.flat(1.0, args.draft_row[0]))
    by_rate(bench, make, args.draft_pass, args.draft_row)
    for model in models:
        model.close()


if __name__ == "__main__":
    main()
