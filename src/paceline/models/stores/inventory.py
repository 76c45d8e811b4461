"""The models that a machine has: of Ollama, the Hugging Face cache, LM Studio, llama.cpp, and in folders.

Only headers are read, several at a time, and what was read before is kept.
"""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

from paceline.models.headers.facts import ModelFacts
from paceline.models.headers.header import read_model_facts, split_part_paths
from paceline.models.stores import hub_cache, ollama_store
from paceline.models.stores.places import HUB, OLLAMA, store_folders
from paceline.models.stores.search import (
    MODELS,
    FolderSearch,
    ModelCandidate,
    Tick,
    file_id,
    no_progress,
    walk,
)
from paceline.speculative.errors import ModelError
from paceline.speculative.printable import printable
from paceline.system.home import expand_user
from paceline.system.identity import cached, file_fingerprint

AT_ONCE = 8  # headers; mostly they wait for the disk
FOLDER, ZOO = "folder", "zoo"  # in place of a program's name
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


@dataclass(frozen=True)
class Inventory:
    """models: by family, the small ones first. places: all folders that were looked at, each with the name of
    what keeps its models there. notes: what was skipped and why, a line each."""

    models: list[InstalledModel]
    places: list[tuple[str, Path]]
    notes: list[str]

    def as_dict(self) -> dict[str, Any]:
        places = [{"store": store, "path": str(path)} for store, path in self.places]
        return {"models": [one.as_dict() for one in self.models], "places": places, "notes": self.notes}


def list_models(
    folders: Sequence[Path] = (),
    *,
    own: Mapping[str, Path] | None = None,
    tick: Tick = no_progress,
    environ: Mapping[str, str] = os.environ,
) -> Inventory:
    """Find all models, in the stores of other programs, in `folders` and in those of PACELINE_MODELS. What
    cannot be used is a note and never an error.

    own: files of the zoo's, by what a user types for them. tick: see FolderSearch.
    """
    search = FolderSearch(tick)
    stores = store_folders(environ)
    given = [*folders, *map(Path, filter(None, environ.get("PACELINE_MODELS", "").split(os.pathsep)))]
    for folder in map(expand_user, given):
        if not os.path.exists(folder):  # noqa: PTH110  # Path's may raise
            search.add_note(folder, "no such folder")
        stores.append((FOLDER, folder.absolute()))
    named: dict[Hashable, list[ModelCandidate]] = {}
    for one in chain(
        (ModelCandidate(path, reference, ZOO) for reference, path in (own or {}).items()),
        *(_candidates(store, path, search) for store, path in stores),
    ):
        try:
            key: Hashable = file_id(one.path.stat()) if one.path.is_dir() else file_fingerprint(one.path)
            named.setdefault(key, []).append(one)
        except OSError as error:
            search.add_note(one.path, f"cannot be read ({error.strerror})")
    models = [_model(facts, named[key]) for key, facts in _facts(named, search).items()]
    return Inventory(sorted(_unambiguous(models), key=_order), stores, search.notes)


def _candidates(store: str, root: Path, search: FolderSearch) -> Iterator[ModelCandidate]:
    if os.path.isfile(root):  # noqa: PTH113  # Path's may raise
        yield ModelCandidate(root, str(root), store)
    elif store == OLLAMA:
        yield from ollama_store.candidates(root, search)
    elif store == HUB:
        for entry in search.folder(root):
            if entry.folder and entry.path.name.startswith(hub_cache.REPOSITORY):
                yield from hub_cache.candidates(entry.path, search)
    else:
        yield from (ModelCandidate(path, str(path), store) for path in walk(root, search))


def _facts(
    named: Mapping[Hashable, Sequence[ModelCandidate]], search: FolderSearch
) -> dict[Hashable, ModelFacts]:
    """Read the headers of those that are models."""
    found = {}
    pool = ThreadPoolExecutor(AT_ONCE, "headers")
    try:
        answers = {key: pool.submit(_read, names[0].path) for key, names in named.items()}
        for key, answer in answers.items():
            generation = answer.result()
            search.tick(MODELS)
            if isinstance(generation, ModelFacts):
                found[key] = generation
            else:
                search.notes.append(printable(generation))
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
        return read_model_facts(path, tokens=False)

    def dump(facts: ModelFacts) -> dict[str, Any]:
        return asdict(facts) | {"files": [str(file) for file in facts.files]}

    def load(data: dict[str, Any]) -> ModelFacts:
        return ModelFacts(**data | {"files": tuple(map(Path, data["files"]))})

    try:
        files = sorted(path.iterdir()) if path.is_dir() else split_part_paths(path)
        return cached("facts", files, read_anew, dump, load)
    except OSError:  # a part is missing, or cannot be looked at
        return read_anew()


def _model(facts: ModelFacts, named: Sequence[ModelCandidate]) -> InstalledModel:
    """named: where it was found, and what it is called there."""
    first, *_ = order = sorted(named, key=lambda one: one.reference == str(one.path))  # a name before a path
    references = dict.fromkeys(one.reference for one in order)
    return InstalledModel(facts, first.store, first.reference, tuple(references)[1:])


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
