"""What it costs to make greedy output equal plain output, and how often it is then.

    python benchmarks/exact_greedy.py [-m MODEL] [--flash-attn on|off]

Ordinary drafting; passes of one shape (`--exact-greedy`); and the other known way, which is not offered
because of what is seen here: near-ties decided again by single rows (recheck.py), with and without computing
the cells of batched passes again. Ratios within one run; take a quiet machine.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from recheck import RecheckedTarget

from paceline.api import LLM
from paceline.backends.llama_cpp import LlamaTarget
from paceline.backends.logit_drift import batch_logit_drift
from paceline.bench.text_comparison import warm_up
from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.model import ModelDrafter
from paceline.models import zoo
from paceline.request_handle import Generation
from paceline.settings import Drafting

sys.path.append(str(Path(__file__).parents[1]))  # for tools

from tools.embedded.corpus import held_out

DRAFTING = Drafting()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("-m", "--model", type=Path, default=zoo.target_path())
    parser.add_argument("-md", "--model-draft", type=Path, default=zoo.draft_path())
    parser.add_argument("-n", type=int, default=128, help="tokens of each prompt")
    parser.add_argument("--prompts", type=int, default=16)
    parser.add_argument("-t", "--threads", type=int, default=2)
    parser.add_argument("--flash-attn", choices=["on", "off"], default="on")
    args = parser.parse_args()
    settings = {"n_ctx": 1024, "threads": args.threads, "flash_attention": args.flash_attn == "on"}
    ordinary = LlamaTarget(args.model, **settings)
    shaped = LlamaTarget(args.model, exact_rows=1 + DRAFTING.n_draft, **settings)
    draft = LlamaTarget(args.model_draft, **settings)
    texts = [text[2000:2800] for text in held_out().values() if len(text) > 4000][: args.prompts]
    noise = max(
        batch_logit_drift(ordinary, ordinary.text.encode(text), 1 + DRAFTING.n_draft) for text in texts[:3]
    )
    drafter = ComposedDrafter([LookupDrafter(3, 5), ModelDrafter(draft, ordinary.vocab.size)])

    def llm(target: Any) -> LLM:
        return LLM(target, drafter, DRAFTING, draft)

    def run(model: LLM, plain: bool) -> list[Generation]:
        out = []
        for text in texts:
            prompt = model.tokens(text)
            warm_up(model, prompt)
            out.append(model.generate(prompt, max_tokens=args.n, plain=plain, ignore_eos=True))
        return out

    rechecked = {rebuild: RecheckedTarget(ordinary, 2 * noise, rebuild=rebuild) for rebuild in (True, False)}
    ways: dict[str, Callable[[], list[Generation]]] = {
        "plain": lambda: run(llm(ordinary), True),
        "drafted": lambda: run(llm(ordinary), False),
        "plain, one shape": lambda: run(llm(shaped), True),
        "drafted, one shape": lambda: run(llm(shaped), False),
        "rechecked, cells rebuilt": lambda: run(llm(rechecked[True]), False),
        "rechecked, cells kept": lambda: run(llm(rechecked[False]), False),
    }
    done = {name: way() for name, way in ways.items()}
    print(
        f"{args.model.name}, flash attention {args.flash_attn}, {len(texts)} prompts of held-out code, "
        f"{args.n} tokens each; noise {noise:.2g}, rechecked below {2 * noise:.2g}"
    )
    print(f"{'':26}{'speed':>8}{'as plain':>10}{'as plain of one shape':>23}")
    for name, runs in done.items():
        speed = seconds(done["plain"]) / seconds(runs)
        print(
            f"{name:26}{speed:7.2f}x{same(runs, done['plain']):>10}{same(runs, done['plain, one shape']):>23}"
        )
    for name, view in zip(("rebuilt", "kept"), rechecked.values(), strict=True):
        total = sum(len(run.tokens) for run in done[f"rechecked, cells {name}"])
        print(
            f"cells {name}: {view.rechecked / total:.3f} rechecks, {view.rebuilt / total:.3f} cells a token"
        )


def seconds(runs: list[Generation]) -> float:
    return sum(run.seconds for run in runs)


def same(runs: list[Generation], others: list[Generation]) -> str:
    return f"{sum(a.tokens == b.tokens for a, b in zip(runs, others, strict=True))}/{len(runs)}"


if __name__ == "__main__":
    main()
