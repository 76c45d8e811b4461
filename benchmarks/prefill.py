"""Speculative prefill against other choices of as many prompt tokens, on questions about a passage of a text.

    python -m benchmarks.prefill [-m zoo:smollm2] [-md zoo:smollm2-draft] [--size 12000] [--shares 0.3,0.2]

Each prompt is the documentation of a module of the standard library, with a question about one of its
functions. `attention` is `--lossy prefill`, `random` takes chunks at random, `recent` the last ones; all have
the first and the last chunk. Times contain the draft's, and are shares of the whole prompt's. Run it on an
idle machine.
"""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

import paceline
from paceline.api import LLM
from paceline.backends.speculative_prefill import Attention, AttentionSelector
from paceline.cli.references import resolve_models
from paceline.prepare.lossy import LossyTarget, compare, measure_variants
from paceline.settings import LoadOptions
from paceline.speculative.vocabulary import Vocab
from tools.embedded.corpus import docstrings
from tools.real_sources import MODULES, head, library

SYSTEM = "You answer from the text that the user gives, and in its words."
ANSWER = 64  # tokens


class Weighted:
    """A draft that attends to what a function of the prompt's length says."""

    def __init__(self, vocab: Vocab, weights: Callable[[int], Any]) -> None:
        self.vocab, self._weights = vocab, weights

    def prompt_attention(self, prompt: Sequence[int], steps: int) -> Attention:
        return np.array([self._weights(len(prompt))], np.float32)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", default="zoo:smollm2")
    parser.add_argument("-md", "--model-draft", default="zoo:smollm2-draft")
    parser.add_argument("-c", "--ctx-size", type=int, default=8192)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--size", type=int, default=12_000, help="characters of each text")
    parser.add_argument("--shares", default="0.3,0.2,0.1")
    given = parser.parse_args()
    models = resolve_models(LoadOptions(given.model, given.model_draft))
    shares = [float(share) for share in given.shares.split(",")]
    with paceline.load(
        models.target,
        models.draft,
        n_ctx=given.ctx_size,
        threads=given.threads,
        drafters="none",
        lossy="prefill=0.5",
    ) as llm:
        target: Any = llm.target
        rng = np.random.default_rng(0)
        drafts: dict[str, Any] = {
            "attention": llm.draft,
            "random": Weighted(target.vocab, lambda n: rng.random(n)),
            "recent": Weighted(target.vocab, range),
        }
        choices = {
            f"{name}, {share:.0%}": AttentionSelector(draft, share)
            for share in shares
            for name, draft in drafts.items()
        }
        variants = {
            name: LossyTarget(llm, prepare=partial(setattr, target, "prompt_selector", choices.get(name)))
            for name in ("all", *choices)
        }
        found = measure_variants(variants, prompts(llm, given.size), ANSWER)
    print(f"{len(found['all'])} prompts of {np.mean([one.computed for one in found['all']]):,.0f} tokens")
    print("| computed | tokens | first token after | agreement | perplexity |\n|---|---|---|---|---|")
    for name, answers in found.items():
        figures = compare(answers, found["all"])
        print(
            f"| {name} | {figures['computed']:.0f} | {figures['first_token']:.2f} "
            f"| {figures['agreement']:.3f} | {figures['rise']:+.1%} |"
        )


def prompts(llm: LLM, size: int) -> Iterator[list[int]]:
    """Yield prompts; the function that is asked for is in the first half of the text."""
    for module in MODULES:
        text = head(docstrings(library(module), module), size)
        names = re.findall(r"\n\n\n(\w+)\n\n", text[: len(text) // 2])
        names = [name for name in names if text.count(f"\n\n{name}\n\n") == 1]
        if names:
            question = f"{text}\n\n---\nWhat does the text say about `{names[-1]}`? Quote it."
            yield llm.chat_tokens(
                [{"role": "system", "content": SYSTEM}, {"role": "user", "content": question}]
            )


if __name__ == "__main__":
    main()
