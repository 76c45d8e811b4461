"""Train the real model's draft from its answers: `python -m tools.smollm2.draft --help`.

A Llama of six blocks whose embedding begins as the 256 principal components of the real one's. It learns
what was likely at each token (`answers.py`), by cross-entropy, and from the middle of the run on also to be
accepted: one minus the overlap of both distributions is how often a sampled guess is refused (Leviathan et
al. 2023, arXiv:2211.17192, theorem 3.5). From there on it computes with its weights as the file will hold
them, Q4_0, and the gradients at these move the weights themselves (straight-through: Bengio et al. 2013,
arXiv:1308.3432; `rounding.py`).

The schedule runs on the clock; a run that was stopped goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.system.atomic import atomic_write
from tools.embedded.distil import rate
from tools.embedded.export import tensors_of, write_gguf
from tools.embedded.muon import MATMUL
from tools.embedded.network import Llama, Shape
from tools.embedded.packed import Packed
from tools.embedded.train import LONGEST_STEP, optimizers_of, update
from tools.smollm2.answers import GENERATED
from tools.smollm2.rounding import rounded

SHAPE = Shape(
    width=256, blocks=6, heads=4, kv_heads=1, feed_forward=768, vocab=49152, context=8192, rope_base=100_000.0
)
RATES = (4e-3, 3e-3)  # of matrices, and of embeddings and norms
WARMUP, LATE = 0.02, 0.5  # fractions of a run
TOKENS = {"cpu": 4096, "cuda": 32768}  # of a step
SHORTEST = 32  # tokens of a conversation, on average of those in a step at least
GIVEN_WEIGHT = 0.2  # of a token that the model was given
CHECKPOINT_SECONDS, EVALUATED = 60.0, 200  # conversations
HELD_OUT = 50  # one conversation in so many

NAME = "Paceline draft for SmolLM2 135M Instruct"
DESCRIPTION = "Distilled from SmolLM2 135M Instruct, to draft for it"

Array = np.ndarray[Any, Any]


class Answers:
    """All shards' conversations end to end, on the device."""

    def __init__(self, folder: Path, device: torch.device) -> None:
        files = sorted(folder.glob("shard-*.npz"))
        if not files:
            raise SystemExit(f"{folder} holds no shards: run tools.smollm2.answers first")
        parts = [dict(np.load(file)) for file in files]

        def joined(name: str, kind: Any) -> Tensor:
            array = np.concatenate([part[name] for part in parts])
            return torch.from_numpy(array.astype(kind, copy=False)).to(device)

        self.device = device
        self.tokens, self.ids = joined("tokens", np.int32), joined("ids", np.int32)
        self.logprobs, self.kind = joined("logprobs", np.float16), joined("kind", np.uint8)
        lengths = np.concatenate([part["lengths"] for part in parts])
        begins = np.cumsum(lengths) - lengths
        held = np.arange(len(lengths)) % HELD_OUT == 0
        self.held = list(zip(begins[held], lengths[held], strict=True))
        self.begins, self.lengths, self.longest = begins[~held], lengths[~held], int(lengths.max())
        self.queue = np.empty(0, np.int64)

    def batch(self, rng: np.random.Generator, tokens: int) -> tuple[Tensor, Packed]:
        """Where so many tokens of whole conversations stand (the last one is cut), and which belong together.
        Each conversation comes once before any comes again."""
        order = np.empty(0, np.int64)
        while self.lengths[order].sum() < tokens:
            if not len(self.queue):
                self.queue = rng.permutation(len(self.begins))
            few = tokens // int(self.lengths.mean()) // 4 + 1
            order, self.queue = np.concatenate((order, self.queue[:few])), self.queue[few:]
        count = int(np.searchsorted(np.cumsum(self.lengths[order]), tokens)) + 1
        self.queue = np.concatenate((order[count:], self.queue))
        begins, lengths = self.begins[order[:count]], self.lengths[order[:count]].copy()
        lengths[-1] -= lengths.sum() - tokens
        at = np.arange(tokens) + np.repeat(begins - (np.cumsum(lengths) - lengths), lengths)
        packed = Packed(lengths.tolist(), tokens // SHORTEST, self.longest, self.device)
        return torch.from_numpy(at).to(self.device), packed


def principal(target: Path) -> Tensor:
    """(vocab, width): the real model's embedding in its own most telling directions."""
    import gguf

    tensor = next(t for t in gguf.GGUFReader(target).tensors if t.name == "token_embd.weight")
    table = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32))
    _, vectors = torch.linalg.eigh(table.T @ table)
    parts = table @ vectors[:, -SHAPE.width :]
    return parts * (0.05 / parts.std())


