"""The batch of one llama_decode call over several sessions, and its logits."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.common import PassOutput
from paceline.backends.llama_cpp import kernels as own_kernels
from paceline.backends.llama_cpp import placement
from paceline.backends.llama_cpp.binding import MAX_SEQUENCES, helpers, llama_cpp
from paceline.backends.llama_cpp.extras import Hidden
from paceline.speculative.errors import ModelError

OUT_OF_CELLS = 1  # llama_decode's code for "no KV slot"


def _pointer(sequences: list[int]) -> Any:
    """Return a pointer that keeps its array alive."""
    array = (ctypes.c_int32 * len(sequences))(*sequences)
    return ctypes.cast(array, ctypes.POINTER(ctypes.c_int32))


class Batch:
    """Fixed arrays of `size` rows that llama.cpp reads in place; at most `max_outputs` have logits.
    states: [size, width], read beside the tokens; without a width there are none.
    tokens: False if states alone are read. kernels: whether Paceline's compute. path: of the model."""

    def __init__(
        self,
        size: int,
        max_outputs: int,
        n_vocab: int,
        width: int = 0,
        *,
        path: Path,
        kernels: bool,
        tokens: bool = True,
    ) -> None:
        cpp = llama_cpp()
        self._path, self._kernels = path, kernels
        self._shape = max_outputs, n_vocab
        self._address = 0  # of `_logits`
        self._token = (ctypes.c_int32 * size)()
        self.states = np.zeros((size, width), np.float32)
        self._pos = (ctypes.c_int32 * (size if tokens else 4 * size))()  # M-RoPE reads four, and uses one
        self._n_seq = (ctypes.c_int32 * size)()
        self._wanted = (ctypes.c_int8 * size)()
        self._seqs = (ctypes.POINTER(ctypes.c_int32) * size)()
        # Most rows belong to one sequence: these arrays and pointers are made once.
        self._single = [_pointer([i]) for i in range(MAX_SEQUENCES)]
        self._several: list[Any] = []  # the other pointers, alive while llama.cpp reads them
        self._batch = cpp.llama_batch(
            n_tokens=0,
            token=self._token if tokens else None,
            embd=self.states.ctypes.data_as(ctypes.POINTER(ctypes.c_float)) if width else None,
            pos=self._pos,
            n_seq_id=self._n_seq,
            seq_id=self._seqs,
            logits=self._wanted,
        )
        self._owners: list[list[int]] = []
        self._all_outputs = False
        self.outputs = 0

    def __len__(self) -> int:
        return len(self._owners)

    def clear(self, *, all_outputs: bool = False) -> None:
        """Start a new batch. all_outputs: give logits to all rows, as the final norm computes only these."""
        self._all_outputs = all_outputs
        self._owners.clear()
        self._several.clear()
        self.outputs = 0

    def add(self, token: int, pos: int, sequences: list[int], wanted: bool) -> None:
        """Add a row. Branches can be added to `sequences` until the batch is decoded."""
        i, wanted = len(self._owners), wanted or self._all_outputs
        self._token[i] = token
        self._pos[i] = pos
        self._wanted[i] = wanted
        self._owners.append(sequences)
        self.outputs += wanted

    def decode(self, context: Any) -> None:
        """Compute the rows. Raises ModelError."""
        assert self.outputs <= self._shape[0], f"{self.outputs} rows in one pass (Caps.max_batch_tokens)"
        for i, sequences in enumerate(self._owners):
            self._n_seq[i] = len(sequences)
            if len(sequences) == 1:
                self._seqs[i] = self._single[sequences[0]]
            else:
                self._several.append(_pointer(sequences))
                self._seqs[i] = self._several[-1]
        self._batch.n_tokens = len(self._owners)
        placement.before_pass(context, helpers())
        own_kernels.set_enabled(self._kernels)
        code = llama_cpp().llama_decode(context, self._batch)
        helpers().on_compute()
        if code == OUT_OF_CELLS:
            raise ModelError(f"{self._path}: the KV cache is full; ask for a larger context (n_ctx, -c)")
        if code:
            raise ModelError(f"{self._path}: llama_decode failed with code {code}")

    def logits(self, context: Any) -> NDArray[np.float32]:
        """Return the logits of the last pass [outputs, n_vocab], a view of llama.cpp's buffer."""
        if self.outputs == 0:
            return np.empty((0, self._shape[1]), dtype=np.float32)
        buffer = llama_cpp().llama_get_logits(context)
        address = ctypes.addressof(buffer.contents)
        if address != self._address:  # as_array is slow, and the buffer rarely moves
            self._address = address
            self._logits = np.ctypeslib.as_array(buffer, shape=self._shape)
        return self._logits[: self.outputs]


class LlamaForward(PassOutput):
    """Rows in llama.cpp's output buffer."""

    def add_prefill(self, n: int, start: int, hidden: Sequence[Hidden]) -> None:
        """Count `n` tokens from position `start` on, which earlier passes prefilled; `hidden` is theirs."""
        self.computed += n
        if hidden:
            own = [] if self.features.hidden is None else [self.features.hidden]
            states = np.concatenate([*hidden, *own])
            self.features = replace(self.features, hidden=states, lead=n, start=start)

    def logits(self, row: int) -> NDArray[np.float32]:
        out: NDArray[np.float32] = self._rows[self._place(row)]
        return out
