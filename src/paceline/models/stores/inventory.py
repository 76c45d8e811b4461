"""The models that a machine has: of Ollama, the Hugging Face cache, LM Studio, llama.cpp, and in folders.

Only headers are read, several at a time, and what was read before is kept.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from paceline.models.headers.facts import ModelFacts
from paceline.models.headers.header import named_parts, read
from paceline.models.stores import hub_cache, ollama_store
from paceline.models.stores.model_folder import EntryKind, walk
from paceline.models.stores.places import HUB, OLLAMA, places
from paceline.models.stores.search import MODELS, FolderSearch, ModelCandidate, Tick, file_id, silent
from paceline.speculative.errors import ModelError
from paceline.speculative.printable import printable
from paceline.system.hashes import cached
from paceline.system.home import expanded
from paceline.system.identity import fingerprint

AT_ONCE = 8  # headers; mostly they wait for the disk
FOLDER, ZOO = "folder", "zoo"  # in place of a program's name
OWN = -1  # in place of a store's number
# Drafters that read the target's hidden states, and no model by themselves.
DRAFT_HEADS = frozenset({"eagle3", "dflash", "dspark"})


@dataclass(frozen=True)
class InstalledModel:
    """A model that was found. Files of one content are one model, or it would be its own best draft.

    reference: what a user types for it. store: where it was found first. also: its other references.
    """

    facts: ModelFacts
    store: str
    reference: str
    also: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        facts = self.facts
        return {
            "model": self.reference,
            "also": list(self.also),
            "store": self.store,
            "files": [str(path) for path in facts.files],
            "format": facts.format,
            "name": facts.name,
            "arch": facts.arch,
            "family": facts.family,
            "parameters": facts.parameters,
            "quantisation": facts.quantisation,
            "size": facts.size,
            "context": facts.n_ctx,
            "layers": facts.n_layers,
            "vocabulary": facts.n_vocab,
            "experts": facts.experts,
            "experts_used": facts.experts_used,
            "memory": facts.memory,
            "sliding_window": facts.sliding_window,
        }


class StoreFolder(NamedTuple):
    """store: the name of what keeps its models at `path`. models: how many were found there; 0 also where
    there is no such folder."""

    store: str
    path: Path
    models: int


@dataclass(frozen=True)
class Inventory:
    """models: by family, the small ones first. places: all that were looked at. notes: what was skipped and
    why, a line each."""

    models: list[InstalledModel]
    places: list[StoreFolder]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        places = [{"store": one.store, "path": str(one.path), "models": one.models} for one in self.places]
        return {"models": [one.as_dict() for one in self.models], "places": places, "notes": self.notes}


def find(
    folders: Sequence[Path] = (),
    *,
    own: Mapping[str, Path] | None = None,
    tick: Tick = silent,
    environ: Mapping[str, str] = os.environ,
) -> Inventory:
    """Everything there is, in the stores of other programs, in `folders` and in those of PACELINE_MODELS.
    What cannot be used is a note and never an error. own: files of the zoo's, by what a user types for them.
    tick: see FolderSearch."""
    search = FolderSearch(tick)
    stores = places(environ)
    given = [*folders, *(Path(part) for part in _parts(environ.get("PACELINE_MODELS", "")))]
    for folder in map(expanded, given):
        if not os.path.exists(folder):  # noqa: PTH110  # Path's may raise
            search.note(folder, "no such folder")
        stores.append((FOLDER, folder.absolute()))
    named = _named(stores, search, own or {})
    facts = _facts(named, search)
    models = [
        _model(facts[key], [(stores[i][0] if i != OWN else ZOO, one) for i, one in named[key]])
        for key in facts
    ]
    counts = Counter(i for key in facts for i in {i for i, _ in named[key]})
    return Inventory(
        sorted(_unambiguous(models), key=_order),
        [StoreFolder(store, path, counts[i]) for i, (store, path) in enumerate(stores)],
        search.notes,
    )


def _named(
    stores: Sequence[tuple[str, Path]], search: FolderSearch, own: Mapping[str, Path]
) -> dict[Hashable, list[tuple[int, ModelCandidate]]]:
    """Return every file that may be a model, by its content, with the number of each store it was found in
    (OWN: none, it is the zoo's) and what it is called there."""
    named: dict[Hashable, list[tuple[int, ModelCandidate]]] = {}
    packed = ((OWN, ModelCandidate(path, reference)) for reference, path in own.items())
    stored = (
        (i, candidate)
        for i, (store, path) in enumerate(stores)
        for candidate in _candidates(store, path, search)
    )
    for i, candidate in chain(packed, stored):
        path = candidate.path
        try:
            key: Hashable = file_id(path.stat()) if path.is_dir() else fingerprint(path)
        except OSError as error:
            search.note(path, f"cannot be read ({error.strerror})")
            continue
        named.setdefault(key, []).append((i, candidate))
    return named


def _candidates(store: str, root: Path, search: FolderSearch) -> Iterator[ModelCandidate]:
    if os.path.isfile(root):  # noqa: PTH113  # Path's may raise
        yield ModelCandidate(root, str(root))
    # A name leads only to where the program that gave it looks.
    for kind, path in walk(root, search):
        if kind is EntryKind.OLLAMA:
            yield from ollama_store.candidates(path, search, named=store == OLLAMA)
        elif kind is EntryKind.REPOSITORY:
            yield from hub_cache.candidates(path, search, named=store == HUB)
        else:
            yield ModelCandidate(path, str(path))


def _facts(
    named: Mapping[Hashable, Sequence[tuple[int, ModelCandidate]]], search: FolderSearch
) -> dict[Hashable, ModelFacts]:
    """Of those that are models."""
    found = {}
    pool = ThreadPoolExecutor(AT_ONCE, "headers")
    try:
        answers = {key: pool.submit(_read, names[0][1].path) for key, names in named.items()}
        for key, answer in answers.items():
            said = answer.result()
            search.tick(MODELS)
            if isinstance(said, ModelFacts):
                found[key] = said
            else:
                search.notes.append(printable(said))
    finally:
        # Where the search was ended, the rest is not begun, and what was begun takes moments.
        pool.shutdown(cancel_futures=True)
    return found


def _read(path: Path) -> ModelFacts | str:
    """What the header says of a model, or why it is none."""
    try:
        facts = _facts_of(path)
        if why := _no_model(facts):
            return f"{path}: {why}"
    except ModelError as error:
        return str(error)
    return facts


def _no_model(facts: ModelFacts) -> str:
    """What a GGUF file is that cannot be run; empty for a model."""
    if facts.arch == "clip":
        return "is a projector for pictures or sound, no model"
    if facts.arch in DRAFT_HEADS:
        return f"is a draft head ({facts.arch}), no model"
    if facts.n_layers == 0 and facts.format == "hf":
        return "is no language model"
    if facts.n_layers == 0:
        return "is an adapter or another part of a model, no model"
    if facts.format == "hf":
        return "" if facts.size else "has no weights here"
    return "" if facts.parameters else "is a vocabulary only: it has no weights"


def _facts_of(path: Path) -> ModelFacts:
    """Return what the files say, from the cache where none of them changed. Raises ModelError."""

    def read_anew() -> ModelFacts:
        return read(path, tokens=False)

    def dump(facts: ModelFacts) -> dict[str, Any]:
        return asdict(facts) | {"files": [str(file) for file in facts.files]}

    def load(said: dict[str, Any]) -> ModelFacts:
        return ModelFacts(**said | {"files": tuple(map(Path, said["files"]))})

    try:
        files = sorted(path.iterdir()) if path.is_dir() else named_parts(path)
        return cached("facts", files, read_anew, dump, load)
    except OSError:  # a part is missing, or cannot be looked at
        return read_anew()


def _model(facts: ModelFacts, named: Iterable[tuple[str, ModelCandidate]]) -> InstalledModel:
    """named: every store it was found in, and what it is called there."""
    order = sorted(named, key=lambda one: one[1].reference == str(one[1].path))  # a name before a path
    store, first = order[0]
    references = dict.fromkeys(one.reference for _, one in order)
    return InstalledModel(facts, store, first.reference, tuple(references)[1:])


def _unambiguous(models: Iterable[InstalledModel]) -> Iterator[InstalledModel]:
    """Of two models of one name, as Ollama's two stores may have, the second is known by its path."""
    taken: set[str] = set()
    for model in models:
        if model.reference in taken:
            model = replace(model, reference=str(model.facts.path))
        taken.update((model.reference, *model.also))
        yield model


def _order(model: InstalledModel) -> tuple[str, int, int, str]:
    facts = model.facts
    return facts.family or facts.name.lower(), facts.parameters or 0, facts.size, model.reference


def _parts(text: str) -> list[str]:
    return [part for part in text.split(os.pathsep) if part]
