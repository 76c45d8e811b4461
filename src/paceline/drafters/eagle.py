"""EAGLE (Li et al. 2024, arXiv:2401.15077): a layer that continues the target's last hidden states."""

from __future__ import annotations

from paceline.drafters.head import make_head
from paceline.drafters.parts import DrafterInputs
from paceline.speculative.interfaces import Drafter


def make(parts: DrafterInputs) -> Drafter:
    return make_head("eagle", parts)
