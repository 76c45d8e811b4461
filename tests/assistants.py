"""A target with its assistant (MTP layers in a file of their own), of any backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from paceline.speculative.interfaces import NO_OUTPUTS, RequiredOutputs
from paceline.speculative.tree import EMPTY, DraftTree
from rows import begun, table


class AssistantWorld:
    def __init__(self, target: Any, draft: Any) -> None:
        self.target, self.draft = target, draft
        self.want = RequiredOutputs(layers=draft.config.layer_ids)

    def close(self) -> None:
        self.draft.close()
        self.target.close()

    def begin(self, text: Sequence[int]) -> tuple[Any, Any]:
        """Sessions of a text whose root is its last token."""
        reading = begun(self.target, text[:-1])
        out = self.target.forward([(reading, EMPTY)], self.want)[0]
        reading.commit((), text[-1])
        drafting = self.draft.open(reading)
        drafting.extend(text)
        drafting.observe(out.features.start, out.features.hidden)
        return reading, drafting

    def rows(self, session: Any, tree: DraftTree) -> np.ndarray:
        return table(self.draft.forward([(session, tree)], NO_OUTPUTS)[0], tree)
