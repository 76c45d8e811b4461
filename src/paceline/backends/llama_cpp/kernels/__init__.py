"""Kernels of our own for llama.cpp on a processor: a library that enters ggml's CPU backend.

Without a compiler everything works as llama.cpp does it."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Sequence
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


def load_kernels(path: str = "") -> KernelStatus:
    """Load the library, compiled first if needed, and enter ggml; once a process, before the first model is
    loaded. path: the instruction set to use, or "" for the best."""
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
        if reason := library.paceline_kernels_enter(path.encode(), llama._handle):
            return KernelStatus(reason=reason.decode())
        left = amx.types_faster_with_amx(
            lambda n, rows, to: library.paceline_kernels_seconds(n, rows, to.encode()), file
        )
    except (KernelError, MissingExtraError) as error:
        return KernelStatus(reason=str(error))
    for name in left:
        library.paceline_kernels_leave(amx.TYPES[name])
    _library = library
    active = library.paceline_kernels_path().decode()
    return KernelStatus(f"{active} ({', '.join(left)} by AMX)" if left else active)


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
        build.mark_failed(file, reason)
        raise KernelError(reason) from error
    return library


def fits_memory(sizes: Sequence[int], name: object) -> bool:
    """Return whether a model whose files have these sizes can be loaded with the kernels. A line on stderr
    says where only the room is missing."""
    if not load_kernels().path:
        return False
    size, free = sum(sizes), free_memory()
    if size <= MEMORY_SHARE * free:
        return True
    build.to_stderr(
        f"{name}: {size / 1e9:.1f} GB of weights and {free / 1e9:.1f} GB of free memory are too close to lay "
        "weights out anew: this model runs with llama.cpp's kernels"
    )
    return False


def set_enabled(on: bool) -> None:
    """Whether loads and passes of this thread use the kernels from now on."""
    if _library is not None:
        _library.paceline_kernels_use(int(on))


def paths() -> tuple[str, ...]:
    """Return the instruction sets that this processor runs kernels of, the best first."""
    return () if _library is None else tuple(_library.paceline_kernels_paths().decode().split())


def start_watching_ggml() -> None:
    """Begin to note which operations ggml computes itself, in the whole process."""
    if _library is not None:
        _library.paceline_kernels_watch()


def ggml_operations() -> tuple[str, ...]:
    """Return the operations since `watch` whose rows may depend on what else is in a pass."""
    return () if _library is None else tuple(_library.paceline_kernels_foreign().decode().split())


def covers_all_operations(compute: Callable[[], None]) -> bool:
    """Return whether the kernels compute all that the passes of `compute` compute from several rows at
    once."""
    if not load_kernels().path:
        return False
    with _watching:
        start_watching_ggml()
        try:
            compute()
        finally:
            left = ggml_operations()
    return not left
