"""How the tokens that one pass reads of prompts are shared out."""

from __future__ import annotations

from collections.abc import Sequence


def shares(unread: Sequence[int], chunk: int) -> list[int]:
    """Of `chunk` tokens, how many each prompt gets that has so many left: all the same, but none more than it
    needs, so that a short prompt behind a long one is read at once."""
    out = [0] * len(unread)
    left = chunk
    order = sorted([i for i, n in enumerate(unread) if n], key=unread.__getitem__)
    for place, i in enumerate(order):
        out[i] = min(unread[i], -(-left // (len(order) - place)))
        left -= out[i]
    return out
