"""Whether llama.cpp's ngram-mod, a hash pool that all requests share, adds to what drafts without a model.

    python benchmarks/ngram_mod.py TRANSCRIPTS.jsonl VOCAB.gguf [--n-draft 7,48] [--last] [--repeat 2]

Replays recorded conversations (`id`, `messages` of `role` and `content`, one a line): what the assistant
wrote plays the target, so no model runs. A request is one of its messages, its prompt all before it (--last:
only the message before it); a drafter goes through all requests in order and remembers what it remembers.
Prints tokens per step, the share of steps with a draft, the share of drafted tokens accepted, and
microseconds a step (draft and observe; one thread). Only the last round of --repeat is counted.

ngram-mod N/MIN: a pool of 4 Mi places; the hash of the last N tokens gives the next one, the last write wins;
a draft shorter than MIN is dropped; five of its drafts in a row with less than a quarter accepted empty it.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from time import perf_counter

import numpy as np

from paceline.drafters.compose import ComposedDrafter
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.ngram import NgramDrafter
from paceline.speculative.interfaces import Budget, Drafter, Features, RequiredOutputs, Session
from paceline.speculative.stats import Step, StepTimes
from paceline.speculative.tree import EMPTY, DraftTree, chain

PLACES = 4 * 1024 * 1024
FACTOR, MASK = 6364136223846793005, (1 << 64) - 1
Request = tuple[list[int], list[int]]  # prompt, output


class ModMemory:
    """Owns its text. Like llama.cpp it enters the prompt at once, what is emitted as it comes."""

    def __init__(self, drafter: ModDrafter, prompt: Sequence[int]) -> None:
        self.drafter, self.tokens, self.low = drafter, list(prompt), 0
        drafter.enter(self.tokens, 0)

    def update(self, step: Step, features: Features) -> None:
        start = len(self.tokens)
        self.tokens += step.tokens
        self.drafter.enter(self.tokens, start)
        if drafted := step.drafted.get(self.drafter.name, 0):
            self.low = self.low + 1 if 4 * step.accepted.get(self.drafter.name, 0) < drafted else 0
            if self.low == 5:
                self.drafter.pool[:] = -1
                self.low = 0

    def close(self) -> None:
        self.tokens.clear()


class ModDrafter:
    name = "ngram-mod"
    required_outputs = RequiredOutputs()

    def __init__(self, n: int, least: int) -> None:
        self.n, self.least = n, least
        self.pool = np.full(PLACES, -1, np.int32)

    def open(
        self, prompt: Sequence[int], seed: int, session: Session | None = None, scope: str = ""
    ) -> ModMemory:
        return ModMemory(self, prompt)

    def place(self, ngram: Sequence[int]) -> int:
        hashed = 0
        for token in ngram:
            hashed = (hashed * FACTOR + token) & MASK
        return hashed % PLACES

    def enter(self, tokens: list[int], start: int) -> None:
        for i in range(max(start, self.n), len(tokens)):
            self.pool[self.place(tokens[i - self.n : i])] = tokens[i]

    def propose(self, batch: Sequence[tuple[ModMemory, Budget]]) -> list[DraftTree]:
        return [self.draft(memory.tokens, budget) for memory, budget in batch]

    def draft(self, text: list[int], budget: Budget) -> DraftTree:
        tail, most = text[-self.n :], min(budget.depth, budget.nodes)
        out: list[int] = []
        while len(tail) == self.n and len(out) < most:
            token = int(self.pool[self.place(tail)])
            if token < 0:
                break
            out.append(token)
            tail = [*tail[1:], token]
        return chain(out, self.name) if len(out) >= min(self.least, most) else EMPTY

    def close(self) -> None:
        """The pool is collected with the drafter."""


MAKERS: dict[str, Callable[[], Drafter]] = {
    "lookup 3-5": lambda: LookupDrafter(3, 5),
    "lookup 3-12": lambda: LookupDrafter(3, 12),
    "ngram": NgramDrafter,
    "ngram-mod 24/48": lambda: ModDrafter(24, 48),
    "ngram-mod 24/0": lambda: ModDrafter(24, 0),
    "ngram-mod 12/0": lambda: ModDrafter(12, 0),
    "ngram-mod 12/0,lookup 3-5": lambda: ComposedDrafter([ModDrafter(12, 0), LookupDrafter(3, 5)]),
    "ngram-mod 12/0,ngram": lambda: ComposedDrafter([ModDrafter(12, 0), NgramDrafter()]),
    "lookup 3-5,ngram": lambda: ComposedDrafter([LookupDrafter(3, 5), NgramDrafter()]),
    "lookup 3-12,ngram": lambda: ComposedDrafter([LookupDrafter(3, 12), NgramDrafter()]),
    "lookup 3-12,ngram,ngram-mod 6/0": lambda: ComposedDrafter(
        [LookupDrafter(3, 12), NgramDrafter(), ModDrafter(6, 0)]
    ),
}


def requests(transcripts: Path, vocab: Path, last: bool) -> list[Request]:
    from llama_cpp import Llama

    model = Llama(str(vocab), vocab_only=True, verbose=False)
    out: list[Request] = []
    for line in transcripts.read_text().splitlines():
        text: list[int] = []
        before: list[int] = []
        for message in json.loads(line)["messages"]:
            text += (role := model.tokenize(f"<{message['role']}>\n".encode(), add_bos=False, special=False))
            said = model.tokenize(f"{message['content']}\n".encode(), add_bos=False, special=False)
            if message["role"] == "assistant" and said:
                out.append(([*before, *role] if last else list(text), said))
            text, before = text + said, [*role, *said]
    return out


def replay(drafter: Drafter, asked: Sequence[Request], n_draft: int) -> tuple[float, float, float, float]:
    """One round of all requests: the four figures."""
    steps = drafts = drafted = accepted = emitted = 0
    seconds, budget = 0.0, Budget(n_draft, n_draft)
    for prompt, output in asked:
        memory, at = drafter.open(prompt, 0), 0
        while at < len(output):
            began = perf_counter()
            (tree,) = drafter.propose([(memory, budget)])
            seconds += perf_counter() - began
            right = 0
            while right < len(tree) and output[at + right : at + right + 1] == [tree.tokens[right]]:
                right += 1
            tokens = output[at : at + right + 1]
            drafted_by, accepted_by = Counter(tree.source), Counter(tree.source[:right])
            path = tuple(range(right))
            step = Step(tuple(tokens), ("",) * len(tokens), path, drafted_by, accepted_by, None, StepTimes())
            began = perf_counter()
            memory.update(step, Features())
            seconds += perf_counter() - began
            steps, emitted, at = steps + 1, emitted + len(tokens), at + len(tokens)
            drafts, drafted, accepted = drafts + (len(tree) > 0), drafted + len(tree), accepted + right
        memory.close()
    return emitted / steps, drafts / steps, accepted / max(1, drafted), 1e6 * seconds / steps


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("transcripts", type=Path)
    parser.add_argument("vocab", type=Path)
    parser.add_argument("--n-draft", default="7,48", help="longest draft; several with commas")
    parser.add_argument("--last", action="store_true", help="prompts of one message, without what was before")
    parser.add_argument("--repeat", type=int, default=1, help="rounds; the last one is counted")
    given = parser.parse_args()
    asked = requests(given.transcripts, given.vocab, given.last)
    total, read = sum(len(output) for _, output in asked), sum(len(prompt) for prompt, _ in asked)
    print(f"{len(asked)} requests, {total:,} tokens of output, {read:,} of prompts")
    heads = ("n_draft", "tokens/step", "with a draft", "accepted", "us/step")
    print(f"{'drafter':32}", *(f"{head:>12}" for head in heads))
    for n_draft in map(int, given.n_draft.split(",")):
        for name, make in MAKERS.items():
            drafter = make()
            for _ in range(given.repeat):
                rate, share, accepted, cost = replay(drafter, asked, n_draft)
            drafter.close()
            figures = f"{n_draft:12} {rate:12.3f} {share:12.1%} {accepted:12.1%} {cost:12.1f}"
            print(f"{name:32} {figures}", flush=True)


if __name__ == "__main__":
    main()
