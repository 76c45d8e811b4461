"""Tells vocabularies apart, so that stored token ids are only read with the one they were written with."""

from __future__ import annotations

import hashlib
from weakref import WeakKeyDictionary

from paceline.speculative.vocabulary import Vocab

# Weak: a text's callable belongs to a loaded model, which must not be kept alive by a cache.
_known: WeakKeyDictionary[Vocab, str] = WeakKeyDictionary()


def vocab_fingerprint(vocab: Vocab) -> str:
    """SHA-256, in hexadecimal, over the number of tokens and every token's text as the model file spells it:
    equal where an id means the same. Padding counts: models of one family whose output layers differ in size
    have different ones."""
    if vocab not in _known:
        digest = hashlib.sha256(vocab.size.to_bytes(8, "little"))
        for token in range(vocab.size):
            text = vocab.text(token)
            digest.update(len(text).to_bytes(4, "little") + text)  # with its length: no two lists look alike
        _known[vocab] = digest.hexdigest()
    return _known[vocab]
