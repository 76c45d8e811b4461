"""Gather what the real model answers, and what else it would have said: `python -m tools.smollm2.answers`.

Conversations of `prompts.py` run side by side (`teacher.py`), one token of each a pass, whether it is read or
written: so every pass is the same work, on a GPU one CUDA graph. Answers and the turns that the model writes
itself are sampled among its 32 likeliest tokens, or greedy; at each token, read or written, the 12 likeliest
are kept with their log-probabilities. What the model has asked and answered goes into later conversations.
A shard is written whole; a run that was stopped goes on with the next one.
"""

from __future__ import annotations

import argparse
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from paceline.system.atomic import atomic_write
from tools.embedded.restore import tokenizer_of
from tools.smollm2.prompts import Conversation, Written, conversations
from tools.smollm2.teacher import Teacher

DRAWN, KEPT = 32, 12  # likeliest tokens that one is drawn from, and that are kept
SLOTS, ROOM = 2048, 1536  # conversations at once, and tokens of each: a cache of 72 GB
LONGEST = 320  # tokens of an answer
LONGEST_QUESTION = 160  # of a turn that the model writes
LONGEST_PROMPT = 1040  # of all that comes before an answer
LOOK = 16  # passes between two looks at what has ended
HEADER = 20  # tokens of the system prompt that are always alike
SHARD = 2_000_000  # tokens, in a file
READ_AGAIN = 4  # conversations of a look whose text is kept for later ones
END = "<|im_end|>"
SYSTEM = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"  # as the chat template has it
USER, ASSISTANT = "<|im_start|>user\n", "<|im_start|>assistant\n"
GIVEN, GENERATED = 1, 2  # who has written the token behind one: `kind` in a shard

Array = np.ndarray[Any, Any]
Encode = Callable[[str], list[int]]


class Talk:
    """A conversation on its way: its turns, who writes what comes next, and where that is cut."""

    def __init__(self, encode: Encode, talk: Conversation) -> None:
        self.encode, self.talk = encode, talk
        self.turns = list(talk.turns)
        self.asking = False
        self.limit = 0
        # empty where it is too long
        self.opening = self.turn(f"<|im_start|>system\n{talk.system or SYSTEM}{END}\n", 0) or []

    @property
    def temperature(self) -> float:
        return 1.0 if self.asking else self.talk.temperature

    def turn(self, before: str, position: int) -> list[int] | None:
        """Tokens of `before` and of the next turn, after `position` others; None where they are too many."""
        turn = self.turns.pop(0)
        self.asking = turn is None
        tokens = self.encode(before + USER + ("" if turn is None else f"{turn}{END}\n{ASSISTANT}"))
        self.limit = position + len(tokens) + (LONGEST_QUESTION if self.asking else LONGEST) - 1
        return tokens if position + len(tokens) <= LONGEST_PROMPT else None

    def next_turn(self, position: int, ended: bool) -> list[int] | None:
        """What follows the `position` tokens so far; ended: by the model itself, its last token being END.
        None where the conversation is over."""
        if self.asking:
            self.asking = False
            tokens = self.encode(f"{'' if ended else END}\n{ASSISTANT}")
            self.limit = position + len(tokens) + LONGEST - 1
            return tokens
        return self.turn("\n", position) if self.turns and ended else None


