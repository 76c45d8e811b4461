"""Train the embedded target and draft together: `python -m tools.embedded.train --minutes 95 --out runs/zoo`.

One loop feeds both models the same batch. The target learns from the text; the draft learns from the text
and from the target's distribution (distillation, as DistillSpec does: Zhou et al. 2023, arXiv:2310.08461),
and towards the end from the target alone, since its only work is to guess what the target will say.
The schedule runs on the clock, so a run ends on time on any machine; it resumes from its last checkpoint.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own short name
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

from paceline.system.atomic import atomic_write
from tools.embedded import corpus
from tools.embedded.muon import MATMUL, Muon
from tools.embedded.network import DRAFT, TARGET, Llama

# share of every batch drawn from each source, and the bytes of it that the tokenizer is trained on
MIXTURE = {"library": 0.34, "tests": 0.08, "prose": 0.10, "records": 0.16, "packages": 0.32}
LONGEST_STEP = 60.0  # seconds; the first one compiles
TOKENIZER_BYTES = {"library": 9e6, "tests": 2e6, "prose": 5e6, "records": 5e6, "packages": 5e6}


@dataclass(frozen=True)
class Plan:
    """How a run is laid out; fractions are of its minutes."""

    minutes: float
    batch_tokens: int = 4096
    sequence: int = 256
    long_sequence: int = 2048
    long_from: float = 0.85
    warmup: float = 0.015
    decay_from: float = 0.6
    rates: tuple[float, float] = (2.5e-3, 2.5e-3)  # of matrices, and of embeddings and norms
    distil: float = 0.6
    checkpoint_minutes: float = 10.0

    def rate(self, done: float) -> float:
        """Multiplier of the learning rates after the fraction `done`: warm-up, flat, linear to 2%."""
        if done < self.warmup:
            return max(done / self.warmup, 0.02)
        return 1.0 if done < self.decay_from else max(0.02, (1 - done) / (1 - self.decay_from))


def train_tokenizer(texts: dict[str, list[str]], out: Path) -> Tokenizer:
    """A byte-level BPE with GPT-2's word pattern, which llama.cpp knows as `gpt-2`."""
    sample: list[str] = []
    for name, limit in TOKENIZER_BYTES.items():
        size = 0
        for text in sorted(texts[name], key=lambda text: (len(text) * 2654435761) % 2**32):
            if size < limit:
                sample.append(text)
                size += len(text)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    # llama-cpp-python reads a token's text into 32 bytes and drops longer ones
    tokenizer.train_from_iterator(sample, trainers.BpeTrainer(
        vocab_size=TARGET.vocab, special_tokens=[corpus.END], show_progress=False, max_token_length=32,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    with atomic_write(out) as part:
        tokenizer.save(str(part))
    return tokenizer


def prepare(out: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Source name -> token ids (uint16), documents ended by `<|endoftext|>`; cached in `out`."""
    if not (out / "held_out.npy").exists():
        texts, known = corpus.build(), out / "tokenizer.json"
        # a run restored from shipped files keeps their tokenizer
        tokenizer = Tokenizer.from_file(str(known)) if known.exists() else train_tokenizer(texts, known)
        for name, documents in (texts | {"held_out": list(corpus.held_out().values())}).items():
            order = np.random.default_rng(corpus.SEED).permutation(len(documents))
            ids: list[int] = []
            for encoded in tokenizer.encode_batch_fast([documents[i] for i in order]):
                ids += [*encoded.ids, 0]
            with atomic_write(out / f"{name}.npy") as part, part.open("wb") as file:
                np.save(file, np.array(ids, np.uint16))
    return {name: np.load(out / f"{name}.npy") for name in (*MIXTURE, "held_out")}


class Batches:
    """Rows of the mixture; each source is walked in shuffled windows, with a new offset each epoch."""

    def __init__(self, data: dict[str, np.ndarray[Any, Any]], length: int, seed: int) -> None:
        self.data, self.length = data, length
        self.rng = np.random.default_rng(seed)
        self.queues: dict[str, list[int]] = {name: [] for name in MIXTURE}

    def next(self, rows: int) -> Tensor:
        """Token ids (rows, length + 1)."""
        picked = []
        for name in self.rng.choice(list(MIXTURE), size=rows, p=list(MIXTURE.values())):
            if not self.queues[name]:
                starts = np.arange(
                    self.rng.integers(self.length), len(self.data[name]) - self.length - 1, self.length
                )
                self.queues[name] = self.rng.permutation(starts).tolist()
            start = self.queues[name].pop()
            picked.append(self.data[name][start : start + self.length + 1])
        return torch.from_numpy(np.stack(picked).astype(np.int64))


def losses(target: Llama, draft: Llama, ids: Tensor, distil: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(sum to minimise, target's cross-entropy, draft's cross-entropy), in nats per token."""
    x, y = ids[:, :-1], ids[:, 1:].reshape(-1)
    with torch.autocast("cpu", MATMUL, enabled=torch.float32 != MATMUL):
        big, small = target(x).flatten(0, 1), draft(x).flatten(0, 1)
    p, q = big.float().log_softmax(-1), small.float().log_softmax(-1)
    big_loss, small_loss = F.nll_loss(p, y), F.nll_loss(q, y)
    # the cross-entropy against the target's distribution has the gradient of KL(p || q)
    soft = -(p.detach().exp() * q).sum(-1).mean()
    return big_loss + (1 - distil) * small_loss + distil * soft, big_loss.detach(), small_loss.detach()


def optimizers_of(rates: Sequence[float], *networks: Llama) -> list[Any]:
    """[Muon for the matrices inside the blocks, AdamW for embeddings and norms]; rates: of both."""
    matrices: list[Any] = []
    others: list[Any] = []
    for network in networks:
        for name, p in network.named_parameters():
            table = name.startswith(("token_embd", "output."))
            (matrices if p.ndim == 2 and not table else others).append(p)
    adam = torch.optim.AdamW(others, rates[1], betas=(0.9, 0.95), weight_decay=0.0)
    return [Muon(matrices, rates[0]), adam]


def update(optimizers: Sequence[Any], rates: Sequence[float], *networks: Llama) -> None:
    """One step of each optimiser at its learning rate, by the gradients that the networks have."""
    for network in networks:
        torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
    for optimizer, rate in zip(optimizers, rates, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = rate
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def window_logits(
    data: np.ndarray[Any, Any], rows: int, length: int, *networks: Llama
) -> Iterator[tuple[Tensor, list[Tensor]]]:
    """Yield evenly spaced windows of length + 1 tokens, and each network's logits after all but the last."""
    for start in np.linspace(0, len(data) - length - 1, rows, dtype=int):
        ids = torch.from_numpy(data[start : start + length + 1].astype(np.int64))
        with torch.autocast("cpu", MATMUL, enabled=torch.float32 != MATMUL):
            logits = [network(ids[None, :-1])[0].float() for network in networks]
        yield ids, logits


class Trainer:
    """Owns both models, their optimisers and the run's clock."""

    def __init__(self, plan: Plan, out: Path) -> None:
        self.plan, self.out = plan, out
        torch.manual_seed(corpus.SEED)
        self.data = prepare(out)
        self.target, self.draft = Llama(TARGET), Llama(DRAFT)
        self.optimizers = optimizers_of(plan.rates, self.target, self.draft)
        self.seconds, self.tokens, self.steps = 0.0, 0, 0
        self.step_loss: Any = torch.compile(losses, dynamic=False)
        if (out / "checkpoint.pt").exists():
            self.load()

    def load(self) -> None:
        saved = torch.load(self.out / "checkpoint.pt")
        self.target.load_state_dict(saved["target"])
        self.draft.load_state_dict(saved["draft"])
        if saved["optimizers"]:  # a restored run has none
            for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
        self.seconds, self.tokens, self.steps = saved["seconds"], saved["tokens"], saved["steps"]

    def save(self) -> None:
        """Write the checkpoint whole or not at all."""
        state = {
            "target": self.target.state_dict(), "draft": self.draft.state_dict(),
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
            "seconds": self.seconds, "tokens": self.tokens, "steps": self.steps,
        }  # fmt: skip
        with atomic_write(self.out / "checkpoint.pt") as part:
            torch.save(state, part)

    def step(
        self, ids: Tensor, rate: float, distil: float, more: Callable[[], Tensor] | None = None
    ) -> tuple[float, float]:
        """One update of both models on a batch, and on `more` to minimise; returns the batch's losses.

        `rate` multiplies the learning rates; `distil` is the target's share of what the draft learns from.
        """
        loss, big, small = self.step_loss(self.target, self.draft, ids, torch.tensor(distil))
        loss.backward()
        if more:
            more().backward()
        update(self.optimizers, [lr * rate for lr in self.plan.rates], self.target, self.draft)
        self.steps, self.tokens = self.steps + 1, self.tokens + ids[:, 1:].numel()
        return float(big), float(small)

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped here
    def evaluate(self, rows: int = 48, length: int = 512) -> str:
        """Held-out loss of both and their greedy agreement, over evenly spaced windows."""
        totals = np.zeros(3)
        for ids, (p, q) in window_logits(self.data["held_out"], rows, length, self.target, self.draft):
            same = (p.argmax(-1) == q.argmax(-1)).float().mean()
            totals += [float(F.cross_entropy(p, ids[1:])), float(F.cross_entropy(q, ids[1:])), float(same)]
        big, small, same_share = totals / rows
        return f"held-out target {big:.3f} draft {small:.3f} nats/token, agreement {same_share:.3f}"

    def run(self) -> None:
        """Train until the plan's minutes are over; Ctrl-C leaves the last checkpoint."""
        plan, total = self.plan, self.plan.minutes * 60
        short = Batches(self.data, plan.sequence, corpus.SEED + self.steps)
        long = Batches(self.data, plan.long_sequence, corpus.SEED + self.steps + 1)
        shown, saved = time.monotonic(), time.monotonic()
        mean = np.zeros(2)
        while self.seconds < total:
            began, done = time.monotonic(), self.seconds / total
            late = done > plan.long_from
            batches = long if late else short
            ids = batches.next(plan.batch_tokens // batches.length)
            mean += self.step(ids, plan.rate(done), 1.0 if late else plan.distil)
            # a step that took longer was a machine asleep, or a run stopped for a while: not the plan's time
            self.seconds += min(time.monotonic() - began, LONGEST_STEP)
            if self.steps % 50 == 0:
                rate = 50 * plan.batch_tokens / (time.monotonic() - shown)
                print(
                    f"{self.seconds / 60:6.1f} min  step {self.steps}  {self.tokens / 1e6:.2f}M tokens  "
                    f"target {mean[0] / 50:.3f}  draft {mean[1] / 50:.3f}  {rate:.0f} tokens/s",
                    flush=True,
                )
                shown, mean = time.monotonic(), np.zeros(2)
            if time.monotonic() - saved > plan.checkpoint_minutes * 60:
                self.save()
                print(f"checkpoint: {self.evaluate()}", flush=True)
                saved = time.monotonic()
        self.save()
        print(f"done: {self.tokens / 1e6:.2f}M tokens, {self.evaluate()}", flush=True)


def parser_of(module: str, what: str, minutes: float, out: str) -> argparse.ArgumentParser:
    """For a script that trains for so many minutes and writes to `out`."""
    parser = argparse.ArgumentParser(prog=f"python -m tools.embedded.{module}", description=what)
    parser.add_argument("--minutes", type=float, default=minutes)
    parser.add_argument("--out", type=Path, required=True, help=out)
    return parser


def main() -> None:
    parser = parser_of("train", "Train the embedded models.", 95.0, "folder for tokens and checkpoints")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    Trainer(Plan(minutes=args.minutes), args.out).run()


if __name__ == "__main__":
    main()
