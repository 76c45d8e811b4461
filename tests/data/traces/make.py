"""Records the embedded target: python tests/data/traces/make.py > tests/data/traces/tokens.jsonl

Greedy answers to requests of the package's own suites, with the eight likeliest tokens at each place.
"""

from __future__ import annotations

import json
import sys

from paceline import load
from paceline.bench.suites import workload

N_PREDICT = 40


def main() -> None:
    with load(drafters="none", threads=1) as llm:
        for suite in ("edit", "json", "code", "quote"):
            for item in [item for item in workload.load(suite) if item.size == "tiny"][:2]:
                prompt = llm.tokens(item.prompt)
                said = llm.generate(prompt, max_tokens=N_PREDICT, ignore_eos=True)
                line = {
                    "id": item.id,
                    "n_vocab": llm.target.vocab.size,
                    "prompt_tokens": prompt,
                    "tokens": list(said.tokens),
                }
                sys.stdout.write(json.dumps(line, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
