"""Hidden states of a pass, copied by ggml's evaluation callback (kernels/hidden_states.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from paceline.backends.llama_cpp.batch import Batch
from paceline.backends.llama_cpp.extras import EvalCallback, Hidden
from paceline.speculative.errors import ModelError

if TYPE_CHECKING:
    from paceline.backends.llama_cpp.target import LlamaTarget


class _Capture(ctypes.Structure):
    """The struct Capture of hidden_states.cpp."""

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("rows", ctypes.c_int64),
        ("width", ctypes.c_int32),
        ("n", ctypes.c_int32),
        ("last", ctypes.c_int32),
        ("stop", ctypes.c_int32),
        ("layers", ctypes.POINTER(ctypes.c_int32)),
        ("copied", ctypes.POINTER(ctypes.c_int64)),
    )


class HiddenStates(EvalCallback):
    """Copies the inputs of layers. The callback enters a new context the first time they are wanted: open
    sessions then compute their tokens again.
    stop: the layer before which passes end, 0 for none."""

    purpose = "hidden states"
    function = "paceline_hidden_states_capture"

    def __init__(self, path: Path, stop: int = 0) -> None:
        self._capture = _Capture(stop=stop)
        super().__init__(path, self._capture)
        if stop:
            self.load()

    def attach(self, target: LlamaTarget) -> None:
        self.layers = range(target.layers + 1)
        self._capture.last, self._capture.width = target.layers, target.hidden_size
        self._architecture = target.model.architecture

    def prepare(self, target: LlamaTarget, sessions: int) -> None:
        if sessions > 1 and target.cache.stateful:  # llama.cpp may reorder the rows of such sessions
            raise ModelError(f"{self._path}: shows the hidden states of one session at a time only")
        if self._callback is None:
            self.load()
            target.renew_context()

    def needs_all_outputs(self, layers: Sequence[int]) -> bool:
        """The final norm computes rows with logits only."""
        return layers[-1] == self.layers.stop - 1

    @contextmanager
    def around_pass(self, batch: Batch, layers: Sequence[int], *, prefill: bool) -> Iterator[Hidden]:
        """Fill an array with the inputs of `layers` (ascending) for all rows.
        Raises ModelError if the pass does not show them."""
        struct, n, n_layers = self._capture, len(batch), len(layers)
        out = np.empty((n, n_layers, struct.width), np.float32)
        copied = (ctypes.c_int64 * n_layers)()
        struct.layers, struct.copied = (ctypes.c_int32 * n_layers)(*layers), copied
        struct.rows, struct.n, struct.out = n, n_layers, out.ctypes.data
        try:
            yield out
        finally:
            struct.out = None
        for layer, count in zip(layers, copied, strict=True):
            if count != n:
                raise ModelError(f"{self._path}: {self._missing(layer, count, n)}")

    def _missing(self, layer: int, count: int, n: int) -> str:
        if layer == 0:
            name = "the token embeddings"
        else:
            name = "the final norm" if layer == self.layers.stop - 1 else f"the output of layer {layer - 1}"
        found = f"{count} of {n} rows of {name}" if count else f"no tensor that is {name}"
        return (
            f"llama.cpp's graph of the architecture {self._architecture} shows {found}: this model does not "
            "expose hidden states, which this drafter needs; choose another drafter (--draft)"
        )
