"""Quantise a GGUF file with llama.cpp's own function."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from paceline.speculative.errors import ModelError, UsageError

ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR
# The file types that need no importance matrix: llama.cpp's number (enum llama_ftype), and bits of a weight.
FTYPES = {
    "F32": (0, 32.0), "F16": (1, 16.0), "BF16": (32, 16.0), "Q8_0": (7, 8.5), "Q4_0": (2, 4.5),
    "Q4_1": (3, 5.0), "Q5_0": (8, 5.5), "Q5_1": (9, 6.0), "Q2_K": (10, 3.2), "Q3_K_M": (12, 4.0),
    "Q4_K_M": (15, 4.9), "Q5_K_M": (17, 5.7), "Q6_K": (18, 6.6), "IQ4_NL": (25, 4.5), "IQ4_XS": (30, 4.3),
}  # fmt: skip


def check_ftype(ftype: str) -> str:
    """Return the file type's name in upper case. Raises UsageError for an unknown type."""
    name = ftype.upper()
    if name not in FTYPES:
        raise UsageError(f"unknown weight type {ftype!r}: use one of {', '.join(FTYPES)}")
    return name


def quantize(source: Path, out: Path, ftype: str, name: Path | None = None) -> None:
    """Write `source` as `ftype` to `out`, overwriting it, with all cores.

    name: the file named in errors; by default `source`. Raises ModelError if llama.cpp fails.
    """
    import llama_cpp

    if not source.is_file():  # llama.cpp would block on a pipe
        raise ModelError(f"{source}: is no file; give the path of a .gguf model")
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FTYPES[check_ftype(ftype)][0]
    params.nthread = os.cpu_count() or 1
    params.allow_requantize = True  # the shipped target is Q8_0 already
    with capture_errors() as errors:
        code = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(out), ctypes.byref(params))
    if code != 0:
        out.unlink(missing_ok=True)
        reason = errors[0] if errors else f"code {code}"
        raise ModelError(f"llama.cpp could not quantise {name or source} to {ftype}: {reason}")


@contextlib.contextmanager
def capture_errors() -> Iterator[list[str]]:
    """Collect llama.cpp's error messages and silence its other output, which reports every tensor."""
    import llama_cpp

    lines: list[str] = []

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]  # ctypes
    def keep(level: int, text: bytes, _user: object) -> None:
        if level == ERROR_LEVEL:
            lines.append(text.decode(errors="replace").strip())

    before, user = llama_cpp.llama_log_callback(), ctypes.c_void_p()
    llama_cpp.llama_log_get(ctypes.byref(before), ctypes.byref(user))
    llama_cpp.llama_log_set(keep, None)
    try:
        yield lines
    finally:
        llama_cpp.llama_log_set(before, user)
