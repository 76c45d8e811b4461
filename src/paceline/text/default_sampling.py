"""Default sampling of chats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, runtime_checkable

from paceline.config import validate_drafting
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import Target
from paceline.speculative.sampling import Sampling

# Defaults of local servers: OpenAI's plain temperature of 1 makes small models incoherent.
DEFAULT_CHAT_SAMPLING: Mapping[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


@runtime_checkable
class SuggestsSampling(Protocol):
    """A target whose file may have sampling settings."""

    @property
    def suggested_sampling(self) -> Mapping[str, float]:
        """Fields of `Sampling`, not validated."""


def chat_sampling(target: Target, given: Mapping[str, float]) -> dict[str, float]:
    """Return sampling settings: `given`, else the model file's, else DEFAULT_CHAT_SAMPLING."""
    suggested = dict(DEFAULT_CHAT_SAMPLING)
    if isinstance(target, SuggestsSampling):
        suggested |= target.suggested_sampling
    try:
        validate_drafting(Sampling, suggested)
    except UsageError:  # the file's values are invalid
        suggested = dict(DEFAULT_CHAT_SAMPLING)
    return {**suggested, **given}
