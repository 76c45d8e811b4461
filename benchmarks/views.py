"""How often a part of a model says what the whole says: by exit layer, and by the blocks that are skipped.

    python benchmarks/views.py [-m hf:zoo:smollm2] [--items 14] [-n 48] [--skip 2,4,8,16] [--tries 40]

The model answers items of the real suites, greedily; a view is shown each answer at once, behind a prompt
that the whole model has read, and each of its guesses is compared. "evenly" skips layers spread over the
model, "searched" is the best of so many tries: random choices of blocks at first, then the best one with a
block exchanged (SWIFT's measure, arXiv:2410.06916), judged on half of the answers and reported on the others.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from paceline.assemble import load
from paceline.core.ports import Want
from paceline.core.sampling import Sampling
from paceline.core.tree import chain
from paceline.lab import workload
from paceline.lab.bench.prompts import Prompts

LONGEST = 1200  # characters of a prompt
Text = tuple[list[int], list[int]]  # a prompt and its answer
Skipped = tuple[frozenset[int], frozenset[int]]  # attention and feed-forward blocks, by layer


def texts(llm: Any, items: int, n: int) -> Iterator[Text]:
    """Answers to short items of all categories."""
    short = [
        item
        for item in workload.load("real")
        if not item.session and sum(len(said or "") for _, said in item.messages) <= LONGEST
    ]
    chosen = workload.sampled(short, items)
    prompts = Prompts(llm, chosen, n=n, depth=0, ignore_eos=True, sampling=Sampling(), seed=0)
    for item in chosen:
        ask = prompts.ask(item, {}, [])
        yield list(ask.tokens), list(llm.generate(ask.tokens, max_tokens=n, ignore_eos=True).tokens)


def agreement(whole: Any, view: Any, some: Sequence[Text]) -> float:
    """The share of tokens that the view guesses right."""
    right = told = 0
    for prompt, answer in some:
        session = whole.open()
        session.extend(prompt)
        while session.unread:
            whole.forward([(session, min(session.unread, whole.caps.chunk))], Want())
        beside = view.open(session)
        beside.extend(prompt)
        out = view.forward([(beside, chain(answer[:-1], "answer"))], Want())[0]
        right += sum(out.argmax(row) == token for row, token in enumerate(answer))
        told += len(answer)
        beside.close()
        session.close()
    return right / told


def skipping(whole: Any, skipped: Skipped) -> Any:
    return whole.view(skip_attention=skipped[0], skip_feed_forward=skipped[1])


def evenly(layers: int, n: int) -> Skipped:
    """Whole layers, half as many as blocks, neither the first nor the last."""
    places = frozenset(int(at) for at in np.linspace(1, layers - 2, n // 2 + 2)[1:-1].round())
    return places, places


def searched(whole: Any, layers: int, n: int, some: Sequence[Text], tries: int) -> Skipped:
    rng = np.random.default_rng(0)
    blocks = [(kind, layer) for kind in (0, 1) for layer in range(1, layers - 1)]

    def made(chosen: Sequence[int]) -> Skipped:
        parts: tuple[set[int], set[int]] = (set(), set())
        for at in chosen:
            parts[blocks[at][0]].add(blocks[at][1])
        return frozenset(parts[0]), frozenset(parts[1])

    best, most = list[int](), -1.0
    for number in range(tries):
        if number < tries // 3 or not best:
            chosen = rng.choice(len(blocks), n, replace=False).tolist()
        else:
            chosen = [*best]
            chosen[rng.integers(n)] = int(rng.choice([at for at in range(len(blocks)) if at not in best]))
        value = agreement(whole, skipping(whole, made(chosen)), some)
        if value > most:
            best, most = chosen, value
    return made(best)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", default="hf:zoo:smollm2")
    parser.add_argument("--items", type=int, default=14)
    parser.add_argument("-n", "--n-predict", type=int, default=48)
    parser.add_argument("--skip", default="2,4,8,16", help="blocks; the model has two a layer")
    parser.add_argument("--tries", type=int, default=40)
    parser.add_argument("-t", "--threads", type=int)
    arguments = parser.parse_args()
    with load(arguments.model, drafters="none", n_ctx=1024, threads=arguments.threads) as llm:
        whole: Any = llm.target
        layers = int(whole._model.config.num_hidden_layers)
        known = list(texts(llm, arguments.items, arguments.n_predict))
        seen, held = known[::2], known[1::2]
        print(f"{Path(str(whole.path)).name}: {layers} layers, {len(known)} answers")
        print("exit after  guesses right")
        for exits in range(1, layers + 1):
            print(f"{exits:10}  {agreement(whole, whole.view(exits=exits), known):.3f}", flush=True)
        print("blocks skipped  evenly  searched  which (attention; feed-forward)")
        for n in map(int, arguments.skip.split(",")):
            even = agreement(whole, skipping(whole, evenly(layers, n)), held)
            best = searched(whole, layers, n, seen, arguments.tries)
            found = agreement(whole, skipping(whole, best), held)
            which = "; ".join(",".join(map(str, sorted(part))) or "-" for part in best)
            print(f"{n:14}  {even:6.3f}  {found:8.3f}  {which}", flush=True)


if __name__ == "__main__":
    main()
