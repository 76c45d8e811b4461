"""A model's file once more, with its weights in another type."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from gguf_files import copied
from paceline.backends.llama_cpp import binding

KEPT = ("norm.weight", "ffn_gate_inp.weight", "attn_sinks.weight")  # as llama.cpp keeps them


def quantised(source: Path, out: Path, kind: Type) -> Path:
    """Quantise matrices as llama.cpp does, as far as their rows are whole blocks of the type."""
    block = gguf.GGML_QUANT_SIZES[kind][0]

    def change(tensor: Any) -> tuple[NDArray[Any], Type]:
        is_matrix = len(tensor.shape) > 1 and tensor.name.endswith(".weight")
        if not is_matrix or tensor.name.endswith(KEPT) or tensor.data.shape[-1] % block:
            return tensor.data, tensor.tensor_type
        return _quantised(tensor.data, kind), kind

    return copied(source, out, {}, change)


def _quantised(values: NDArray[np.float32], kind: Type) -> NDArray[np.uint8]:
    quantise = binding.llama_cpp()._lib.ggml_quantize_chunk
    quantise.restype = ctypes.c_size_t
    block, size = gguf.GGML_QUANT_SIZES[kind]
    values = np.ascontiguousarray(values, np.float32)
    *outer, width = values.shape
    n = values.size // width
    data = np.empty((*outer, width // block * size), np.uint8)
    to, of = (ctypes.c_void_p(array.ctypes.data) for array in (data, values))
    written = quantise(int(kind), of, to, ctypes.c_int64(0), ctypes.c_int64(n), ctypes.c_int64(width), None)
    assert written == data.nbytes
    return data
