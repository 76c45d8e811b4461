"""The choice of a backend by the form of a model reference. Backends are imported when needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from paceline.backends.interface import Backend, BackendBuild, BackendModule, KernelStatus
from paceline.fits import LLAMA_CPP, TOY, TRANSFORMERS
from paceline.models.names import is_toy, is_transformers
from paceline.speculative.errors import UsageError
from paceline.system.home import file_fingerprint, home, make_private_folder
from paceline.text.interface import Tokenizer


def backend_name(path: Path) -> str:
    """Return the backend of a reference: a name of fits.BACKENDS."""
    return TOY if is_toy(path) else TRANSFORMERS if is_transformers(path) else LLAMA_CPP


def _backend(path: Path) -> BackendModule:
    """Import the backend of a reference. Raises MissingExtraError."""
    name = backend_name(path)
    if name == TOY:
        from paceline.backends import toy

        return toy
    if name == TRANSFORMERS:
        from paceline.backends.transformers.loading import import_libraries

        import_libraries()
        from paceline.backends.transformers import opener

        return opener
    from paceline.backends import llama_cpp

    return llama_cpp  # reports what is wrong with other files, too


def open_engine(path: Path, **settings: Any) -> Backend:
    """Load a model with a backend's settings. Raises UsageError, ModelError or MissingExtraError."""
    return _backend(path).open_engine(path, **settings)


def open_tokenizer(path: Path) -> Tokenizer:
    """Load a tokenizer; the file needs no weights. Raises UsageError, ModelError or MissingExtraError."""
    return _backend(path).open_tokenizer(path)


def backend_build(path: Path) -> BackendBuild:
    """Return the build facts of the backend of `path`. Raises MissingExtraError."""
    return _backend(path).build()


def kernel_status(path: Path) -> KernelStatus:
    """Return the state of Paceline's kernels in the backend of `path`. Raises MissingExtraError."""
    return _backend(path).kernel_status()


def resolve_kernels(path: Path, request: str) -> bool:
    """Return whether the backend of `path` computes with Paceline's kernels. Raises MissingExtraError.
    request: "auto" or "off"."""
    return request != "off" and kernel_status(path).path != ""


def quantised(path: Path, kind: str, threads: int) -> Path:
    """Return a copy of a GGUF model with weights of this type; it is made once, in Paceline's folder.
    Raises UsageError, ModelError or OSError."""
    if backend_name(path) != LLAMA_CPP:
        raise UsageError(f"{path}: only GGUF files are quantised")
    from paceline.backends.llama_cpp.quantise import quantise

    out = home() / "quantised" / f"{path.stem}-{file_fingerprint(path)[:12]}-{kind}.gguf"
    if not out.exists():
        make_private_folder(out.parent)
        quantise(path, out, kind, threads)
    return out


@dataclass(frozen=True)
class BackendSpec:
    """A model that is not loaded, and the backend's settings for it."""

    path: Path
    settings: Mapping[str, Any]

    def identity(self) -> dict[str, Any]:
        """See ModelSetup. Raises OSError if there is no such model, UsageError or MissingExtraError."""
        return _backend(self.path).identity(self.path, self.settings)
