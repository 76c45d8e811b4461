"""Quantised copies of a GGUF model, made by llama.cpp's own quantiser."""

from __future__ import annotations

import ctypes
from pathlib import Path

import llama_cpp

from paceline.speculative.errors import ModelError
from paceline.speculative.validation import unknown
from paceline.system.atomic import atomic_write

PREFIX = "LLAMA_FTYPE_MOSTLY_"
TYPES = {
    name.removeprefix(PREFIX): value for name, value in vars(llama_cpp).items() if name.startswith(PREFIX)
}


def quantise(source: Path, out: Path, kind: str, threads: int) -> None:
    """Write a copy of a model with weights of this type (Q8_0, Q4_K_M, ...), also from a quantised one.
    Raises UsageError for an unknown type, ModelError if llama.cpp cannot do it, and OSError."""
    if kind not in TYPES:
        raise unknown("quantisation", kind, sorted(TYPES))
    options = llama_cpp.llama_model_quantize_default_params()
    options.ftype, options.nthread, options.allow_requantize = TYPES[kind], threads, True
    with atomic_write(out) as part:
        paths = (str(source).encode(), str(part).encode())
        if llama_cpp.llama_model_quantize(*paths, ctypes.byref(options)) != 0:
            raise ModelError(f"{source}: llama.cpp cannot quantise it to {kind}")
