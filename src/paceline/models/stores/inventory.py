"""The models on this machine: Ollama, the Hugging Face cache, LM Studio, llama.cpp, and folders.

Only headers are read, and their contents are cached."""

from __future__ import annotations

import os
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from paceline.models import zoo
from paceline.models.headers.facts import ASSISTANT_ARCH, HEAD_ARCHS, ModelFacts
from paceline.models.headers.header import read_model_facts, split_part_paths
from paceline.models.headers.plain_file import read_json
from paceline.models.stores import hub_cache, ollama_store
from paceline.models.stores.reference import HEAD_CONFIG, HEAD_KEYS, head_files
from paceline.models.stores.search import (
    HUB,
    OLLAMA,
    FolderSearch,
    ModelCandidate,
    file_id,
    store_folders,
    walk,
)
from paceline.speculative.errors import ModelError
from paceline.speculative.printable import printable
from paceline.system.home import cached, expand_user, file_fingerprint

FOLDER, ZOO = "folder", "zoo"  # in place of a program's name
# The facts of a model that `paceline pairs --json` prints, and their names there.
PRINTED = (
    *("format", "name", "arch", "family", "parameters", "quantisation", "size", "n_ctx", "n_layers"),
    *("n_vocab", "experts", "experts_used", "memory", "sliding_window"),
)
PRINTED_NAMES = {"n_ctx": "context", "n_layers": "layers", "n_vocab": "vocabulary"}


@dataclass(frozen=True)
class InstalledModel:
    """An installed model. Copies of a file are one model: a copy must not become its draft.
    reference: the name a user types. store: where it was found first. also: further references."""

    facts: ModelFacts
    store: str
    reference: str
    also: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        named = {"model": self.reference, "also": list(self.also), "store": self.store}
        files = [str(path) for path in self.facts.files]
        facts = {PRINTED_NAMES.get(name, name): getattr(self.facts, name) for name in PRINTED}
        return named | {"files": files} | facts


@dataclass(frozen=True)
class Inventory:
    """The models by family and size, the searched folders by store, a line for each skipped item, and the
    draft heads."""

    models: list[InstalledModel]
    places: list[tuple[str, Path]]
    notes: list[str]
    heads: list[ModelCandidate]

    def as_dict(self) -> dict[str, Any]:
        places = [{"store": store, "path": str(path)} for store, path in self.places]
        return {"models": [model.as_dict() for model in self.models], "places": places, "notes": self.notes}


def list_models(
    folders: Sequence[Path] = (),
    *,
    own: Mapping[str, Path] | None = None,
    environ: Mapping[str, str] = os.environ,
) -> Inventory:
    """Find all models in the stores of other programs, in `folders` and in PACELINE_MODELS.
    Unusable files become notes, never errors. own: the zoo's files by reference."""
    search = FolderSearch()
    stores = store_folders(environ)
    given = [*folders, *map(Path, filter(None, environ.get("PACELINE_MODELS", "").split(os.pathsep)))]
    for folder in map(expand_user, given):
        if not os.path.exists(folder):  # noqa: PTH110  # Path's may raise
            search.add_note(folder, "no such folder")
        stores.append((FOLDER, folder.absolute()))
    named: dict[Hashable, list[ModelCandidate]] = {}
    for candidate in chain(
        (ModelCandidate(path, reference, ZOO) for reference, path in (own or {}).items()),
        *(_candidates(store, path, search) for store, path in stores),
    ):
        path = candidate.path
        try:
            key: Hashable = file_id(path.stat()) if path.is_dir() else file_fingerprint(path)
            named.setdefault(key, []).append(candidate)
        except OSError as error:
            search.add_note(path, f"cannot be read ({error.strerror})")
    models, heads = [], []
    for candidates in named.values():
        path = candidates[0].path
        if _is_head(path):
            heads.append(candidates[0])
            continue
        try:
            facts = _facts_of(path)
        except ModelError as error:
            search.notes.append(printable(str(error)))
            continue
        if facts.arch in HEAD_ARCHS:
            heads.append(candidates[0])
        elif why := _no_model(facts):
            search.add_note(path, why)
        else:
            models.append(_model(facts, candidates))
    return Inventory(sorted(_unambiguous(models), key=_order), stores, search.notes, heads)


