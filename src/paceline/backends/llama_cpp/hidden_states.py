"""Hidden states of a pass, copied by ggml's evaluation callback (kernels/hidden_states.cpp)."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from paceline.backends.llama_cpp import binding, kernels
from paceline.speculative.errors import KernelError, ModelError

Hidden = NDArray[np.float32]  # [rows, layers, width]


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


class HiddenStateCapture(binding.EvalCallback):
    """Copies the inputs of layers.
    n_layers, width: of the model. stop: the layer before which passes end, 0 for none.
    Raises ModelError without Paceline's compiled library."""

    def __init__(self, path: Path, architecture: str, n_layers: int, width: int, stop: int = 0) -> None:
        self._path, self._architecture, self._n_layers = path, architecture, n_layers
        try:
            function = kernels.hidden_state_callback()
        except KernelError as error:
            raise ModelError(f"{path}: hidden states need Paceline's compiled library: {error}") from error
        self._capture = _Capture(width=width, last=n_layers, stop=stop)
        super().__init__(function, self._capture)

    @contextmanager
    def rows(self, layers: Sequence[int], n: int) -> Iterator[Hidden]:
        """Fill an array with the inputs of `layers` (ascending) for the `n` rows of a llama_decode.
        Raises ModelError if the pass does not show them."""
        struct, n_layers = self._capture, len(layers)
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
            name = "the final norm" if layer == self._n_layers else f"the output of layer {layer - 1}"
        found = f"{count} of {n} rows of {name}" if count else f"no tensor that is {name}"
        return (
            f"llama.cpp's graph of the architecture {self._architecture} shows {found}: "
            "drafts from hidden states cannot be had for this model; choose another drafter (--draft)"
        )
