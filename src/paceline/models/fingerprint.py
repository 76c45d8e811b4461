"""Fingerprints of vocabularies: stored token ids are only read with the vocabulary they were written with."""

from __future__ import annotations

import hashlib
from weakref import WeakKeyDictionary

from paceline.speculative.vocabulary import Vocab

# Weak: a cache must not keep the vocabulary's loaded model alive.
_known: WeakKeyDictionary[Vocab, str] = WeakKeyDictionary()


def vocab_fingerprint(vocab: Vocab) -> str:
    """Return the SHA-256 over the number of tokens and every token's text, padding included."""
    if vocab not in _known:
        digest = hashlib.sha256(vocab.size.to_bytes(8, "little"))
        for token in range(vocab.size):
            text = vocab.text(token)
            digest.update(len(text).to_bytes(4, "little") + text)  # the length makes the encoding unique
        _known[vocab] = digest.hexdigest()
    return _known[vocab]
