"""A block head (DFlash, DSpark; heads/block.py): all drafts of a step in one pass."""

from __future__ import annotations

from paceline.drafters.head import make_head
from paceline.drafters.parts import DrafterInputs
from paceline.speculative.interfaces import Drafter


def make(parts: DrafterInputs) -> Drafter:
    return make_head("block", parts)
