"""The file that a name of Ollama's stands for; ollama_store.py, which lists them all, tells of the layout."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

from paceline.core.errors import UsageError
from paceline.machine.stores.ollama_store import manifests_of
from paceline.machine.stores.reference import Held, Reference

WEIGHTS = "application/vnd.ollama.image.model"  # of a manifest's layers the one that is a GGUF file
LARGEST = 1 << 20  # bytes of a manifest, which has about a thousand
DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


def stores() -> list[Path]:
    """OLLAMA_MODELS, or where Ollama keeps models for one user and, as a service of Linux, for all."""
    if given := os.environ.get("OLLAMA_MODELS"):
        return [Path(given).expanduser()]
    return [Path.home() / ".ollama/models", Path("/usr/share/ollama/.ollama/models")]


def in_ollama(reference: Reference) -> Held:
    """The weights of a model that Ollama has pulled. Raises UsageError where it has not, or not all of it."""
    host, namespace, model = reference.name.split("/")
    pull = f"`ollama pull {reference.ollama}`"
    for store in stores():
        try:
            for manifest in manifests_of(store, host, namespace, model, reference.tag):
                if manifest.is_file():
                    return _weights(store, manifest, str(reference), pull)
        except OSError as error:
            raise UsageError(
                f"{reference}: {error.filename} cannot be read ({error.strerror}); name a store that can be "
                "with OLLAMA_MODELS"
            ) from error
    raise UsageError(f"{reference} is not in Ollama's store on this machine: {pull}")


def _weights(store: Path, manifest: Path, what: str, pull: str) -> Held:
    try:
        found = _layers(store, _read(manifest))
        digests = [DIGEST.fullmatch(one["digest"]) for one in found]
        sizes = [int(one.get("size", 0)) for one in found]
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError) as error:
        raise UsageError(f"{what}: {manifest} is no manifest of Ollama's; {pull} makes it anew") from error
    if len(digests) != 1 or digests[0] is None:
        why = f"one in {len(digests)} parts" if len(digests) > 1 else "none on this machine"
        raise UsageError(f"{what}: wants one GGUF file, and there is {why}; only Ollama can run it")
    blob = store / "blobs" / f"sha256-{digests[0][1]}"
    if not blob.is_file():
        partly = next(blob.parent.glob(f"{blob.name}-partial*"), None) is not None
        why = "is not completely downloaded" if partly else "has lost its weights"
        raise UsageError(f"{what}: {why} in Ollama's store: {pull}")
    size = blob.stat().st_size
    if sizes[0] not in (0, size):
        raise UsageError(f"{what}: its weights have {size:,} of {sizes[0]:,} bytes in Ollama's store: {pull}")
    return Held(blob, size, digests[0][1])


def _layers(store: Path, manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """Those with weights. Newer versions have lists of manifests, one for each of Ollama's engines, and not
    all of them on every machine: then of the first that has any."""
    for one in manifest.get("manifests", ()):
        if "layers" not in one:
            path = store / "blobs" / f"sha256-{DIGEST.fullmatch(one['digest'])[1]}"  # type: ignore[index]
            if not path.is_file():
                continue
            one = _read(path)
        if found := _layers(store, {"layers": one["layers"]}):
            return found
    return [layer for layer in manifest.get("layers") or () if layer["mediaType"] == WEIGHTS]


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        said = json.loads(file.read(LARGEST))
    if not isinstance(said, dict) or not {"layers", "manifests"} & said.keys():
        raise ValueError("no manifest")
    return said
