"""The table from a reference to the backend that opens it. A backend is imported when it is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.backends.interface import Backend, BackendBuild, BackendModule, KernelStatus
from paceline.models.names import is_toy, is_transformers
from paceline.speculative.errors import UsageError
from paceline.text.interface import Tokenizer

KERNELS = ("auto", "off")  # of the setting that takes a word


def _backend(path: Path) -> BackendModule:
    """Import the backend that opens a reference."""
    if is_toy(path):
        from paceline.backends import toy_backend

        return toy_backend
    if is_transformers(path):
        from paceline.backends.transformers.loading import import_libraries

        import_libraries()  # or MissingExtraError, before a module that imports them at its top
        from paceline.backends.transformers import opener

        return opener
    from paceline.backends import llama_cpp

    return llama_cpp  # which says what is wrong with anything but a GGUF file


def open_engine(path: Path, **settings: Any) -> Backend:
    """Load a model. settings: see BackendModule. Raises UsageError, ModelError or MissingExtraError."""
    return _backend(path).open_engine(path, **settings)


def open_tokenizer(path: Path) -> Tokenizer:
    """Load a model's tokenizer; its file may hold no more than the vocabulary. Raises like `open_engine`."""
    return _backend(path).open_tokenizer(path)


def backend_build(path: Path) -> BackendBuild:
    return _backend(path).build()


def kernel_status(path: Path) -> KernelStatus:
    return _backend(path).kernels_status()


def resolve_kernels(path: Path, request: str | bool) -> bool:
    """Return whether the backend of `path` computes with kernels of our own. asked: "auto", "off", or the
    backend's setting. Raises UsageError for another word, and MissingExtraError."""
    if isinstance(request, str) and request not in KERNELS:
        raise UsageError(f"kernels {request!r}: choose from {', '.join(KERNELS)}")
    return request not in ("off", False) and kernel_status(path).path != ""


@dataclass(frozen=True)
class BackendSpec:
    """A model that is not loaded, and its settings."""

    path: Path
    settings: Mapping[str, Any]

    def identity(self) -> dict[str, Any]:
        """Raises OSError where there is no such model, UsageError or MissingExtraError."""
        return _backend(self.path).identity(self.path, self.settings)

    def replace(self, **settings: Any) -> BackendSpec:
        """With some settings changed."""
        return replace(self, settings={**self.settings, **settings})
