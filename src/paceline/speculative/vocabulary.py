"""What a vocabulary is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Vocab:
    """size: rows of the output layer. eos: every token that ends generation.
    text: the token's stored text, as the model file spells it. piece: the bytes it stands for in a text;
    a control token stands for none."""

    size: int
    kind: str
    bos: int | None
    eos: frozenset[int]
    add_bos: bool
    add_eos: bool
    text: Callable[[int], bytes]
    piece: Callable[[int], bytes]
