"""Kangaroo (Liu et al. 2024, arXiv:2404.18911): the target's first layers and an attention layer draft."""

from __future__ import annotations

from paceline.drafters.head import make_head
from paceline.drafters.parts import DrafterInputs
from paceline.speculative.interfaces import Drafter


def make(parts: DrafterInputs) -> Drafter:
    return make_head("kangaroo", parts)
