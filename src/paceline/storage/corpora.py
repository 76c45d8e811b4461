"""Corpora on this machine, and their manifests.

A corpus is a folder with manifest.json and `static.ngram` (an n-gram cache in llama.cpp's format) or
`datastore` (a suffix array), or both. The manifest has the fingerprint of the vocabulary."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from paceline import drafter_table
from paceline.speculative.errors import ModelError, UsageError, VocabError
from paceline.speculative.validation import did_you_mean
from paceline.speculative.vocabulary import Vocab
from paceline.system.atomic import private_file
from paceline.system.home import expand_user, home
from paceline.system.locks import folder_lock
from paceline.system.shutdown import remove_leftovers, scratch_folder

MANIFEST = "manifest.json"
STATIC = "static.ngram"
DATASTORE = "datastore"
KINDS = {"ngram": STATIC, "datastore": DATASTORE}
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True)
class SourceCounts:
    """The counts of one source of a corpus."""

    path: str
    files: int
    documents: int
    bytes: int
    tokens: int


@dataclass(frozen=True)
class Manifest:
    """The description of a corpus.
    model: file name of the tokenizer's model. n_vocab, fingerprint: of its vocabulary.
    skipped: files and lines left out, by reason. created: UTC, ISO 8601. paceline: the version."""

    name: str
    kinds: tuple[str, ...]
    tokens: int
    documents: int
    model: str
    n_vocab: int
    fingerprint: str
    sources: tuple[SourceCounts, ...]
    skipped: dict[str, int]
    created: str
    paceline: str
    version: Literal[1] = 1

    def write(self, path: Path) -> None:
        with private_file(path) as file:
            file.write(json.dumps(asdict(self), indent=1).encode())

    def is_of(self, vocab: Vocab) -> bool:
        """Return True for a corpus that was built with this vocabulary."""
        return self.n_vocab == vocab.size and self.fingerprint == vocab.fingerprint

    @classmethod
    def read(cls, folder: Path) -> Manifest:
        """Read a corpus's manifest. Raises ModelError for a damaged one and for another version."""
        from pydantic import TypeAdapter

        path = folder / MANIFEST
        try:
            manifest: Manifest = TypeAdapter(cls).validate_json(path.read_bytes(), strict=True)
        except (OSError, ValueError) as error:
            why = f"cannot be read ({error.strerror})" if isinstance(error, OSError) else ""
            why = why or "is damaged, or of another version"
            raise ModelError(f"{path}: {why}; build the corpus again") from error
        return manifest


@dataclass(frozen=True)
class Corpus:
    """A corpus. static: its n-gram cache, or None. datastore: the folder of its suffix array, or None."""

    folder: Path
    manifest: Manifest

    @property
    def static(self) -> Path | None:
        return self.folder / STATIC if "ngram" in self.manifest.kinds else None

    @property
    def datastore(self) -> Path | None:
        return self.folder / DATASTORE if "datastore" in self.manifest.kinds else None

    @property
    def size(self) -> int:
        """Return the bytes on disk."""
        return sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file())


def corpora_folder() -> Path:
    return home() / "corpora"


def check_name(name: str) -> str:
    """Return a valid name of a corpus. Raises UsageError for any other."""
    if not NAME.fullmatch(name):
        form = "up to 64 letters, digits, dots, dashes and underscores, a letter or digit first"
        raise UsageError(f"a corpus cannot be named {name!r}: use {form}")
    return name


def names() -> list[str]:
    """Return the names of all corpora, even of damaged ones."""
    root = corpora_folder()
    if not root.is_dir():
        return []
    remove_leftovers(root)
    return sorted(path.name for path in root.iterdir() if NAME.fullmatch(path.name))


def find_corpus(name_or_path: str | Path, vocab: Vocab | None = None) -> Corpus:
    """Find a corpus by its name, or by its folder's path if the text has a separator. vocab: required.
    Raises UsageError if there is none, ModelError for a damaged or newer one, and VocabError."""
    text = str(name_or_path)
    if isinstance(name_or_path, Path) or os.sep in text or "/" in text or text in (".", ".."):
        folder, known, there = expand_user(name_or_path), [], "give the name of a corpus, or its folder"
        found = folder.is_dir()
    else:
        folder, known = corpora_folder() / text, names()
        there = f"there are {', '.join(known)}" if known else f"make it with paceline corpus build {text}"
        found = text in known
    if not found:
        raise UsageError(f"no corpus {text!r}{did_you_mean(text, known)}: {there}")
    manifest = Manifest.read(folder)
    if vocab is not None and not manifest.is_of(vocab):
        other = f"of {manifest.model} ({manifest.n_vocab:,} tokens, the target {vocab.size:,})"
        built = f"the corpus {manifest.name!r} was built with another tokenizer, {other}"
        raise VocabError(f"{built}: build it again with -m, the target's file and --force")
    return Corpus(folder, manifest)


def replace(new: Path, folder: Path) -> None:
    """Replace `folder` by the folder `new`. Raises OSError."""
    with folder_lock(folder.parent), scratch_folder(folder.parent) as scratch, ExitStack() as undo:
        old = scratch / folder.name
        undo.callback(lambda: old.exists() and old.rename(folder))  # first: Ctrl-C may come anywhere
        if folder.exists():
            folder.rename(old)
        new.rename(folder)
        undo.pop_all()


def remove(folder: Path) -> None:
    """Remove a corpus. Raises OSError."""
    with folder_lock(folder.parent):
        shutil.rmtree(folder)


@dataclass(frozen=True)
class Corpora:
    """Indexes to draft from. caches: n-gram caches of llama.cpp; stores: folders of suffix arrays."""

    caches: tuple[Path, ...] = ()
    stores: tuple[Path, ...] = ()

    @property
    def available(self) -> list[str]:
        """The kinds of indexes, as in the table of drafters."""
        files = {drafter_table.NGRAMS: self.caches, drafter_table.DATASTORE: self.stores}
        return [kind for kind in files if files[kind]]

    @classmethod
    def find(cls, names: Sequence[str | Path], vocab: Vocab | None = None) -> Corpora:
        """Find corpora by name or folder, and n-gram caches by file.
        Raises UsageError, or VocabError for a corpus of another vocabulary; cache files have none."""
        caches, stores = list[Path](), list[Path]()
        for name in names:
            path = expand_user(name)
            # A bare name is a corpus, even if the current folder has such a file.
            if path.is_file() and (path.suffix or str(path) != path.name):
                caches.append(path)
                continue
            corpus = find_corpus(name, vocab)
            caches += [] if corpus.static is None else [corpus.static]
            stores += [] if corpus.datastore is None else [corpus.datastore]
        return cls(tuple(caches), tuple(stores))


NO_CORPORA = Corpora()
