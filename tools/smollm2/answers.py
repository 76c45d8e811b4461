"""Gather what the real model answers, and what else it would have said: `python -m tools.smollm2.answers`.

Conversations of `prompts.py` run side by side in one llama.cpp context, in F32 (the file's own weights,
unpacked): the answers and the turns that the model writes itself are sampled among its 32 likeliest tokens or
greedy, and at each of their tokens the likeliest are kept with their log-probabilities. A shard is written
whole; a run that was stopped goes on with the next one. Run one process a core, each with its own `--seed`.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import llama_cpp
import numpy as np
import torch

from paceline.system.whole import whole
from paceline.zoo.quantize import errors_only, quantize
from tools.smollm2.prompts import Conversation, conversations

TOP = 32  # likeliest tokens that are kept
SLOTS, ROOM = 64, 1024  # conversations at once, and tokens of each
LONGEST = 320  # tokens of an answer
LONGEST_QUESTION = 160  # of a turn that the model writes
LONGEST_PROMPT = 520  # of all that comes before an answer
BATCH = 512
HEADER = 20  # tokens of the system prompt that are always alike
SHARD = 20_000  # tokens with their likeliest, in a file
END = "<|im_end|>"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"  # as the chat template has it

Array = np.ndarray[Any, Any]


def unpacked(source: Path, folder: Path) -> Path:
    """`source` as F32: faster over many rows, and the same for whatever is made from it."""
    out = folder / "target-F32.gguf"
    if not out.exists():
        with whole(out) as part:
            quantize(source, part, "F32", name=out)
    return out


class Teacher:
    """One llama.cpp context of SLOTS sequences, on one thread: two that wait for each other lose."""

    def __init__(self, path: Path) -> None:
        params = llama_cpp.llama_context_default_params()
        params.n_ctx, params.n_seq_max, params.kv_unified = SLOTS * ROOM, SLOTS, False
        params.n_batch = params.n_ubatch = BATCH
        params.n_threads = params.n_threads_batch = 1
        with errors_only() as said:
            llama_cpp.llama_backend_init()
            self.model = llama_cpp.llama_model_load_from_file(
                os.fsencode(path), llama_cpp.llama_model_default_params()
            )
            if not self.model:
                raise SystemExit(f"llama.cpp could not load {path}: {'; '.join(said)}")
            self.context = llama_cpp.llama_init_from_model(self.model, params)
        self.vocab = llama_cpp.llama_model_get_vocab(self.model)
        self.tokens = llama_cpp.llama_vocab_n_tokens(self.vocab)
        self.batch = llama_cpp.llama_batch_init(BATCH, 0, 1)

    def tokenize(self, text: str) -> list[int]:
        raw = text.encode()
        out = (llama_cpp.llama_token * (len(raw) + 8))()
        n = llama_cpp.llama_tokenize(self.vocab, raw, len(raw), out, len(out), False, True)
        return list(out[:n])

    def forget(self, slot: int) -> None:
        llama_cpp.llama_memory_seq_rm(llama_cpp.llama_get_memory(self.context), slot, -1, -1)

    def decode(self, rows: list[tuple[int, int, int, bool]]) -> Array:
        """rows: (token, position, slot, whether its logits are asked for), BATCH at most.
        Returns (rows asked for, tokens)."""
        batch = self.batch
        batch.n_tokens = len(rows)
        for i, (token, position, slot, asked) in enumerate(rows):
            batch.token[i], batch.pos[i], batch.logits[i] = token, position, int(asked)
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, slot
        if llama_cpp.llama_decode(self.context, batch):
            raise SystemExit("llama.cpp could not decode a batch")
        n_asked = sum(row[3] for row in rows)
        return np.ctypeslib.as_array(llama_cpp.llama_get_logits(self.context), (n_asked, self.tokens))


class Slot:
    """A conversation on its way: which tokens have been read, which wait, and who writes what comes next."""

    def __init__(self, teacher: Teacher, talk: Conversation) -> None:
        self.teacher, self.talk = teacher, talk
        self.tokens: list[int] = []
        self.likeliest: list[tuple[int, Array, Array]] = []  # position of the row, ids, log-probabilities
        self.waiting: list[int] = []  # tokens to be read
        self.turns = list(talk.turns)
        self.asking = False
        self.written = 0
        self.done = False
        self.say(f"<|im_start|>system\n{talk.system or SYSTEM}{END}\n")
        self.next_turn()

    def say(self, text: str) -> None:
        self.waiting += self.teacher.tokenize(text)

    def next_turn(self) -> None:
        turn = self.turns.pop(0)
        self.asking, self.written = turn is None, 0
        self.say("<|im_start|>user\n" + (f"{turn}{END}\n<|im_start|>assistant\n" if turn is not None else ""))
        if len(self.tokens) + len(self.waiting) > LONGEST_PROMPT:
            self.done = True

    @property
    def temperature(self) -> float:
        return 1.0 if self.asking else self.talk.temperature

    def read(self, part: list[int], ids: Array, logprobs: Array) -> None:
        """The first of what waits, and what was likely to follow each of its tokens."""
        begin = len(self.tokens)
        self.likeliest += [(begin + i, ids[i], logprobs[i]) for i in range(len(part)) if begin + i >= HEADER]
        self.tokens += part
        self.waiting = self.waiting[len(part) :]

    def take(self, token: int, end: int) -> None:
        """The model's next token, after all that waited has been read."""
        self.written += 1
        stopped = token == end
        cut = self.written >= (LONGEST_QUESTION if self.asking else LONGEST)
        if not stopped:
            self.waiting = [token]
        if stopped or cut:
            self.waiting = [] if stopped else self.waiting
            self.say(f"{END}\n")
            if self.asking:
                self.asking, self.written = False, 0
                self.say("<|im_start|>assistant\n")
            elif self.turns and not cut:
                self.next_turn()
            else:
                self.done = True


