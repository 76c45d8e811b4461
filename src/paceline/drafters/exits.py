"""A trained early exit (heads/networks.py): the target's first layers draft, by a small adapter.

One exit drafts: that with the best expected speed in training. Its calibrated confidence ends a draft.
"""

from __future__ import annotations

from paceline.drafters.head import DraftVocabDrafter
from paceline.drafters.parts import DrafterInputs
from paceline.speculative.interfaces import Drafter


class ExitsDrafter(DraftVocabDrafter):
    """A draft model that reads no hidden states of the target's passes: its own passes give them."""

    name = "exits"


def make(parts: DrafterInputs) -> Drafter:
    assert parts.draft is not None
    return ExitsDrafter(parts.draft, parts.draft.vocab.size, **parts.model_settings)
