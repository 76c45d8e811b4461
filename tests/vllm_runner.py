"""vLLM's side of a drafter's class, as its first model runner has it (0.33, v1/worker/gpu_model_runner.py,
gpu_input_batch.py): arrays of texts, rows that move, prompts that are read in parts, greedy verification.

Texts are known beforehand: what a greedy target says does not depend on drafts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np


def vllm_config(
    n_draft: int = 4,
    n_ctx: int = 512,
    n_vocab: int = 1 << 16,
    paceline: Mapping[str, Any] | None = None,
    stages: int = 1,
    tokenizer: str = "",
) -> Any:
    """Return the parts of a VllmConfig that the class reads."""
    names = {"model": tokenizer, "tokenizer": tokenizer}
    return SimpleNamespace(
        speculative_config=SimpleNamespace(num_speculative_tokens=n_draft),
        model_config=SimpleNamespace(max_model_len=n_ctx, get_vocab_size=lambda: n_vocab, **names),
        parallel_config=SimpleNamespace(pipeline_parallel_size=stages),
        additional_config={} if paceline is None else {"paceline": paceline},
    )


@dataclass(eq=False)
class Served:
    """A request: its prompt and what the target will say. said: how much of that is out. pending_tokens:
    steps for which its prompt is still being read."""

    prompt: list[int]
    answer: list[int]
    pending_tokens: int = 0
    said: int = 0
    draft: list[int] = field(default_factory=list)
    drafted: int = 0
    accepted: int = 0

    @property
    def text(self) -> list[int]:
        return self.prompt + self.answer[: self.said]

    @property
    def ended(self) -> bool:
        return self.said >= len(self.answer)


class Runner:
    """Owns the batch. drafter: the class's instance, or anything with its `propose`."""

    def __init__(self, drafter: Any, rows: int = 8, n_ctx: int = 512) -> None:
        self.drafter = drafter
        self.batch: list[Served] = []
        self._texts = np.zeros((rows, n_ctx), np.int32)
        self._lengths = np.zeros(rows, np.int32)

    def add(self, request: Served) -> Served:
        self.batch.append(request)
        return request

    def swap(self, i: int, j: int) -> None:
        self.batch[i], self.batch[j] = self.batch[j], self.batch[i]

    def leave(self) -> None:
        """Remove ended requests. The last row moves to the empty one and keeps its old contents, as in vLLM's
        `condense`."""
        for request in [one for one in self.batch if one.ended]:
            self.batch[self.batch.index(request)] = self.batch[-1]
            self.batch.pop()

    def step(self) -> list[list[int]]:
        """Run one pass over the batch and return the drafts for the next one."""
        sampled = [self._sampled(request) for request in self.batch]
        for row, request in enumerate(self.batch):
            self._texts[row, : len(request.text)] = request.text
            self._lengths[row] = len(request.text)
        drafts: list[list[int]] = self.drafter.propose(
            sampled, self._lengths, self._texts, slot_mappings=None
        )
        assert len(drafts) == len(self.batch)
        for request, draft in zip(self.batch, drafts, strict=True):
            request.draft = draft
        return drafts

    def run(self) -> None:
        """Until all have ended and left."""
        while self.batch:
            self.step()
            self.leave()

    def _sampled(self, request: Served) -> Sequence[int]:
        """Return the draft tokens that verification accepts, and the target's own token."""
        if request.pending_tokens:
            request.pending_tokens -= 1
            return []
        coming = request.answer[request.said :]
        n = 0
        while n < len(request.draft) and n < len(coming) and request.draft[n] == coming[n]:
            n += 1
        request.drafted += len(request.draft)
        request.accepted += n
        sampled = coming[: n + 1]
        request.said += len(sampled)
        return sampled
