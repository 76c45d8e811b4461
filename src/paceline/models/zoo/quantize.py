"""Quantise a GGUF file with llama.cpp's own function."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Iterator
from pathlib import Path

from paceline.speculative.errors import ModelError, UsageError

# names of llama.cpp's file types (llama.h, enum llama_ftype); those that need importance weights are left out
FTYPES = {
    "F32": 0, "F16": 1, "BF16": 32, "Q8_0": 7, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10,
    "Q3_K_M": 12, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30,
}  # fmt: skip
ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR
BITS = {
    "F32": 32.0, "F16": 16.0, "BF16": 16.0, "Q8_0": 8.5, "Q4_0": 4.5, "Q4_1": 5.0, "Q5_0": 5.5, "Q5_1": 6.0,
    "Q2_K": 3.2, "Q3_K_M": 4.0, "Q4_K_M": 4.9, "Q5_K_M": 5.7, "Q6_K": 6.6, "IQ4_NL": 4.5, "IQ4_XS": 4.3,
}  # fmt: skip


def check_ftype(ftype: str) -> str:
    """The type's upper-case name; raises UsageError for one that the zoo doesn't write."""
    name = ftype.upper()
    if name not in FTYPES:
        raise UsageError(f"unknown weight type {ftype!r}: use one of {', '.join(FTYPES)}")
    return name


def quantize(source: Path, out: Path, ftype: str, name: Path | None = None) -> None:
    """Write `source` as `ftype` to `out` (which it overwrites), on all cores.

    name: what an error calls the work; by default `source`. Raises ModelError when llama.cpp refuses.
    """
    import llama_cpp

    if not source.is_file():  # a pipe would hold llama.cpp for ever
        raise ModelError(f"{source}: is no file; give the path of a .gguf model")

    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FTYPES[check_ftype(ftype)]
    params.nthread = os.cpu_count() or 1
    # the shipped target is Q8_0 already when it is read back as a source
    params.allow_requantize = True
    with capture_errors() as value:
        code = llama_cpp.llama_model_quantize(os.fsencode(source), os.fsencode(out), ctypes.byref(params))
    if code != 0:
        out.unlink(missing_ok=True)
        reason = value[0] if value else f"code {code}"
        raise ModelError(f"llama.cpp could not quantise {name or source} to {ftype}: {reason}")


@contextlib.contextmanager
def capture_errors() -> Iterator[list[str]]:
    """llama.cpp reports every tensor on stderr: keep its errors only, and put its log back afterwards."""
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