def installed_names() -> list[str]:
    """Return the names of the zoo and of other programs' models, as a user types them. No model is read."""
    search = FolderSearch()
    found = (_candidates(store, path, search) for store, path in store_folders(os.environ))
    return [f"zoo:{entry.name}" for entry in zoo.ZOO_ENTRIES] + [it.reference for it in chain(*found)]


def _candidates(store: str, root: Path, search: FolderSearch) -> Iterator[ModelCandidate]:
    if os.path.isfile(root):  # noqa: PTH113  # Path's may raise
        yield ModelCandidate(root, str(root), store)
    elif store == OLLAMA:
        yield from ollama_store.candidates(root, search)
    elif store == HUB:
        for entry in search.folder(root):
            if entry.is_dir() and entry.name.startswith(hub_cache.REPOSITORY):
                yield from hub_cache.candidates(Path(entry.path), search)
    else:
        yield from (ModelCandidate(path, str(path), store) for path in walk(root, search))


def _is_head(path: Path) -> bool:
    """Return whether a folder has a draft head: weights without a tokenizer, and a head's configuration."""
    try:
        if not path.is_dir() or not head_files(file.name for file in path.iterdir()):
            return False
        config = read_json(path / HEAD_CONFIG)
    except (OSError, ModelError):
        return False
    return config.get("num_hidden_layers") == 1 or bool(HEAD_KEYS & config.keys())


def _no_model(facts: ModelFacts) -> str:
    """Return why a file cannot be run; empty for a model."""
    if facts.arch == ASSISTANT_ARCH:
        return "is an assistant of Gemma 4, which drafts for it (-md)"
    if facts.arch == "clip":
        return "is a projector for pictures or sound, no model"
    if facts.format == "hf":
        return "is no language model" if not facts.n_layers else "" if facts.size else "has no weights here"
    if facts.n_layers == 0:
        return "is an adapter or another part of a model, no model"
    return "" if facts.parameters else "is a vocabulary only: it has no weights"


def _facts_of(path: Path) -> ModelFacts:
    """Return the facts from the headers, or from the cache if no file has changed. Raises ModelError."""
    from pydantic import TypeAdapter

    read_anew = partial(read_model_facts, path, tokens=False)
    record: TypeAdapter[ModelFacts] = TypeAdapter(ModelFacts)
    try:
        files = sorted(path.iterdir()) if path.is_dir() else split_part_paths(path)
        dump = partial(record.dump_python, mode="json")
        found: ModelFacts = cached("facts", files, read_anew, dump, record.validate_python)
        return found
    except OSError:  # a part is missing, or cannot be looked at
        return read_anew()


def _model(facts: ModelFacts, named: Sequence[ModelCandidate]) -> InstalledModel:
    """Combine all places of one model; a name goes before a path."""
    order = sorted(named, key=lambda candidate: candidate.reference == str(candidate.path))
    reference, *also = dict.fromkeys(candidate.reference for candidate in order)
    return InstalledModel(facts, order[0].store, reference, tuple(also))


def _unambiguous(models: Iterable[InstalledModel]) -> Iterator[InstalledModel]:
    """Replace a reference that is already taken by the path, as for the same name in two Ollama stores."""
    taken: set[str] = set()
    for model in models:
        if model.reference in taken:
            model = replace(model, reference=str(model.facts.path))
        taken.update((model.reference, *model.also))
        yield model


def _order(model: InstalledModel) -> tuple[str, int, int, str]:
    facts = model.facts
    return facts.family or facts.name.lower(), facts.parameters or 0, facts.size, model.reference
