"""EAGLE-3 (Li et al. 2025, arXiv:2503.01840): a layer over the hidden states of three layers."""

from __future__ import annotations

from paceline.drafters.head import make_head
from paceline.drafters.parts import DrafterInputs
from paceline.speculative.interfaces import Drafter


def make(parts: DrafterInputs) -> Drafter:
    return make_head("eagle3", parts)
