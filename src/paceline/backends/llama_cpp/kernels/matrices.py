"""Products with matrices that belong to no model, such as those of draft heads (kernels/matrix.cpp)."""

from __future__ import annotations

import ctypes
import weakref
from typing import Any

import numpy as np
from numpy.typing import NDArray

TYPES = {"f32": 0, "f16": 1, "q4_0": 2, "q8_0": 8, "bf16": 30}  # ggml's numbers
DEFAULT_TYPE = "q8_0"
# A row of a smaller product takes numpy less than a call of the library. From here on, numpy's BLAS starts
# threads, which compete with those of the model.
MIN_WEIGHTS = 9_216


class KernelLinear:
    """A product with a matrix [outputs, inputs], which is stored in a type of ggml's.
    bias: added to the outputs. threads: those of the model's passes, or 1.
    type_name: a type in TYPES. path: an instruction set, "" for the best.
    Raises MemoryError without memory for the copy."""

    def __init__(
        self,
        library: ctypes.CDLL,
        weight: NDArray[np.float32],
        bias: NDArray[np.float32] | None = None,
        *,
        threads: int = 1,
        type_name: str = DEFAULT_TYPE,
        path: str = "",
    ) -> None:
        weight = np.ascontiguousarray(weight, np.float32)
        self.shape = outputs, self._inputs = weight.shape
        self._outputs, self._bias, self._threads = outputs, bias, threads
        handle = library.paceline_matrix_new(
            path.encode(), TYPES[type_name], weight.ctypes.data, outputs, self._inputs
        )
        if not handle:
            raise MemoryError(f"a matrix of {outputs:,} x {self._inputs:,} weights has no place in memory")
        self._handle, self._multiply = handle, library.paceline_matrix_multiply
        self.nbytes = int(library.paceline_matrix_bytes(handle))
        weakref.finalize(self, library.paceline_matrix_free, handle)

    def __call__(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return [n, outputs], of inputs [n, inputs]."""
        x = np.ascontiguousarray(x, np.float32)
        n, width = x.shape
        assert width == self._inputs, f"{width} inputs, and the matrix has {self._inputs} columns"
        out = np.empty((n, self._outputs), np.float32)
        if not self._multiply(self._handle, x.ctypes.data, n, out.ctypes.data, self._threads):
            raise MemoryError(f"a product of {n:,} rows has no place in memory")
        if self._bias is not None:
            out += self._bias
        return out


def declare(library: Any) -> None:
    """Declare the functions of a loaded library. Raises AttributeError if it lacks one."""
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    library.paceline_matrix_new.argtypes = [ctypes.c_char_p, ctypes.c_int, pointer, size, size]
    library.paceline_matrix_new.restype = pointer
    library.paceline_matrix_free.argtypes = library.paceline_matrix_bytes.argtypes = [pointer]
    library.paceline_matrix_free.restype = None
    library.paceline_matrix_bytes.restype = ctypes.c_uint64
    library.paceline_matrix_multiply.argtypes = [pointer, pointer, size, pointer, ctypes.c_int]
