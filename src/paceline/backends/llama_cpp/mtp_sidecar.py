"""Drafts in files of their own, whose llama.cpp context reads the target's: the base of assistants, and heads
of GGUF files where the target's layers are on a GPU, driven as in llama.cpp's common/speculative.cpp."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.llama_cpp import binding, kernels
from paceline.backends.llama_cpp.batch import Batch
from paceline.backends.llama_cpp.extras import PassExtra
from paceline.backends.llama_cpp.model import LlamaSettings, LoadedModel
from paceline.backends.llama_cpp.mtp import MAX_OUTPUTS, MtpDraft, MtpSession, Row, shown_states
from paceline.heads.config import HeadConfig
from paceline.heads.draft_base import MAX_ROWS, HeadBase
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import Session
from paceline.system.home import file_fingerprint

if TYPE_CHECKING:
    from paceline.backends.llama_cpp.target import LlamaTarget


class Follower(PassExtra):
    """Makes the context of a draft again whenever the target's is, which it reads. Sessions go on without the
    tokens before."""

    def __init__(self, draft: MtpDraft) -> None:
        self._draft = draft

    def attach(self, target: LlamaTarget) -> None:
        self._draft.open_context()

    def detach(self) -> None:
        self._draft.free_context()


class SeparateDraft(MtpDraft):
    """Layers in the file `path`. config: of a draft head, None for MTP layers."""

    def __init__(self, target: LlamaTarget, path: Path, config: HeadConfig | None = None) -> None:
        model = LoadedModel(path, replace(target._settings, mtp=False, experts=0), ())
        try:
            super().__init__(target, model, config)
        except BaseException:
            model.close()
            raise
        self._follower = Follower(self)
        target.extras.append(self._follower)

    def _as_draft(self, params: Any) -> None:
        params.ctx_other = self.inner.context

    @property
    def description(self) -> str:
        return f"{binding.description(self._model.pointer)} ({'MTP' if self.kind == 'mtp' else 'draft head'})"

    def identity(self) -> dict[str, Any]:
        return {**super().identity(), "model": file_fingerprint(self.path)}

    def close(self) -> None:
        if self._follower in self.inner.extras:
            self.inner.extras.remove(self._follower)
        super().close()
        self._model.close()


class SidecarDraft(SeparateDraft):
    """A head of a GGUF file. head: the same, computed by us, which has checked the file."""

    has_lead, all_outputs = False, True

    def __init__(self, target: LlamaTarget, head: HeadBase) -> None:
        super().__init__(target, head.path, head.config)
        self._all_ids = head._ids

    def _as_draft(self, params: Any) -> None:
        super()._as_draft(params)
        params.n_batch = params.n_ubatch = MAX_OUTPUTS  # logits of all rows are reserved


class EagleDraft(SidecarDraft):
    """EAGLE-3. The encoder joins the hidden states of three layers into the state of a row of the text; a
    drafted token takes the layer's own output, as with MTP."""

    def _decode(self, rows: Sequence[Row], head: int, *, with_logits: bool) -> None:
        text = [i for i, row in enumerate(rows) if row.state.ndim > 1]
        rows = list(rows)
        if text:
            states = self._encode(np.stack([rows[i].state.ravel() for i in text]))
            for i, state in zip(text, states, strict=True):
                rows[i] = replace(rows[i], state=state)
        super()._decode(rows, head, with_logits=with_logits)

    def _encode(self, features: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the states [rows, width] of rows of the text."""
        data = features.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        batch = binding.llama_cpp().llama_batch(n_tokens=len(features), embd=data)
        kernels.set_enabled(self._model.kernels)
        code = binding.llama_cpp().llama_encode(self._context, batch)
        binding.helpers().on_compute()
        if code:
            raise ModelError(f"{self.path}: llama_encode failed with code {code}")
        return shown_states(self._context, len(features), self.width).copy()


class BlockDraft(SidecarDraft):
    """DFlash. Rows of the text have hidden states and no token, those of a block tokens only."""

    def __init__(self, target: LlamaTarget, head: HeadBase) -> None:
        super().__init__(target, head)
        config, vocab = head.config, target.vocab.size
        given: Any = {"path": self.path, "kernels": self._model.kernels}
        width = len(config.layer_ids) * config.target.hidden
        states = Batch(MAX_ROWS, 1, vocab, width, tokens=False, **given)
        self._batches = states, Batch(MAX_ROWS, MAX_OUTPUTS, vocab, **given)
        self.max_depth = config.depth
        if config.markov:  # whose terms follow the likeliest tokens, not those of a tree
            self.caps = replace(self.caps, max_branches=1)

    def open_context(self) -> None:
        super().open_context()
        binding.llama_cpp().llama_set_causal_attn(self._context, self.config.causal_windows)

    def open(self, beside: Session | None = None) -> BlockRows:
        session = BlockRows(self, self.caps.n_ctx)
        self._sessions.add(session)
        return session

    def _decode(self, rows: Sequence[Row], head: int, *, with_logits: bool) -> None:
        self._batch = self._batches[rows[0].wants_logits]
        super()._decode(rows, head, with_logits=with_logits)


class BlockRows(MtpSession):
    """A text in a block head, whose block is computed after the text and drafts all depths at once."""

    _drafted: Any = ()  # by depth
    _knows_root = False  # the last hidden state before the root is in the cache

    @property
    def next_depth(self) -> int:
        return int(self._knows_root and not self._left)

    @property
    def has_rows(self) -> bool:
        return self._left > 0 or (self._goal is not None and len(self._drafted) == 0)

    def next_rows(self, room: int) -> list[Row]:
        start, config = 1 + self._next - self._first, self._head.config
        if not self.next_depth:
            states = self._features(min(room, self._left + (self._goal is not None)))
            return [Row(0, state.ravel(), start + i, self.sequence, False) for i, state in enumerate(states)]
        masks = [config.mask_token] * (config.depth - config.from_root)
        block = [
            Row(token, self._no_state[:0], start + 1 + i, self.sequence, True)
            for i, token in enumerate([self.tokens[-1], *masks])
        ]
        return block if len(block) <= room else []

    def take(self, computed: int, states: NDArray[np.float32], logits: NDArray[np.float32]) -> None:
        if len(logits):
            self._drafted = logits[-self._head.max_depth :].copy()
            self._head.truncate(self.sequence, 2 + self._next - self._first)  # the block's cells
        elif computed:
            self._knows_root = computed > self._left
            super().take(min(computed, self._left), states, logits)

    def end_pass(self) -> list[NDArray[np.float32]]:
        if self._goal is not None:
            new = (0, *self._goal.depths())[len(self._rows) :]
            self.computed += len(new)
            self._rows += [self._drafted[min(depth, len(self._drafted) - 1)] for depth in new]
        return super().end_pass()

    def _truncate(self, n: int) -> None:
        super()._truncate(n)
        self._drafted, self._knows_root = (), False


def offloads(settings: LlamaSettings) -> bool:
    """Return whether layers of the target are on a GPU, where its heads then are, too."""
    return settings.gpu_layers > 0 and bool(binding.llama_cpp().llama_supports_gpu_offload())


def kind_of_draft(head: HeadBase) -> type[SidecarDraft] | None:
    """Return what computes a head: an EAGLE-3 of one layer, a DFlash or a DSpark, in a GGUF file."""
    config = head.config
    is_eagle = head.kind == "eagle3" and config.n_layers == 1 and not config.windows
    is_block = head.kind == "block" and config.depth < MAX_OUTPUTS
    kind = EagleDraft if is_eagle else BlockDraft if is_block else None
    return kind if head.path.is_file() else None
