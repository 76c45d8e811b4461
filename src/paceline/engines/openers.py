"""The one table from a reference to the engine that opens it. An engine is imported when it is needed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.engines.engine import Build, Engine, KernelStatus, Opener, Tokenizer

TOY, HF = "toy:", "hf:"
KERNELS = ("auto", "off")  # of the setting that takes a word


def is_toy(reference: str | os.PathLike[str]) -> bool:
    """toy: or toy:seed=3,noise=0.3; a file that has such a name is a file."""
    return os.fspath(reference).startswith(TOY) and not os.path.exists(reference)  # noqa: PTH110


def is_transformers(reference: str | os.PathLike[str]) -> bool:
    """hf:FOLDER or hf:FILE; a folder that holds a config.json."""
    # Path's own raises where one may not look.
    return os.fspath(reference).startswith(HF) or os.path.isfile(os.path.join(reference, "config.json"))  # noqa: PTH113, PTH118


def place_of(reference: Path) -> Path:
    """The file or folder itself, whichever engine is to open it: for who reads headers."""
    return Path(os.fspath(reference).removeprefix(HF))


def _toy(_: Path) -> Opener:
    from paceline.engines import toy_engine

    return toy_engine


def _transformers(_: Path) -> Opener:
    from paceline.engines.hf.loading import libraries

    libraries()  # or MissingExtraError, before a module that imports them at its top
    from paceline.engines.hf import opener

    return opener


def _llama(_: Path) -> Opener:
    from paceline.engines.llama import opener

    return opener


# The first one that knows a reference opens it.
TABLE: tuple[tuple[Callable[[Path], bool], Callable[[Path], Opener]], ...] = (
    (is_toy, _toy),
    (is_transformers, _transformers),
    (lambda _: True, _llama),  # which says what is wrong with anything but a GGUF file
)


def _opener(path: Path) -> Opener:
    return next(made for knows, made in TABLE if knows(path))(path)


def open_engine(path: Path, **settings: Any) -> Engine:
    """A model, loaded. settings: see Opener. Raises UsageError, ModelError or MissingExtraError."""
    return _opener(path).open_engine(path, **settings)


def open_tokenizer(path: Path) -> Tokenizer:
    """A model's tokenizer; of its file no more than the vocabulary need be there. Raises UsageError,
    ModelError or MissingExtraError."""
    return _opener(path).open_tokenizer(path)


def build_of(path: Path) -> Build:
    """Of the engine that opens `path`. Raises UsageError or MissingExtraError."""
    return _opener(path).build()


def kernels_of(path: Path) -> KernelStatus:
    """Kernels of our own in the engine that opens `path`. Raises MissingExtraError."""
    return _opener(path).kernels()


def with_kernels(path: Path, asked: str | bool) -> bool:
    """Whether the engine that opens `path` computes with kernels of our own. asked: "auto" or "off", or the
    engine's setting. Raises UsageError for another word, and MissingExtraError."""
    if isinstance(asked, str) and asked not in KERNELS:
        raise UsageError(f"kernels {asked!r}: choose from {', '.join(KERNELS)}")
    return asked not in ("off", False) and kernels_of(path).path != ""


@dataclass(frozen=True)
class Way:
    """A model that is not loaded, and how it would be run: see Setup."""

    path: Path
    settings: Mapping[str, Any]

    def identity(self) -> dict[str, Any]:
        """Raises OSError where there is no such model, UsageError or MissingExtraError."""
        return _opener(self.path).identity(self.path, self.settings)

    def but(self, **settings: Any) -> Way:
        """With some settings changed."""
        return replace(self, settings={**self.settings, **settings})
