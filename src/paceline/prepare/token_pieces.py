"""The draft tokens that make up each target token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.vocab.lexicon import TokenizerVocab

Ids = NDArray[np.int64]
IDENTICAL, SPELLED, SPECIAL, UNMATCHED_CONTROL = "same", "spelled", "special", "silent"
MOST_PIECES = 16  # from the start and the end of a token; a hostile file may have one of a megabyte
STEP = 1024  # tokens between two ticks


@dataclass(frozen=True)
class TokenPieces:
    """The draft tokens of all target tokens.

    ids[starts[t]:starts[t + 1]]: pieces of target token t in order; none if unknown.
    never_drafted: tokens that must never be drafted.
    counts: target tokens whose text is one draft token (same) or several (spelled), and control tokens that
    the draft has by name or role (special) or lacks (silent)."""

    ids: Ids
    starts: Ids
    never_drafted: NDArray[np.bool_]
    counts: Mapping[str, int]

    def __len__(self) -> int:
        return len(self.never_drafted)


def match(
    target: TokenizerVocab,
    draft: TokenizerVocab,
    roles: Mapping[str, int],
    draft_roles: Mapping[str, int],
    tick: Callable[[], None],
) -> TokenPieces:
    """Find the pieces of every target token.

    roles: names of tokens in the files (bos, eos, padding, ...). tick: called every STEP tokens."""
    special = counterparts(target, draft, roles, draft_roles)
    # Of several with one counterpart only one may be drafted, preferably an end token.
    holder_of: dict[int, int] = {}
    for token in sorted(special, key=lambda token: (token not in target.vocab.eos, token)):
        holder_of.setdefault(special[token], token)
    width = min(64, max(1, *map(len, draft.token_bytes)))
    counts = dict.fromkeys((IDENTICAL, SPELLED, SPECIAL, UNMATCHED_CONTROL), 0)
    never_drafted = np.zeros(target.vocab.size, bool)
    all_ids: list[int] = []
    starts = [0]
    for token, value in enumerate(target.token_bytes):
        if token % STEP == 0:
            tick()
        if value and value in draft.by_bytes:
            ids, kind = [draft.by_bytes[value]], IDENTICAL
        elif value:
            ids, kind = _encode_in_draft(draft, value, width), SPELLED
        elif token in special:
            ids, kind = [special[token]], SPECIAL
            never_drafted[token] = holder_of[special[token]] != token
        else:
            # Its embedding is that of its name; it is never drafted.
            ids, kind = _encode_in_draft(draft, target.names[token], width), UNMATCHED_CONTROL
            never_drafted[token] = True
        if value:
            # Of several with the same text (a letter and its byte token) the tokenizer produces one.
            never_drafted[token] = not ids or target.by_bytes[value] != token
        counts[kind] += 1
        all_ids += ids
        starts.append(len(all_ids))
    return TokenPieces(np.array(all_ids, np.int64), np.array(starts, np.int64), never_drafted, counts)


def counterparts(
    target: TokenizerVocab, draft: TokenizerVocab, roles: Mapping[str, int], draft_roles: Mapping[str, int]
) -> dict[int, int]:
    """Map target control tokens to draft control tokens of the same name, else the same role, else an end
    token.

    A role of a token with text is ignored (BPE's default BOS is a comma)."""
    draft_tokens = {role: token for role, token in draft_roles.items() if token in draft.names}
    ends = [draft_tokens[role] for role in ("eot", "eos") if role in draft_tokens] or sorted(draft.vocab.eos)
    out: dict[int, int] = {}
    for token, name in target.names.items():
        shared = [role for role, holder in roles.items() if holder == token and role in draft_tokens]
        if name and name in draft.by_name:
            out[token] = draft.by_name[name]
        elif shared:
            out[token] = draft_tokens[shared[0]]
        elif token in target.vocab.eos and ends:
            out[token] = ends[0]
    return out


def _encode_in_draft(draft: TokenizerVocab, text: bytes, width: int) -> list[int]:
    """Return the draft tokens of a text, without those that have no text. width: bytes of the draft's longest
    token."""
    half = MOST_PIECES * width
    if len(text) > 2 * half:
        text = text[:half] + text[-half:]
    ids = draft.encode(text)
    if draft.decode(ids) != text:
        ids = [token for token in ids if token != draft.filler]
    ids = [token for token in ids if draft.token_bytes[token]]
    return ids if len(ids) <= 2 * MOST_PIECES else ids[:MOST_PIECES] + ids[-MOST_PIECES:]