def losses(hidden: Tensor, table: Tensor, p: Tensor, likely: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """(cross-entropy, share refused), means of the rows by `weight` (rows,).

    hidden: (rows, width); p, likely: (rows, KEPT)."""
    logits = hidden @ table.T
    total = logits.float().logsumexp(1, keepdim=True)
    logq = (logits.gather(1, likely).float() - total).clamp(min=-30.0)
    share = weight / weight.sum()
    entropy = -(share * (p * logq).sum(1)).sum()
    return entropy, 1 - (share * torch.minimum(p, logq.exp()).sum(1)).sum()


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped here
def evaluate(draft: Llama, answers: Answers) -> str:
    """Of what the model wrote in conversations that were held out: the share of first guesses that are right,
    and of sampled ones, with weights as the file will hold them."""
    right = overlap = rows = 0.0
    with rounded(draft):
        for begin, length in answers.held[:: max(1, len(answers.held) // EVALUATED)]:
            here = slice(begin, begin + length)
            written = (answers.kind[here] == GENERATED).nonzero()[:, 0]
            q = draft.logits(draft.hidden(answers.tokens[here][None])[0][written]).softmax(-1)
            likely = answers.ids[here][written].long()
            p = answers.logprobs[here][written].float().exp()
            right += float((q.argmax(-1) == likely[:, 0]).sum())
            overlap += float(torch.minimum(p, q.gather(1, likely)).sum())
            rows += len(written)
    return f"held out: {right / rows:.3f} of first guesses right, {overlap / rows:.3f} accepted when sampled"


class Run:
    """Owns the draft, its optimisers and the clock; `draft.pt` in its folder is what it has come to."""

    def __init__(self, target: Path, folder: Path, minutes: float, seed: int, device: torch.device) -> None:
        torch.manual_seed(seed)
        folder.mkdir(parents=True, exist_ok=True)
        self.kept, self.minutes, self.device = folder / "draft.pt", minutes, device
        self.draft = Llama(SHAPE)
        with torch.no_grad():
            self.draft.token_embd.weight.copy_(principal(target))
        self.draft.to(device)
        self.optimizers, self.seconds, self.steps = optimizers_of(RATES, self.draft), 0.0, 0
        self.losses: Any = torch.compile(losses, dynamic=False) if device.type == "cuda" else losses
        if self.kept.exists():
            self._restore(torch.load(self.kept, map_location=device))

    def _restore(self, state: dict[str, Any]) -> None:
        self.draft.load_state_dict(state["draft"])
        if state["seconds"] < state["minutes"] * 60:  # else it is whole, and begun anew from its weights
            for optimizer, one in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(one)
            self.seconds, self.steps = state["seconds"], state["steps"]

    def commit(self) -> None:
        state = {
            "draft": self.draft.state_dict(), "optimizers": [one.state_dict() for one in self.optimizers],
            "seconds": self.seconds, "steps": self.steps, "minutes": self.minutes,
        }  # fmt: skip
        with atomic_write(self.kept) as part:
            torch.save(state, part)

    def step(self, answers: Answers, at: Tensor, packed: Packed) -> Tensor:
        """One update on the tokens at `at`; (cross-entropy, share refused) before it, still on the device."""
        done = self.seconds / (self.minutes * 60)
        written = answers.kind[at]
        weight = torch.where(written == GENERATED, 1.0, GIVEN_WEIGHT) * (written > 0)
        p, likely = answers.logprobs[at].float().exp(), answers.ids[at].long()
        kind = torch.bfloat16 if self.device.type == "cuda" else MATMUL
        with rounded(self.draft, done > LATE):
            with torch.autocast(self.device.type, kind, enabled=kind != torch.float32):
                hidden = self.draft.hidden(answers.tokens[at][None], packed=packed)[0]
                entropy, refused = self.losses(hidden, self.draft.token_embd.weight, p, likely, weight)
            (entropy + (2.0 * refused if done > LATE else 0.0)).backward()
        update(self.optimizers, [lr * rate(done, WARMUP) for lr in RATES], self.draft)
        self.steps += 1
        return torch.stack((entropy.detach(), refused.detach()))


def train(answers: Answers, target: Path, folder: Path, minutes: float, seed: int) -> Llama:
    run, tokens = Run(target, folder, minutes, seed, answers.device), TOKENS[answers.device.type]
    rng = np.random.default_rng(seed + run.steps)
    saved, recent = run.seconds, list[Tensor]()
    while run.seconds < minutes * 60:
        began = time.monotonic()
        recent.append(run.step(answers, *answers.batch(rng, tokens)))
        if run.steps % 100 == 0 or answers.device.type == "cpu":
            mean = torch.stack(recent).mean(0).tolist()  # waits for the GPU
            print(
                f"{run.seconds / 60:6.1f} min  {run.steps * tokens / 1e6:.2f}M tokens  "
                f"cross-entropy {mean[0]:.3f}  refused {mean[1]:.3f}",
                flush=True,
            )
            recent.clear()
        run.seconds += min(time.monotonic() - began, LONGEST_STEP)
        if run.seconds - saved > CHECKPOINT_SECONDS:
            saved = run.seconds
            run.commit()
            print(evaluate(run.draft, answers), flush=True)
    run.commit()
    print(evaluate(run.draft, answers), flush=True)
    return run.draft


def export(draft: Llama, target: Path, out: Path, ftype: str) -> None:
    """As GGUF, with the tokenizer and the chat template of the target's file."""
    import gguf

    source = gguf.GGUFReader(target)

    def tokenizer(writer: Any) -> None:
        for key, field in source.fields.items():
            if key.startswith("tokenizer."):
                item = field.types[-1] if len(field.types) > 1 else None
                writer.add_key_value(key, field.contents(), field.types[0], item)

    tensors = tensors_of(draft.cpu().state_dict(), SHAPE)
    with atomic_write(out) as part:
        write_gguf(part, tensors, SHAPE, NAME, DESCRIPTION, tokenizer, ftype)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", type=Path, required=True, help="the GGUF file of the real model")
    parser.add_argument("--answers", type=Path, required=True, help="the folder of the shards")
    parser.add_argument("--run", type=Path, required=True, help="the folder of the checkpoint")
    parser.add_argument("--out", type=Path, required=True, help="the GGUF file to write")
    parser.add_argument(
        "--minutes", type=float, default=60.0, help="to train; 0 writes the checkpoint as GGUF"
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args()
    answers = Answers(args.answers, torch.device(args.device))
    draft = train(answers, args.target, args.run, args.minutes, args.seed)
    export(draft, args.target, args.out, "Q4_0")
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
