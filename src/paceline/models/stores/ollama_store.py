"""Ollama's store: a manifest for each name, and blobs named by their hashes.

    manifests/HOST/NAMESPACE/MODEL/TAG    JSON: layers, each with mediaType, digest and size
    blobs/sha256-HEX                      a layer; sha256-HEX-partial during a download

See Ollama's packages manifest and types/model. In manifests-v2 of newer versions a name is a link to a blob,
the default host is ollama.com, and a manifest may be a list with an entry for each of Ollama's engines."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.models.headers.plain_file import exists
from paceline.models.stores.reference import OLLAMA as OLLAMA_REFERENCE
from paceline.models.stores.reference import LocalFile, Reference, is_name_of
from paceline.models.stores.search import OLLAMA, FolderSearch, ModelCandidate, ollama_folders
from paceline.speculative.errors import UsageError

USUAL_HOSTS = ("registry.ollama.ai", "ollama.com")  # aliases
PART = {
    "host": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}"),
    "namespace": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}"),
    "model": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"),
    "tag": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"),
}
MANIFESTS = ("manifests-v2", "manifests")  # newest first
DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
LAYER = "application/vnd.ollama.image."
NO_IMAGES = "its projector for images is left out: it reads text only"
MAX_MANIFESTS = 64  # manifests in a list


def candidates(root: Path, search: FolderSearch) -> Iterator[ModelCandidate]:
    """Yield the models of the store."""
    known = set()
    for folder in MANIFESTS:
        # The same order as in find_ollama_model.
        paths = sorted(_manifests(root / folder, search), key=lambda path: path.parts[-4] != USUAL_HOSTS[0])
        for path in paths:
            parts = path.relative_to(root / folder).parts
            if not all(PART[kind].fullmatch(part) for kind, part in zip(PART, parts, strict=True)):
                search.add_note(path, "is no name that Ollama gives")
                continue
            host, *model, tag = parts
            usual = USUAL_HOSTS[0] if host in USUAL_HOSTS else host
            reference = Reference(OLLAMA_REFERENCE, "/".join((usual, *model)), tag)
            if reference in known:
                continue
            known.add(reference)
            if (file := weights(root, path, reference.ollama, search)) is not None:
                typeable = is_name_of(str(reference), reference)
                yield ModelCandidate(file.path, str(reference if typeable else file.path), OLLAMA)


def find_ollama_model(reference: Reference) -> LocalFile:
    """Return the weights of a model from the first Ollama store that has them.
    Raises UsageError if no store has them completely."""
    search = FolderSearch()
    host, namespace, model = reference.name.split("/")
    hosts = [host, *(other for other in USUAL_HOSTS if host in USUAL_HOSTS and other != host)]
    for store in ollama_folders(os.environ):
        folders = [store / manifests / name for manifests in MANIFESTS for name in hosts]
        paths = [folder / namespace / model / reference.tag for folder in folders]
        first = next((path for path in paths if os.path.isfile(path)), None)  # noqa: PTH113  # may raise
        if first and (file := weights(store, first, reference.ollama, search)) is not None:
            return file
    missing = f"{reference} is not in Ollama's store on this machine: `ollama pull {reference.ollama}`"
    raise UsageError("; ".join(search.notes) or missing)


def _manifests(folder: Path, search: FolderSearch, depth: int = len(PART)) -> Iterator[Path]:
    # A fixed depth, as in Ollama, bounds circular links.
    for entry in search.folder(folder):
        if not entry.name.startswith(".") and entry.is_dir() == (depth > 1):
            path = Path(entry.path)
            yield from _manifests(path, search, depth - 1) if depth > 1 else [path]


def weights(root: Path, path: Path, name: str, search: FolderSearch) -> LocalFile | None:
    """Return the weights file of the manifest at `path`; None, and a note, without one.
    name: as in `ollama list`."""
    reference = f"ollama:{name}"
    # Each of these may be a link to another disk.
    inside = [os.path.realpath(top) for top in (root, root / "blobs", *(root / name for name in MANIFESTS))]
    if not any(Path(os.path.realpath(path)).is_relative_to(top) for top in inside):
        search.add_note(reference, "its manifest leads out of the store")
        return None
    if (manifest := search.json(path)) is None:
        return None
    try:
        layers = _layers(root, manifest, search)
    except (TypeError, KeyError, AttributeError):
        search.add_note(path, "is damaged; pull it again with Ollama")
        return None
    models = layers.get("model", [])
    if "adapter" in layers:
        why = "has an adapter, which would be left out: merge it into the weights"
    elif len(models) != 1:
        why = f"has {len(models)} GGUF files on this machine; only Ollama can run it"
    else:
        digest, size = models[0]
        blob = root / "blobs" / f"sha256-{digest}"
        with suppress(OSError):
            if blob.stat().st_size == size:
                return LocalFile(blob, size, digest, note=NO_IMAGES if "projector" in layers else "")
        why = f"its file is not complete; ollama pull {name}"
    search.add_note(reference, why)
    return None


def _layers(root: Path, manifest: dict[str, Any], search: FolderSearch) -> dict[str, list[tuple[str, int]]]:
    """Return digest and size of the layers of each type; of a list, those of the first manifest with a model.
    Raises TypeError, KeyError or AttributeError for a malformed manifest. Sizes may be anything."""
    found: dict[str, list[tuple[str, int]]] = {}
    if "manifests" in manifest:
        for entry in manifest["manifests"][:MAX_MANIFESTS]:
            if "layers" not in entry:
                path = root / "blobs" / f"sha256-{_hex(entry['digest'])}"
                if not exists(path):  # the manifest of another engine
                    continue
                entry = search.json(path) or {"layers": []}
            if "model" in (found := _layers(root, {"layers": entry["layers"]}, search)):
                break
        return found
    for layer in manifest["layers"] or ():
        kind = layer["mediaType"].removeprefix(LAYER)
        found.setdefault(kind, []).append((_hex(layer["digest"]), layer["size"]))
    return found


def _hex(digest: str) -> str:
    """Return the hash, in lower case; empty for anything else, which no blob is named by."""
    match = DIGEST.fullmatch(digest)
    return match[1].lower() if match else ""
