"""Paceline's CPU kernels for llama.cpp: a library that hooks into ggml's CPU backend.

Without a compiler, llama.cpp's kernels compute everything."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from paceline.backends.interface import KernelStatus
from paceline.backends.llama_cpp.kernels import amx, build, matrices
from paceline.hardware.probe import free_memory
from paceline.models.headers.header import split_part_paths
from paceline.speculative.errors import KernelError, MissingExtraError
from paceline.system.home import to_stderr

# The kernels copy weights into another layout. Unlike a mapped file, the copy cannot leave memory under
# pressure: models above this share of the available memory run without.
MEMORY_SHARE = 0.8

_library: ctypes.CDLL | None = None
_status: KernelStatus | None = None
_entering, _watching = threading.Lock(), threading.Lock()


def load_kernels() -> KernelStatus:
    """Compile the library if needed, load it and hook into ggml: once a process, before the first model."""
    global _status
    with _entering:
        if _status is None:
            _status = _hook_into_ggml()
        return _status


def _hook_into_ggml() -> KernelStatus:
    global _library
    try:
        library, file, llama = _compiled_library()
        if reason := library.paceline_kernels_enter(b"", llama):
            return KernelStatus(reason=reason.decode())
        amx_types = amx.types_faster_with_amx(
            lambda n, rows, to: library.paceline_kernels_seconds(n, rows, to.encode()), file
        )
    except (KernelError, MissingExtraError) as error:
        return KernelStatus(reason=str(error))
    for name in amx_types:
        library.paceline_kernels_leave(amx.TYPES[name])
    _library = library
    active = library.paceline_kernels_path().decode()
    return KernelStatus(f"{active} ({', '.join(amx_types)} by AMX)" if amx_types else active)


def library_for_callbacks() -> ctypes.CDLL:
    """Return the library with ggml's evaluation callbacks. Raises KernelError if it cannot be used."""
    library, _, llama = _compiled_library()
    if reason := library.paceline_callbacks_enter(llama):
        raise KernelError(reason.decode())
    return library


def make_linear(weight: Any, bias: Any, threads: int) -> matrices.KernelLinear | None:
    """Return the product with a matrix [outputs, inputs]; None if kernels are not in use, or not faster."""
    if _library is None or weight.size < matrices.MIN_WEIGHTS:
        return None
    return matrices.KernelLinear(_library, weight, bias, threads=threads)


def _compiled_library() -> tuple[ctypes.CDLL, Path, int]:
    """Return the library, its file, and llama.cpp's handle. Raises KernelError or MissingExtraError."""
    from paceline.backends.llama_cpp import binding

    llama: int = binding.llama_cpp()._lib._handle
    file = build.library(build.recipe_for())
    return _load_library(file), file, llama


def _load_library(file: Path) -> ctypes.CDLL:
    """Load the library and declare its functions. Raises KernelError for another file."""
    try:
        library = ctypes.CDLL(str(file))
        for name in ("enter", "path", "paths", "foreign"):
            getattr(library, f"paceline_kernels_{name}").restype = ctypes.c_char_p
        library.paceline_kernels_enter.argtypes = [ctypes.c_char_p, ctypes.c_void_p]
        library.paceline_kernels_seconds.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_char_p]
        library.paceline_kernels_seconds.restype = ctypes.c_double
        library.paceline_kernels_leave.argtypes = library.paceline_kernels_use.argtypes = [ctypes.c_int]
        library.paceline_kernels_load.argtypes = [ctypes.c_char_p]
        for name in ("use", "leave", "watch", "load"):
            getattr(library, f"paceline_kernels_{name}").restype = None
        library.paceline_callbacks_enter.restype = ctypes.c_char_p
        library.paceline_callbacks_enter.argtypes = [ctypes.c_void_p]
        matrices.declare(library)
    except (OSError, AttributeError) as error:
        reason = f"the library cannot be loaded ({error})"
        build.mark_failed(file, reason)
        raise KernelError(reason) from error
    return library


def fits_memory(path: Path, *, shares: bool = False) -> bool:
    """Return whether a model can use the kernels.
    shares: another load of its files is open that uses them.
    A line on stderr reports too little memory."""
    if not load_kernels().path:
        return False
    if shares:  # another load has laid the weights out
        return True
    size, free = sum(part.stat().st_size for part in split_part_paths(path) if part.is_file()), free_memory()
    if size <= MEMORY_SHARE * free:
        return True
    to_stderr(
        f"{path}: {size / 1e9:.1f} GB of weights and {free / 1e9:.1f} GB of free memory are too close to lay "
        "weights out anew: this model runs with llama.cpp's kernels"
    )
    return False


def sharing_key(path: Path) -> bytes:
    """Return what the loads of a file are known by, b"" for no file."""
    try:
        stats = [part.stat() for part in split_part_paths(path)]
    except OSError:
        return b""
    parts = [(s.st_dev, s.st_ino, s.st_size, s.st_mtime_ns) for s in stats]
    return os.fsencode(path.resolve()) + repr(parts).encode()


@contextmanager
def sharing(key: bytes) -> Iterator[None]:
    """Let the model that this thread loads share repacked weights with other loads of the file.
    key: its `sharing_key`."""
    if _library is None:
        yield
        return
    _library.paceline_kernels_load(key)
    try:
        yield
    finally:
        _library.paceline_kernels_load(b"")


def set_enabled(on: bool) -> None:
    """Switch the kernels on or off for loads and passes of this thread."""
    if _library is not None:
        _library.paceline_kernels_use(int(on))


def paths() -> tuple[str, ...]:
    """Return the instruction sets of kernels that this processor runs, the best first."""
    return () if _library is None else tuple(_library.paceline_kernels_paths().decode().split())


def foreign_operations(compute: Callable[[], object]) -> tuple[str, ...]:
    """Return ggml's operations in passes of `compute` whose rows may depend on the other rows of a pass."""
    if _library is None:
        compute()
        return ()
    with _watching:  # ggml records the operations of the whole process
        _library.paceline_kernels_watch()
        try:
            compute()
        finally:
            operations = _library.paceline_kernels_foreign()
    return tuple(operations.decode().split())
