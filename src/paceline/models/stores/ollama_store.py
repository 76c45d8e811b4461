"""Ollama's store: a manifest for each name, and the files they name by their hashes.

    manifests/HOST/NAMESPACE/MODEL/TAG    JSON: layers, each with mediaType, digest and size
    blobs/sha256-HEX                      what a layer is; sha256-HEX-partial while it is downloaded

As in Ollama's packages manifest and types/model. Newer versions keep manifests-v2 beside it, where a name is
a link to a blob, the usual host is called ollama.com, and what is said may be a list of manifests, one for
each of Ollama's engines.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from paceline.models.headers.plain_file import exists
from paceline.models.stores.places import OLLAMA, ollama_folders
from paceline.models.stores.reference import LocalFile, Reference, parse
from paceline.models.stores.search import FolderSearch, ModelCandidate
from paceline.speculative.errors import UsageError

USUAL_HOSTS = ("registry.ollama.ai", "ollama.com")  # are the same
USUAL_NAMESPACE = "library"
# A host may have a port, and all but a namespace may have dots; never at the start.
PART = {
    "host": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,349}"),
    "namespace": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,79}"),
    "model": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"),
    "tag": re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,79}"),
}
MANIFESTS = ("manifests-v2", "manifests")  # the first one is the newer
DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
LAYER = "application/vnd.ollama.image."
MAX_MANIFESTS = 64  # manifests in a list


def candidates(root: Path, search: FolderSearch) -> Iterator[ModelCandidate]:
    """Yield the models of the store."""
    known = set()
    for folder in MANIFESTS:
        # In the order in which manifests_of has them.
        paths = sorted(_manifests(root / folder, search), key=lambda path: path.parts[-4] != USUAL_HOSTS[0])
        for path in paths:
            parts = path.relative_to(root / folder).parts
            if not all(PART[kind].fullmatch(part) for kind, part in zip(PART, parts, strict=True)):
                search.add_note(path, "is no name that Ollama gives")
                continue
            name = ollama_display_name(*parts)
            if name in known:
                continue
            known.add(name)
            if (blob := weights(root, path, name, search)) is not None:
                yield ModelCandidate(blob, f"ollama:{name}" if _typeable(name) else str(blob), OLLAMA)


def find_ollama_model(reference: Reference) -> LocalFile:
    """Return the weights of a model that Ollama has pulled, from the first of its stores that has them.
    Raises UsageError where none has, or not all of them."""
    search = FolderSearch()
    host, namespace, model = reference.name.split("/")
    for store in ollama_folders(os.environ):
        manifests = manifests_of(store, host, namespace, model, reference.tag)
        there = next((path for path in manifests if os.path.isfile(path)), None)  # noqa: PTH113  # may raise
        # What the first of them says is not looked up in another one.
        if there and (blob := weights(store, there, reference.ollama, search)) is not None:
            return LocalFile(blob, blob.stat().st_size, blob.name[-64:])
    if search.notes:
        raise UsageError("; ".join(search.notes))
    raise UsageError(
        f"{reference} is not in Ollama's store on this machine: `ollama pull {reference.ollama}`"
    )


def ollama_display_name(host: str, namespace: str, model: str, tag: str) -> str:
    """Return a name as `ollama list` shows it."""
    if host not in USUAL_HOSTS:
        return f"{host}/{namespace}/{model}:{tag}"
    return f"{model}:{tag}" if namespace == USUAL_NAMESPACE else f"{namespace}/{model}:{tag}"


def manifests_of(root: Path, host: str, namespace: str, model: str, tag: str) -> list[Path]:
    """Where a name's manifest may be, in the order in which Ollama looks."""
    hosts = [host, *(other for other in USUAL_HOSTS if host in USUAL_HOSTS and other != host)]
    return [root / folder / one / namespace / model / tag for folder in MANIFESTS for one in hosts]


def _typeable(name: str) -> bool:
    """Whether it is understood on the command line, too."""
    try:
        return parse(f"ollama:{name}", lambda _path: False).ollama == name
    except UsageError:
        return False


def _manifests(folder: Path, search: FolderSearch, depth: int = len(PART)) -> Iterator[Path]:
    # To this depth and no further, as Ollama does: a link in circles ends there.
    for entry in search.folder(folder):
        if not entry.path.name.startswith(".") and entry.folder == (depth > 1):
            if depth > 1:
                yield from _manifests(entry.path, search, depth - 1)
            else:
                yield entry.path


def weights(root: Path, path: Path, name: str, search: FolderSearch) -> Path | None:
    """The file that holds the weights of the model whose manifest is at `path`; None, and a note, where there
    is none. name: as `ollama list` shows it."""
    reference = f"ollama:{name}"
    # Any of these may be a link to another disk.
    inside = [os.path.realpath(top) for top in (root, root / "blobs", *(root / name for name in MANIFESTS))]
    if not any(Path(os.path.realpath(path)).is_relative_to(top) for top in inside):
        search.add_note(reference, "its manifest leads out of the store")
        return None
    if (manifest := search.json(path)) is None:
        return None
    try:
        layers = _layers(root, manifest, search)
        models = layers.get("model", [])
        if len(models) != 1:
            search.add_note(
                reference, f"has {len(models)} GGUF files on this machine; only Ollama can run it"
            )
            return None
        digest, size = models[0]
    except (ValueError, TypeError, KeyError, AttributeError):
        search.add_note(path, "is damaged; pull it again with Ollama")
        return None
    blob = root / "blobs" / f"sha256-{digest}"
    try:
        complete = blob.stat().st_size == size
    except OSError:
        complete = False
    if not complete:
        search.add_note(reference, f"its file is not complete; ollama pull {name}")
    return blob if complete else None


def _layers(root: Path, manifest: dict[str, Any], search: FolderSearch) -> dict[str, list[tuple[str, int]]]:
    """Digest and size of the layers of each type; of a list of manifests those of the first that has a model.
    Raises what comes of a manifest that is none."""
    found: dict[str, list[tuple[str, int]]] = {}
    if "manifests" in manifest:
        for one in manifest["manifests"][:MAX_MANIFESTS]:
            if "layers" not in one:
                path = root / "blobs" / f"sha256-{_hex(one['digest'])}"
                if not exists(path):  # not every engine's is on every machine
                    continue
                one = search.json(path) or {"layers": []}
            if "model" in (found := _layers(root, {"layers": one["layers"]}, search)):
                break
        return found
    for layer in manifest["layers"] or ():
        kind, digest, size = layer["mediaType"], layer["digest"], layer["size"]
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise ValueError("no size")
        found.setdefault(kind.removeprefix(LAYER), []).append((_hex(digest), size))
    return found


def _hex(digest: str) -> str:
    if (match := DIGEST.fullmatch(digest)) is None:
        raise ValueError("no digest")
    return match[1].lower()
