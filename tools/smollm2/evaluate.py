"""How often the draft's first guess is what the real model says: `python -m tools.smollm2.evaluate --help`.

The target, as it ships, answers the first turn of Spec-Bench's questions greedily (Xia et al. 2024,
arXiv:2401.07851; a JSON object with `category` and `turns` a line); the draft reads along.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from pathlib import Path

import numpy as np
import torch

from paceline.loading import load
from tools.embedded import distil


def chosen(questions: Path, each: int) -> dict[str, list[str]]:
    """First turns by category, evenly spaced, `each` of a category at most."""
    found: dict[str, list[str]] = defaultdict(list)
    for line in questions.read_text("utf-8").splitlines():
        asked = json.loads(line)
        found[asked["category"]].append(asked["turns"][0])
    return {
        category: [turns[i] for i in np.unique(np.linspace(0, len(turns) - 1, each, dtype=int))]
        for category, turns in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", type=Path, required=True, help="the GGUF file of the real model")
    parser.add_argument("--draft", type=Path, required=True, nargs="+", help="GGUF files")
    parser.add_argument("--questions", type=Path, required=True, help="Spec-Bench's question.jsonl")
    parser.add_argument("--each", type=int, default=6, help="questions of a category")
    parser.add_argument("-n", type=int, default=128, help="tokens of an answer")
    parser.add_argument("--threads", type=int)
    args = parser.parse_args()
    drafts = [distil.load(path) for path in args.draft]
    right: dict[str, list[int]] = defaultdict(lambda: [0] * len(drafts))
    rows: dict[str, int] = defaultdict(int)
    with load(args.target, drafters="none", n_ctx=4096, threads=args.threads) as llm, torch.no_grad():
        for category, turns in chosen(args.questions, args.each).items():
            for turn in turns:
                prompt = llm.chat_tokens([{"role": "user", "content": turn}])
                answer = llm.generate(prompt, max_tokens=args.n)
                tokens = torch.tensor([*prompt, *answer.tokens])
                rows[category] += len(answer.tokens)
                for at, draft in enumerate(drafts):
                    hidden = draft.hidden(tokens[None, :-1])[0, len(prompt) - 1 :]
                    guesses = draft.logits(hidden).argmax(-1)
                    right[category][at] += int((guesses == tokens[len(prompt) :]).sum())
            print(
                category, rows[category], *(f"{n / rows[category]:.3f}" for n in right[category]), flush=True
            )
    shares = np.array([[n / rows[category] for n in right[category]] for category in rows])
    print("mean of categories", *(f"{share:.3f}" for share in shares.mean(0)))
    total = np.array(list(right.values())).sum(0) / sum(rows.values())
    print("all tokens", *(f"{share:.3f}" for share in total))


if __name__ == "__main__":
    main()
