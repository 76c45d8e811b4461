"""Kernels of our own for llama.cpp on a processor: a library that enters ggml's CPU backend.

mul_mat.cpp and flash_attention.cpp compute, path_*.cpp hold one instruction set each, entry.cpp the interface
that is called below; build.py compiles them. Without a compiler everything works as llama.cpp does it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from paceline.backends.interface import KernelStatus
from paceline.backends.llama_cpp.kernels import amx, build
from paceline.hardware.bandwidth import free_memory
from paceline.speculative.errors import KernelError, MissingExtraError

# Weights are laid out anew in memory of their own, where a mapped file could leave it under pressure: models
# that take more of the available memory than this are run without.
MEMORY_SHARE = 0.8

_library: ctypes.CDLL | None = None
_status: KernelStatus | None = None
_entering, _watching = threading.Lock(), threading.Lock()


def enter(path: str = "") -> KernelStatus:
    """Load the library, compiled first where that is still to do, and enter ggml; once a process, before the
    first model is loaded. path: the instruction set to use; "" for the best. Never raises for what is
    missing: the status tells."""
    global _status
    with _entering:
        if _status is None:
            _status = _entered(path)
        return _status


def _entered(path: str) -> KernelStatus:
    global _library
    from paceline.backends.llama_cpp import binding

    if os.name == "nt":
        return KernelStatus(reason="there are none for Windows")
    try:
        llama = binding.llama_cpp()._lib
        file = build.library(build.recipe_for())
        library = _loaded(file)
        if reason := _text(library.paceline_kernels_enter(path.encode(), llama._handle)):
            return KernelStatus(reason=reason)
        left = amx.left_to_amx(partial(_seconds, library), file)
    except (KernelError, MissingExtraError) as error:
        return KernelStatus(reason=str(error))
    for name in left:
        library.paceline_kernels_leave(amx.TYPES[name])
    _library = library
    active = _text(library.paceline_kernels_path())
    return KernelStatus(f"{active} ({', '.join(left)} by AMX)" if left else active)


def _seconds(library: ctypes.CDLL, number: int, rows: int, buffer: str) -> float:
    return float(library.paceline_kernels_seconds(number, rows, buffer.encode()))


def _loaded(file: Path) -> ctypes.CDLL:
    """Raises KernelError for a file that is no such library."""
    try:
        library = ctypes.CDLL(str(file))
        for name in ("enter", "path", "paths", "foreign"):
            getattr(library, f"paceline_kernels_{name}").restype = ctypes.c_char_p
        library.paceline_kernels_enter.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
        library.paceline_kernels_seconds.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p]
        library.paceline_kernels_seconds.restype = ctypes.c_double
        library.paceline_kernels_leave.argtypes = library.paceline_kernels_use.argtypes = [ctypes.c_int]
        for name in ("use", "leave", "watch"):
            getattr(library, f"paceline_kernels_{name}").restype = None
    except (OSError, AttributeError) as error:
        reason = f"the library cannot be loaded ({error})"
        build.reject(file, reason)
        raise KernelError(reason) from error
    return library


def _text(said: bytes) -> str:
    return said.decode(errors="replace")


def usable(sizes: Sequence[int], name: object) -> bool:
    """Whether a model can be loaded with the kernels: they are entered, and there is room for its weights.
    sizes: bytes of its files. Where only the room is missing, a line on stderr says so."""
    if not enter().path:
        return False
    size, free = sum(sizes), free_memory()
    if size <= MEMORY_SHARE * free:
        return True
    build.to_stderr(
        f"{name}: {size / 1e9:.1f} GB of weights and {free / 1e9:.1f} GB of free memory are too close to lay "
        "weights out anew: this model runs with llama.cpp's kernels"
    )
    return False


def use(on: bool) -> None:
    """Whether loads and passes of this thread use the kernels from now on."""
    if _library is not None:
        _library.paceline_kernels_use(int(on))


def paths() -> tuple[str, ...]:
    """Instruction sets that this processor can run kernels of, the best first; none before `enter`."""
    return () if _library is None else tuple(_text(_library.paceline_kernels_paths()).split())


def watch() -> None:
    """Begin to note which operations ggml computes itself, in the whole process."""
    if _library is not None:
        _library.paceline_kernels_watch()


def foreign() -> tuple[str, ...]:
    """Operations since `watch` whose rows may depend on what else is in a pass; what was noted is over."""
    return () if _library is None else tuple(_text(_library.paceline_kernels_foreign()).split())


def leaves_nothing_to_ggml(compute: Callable[[], None]) -> bool:
    """Whether the kernels compute all that the passes of `compute` compute from several rows at once. Passes
    of other threads meanwhile may make it say no."""
    if not enter().path:
        return False
    with _watching:
        watch()
        try:
            compute()
        finally:
            left = foreign()
    return not left
