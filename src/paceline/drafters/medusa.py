"""Medusa heads (Cai et al. 2024, arXiv:2401.10774): every depth from the target's last hidden state."""

from __future__ import annotations

from paceline.drafters.head import make_head
from paceline.drafters.parts import DrafterInputs
from paceline.speculative.interfaces import Drafter


def make(parts: DrafterInputs) -> Drafter:
    return make_head("medusa", parts)
