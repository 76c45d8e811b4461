"""Texts as a model's tokens: logit biases, DRY's sequence breakers, and prompts that ask for what is between
a prefix and a suffix.

The names of their control tokens are those that llama.cpp's llama-vocab.cpp knows; the order (files, prefix,
suffix) is that of its format_prompt_infill."""

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


def _names(role: str, of_deepseek: str, short: str) -> tuple[str, ...]:
    shapes = (f"<|fim_{role}|>", f"<fim-{role}>", f"<fim_{role}>", f"<｜fim▁{of_deepseek}｜>")
    return *shapes, f"<{short}>", f"▁<{short}>", f"<|code_{role}|>"


PREFIX, MIDDLE = _names("prefix", "begin", "PRE"), _names("middle", "end", "MID")
SUFFIX = _names("suffix", "hole", "SUF")
FILE = ("<|file_sep|>", "<file_sep>")


def infill_tokens(
    text: Text, vocab: Vocab, prefix: str, suffix: str, files: Sequence[Mapping[str, Any]] = ()
) -> list[int]:
    """Return the tokens of a prompt. files: further ones, each with `text` and perhaps `filename`.
    Raises UsageError for a model without such control tokens."""
    marks = [control_token(text, names) for names in (PREFIX, SUFFIX, MIDDLE)]
    if None in marks:
        raise UsageError("this model has no control tokens to fill in the middle: take a code model that has")
    before, after, middle = (mark for mark in marks if mark is not None)
    tokens = list[int]()
    if vocab.add_bos and vocab.bos is not None:
        tokens.append(vocab.bos)
    file_mark = control_token(text, FILE)
    for at, file in enumerate(files):
        content = typed.text(f"input_extra[{at}]: its text", file.get("text"))
        name = typed.text(f"input_extra[{at}]: its filename", file.get("filename") or "file")
        if file_mark is not None:
            tokens += [file_mark, *text.encode(f"{name}\n{content}", add_bos=False)]
        else:
            tokens += text.encode(f"\n\n--- {name} ---\n\n{content}", add_bos=False)
    if file_mark is not None and files:
        tokens += [file_mark, *text.encode("filename\n", add_bos=False)]  # as llama.cpp has it
    tokens += [before, *text.encode(prefix, add_bos=False), after]
    return [*tokens, *text.encode(suffix, add_bos=False), middle]


def control_token(text: Text, names: Sequence[str]) -> int | None:
    """Return the control token that has one of these names."""
    for name in names:
        tokens = text.encode(name, special=True, add_bos=False)
        if len(tokens) == 1:
            return tokens[0]
    return None
