"""The rows of one llama_decode call, gathered from every session and sent in one go."""

from __future__ import annotations

import ctypes
from typing import Any

from paceline.backends.llama_cpp.binding import MAX_SEQUENCES, llama_cpp


def _pointer(sequences: list[int]) -> Any:
    """To an array that lives as long as the pointer does."""
    array = (ctypes.c_int32 * len(sequences))(*sequences)
    return ctypes.cast(array, ctypes.POINTER(ctypes.c_int32))


class Batch:
    """Fixed arrays of `size` rows that llama.cpp reads in place."""

    def __init__(self, size: int) -> None:
        cpp = llama_cpp()
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
        self.size = size
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
        """llama_decode's return code: 0, or 1 where the cache has no room."""
        for i, sequences in enumerate(self._owners):
            self._n_seq[i] = len(sequences)
            if len(sequences) == 1:
                self._seqs[i] = self._single[sequences[0]]
            else:
                self._several.append(_pointer(sequences))
                self._seqs[i] = self._several[-1]
        self._batch.n_tokens = len(self._owners)
        return int(llama_cpp().llama_decode(context, self._batch))