def likeliest(logits: Array) -> tuple[Array, Array]:
    """(rows, TOP) ids and log-probabilities."""
    rows = torch.from_numpy(logits)
    values, ids = rows.topk(TOP, dim=1)
    return ids.numpy().astype(np.uint16), (values - rows.logsumexp(1, keepdim=True)).numpy().astype(
        np.float16
    )


def draw(rng: np.random.Generator, ids: Array, logprobs: Array, temperature: float) -> int:
    if temperature == 0.0:
        return int(ids[0])
    gumbel = rng.gumbel(size=len(ids))
    return int(ids[np.argmax(logprobs.astype(np.float64) / temperature + gumbel)])


def talks(teacher: Teacher, seed: int) -> Iterator[Slot]:
    """Finished conversations, for ever."""
    made, rng = conversations(seed), np.random.default_rng(seed)
    end = teacher.tokenize(END)[0]
    slots = [Slot(teacher, next(made)) for _ in range(SLOTS)]
    for at in range(SLOTS):
        teacher.forget(at)  # what a run before has left
    while True:
        for at, slot in enumerate(slots):
            # A prompt by itself: llama.cpp reads sequences together only in pieces of one length.
            while len(slot.waiting) > 1 and not slot.done:
                part = slot.waiting[: min(BATCH, len(slot.waiting) - 1)]
                rows = [(token, len(slot.tokens) + i, at, True) for i, token in enumerate(part)]
                ids, logprobs = likeliest(teacher.decode(rows))
                slot.read(part, ids, logprobs)
        alive = [at for at, slot in enumerate(slots) if slot.waiting and not slot.done]
        rows = [(slots[at].waiting[0], len(slots[at].tokens), at, True) for at in alive]
        if rows:
            ids, logprobs = likeliest(teacher.decode(rows))
            for row, at in enumerate(alive):
                slot = slots[at]
                slot.read(slot.waiting[:1], ids[row : row + 1], logprobs[row : row + 1])
                slot.take(draw(rng, ids[row], logprobs[row], slot.temperature), end)
        for at, slot in enumerate(slots):
            while slots[at].done:
                if slot.likeliest:
                    yield slot
                teacher.forget(at)
                slots[at] = slot = Slot(teacher, next(made))


def write(path: Path, slots: list[Slot]) -> None:
    """One shard: the conversations' tokens end to end, and of some of them what was likely to follow.

    tokens (n,) uint16; ends (conversations,); rows (m,): places in `tokens`; ids and logprobs (m, TOP).
    """
    starts = np.cumsum([0, *(len(slot.tokens) for slot in slots)])
    with whole(path) as part, part.open("wb") as file:
        np.savez(
            file,
            tokens=np.concatenate([slot.tokens for slot in slots]).astype(np.uint16),
            ends=starts[1:],
            rows=np.concatenate(
                [
                    [start + at for at, _, _ in slot.likeliest]
                    for start, slot in zip(starts, slots, strict=False)
                ]
            ),
            ids=np.stack([ids for slot in slots for _, ids, _ in slot.likeliest]),
            logprobs=np.stack([logprobs for slot in slots for _, _, logprobs in slot.likeliest]),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", type=Path, required=True, help="the GGUF file of the real model")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the shards")
    parser.add_argument("--seed", type=int, default=0, help="another for each process")
    parser.add_argument("--minutes", type=float, default=60.0)
    args = parser.parse_args()
    torch.set_num_threads(1)
    args.out.mkdir(parents=True, exist_ok=True)
    teacher = Teacher(unpacked(args.target, args.out))
    number = len(list(args.out.glob(f"shard-{args.seed}-*.npz")))
    began, kept, count, total = time.monotonic(), list[Slot](), 0, 0
    # a run that goes on asks other questions than before
    for slot in talks(teacher, args.seed * 1000 + number):
        kept.append(slot)
        count += len(slot.likeliest)
        if count >= SHARD:
            write(args.out / f"shard-{args.seed}-{number:04d}.npz", kept)
            total, number, kept, count = total + count, number + 1, [], 0
            seconds = time.monotonic() - began
            print(f"{seconds / 60:.1f} min  {total:,} tokens  {total / seconds:.0f} tokens/s", flush=True)
            if seconds > args.minutes * 60:
                return


if __name__ == "__main__":
    main()
