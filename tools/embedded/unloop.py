"""Teach a trained target to leave its loops: `python -m tools.embedded.unloop --minutes 25 --out runs/zoo`.

A small model's greedy text soon repeats itself. Here the target writes on from training text as it would for
a user, and where it goes round once more a token is made less likely (unlikelihood of one's own sequences:
Welleck et al. 2020, arXiv:1908.04319, section 5.2), beside batches of training text as before. One token a
round, the least certain, and only until another is likelier: pushing the whole round down makes the model
forget how to close a bracket. The draft goes on learning what the target says, in what it writes too.
Nothing is replaced before the end.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tools.embedded import corpus
from tools.embedded.muon import MATMUL
from tools.embedded.network import Llama, Past
from tools.embedded.train import Batches, Plan, Trainer, optimizers_of, parser_of

PROMPT, WRITTEN, ROWS = 384, 128, 64  # tokens, tokens, texts written at once
ROWS_A_STEP = 8
PERIODS, SHORTEST = 48, 8  # the longest round, and the fewest tokens that are called a repetition
RATE = 0.15  # of training's learning rates, down to nothing
WEIGHT, DRAFT_WEIGHT = 0.05, 0.5  # beside the loss on training text
Array = np.ndarray[Any, Any]
SHOW_EVERY = 4  # rounds
LONGEST_ROUND = 180.0  # seconds; a longer one was a machine asleep


def periods(ids: Array) -> Array:
    """How long the round is with which a token (rows, length) goes round once more; 0: it does not.

    It does after a whole period and eight tokens of repetition; the shortest such period counts.
    """
    place, found = np.arange(ids.shape[1]), np.zeros(ids.shape, int)
    for period in range(1, min(PERIODS, ids.shape[1] - 1) + 1):
        same = np.zeros(ids.shape, bool)
        same[:, period:] = ids[:, period:] == ids[:, :-period]
        run = place - np.maximum.accumulate(np.where(same, -1, place), axis=1)
        found[(run > max(period, SHORTEST)) & (found == 0)] = period
    return found


def exits(rounds: Array, likely: Array) -> Array:
    """In each round, the token that the model was least sure of: where to leave.

    Elsewhere only the round could go on: a bracket has to be closed, and a model that is kept from closing it
    has nothing to say instead.
    """
    found = np.zeros(rounds.shape, bool)
    for row, (periods_, p) in enumerate(zip(rounds, likely, strict=True)):
        place = 0
        while place < len(periods_):
            period = max(int(periods_[place]), 1)
            if periods_[place]:
                found[row, place + int(p[place : place + period].argmin())] = True
            place += period
    return found & (rounds > 0)


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped here
def write(model: Llama, prompts: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(`prompts` (rows, tokens) and `count` greedy tokens after each, how likely each was; 1 in prompts)."""
    rows, length = prompts.shape
    past = [Past(rows, model.shape, length + count, MATMUL) for _ in model.blk]
    ids, likely, latest = [prompts], [torch.ones(rows, length)], prompts
    with torch.autocast("cpu", MATMUL, enabled=torch.float32 != MATMUL):
        for _ in range(count):
            logits = model.logits(model.hidden(latest, past)[:, -1]).float()
            best, latest = logits.max(-1, keepdim=True)
            ids.append(latest)
            likely.append((best - logits.logsumexp(-1, keepdim=True)).exp())
    return torch.cat(ids, 1), torch.cat(likely, 1)


def unlikelihood(target: Llama, draft: Llama, ids: Tensor, against: Tensor) -> Tensor:
    """-log(1 - p) a row of the tokens marked in `against`, while they are the likeliest.

    And the draft's cross-entropy against the target.
    """
    x, y = ids[:, :-1], ids[:, 1:, None]
    with torch.autocast("cpu", MATMUL, enabled=torch.float32 != MATMUL):
        big, small = target(x), draft(x)
    log_p, log_q = big.float().log_softmax(-1), small.float().log_softmax(-1)
    said = log_p.gather(-1, y)[..., 0]
    # once another token is likelier the loop is left, and the rest would only do harm
    still = against[:, 1:] & (said >= log_p.max(-1).values)
    leave = -(1 - said.exp()).clamp(min=1e-3).log()
    soft = -(log_p.detach().exp() * log_q).sum(-1).mean()
    return WEIGHT * (leave * still).sum() / len(ids) + DRAFT_WEIGHT * soft


class Unlooping:
    """A run that goes on from its checkpoint, with optimisers that begin anew."""

    def __init__(self, minutes: float, out: Path) -> None:
        self.plan, self.total, self.seconds = Plan(minutes), minutes * 60, 0.0
        self.trainer = trainer = Trainer(self.plan, out)
        # those of the checkpoint remember larger steps
        trainer.optimizers = optimizers_of(self.plan.rates, trainer.target, trainer.draft)
        self.loss: Any = torch.compile(unlikelihood, dynamic=False)
        seed = corpus.SEED + trainer.steps + 2
        self.starts = Batches(trainer.data, PROMPT - 1, seed)
        self.texts = [Batches(trainer.data, n, seed) for n in (self.plan.sequence, self.plan.long_sequence)]

    def write(self) -> tuple[Tensor, Tensor, float]:
        """(texts that the target wrote on, where it should have left a loop, share that ends in one)."""
        ids, likely = write(self.trainer.target, self.starts.next(ROWS), WRITTEN)
        rounds = periods(ids.numpy())
        rounds[:, :PROMPT] = 0
        return ids, torch.from_numpy(exits(rounds, likely.numpy())), float((rounds[:, -1] > 0).mean())

    def step(self, ids: Tensor, against: Tensor, batches: Batches) -> tuple[float, float]:
        """One update on some of those texts and on training text; its losses."""
        rate = RATE * max(0.02, 1 - self.seconds / self.total)
        text = batches.next(self.plan.batch_tokens // batches.length)
        target, draft = self.trainer.target, self.trainer.draft
        return self.trainer.step(text, rate, 1.0, lambda: self.loss(target, draft, ids, against))

    def run(self) -> None:
        round_ = 0
        while self.seconds < self.total:
            began, losses, round_ = time.monotonic(), np.zeros(2), round_ + 1
            ids, against, share = self.write()
            for i, first in enumerate(range(0, ROWS, ROWS_A_STEP)):
                rows = slice(first, first + ROWS_A_STEP)
                losses += self.step(ids[rows], against[rows], self.texts[i % 2])
            self.seconds += min(time.monotonic() - began, LONGEST_ROUND)
            if round_ % SHOW_EVERY == 0:
                big, small = losses / (ROWS // ROWS_A_STEP)
                print(
                    f"{self.seconds / 60:6.1f} min  step {self.trainer.steps}  target {big:.3f}  "
                    f"draft {small:.3f}  {share:.0%} of {ROWS} texts end in a loop",
                    flush=True,
                )
        self.trainer.save()
        print(f"done: {self.trainer.evaluate()}", flush=True)


def main() -> None:
    about, out = "Out of the loops of greedy text.", "the folder of a run that was trained"
    args = parser_of("unloop", about, 25.0, out).parse_args()
    if not (args.out / "checkpoint.pt").exists():
        raise SystemExit(f"{args.out}: no run there: train one, or restore one, first")
    Unlooping(args.minutes, args.out).run()


if __name__ == "__main__":
    main()
