"""A parallel draft (PARD, arXiv:2504.18583): a draft model that drafts several tokens in one pass."""

from __future__ import annotations

from typing import Any

from paceline.drafters.model import ModelDrafter
from paceline.drafters.parts import DrafterInputs
from paceline.heads.parallel_draft import ParallelDraft
from paceline.speculative.interfaces import Drafter


class PardDrafter(ModelDrafter):
    """A draft model whose drafts are at most as long as a pass."""

    name = ParallelDraft.kind

    def __init__(self, draft: ParallelDraft, **settings: Any) -> None:
        super().__init__(draft, draft.vocab.size, **settings)
        self.max_depth = draft.max_depth


def make(parts: DrafterInputs) -> Drafter:
    draft: Any = parts.draft
    return PardDrafter(draft, **parts.model_settings)
