"""An assistant: layers for multi-token prediction in a file of their own, for Gemma 4.

They have no keys and values but those of the target's last layers, which they read in the target's own cells.
So nothing of the text is computed, and drafted tokens see each other by the layers' output only: the rows of
a tree all have the root's position, and need no branches.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from paceline.backends.llama_cpp import binding
from paceline.backends.llama_cpp.mtp import MtpSession, Row
from paceline.backends.llama_cpp.mtp_sidecar import SeparateDraft
from paceline.heads.session import next_level
from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.header import read_parts
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import Session
from paceline.speculative.tree import DraftTree

if TYPE_CHECKING:
    from paceline.backends.llama_cpp.target import LlamaTarget


class AssistantDraft(SeparateDraft):
    """The assistant in the file `path`. Raises ModelError if it is another target's."""

    def __init__(self, target: LlamaTarget, path: Path) -> None:
        _check_target(path, target)
        super().__init__(target, path)
        target.cache.reset(target.context)  # whose cells llama.cpp has dropped

    def _as_draft(self, params: Any) -> None:
        super()._as_draft(params)
        cpp, target = binding.llama_cpp(), self.inner
        params.ctx_type, params.n_seq_max = cpp.LLAMA_CONTEXT_TYPE_MTP, target.cache.n_sequences
        params.n_ctx = cpp.llama_n_ctx(target.context)

    def open(self, beside: Session | None = None) -> AssistantSession:
        return AssistantSession(self, self.caps.n_ctx, beside)

    def reopen(self, session: Any, beside: Session | None) -> None:
        session.beside = beside


def _check_target(path: Path, target: LlamaTarget) -> None:
    """llama.cpp would read the target's cells beyond their bounds."""
    own, other = (read_parts(file, tokens=False)[0] for file in (path, target.path))
    layers = min(own.number("gemma4-assistant.block_count"), len(own.tensors))
    shapes = [_cache_shape(own, layer) for layer in range(layers)]
    if (
        target.model.architecture != "gemma4"
        or own.number("gemma4-assistant.embedding_length_out") != target.hidden_size
        or own.length("tokenizer.ggml.tokens") != target.vocab.size
        or shapes != [_cache_shape(other, -2 if is_windowed else -1) for is_windowed, *_ in shapes]
    ):
        raise ModelError(f"{path}: is the assistant (MTP) of another model than {target.path}")


def _cache_shape(header: GGUFFile, layer: int) -> tuple[int, int, int]:
    """Return of a layer whether it has a window, its heads of keys, and their size."""
    arch = header.text("general.architecture")

    def of(key: str) -> int:
        numbers = header.numbers(f"{arch}.attention.{key}") or [0]
        return numbers[layer % len(numbers)]

    is_windowed = of("sliding_window_pattern")
    return is_windowed, of("head_count_kv"), of("key_length_swa" if is_windowed else "key_length")


class AssistantSession(MtpSession):
    """A text in an assistant. beside: the target's session, None in measurements."""

    def __init__(self, draft: AssistantDraft, n_ctx: int, beside: Session | None) -> None:
        super().__init__(draft, n_ctx)
        self.beside: Any = beside
        self._state = np.zeros(draft.width, np.float32)  # of the token before the root

    @property
    def pending_tokens(self) -> int:
        return 0

    def _require_sequence(self) -> None:
        """Do nothing: the rows are in the target's sequence."""

    def observe(self, start: int, features: Any) -> None:
        if start + len(features) > self._known:
            self._state, self._known = features[-1, 0], start + len(features)

    def rewind(self, n: int) -> None:
        self.discard_tree()
        self.tokens, self._known = [], 0

    def next_rows(self, room: int) -> list[Row]:
        # Without a target's session, the target's last sequence is free.
        place, sequence = len(self.tokens) - 1, self._head.inner.cache.n_sequences - 1
        if self.beside is not None:
            slot = self.beside.slot
            place, sequence = slot.position(len(slot.cached)), slot.sequence
        if not self._rows:
            return [Row(self.tokens[-1], self._state, place, sequence, True)]
        tree = self._goal
        assert tree is not None
        return [
            Row(tree.tokens[node], self._outputs[tree.parents[node] + 1], place, sequence, True)
            for node in next_level(tree, len(self._rows) - 1, room)
        ]

    def _commit(self, tree: DraftTree, path: Sequence[int]) -> None:
        self._rewind()
