"""Train the real model's draft from its answers: `python -m tools.smollm2.draft --help`.

A Llama of four blocks whose embedding begins as the 160 principal components of the real one's. It learns
what was likely at each token (`answers.py`), by cross-entropy, and from the middle of the run on also to be
accepted: one minus the overlap of both distributions is how often a sampled guess is refused (Leviathan et
al. 2023, arXiv:2211.17192, theorem 3.5). The output matrix is most of such a model, so that a step looks at
the tokens that were likely anywhere in its batch, and at some of the others, weighed up to stand for all
(importance sampling: Bengio & Senecal 2008).

The schedule runs on the clock. New shards are read as they come; a run goes on from its checkpoint.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.system.scratch import scratch_file
from paceline.system.whole import whole
from paceline.zoo.quantize import quantize
from tools.embedded.distil import rate
from tools.embedded.export import tensors_of, write_gguf
from tools.embedded.network import Llama, Shape
from tools.embedded.train import LONGEST_STEP, optimizers_of, update

SHAPE = Shape(
    width=160, blocks=4, heads=5, kv_heads=1, feed_forward=448, vocab=49152, context=8192, rope_base=100_000.0
)
RATES = (4e-3, 3e-3)  # of matrices, and of embeddings and norms
WARMUP, OVERLAP_FROM = 0.02, 0.5  # fractions of a run
TOKENS = 4096  # of a step
WINDOW, LONG_WINDOW, LONG_SHARE = 512, 2048, 0.1
LIKELY, OTHERS = 12, 2048  # likeliest of a row that a step looks at, and tokens beside all of them
CHECKPOINT_SECONDS, EVALUATED = 180.0, 40  # conversations
HELD_OUT = 50  # one conversation in so many

NAME = "Paceline draft for SmolLM2 135M Instruct"
DESCRIPTION = "Distilled from SmolLM2 135M Instruct, to draft for it"

Array = np.ndarray[Any, Any]


class Answers:
    """All shards' tokens end to end; for each token its row in `ids` and `logprobs`, or -1."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.files = sorted(folder.glob("shard-*.npz"))
        if not self.files:
            raise SystemExit(f"{folder} holds no shards: run tools.smollm2.answers first")
        parts = [np.load(file) for file in self.files]
        starts = np.cumsum([0, *(len(part["tokens"]) for part in parts)])
        self.tokens = np.concatenate([part["tokens"] for part in parts])
        self.ids = np.concatenate([part["ids"][:, :LIKELY] for part in parts])
        self.logprobs = np.concatenate([part["logprobs"][:, :LIKELY] for part in parts])
        self.row = np.full(len(self.tokens), -1, np.int64)
        places = np.concatenate([start + part["rows"] for start, part in zip(starts, parts, strict=False)])
        self.row[places] = np.arange(len(places))
        ends = np.concatenate([start + part["ends"] for start, part in zip(starts, parts, strict=False)])
        begins = np.concatenate([[0], ends[:-1]])
        held = np.arange(len(begins)) % HELD_OUT == 0
        self.begins, self.held = begins[~held], list(zip(begins[held], ends[held], strict=True))
        for begin, end in self.held:
            self.row[begin:end] = np.where(self.row[begin:end] >= 0, -2 - self.row[begin:end], -1)

    def batch(self, rng: np.random.Generator, length: int) -> tuple[Tensor, Tensor]:
        """Token ids (rows, length), and for each the row of `ids` that tells what was likely to follow; below
        zero where none does."""
        last = len(self.tokens) - length
        begins = self.begins[self.begins <= last]
        starts = rng.choice(begins, TOKENS // length)
        at = starts[:, None] + np.arange(length)
        return torch.from_numpy(self.tokens[at].astype(np.int64)), torch.from_numpy(self.row[at])


def principal(target: Path) -> Tensor:
    """(vocab, width): the real model's embedding in its own most telling directions."""
    import gguf

    tensor = next(t for t in gguf.GGUFReader(target).tensors if t.name == "token_embd.weight")
    table = torch.from_numpy(np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32))
    _, vectors = torch.linalg.eigh(table.T @ table)
    parts = table @ vectors[:, -SHAPE.width :]
    return parts * (0.05 / parts.std())


