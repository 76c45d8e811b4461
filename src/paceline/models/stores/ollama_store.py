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
from paceline.models.stores.model_folder import MANIFESTS
from paceline.models.stores.reference import parse
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
DIGEST = re.compile(r"sha256[:-]([0-9a-fA-F]{64})")
LAYER = "application/vnd.ollama.image."
MOST = 64  # manifests in a list


def candidates(root: Path, search: FolderSearch, *, named: bool) -> Iterator[ModelCandidate]:
    """The models of the store. named: whether `ollama:NAME` leads to this one."""
    known = set()
    for folder in MANIFESTS:
        # In the order in which manifests_of has them.
        paths = sorted(_manifests(root / folder, search), key=lambda path: path.parts[-4] != USUAL_HOSTS[0])
        for path in paths:
            parts = path.relative_to(root / folder).parts
            if not all(PART[kind].fullmatch(part) for kind, part in zip(PART, parts, strict=True)):
                search.note(path, "is no name that Ollama gives")
                continue
            name = short(*parts)
            if name in known:
                continue
            known.add(name)
            if (blob := weights(root, path, name, search)) is not None:
                yield ModelCandidate(blob, f"ollama:{name}" if named and _typeable(name) else str(blob))


def short(host: str, namespace: str, model: str, tag: str) -> str:
    """As `ollama list` shows it."""
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
        search.note(reference, "its manifest leads out of the store")
        return None
    if (manifest := search.json(path)) is None:
        return None
    try:
        layers = _layers(root, manifest, search)
        models = layers.get("model", [])
        if len(models) != 1:
            why = f"is in {len(models)} parts; only Ollama can run it" if models else _why(layers)
            search.note(reference, why)
            return None
        digest, size = models[0]
    except (ValueError, TypeError, KeyError, AttributeError):
        search.note(path, "is damaged; pull it again with Ollama")
        return None
    if "adapter" in layers:
        search.note(reference, "has an adapter, which is left out: this is the model below it")
    return _complete(root / "blobs", digest, size, name, search)


def _layers(root: Path, manifest: dict[str, Any], search: FolderSearch) -> dict[str, list[tuple[str, int]]]:
    """Digest and size of the layers of each type; of a list of manifests those of the first that has a model.
    Raises what comes of a manifest that is none."""
    found: dict[str, list[tuple[str, int]]] = {}
    if "manifests" in manifest:
        for one in manifest["manifests"][:MOST]:
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


def _why(layers: dict[str, list[tuple[str, int]]]) -> str:
    mlx = "tensor" in layers
    why = "it holds safetensors for Ollama's MLX engine" if mlx else "it may run in the cloud"
    return f"has no model on this machine; {why}"


def _complete(blobs: Path, digest: str, size: int, name: str, search: FolderSearch) -> Path | None:
    reference, pull = f"ollama:{name}", f"ollama pull {name}"
    for path in (blobs / f"sha256-{digest}", blobs / f"sha256:{digest}"):  # as older versions spelled it
        try:
            there = path.stat().st_size
        except FileNotFoundError:
            continue
        except OSError as error:
            search.note(reference, f"{path} cannot be read ({error.strerror})")
            return None
        if there == size:
            return path
        search.note(reference, f"{path} has {there:,} bytes, its manifest says {size:,}; {pull}")
        return None
    began = exists(blobs / f"sha256-{digest}-partial")
    why = "is being downloaded, or was left half-way" if began else "its file is missing"
    search.note(reference, f"{why}; {pull}")
    return None
