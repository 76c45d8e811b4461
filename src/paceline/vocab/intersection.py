"""The tokens that two vocabularies share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from paceline.vocab.lexicon import Lexicon

Ids = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Intersection:
    """Pairs of tokens, target_ids[i] and draft_ids[i], with the same bytes or the same control name.
    Each id is in at most one pair; target_ids ascend."""

    target_ids: Ids
    draft_ids: Ids

    def __len__(self) -> int:
        return len(self.target_ids)

    @classmethod
    def of(cls, target: Lexicon, draft: Lexicon) -> Intersection:
        """Match the tokens of two vocabularies."""
        pairs = {
            ours: draft.by_bytes[data] for data, ours in target.by_bytes.items() if data in draft.by_bytes
        }
        pairs |= {ours: draft.by_name[name] for name, ours in target.by_name.items() if name in draft.by_name}
        ends, their_ends = target.vocab.eos, draft.vocab.eos
        if ends and their_ends and not any(pairs.get(end) in their_ends for end in ends):
            # Names differ, but both end the text.
            end, their_end = min(ends), min(their_ends)
            pairs = {ours: theirs for ours, theirs in pairs.items() if theirs != their_end} | {end: their_end}
        ordered = np.array(sorted(pairs.items()), dtype=np.int64).reshape(-1, 2)
        return cls(ordered[:, 0].copy(), ordered[:, 1].copy())