def losses(
    draft: Llama, ids: Tensor, p: Tensor, likely: Tensor, at: Tensor, rng: Any
) -> tuple[Tensor, Tensor]:
    """(cross-entropy, share refused) a row. p, likely: (rows, LIKELY); at: where in `ids` those rows are."""
    hidden = draft.hidden(ids).flatten(0, 1)[at]
    known, where = likely.unique(return_inverse=True)
    others = torch.randint(SHAPE.vocab, (OTHERS,), generator=rng)
    others = others[~torch.isin(others, known)]
    table = draft.token_embd(torch.cat((known, others)))
    logits = hidden @ table.T
    weight = np.log((SHAPE.vocab - len(known)) / max(1, len(others)))
    logits = torch.cat((logits[:, : len(known)], logits[:, len(known) :] + weight), 1)
    logq = (logits.gather(1, where) - logits.logsumexp(1, keepdim=True)).clamp(min=-30.0)
    return -(p * logq).sum(1).mean(), 1 - torch.minimum(p, logq.exp()).sum(1).mean()


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped here
def evaluate(draft: Llama, answers: Answers) -> str:
    """On conversations that were held out: the share of first guesses that are right, and of sampled ones."""
    right = overlap = rows = 0.0
    for begin, end in answers.held[:: max(1, len(answers.held) // EVALUATED)]:
        row = -2 - answers.row[begin:end]
        told = np.flatnonzero(row >= 0)
        q = draft(torch.from_numpy(answers.tokens[begin:end].astype(np.int64))[None])[0][told].softmax(-1)
        likely = torch.from_numpy(answers.ids[row[told]].astype(np.int64))
        p = torch.from_numpy(answers.logprobs[row[told]].astype(np.float32)).exp()
        right += float((q.argmax(-1) == likely[:, 0]).sum())
        overlap += float(torch.minimum(p, q.gather(1, likely)).sum())
        rows += len(told)
    return f"held out: {right / rows:.3f} of first guesses right, {overlap / rows:.3f} accepted when sampled"


def train(answers: Answers, target: Path, run: Path, minutes: float, seed: int) -> Llama:
    torch.manual_seed(seed)
    run.mkdir(parents=True, exist_ok=True)
    draft, rng = Llama(SHAPE), np.random.default_rng(seed)
    with torch.no_grad():
        draft.token_embd.weight.copy_(principal(target))
    optimizers, seconds, steps = optimizers_of(RATES, draft), 0.0, 0
    kept = run / "draft.pt"
    if kept.exists():
        state = torch.load(kept)
        draft.load_state_dict(state["draft"])
        if (
            state["seconds"] < state["minutes"] * 60
        ):  # it was stopped; a whole one is begun anew from its weights
            for optimizer, one in zip(optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(one)
            seconds, steps = state["seconds"], state["steps"]

    def keep() -> None:
        state = {"draft": draft.state_dict(), "optimizers": [one.state_dict() for one in optimizers]}
        with whole(kept) as part:
            torch.save({**state, "seconds": seconds, "steps": steps, "minutes": minutes}, part)

    negatives = torch.Generator().manual_seed(seed + steps)
    saved, recent = time.monotonic(), list[tuple[float, float]]()
    while seconds < minutes * 60:
        began, done = time.monotonic(), seconds / (minutes * 60)
        ids, row = answers.batch(rng, LONG_WINDOW if rng.random() < LONG_SHARE else WINDOW)
        at = (row.flatten() >= 0).nonzero()[:, 0]
        told = row.flatten()[at].numpy()
        p = torch.from_numpy(answers.logprobs[told].astype(np.float32)).exp()
        likely = torch.from_numpy(answers.ids[told].astype(np.int64))
        entropy, refused = losses(draft, ids, p, likely, at, negatives)
        (entropy + (2.0 * refused if done > OVERLAP_FROM else 0.0)).backward()
        update(optimizers, [lr * rate(done, WARMUP) for lr in RATES], draft)
        steps += 1
        recent.append((float(entropy.detach()), float(refused.detach())))
        seconds += min(time.monotonic() - began, LONGEST_STEP)
        if steps % 25 == 0:
            mean = np.mean(recent[-25:], 0)
            print(
                f"{seconds / 60:6.1f} min  {steps * TOKENS / 1e6:.2f}M tokens  cross-entropy {mean[0]:.3f}  "
                f"refused {mean[1]:.3f}",
                flush=True,
            )
        if time.monotonic() - saved > CHECKPOINT_SECONDS:
            keep()
            if len(sorted(answers.folder.glob("shard-*.npz"))) > len(answers.files):
                answers = Answers(answers.folder)
            print(f"{len(answers.row) / 1e6:.2f}M tokens there  {evaluate(draft, answers)}", flush=True)
            saved = time.monotonic()
    keep()
    print(evaluate(draft, answers), flush=True)
    return draft


def export(draft: Llama, target: Path, out: Path, ftype: str) -> None:
    """As GGUF, with the tokenizer and the chat template of the target's file."""
    import gguf

    source = gguf.GGUFReader(target)

    def tokenizer(writer: Any) -> None:
        for key, field in source.fields.items():
            if key.startswith("tokenizer."):
                item = field.types[-1] if len(field.types) > 1 else None
                writer.add_key_value(key, field.contents(), field.types[0], item)

    with whole(out) as part, scratch_file(out.parent) as plain:
        write_gguf(plain, tensors_of(draft.state_dict(), SHAPE), SHAPE, NAME, DESCRIPTION, tokenizer)
        quantize(plain, part, ftype, name=out)


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
    args = parser.parse_args()
    draft = train(Answers(args.answers), args.target, args.run, args.minutes, args.seed)
    export(draft, args.target, args.out, "Q8_0")
    print(f"{args.out}: {args.out.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
