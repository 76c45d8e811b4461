"""The file that a name of Ollama's stands for, read as ollama_store.py reads it, which lists them all."""

from __future__ import annotations

import os

from paceline.models.stores.ollama_store import manifests_of, weights
from paceline.models.stores.places import ollama_folders
from paceline.models.stores.reference import LocalFile, Reference
from paceline.models.stores.search import FolderSearch
from paceline.speculative.errors import UsageError


def in_ollama(reference: Reference) -> LocalFile:
    """The weights of a model that Ollama has pulled, from the first of its stores that has them. Raises
    UsageError where none has, or not all of them."""
    search = FolderSearch()
    for store in ollama_folders(os.environ):
        try:
            there = [path for path in manifests_of(store, *_parts(reference)) if path.is_file()]
        except OSError as error:
            why = f"{error.filename} cannot be read ({error.strerror})"
            search.note(reference, f"{why}; name a store that can be with OLLAMA_MODELS")
            continue
        # What the first of them says is not looked up in another one.
        if there and (blob := weights(store, there[0], reference.ollama, search)) is not None:
            return LocalFile(blob, blob.stat().st_size, blob.name[-64:])
    if search.notes:
        raise UsageError("; ".join(search.notes))
    raise UsageError(
        f"{reference} is not in Ollama's store on this machine: `ollama pull {reference.ollama}`"
    )


def _parts(reference: Reference) -> tuple[str, str, str, str]:
    host, namespace, model = reference.name.split("/")
    return host, namespace, model, reference.tag
