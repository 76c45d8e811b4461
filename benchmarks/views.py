"""How often a part of a model says what the whole says: by exit layer, and by the blocks that are skipped.

    python benchmarks/views.py [-m hf:zoo:smollm2] [--items 5] [-n 48] [--skip 2,4,8,16] [--tries 60]

The model answers items of the real suites, greedily; a view is shown each answer at once, behind a prompt
that the whole model has read, and each of its guesses is compared. "evenly" skips layers spread over the
model; "clasp" is the best choice of layers that hidden states advise (prepare/views.py), judged on half
of the answers and reported on the others.
"""

from __future__ import annotations

import argparse
from typing import Any

from paceline.backends.views import ModelView
from paceline.loading import load
from paceline.prepare.suite_prompts import short_items, tokenise_prompts
from paceline.prepare.views import ViewEvaluator, search


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", default="hf:zoo:smollm2")
    parser.add_argument("--items", type=int, default=5, help="answers to search by, and as many to report")
    parser.add_argument("-n", "--n-predict", type=int, default=48)
    parser.add_argument("--skip", default="2,4,8,16", help="blocks; the model has two a layer")
    parser.add_argument("--tries", type=int, default=60)
    parser.add_argument("-t", "--threads", type=int)
    arguments = parser.parse_args()
    items = short_items("real", 2 * arguments.items)
    with load(
        arguments.model, drafters="none", n_ctx=2048, threads=arguments.threads, sessions=len(items)
    ) as llm:
        whole: Any = llm.target
        n = arguments.n_predict
        texts = [
            (prompt, llm.generate(prompt, max_tokens=n, ignore_eos=True).tokens)
            for prompt in tokenise_prompts(llm, items, n)
        ]
        seen, held = ViewEvaluator(whole, texts[::2]), ViewEvaluator(whole, texts[1::2])
        print(f"{whole.name}: {whole.layers} layers, {len(texts)} answers")
        print("exit after  guesses right")
        for exits in range(1, whole.layers + 1):
            print(f"{exits:10}  {held.agreement(whole.view(ModelView(exits))):.3f}", flush=True)
        print("blocks skipped  by      guesses right  which")
        for n in map(int, arguments.skip.split(",")):
            found = list(search(seen, tries=arguments.tries, blocks=n))
            for method in dict.fromkeys(one.method for one in found):
                best = max((one for one in found if one.method == method), key=lambda one: one.agreement)
                share = held.agreement(whole.view(best.view))
                print(f"{n:14}  {method:6}  {share:13.3f}  {best.view.spec}", flush=True)


if __name__ == "__main__":
    main()