def likeliest(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """(values, ids), each (rows, count), in order. Of parts of 64 tokens only those with the highest maxima
    are looked through, which hold them all: far faster than a topk over everything."""
    parts = logits.view(len(logits), -1, 64)
    best = parts.amax(2).topk(count).indices
    values, at = parts.gather(1, best[:, :, None].expand(-1, -1, 64)).flatten(1).topk(count)
    return values, best.gather(1, at // 64) * 64 + at % 64


class Slots:
    """The conversations under way, on the device: their text (slots, ROOM), -1 where it is not written yet,
    and what was likely at each token; of each the position of its last token, whether it runs, its
    temperature, and the position at which it is cut."""

    def __init__(self, teacher: Teacher, slots: int, end: int, device: torch.device) -> None:
        self.teacher, self.end, self.device = teacher, end, device
        self.text = torch.full((slots, ROOM), -1, device=device)
        self.ids = torch.zeros((slots, ROOM, KEPT), dtype=torch.int32, device=device)
        self.logprobs = torch.zeros((slots, ROOM, KEPT), dtype=torch.float16, device=device)
        self.kind = torch.zeros((slots, ROOM), dtype=torch.uint8, device=device)
        self.position, self.limit = (torch.zeros(slots, dtype=torch.long, device=device) for _ in range(2))
        self.running = torch.zeros(slots, dtype=torch.bool, device=device)
        self.temperature = torch.zeros(slots, device=device)
        self.step: Callable[[], None] = self._captured() if device.type == "cuda" else self._step

    def _step(self) -> None:
        """Read a token of every slot, keep what is likely to follow, and write that where nothing is given. A
        slot that does not run reads its last token again, which changes nothing."""
        rows, position = self.teacher.rows, self.position
        logits = self.teacher.logits(self.text[rows, position].clamp(min=0), position)
        values, ids = likeliest(logits, DRAWN)
        logprobs = values - logits.logsumexp(1, keepdim=True)
        self.ids[rows, position] = ids[:, :KEPT].int()
        self.logprobs[rows, position] = logprobs[:, :KEPT].half()
        gumbel = -torch.empty_like(logprobs).exponential_().log()
        warmth = self.temperature[:, None]
        best = torch.where(warmth > 0, logprobs / warmth.clamp(min=1e-3) + gumbel, logprobs).argmax(1)
        drawn = ids.gather(1, best[:, None])[:, 0]
        after = self.text[rows, position + 1]
        writes = self.running & (after < 0)
        self.text[rows, position + 1] = torch.where(writes, drawn, after)
        self.kind[rows, position] = torch.where(writes, GENERATED, GIVEN).to(torch.uint8)
        self.position.add_(self.running)
        self.running.logical_and_(~(writes & (drawn == self.end)) & (self.position < self.limit))

    def _captured(self) -> Callable[[], None]:
        torch.set_float32_matmul_precision("high")  # tf32, of the output matrix
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._step()
        torch.cuda.current_stream().wait_stream(stream)
        graph: Any = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self._step()
        self.text.fill_(-1)  # what these two have written
        replay: Callable[[], None] = graph.replay
        return replay

    def state(self) -> tuple[Array, Array, Array]:
        """Position, whether it runs, and last token of each slot."""
        last = self.text[self.teacher.rows, self.position]
        seen = torch.stack((self.position, self.running.long(), last)).cpu().numpy()
        return seen[0], seen[1].astype(bool), seen[2]

    def feed(self, begins: Array, talks: dict[int, Talk], tokens: dict[int, list[int]]) -> None:
        """Let slots go on with given tokens, which stand from `begins[slot]` on; what begins at 0 is new."""
        if not talks:
            return
        slots = list(talks)
        at = [slot * ROOM + begins[slot] + np.arange(len(tokens[slot])) for slot in slots]
        new = self._sent([slot for slot in slots if begins[slot] == 0])
        self.text[new], self.kind[new], self.position[new] = -1, 0, 0
        self.text.view(-1)[self._sent(np.concatenate(at))] = self._sent(np.concatenate(list(tokens.values())))
        here = self._sent(slots)
        self.limit[here] = self._sent([talk.limit for talk in talks.values()])
        warmth = np.array([talk.temperature for talk in talks.values()], np.float32)
        self.temperature[here] = torch.from_numpy(warmth).to(self.device)
        self.running[here] = True

    def _sent(self, numbers: Any) -> Tensor:
        return torch.from_numpy(np.asarray(numbers, np.int64)).to(self.device)

    def collect(self, slots: list[int], positions: Array) -> dict[str, Array]:
        """What is known of conversations that are over, end to end, as a shard holds it (`write`)."""
        lengths = positions[slots] + 1
        here, at = self._sent(slots), torch.arange(int(lengths.max()), device=self.device)
        mask = at < self._sent(lengths)[:, None]
        kind = torch.where(at >= HEADER, self.kind[here, : len(at)], 0)[mask].cpu().numpy()
        kind[np.cumsum(lengths) - 1] = 0  # a last token has not been read
        return {
            "tokens": self.text[here, : len(at)][mask].cpu().numpy().astype(np.uint16),
            "ids": self.ids[here, : len(at)][mask].cpu().numpy().astype(np.uint16),
            "logprobs": self.logprobs[here, : len(at)][mask].cpu().numpy(),
            "kind": kind,
            "lengths": lengths,
        }


def gather(target: Path, seed: int, slots: int, device: torch.device) -> Iterator[dict[str, Array]]:
    """Finished conversations, some at a time, for ever."""
    torch.manual_seed(seed)
    tokenizer, written = tokenizer_of(target), Written()
    made = conversations(seed, written)

    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    def new() -> Talk:
        talk = Talk(encode, next(made))
        return talk if talk.opening else new()

    with torch.inference_mode():
        board = Slots(Teacher(target, slots, ROOM, device), slots, encode(END)[0], device)
        ready = deque(new() for _ in range(slots))
        talks = dict[int, Talk]()
        running, position, last = np.zeros(slots, bool), np.zeros(slots, np.int64), np.zeros(slots, np.int64)
        while True:
            begins, over, going, tokens = position + 1, list[int](), dict[int, Talk](), dict[int, list[int]]()
            for slot in np.flatnonzero(~running).tolist():
                more = None
                if slot in talks:
                    more = talks[slot].next_turn(int(begins[slot]), last[slot] == board.end)
                    over += [slot] if more is None else []
                if more is None:
                    talks[slot] = ready.popleft() if ready else new()
                    more, begins[slot] = talks[slot].opening, 0
                going[slot], tokens[slot] = talks[slot], more
            if over:
                part = board.collect(over, position)
                texts = np.split(part["tokens"], np.cumsum(part["lengths"])[:-1])
                for text in texts[:READ_AGAIN]:
                    written.read(tokenizer.decode(text.tolist(), skip_special_tokens=False))
                yield part
            board.feed(begins, going, tokens)
            for _ in range(LOOK):
                board.step()
            while len(ready) < slots // 8:  # while a GPU is at it
                ready.append(new())
            position, running, last = board.state()


def write(path: Path, parts: list[dict[str, Array]]) -> None:
    """One shard: conversations end to end, each of so many tokens as `lengths` says.

    tokens (n,) uint16; kind (n,) uint8, 0 where nothing is known, else GIVEN or GENERATED; ids (n, KEPT)
    uint16 and logprobs (n, KEPT) float16: what was likely to follow each token.
    """

    def joined(name: str) -> Array:
        return np.concatenate([one[name] for one in parts])

    with atomic_write(path) as part, part.open("wb") as file:
        np.savez(
            file,
            tokens=joined("tokens"),
            kind=joined("kind"),
            ids=joined("ids"),
            logprobs=joined("logprobs"),
            lengths=joined("lengths"),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--target", type=Path, required=True, help="the GGUF file of the real model")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the shards")
    parser.add_argument("--seed", type=int, default=0, help="another for each process")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--slots", type=int, default=SLOTS, help="conversations at once")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    number = len(list(args.out.glob(f"shard-{args.seed}-*.npz")))
    began, parts, count, total, over = time.monotonic(), list[dict[str, Array]](), 0, 0, False
    # a run that goes on asks other questions than before
    for part in gather(args.target, args.seed * 1000 + number, args.slots, torch.device(args.device)):
        parts.append(part)
        count += len(part["tokens"])
        seconds = time.monotonic() - began
        over = seconds > args.minutes * 60
        if count >= SHARD or over:
            write(args.out / f"shard-{args.seed}-{number:04d}.npz", parts)
            total, number, parts, count = total + count, number + 1, [], 0
            print(f"{seconds / 60:.1f} min  {total:,} tokens  {total / seconds:.0f} tokens/s", flush=True)
        if over:
            return


if __name__ == "__main__":
    main()
