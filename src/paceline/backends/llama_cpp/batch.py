"""The rows of one llama_decode call, gathered from every session, and the logits that come of them."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.llama_cpp.binding import MAX_SEQUENCES, llama_cpp
from paceline.speculative.errors import UsageError
from paceline.speculative.forward_output import LogitsOutput, node_position
from paceline.speculative.interfaces import NO_FEATURES, Features, RequiredOutputs
from paceline.speculative.sampling import filter_top_k


def _pointer(sequences: list[int]) -> Any:
    """To an array that lives as long as the pointer does."""
    array = (ctypes.c_int32 * len(sequences))(*sequences)
    return ctypes.cast(array, ctypes.POINTER(ctypes.c_int32))


class Batch:
    """Fixed arrays of `size` rows that llama.cpp reads in place; at most `max_outputs` have logits."""

    def __init__(self, size: int, max_outputs: int, n_vocab: int) -> None:
        cpp = llama_cpp()
        self._shape = max_outputs, n_vocab
        self._address = 0  # of `_logits`, of whose rows only those of the last pass are llama.cpp's
        self._token = (ctypes.c_int32 * size)()
        self._pos = (ctypes.c_int32 * size)()
        self._n_seq = (ctypes.c_int32 * size)()
        self._wanted = (ctypes.c_int8 * size)()
        self._seqs = (ctypes.POINTER(ctypes.c_int32) * size)()
        # The usual row belongs to one sequence: those arrays, and pointers to them, are made once.
        self._single = [_pointer([i]) for i in range(MAX_SEQUENCES)]
        self._several: list[Any] = []  # the others, kept alive while llama.cpp reads them
        self._batch = cpp.llama_batch(
            n_tokens=0,
            token=self._token,
            embd=None,
            pos=self._pos,
            n_seq_id=self._n_seq,
            seq_id=self._seqs,
            logits=self._wanted,
        )
        self._owners: list[list[int]] = []
        self.outputs = 0

    def __len__(self) -> int:
        return len(self._owners)

    def clear(self) -> None:
        self._owners.clear()
        self._several.clear()
        self.outputs = 0

    def add(self, token: int, pos: int, sequences: list[int], wanted: bool) -> None:
        """`sequences` is read when the batch is decoded: branches below may still be added to it."""
        i = len(self._owners)
        self._token[i] = token
        self._pos[i] = pos
        self._wanted[i] = wanted
        self._owners.append(sequences)
        self.outputs += wanted

    def decode(self, context: Any) -> int:
        """Return llama_decode's code: 0, or 1 where the cache has no room."""
        if self.outputs > self._shape[0]:
            raise UsageError(f"{self.outputs} rows in one pass, at most {self._shape[0]}: draft less")
        for i, sequences in enumerate(self._owners):
            self._n_seq[i] = len(sequences)
            if len(sequences) == 1:
                self._seqs[i] = self._single[sequences[0]]
            else:
                self._several.append(_pointer(sequences))
                self._seqs[i] = self._several[-1]
        self._batch.n_tokens = len(self._owners)
        return int(llama_cpp().llama_decode(context, self._batch))

    def logits(self, context: Any) -> NDArray[np.float32]:
        """Return the logits of the last pass [outputs, n_vocab]: llama.cpp's own buffer, not a copy."""
        if self.outputs == 0:
            return np.empty((0, self._shape[1]), dtype=np.float32)
        buffer = llama_cpp().llama_get_logits(context)
        address = ctypes.addressof(buffer.contents)
        if address != self._address:  # an array of foreign memory takes a while to make, and it rarely moves
            self._address = address
            self._logits = np.ctypeslib.as_array(buffer, shape=self._shape)
        return self._logits[: self.outputs]


class LlamaForward(LogitsOutput):
    """Rows `first`, `first + 1`, ... of one session, viewed in llama.cpp's output buffer.

    is_last: whether this is still the target's last pass."""

    def __init__(
        self, is_last: Callable[[], bool], rows: NDArray[np.float32], first: int, want: RequiredOutputs
    ) -> None:
        self._is_last, self._rows, self._first = is_last, rows, first
        top = want.top_k > 0 and len(rows) > 0
        features = Features(np.stack([filter_top_k(row, want.top_k) for row in rows])) if top else NO_FEATURES
        super().__init__(len(rows), features)

    def logits(self, row: int) -> NDArray[np.float32]:
        rows = range(self._first, self._first + len(self._rows))
        out: NDArray[np.float32] = self._rows[node_position(row, rows, self._is_last())]
        return out
