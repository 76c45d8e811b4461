"""Texts in sampler settings as a model's tokens: logit biases, and DRY's sequence breakers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling_settings import Breakers
from paceline.speculative.vocabulary import Vocab
from paceline.text.interface import Text

LogitBias = Mapping[Any, float] | Sequence[Sequence[Any]]
# As in llama.cpp (get_overlapping_token_sequences).
MAX_BREAKER_CHARACTERS, MAX_BREAKER_TOKENS = 40, 20
MAX_BREAKERS, MAX_BIAS_CHARACTERS = 32, 1000


def logit_biases(text: Text, given: LogitBias) -> dict[int, float]:
    """Return llama-server's logit biases by token: a mapping, or pairs of a token or a text and its bias.
    All tokens of a text have its bias, keys of digits are tokens, and False forbids. Raises UsageError."""
    form = "a mapping or a list of pairs, each of a token or a text and a number or False"
    mapping, out = isinstance(given, Mapping), defaultdict[int, float](float)
    for pair in given.items() if isinstance(given, Mapping) else typed.items("logit_bias", given, form):
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            raise typed.invalid("logit_bias", pair, "a pair of a token or a text and a number or False")
        key, bias = pair
        if mapping and isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 10:
            key = int(key)
        if isinstance(key, str):
            if len(key) > MAX_BIAS_CHARACTERS:
                raise UsageError(
                    f"logit_bias: a text has {len(key):,} characters: at most {MAX_BIAS_CHARACTERS}"
                )
            tokens = text.encode(key, add_bos=False)
        else:
            tokens = [typed.integer("logit_bias: token", key)]
        for token in dict.fromkeys(tokens):
            out[token] += -math.inf if bias is False else typed.number(f"logit_bias of {key!r}", bias)
    return dict(out)


def sequence_breakers(text: Text, vocab: Vocab, breakers: tuple[str, ...]) -> Mapping[int, Breakers]:
    """Return `Sampling.dry_breakers` for these texts: by each token that has one, or that ends in the
    beginning of one, the tokens of the rest."""
    if not breakers:
        return {}
    if len(breakers) > MAX_BREAKERS:
        raise UsageError(f"dry_sequence_breakers: {len(breakers)} texts: give at most {MAX_BREAKERS}")
    out = defaultdict[int, set[tuple[int, ...]]](set)
    wholes = {breaker[:MAX_BREAKER_CHARACTERS].encode() for breaker in breakers if breaker}
    begins = defaultdict[bytes, list[tuple[bytes, tuple[int, ...]]]](list)
    for breaker in (whole.decode() for whole in wholes):
        for n in range(1, len(breaker)):
            tail = tuple(text.encode_continuation(breaker[n:])[:MAX_BREAKER_TOKENS])
            begins[breaker[:n].encode()].append((breaker.encode(), tail))
    longest = max(map(len, begins), default=0)
    for token in range(vocab.size):
        piece = vocab.piece(token) or vocab.text(token)
        inside = [whole for whole in wholes if whole in piece]
        found = set[tuple[int, ...]]([()] if inside else [])
        for size in range(1, min(len(piece), longest) + 1):
            found |= {tail for whole, tail in begins.get(piece[-size:], ()) if whole not in inside}
        if found:
            out[token] = found
    return {token: tuple(found) for token, found in out.items()}
