"""Default sampling of chats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol, runtime_checkable

from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import Target
from paceline.speculative.sampling_settings import DEFAULT_CHAT_SAMPLING, Sampling


@runtime_checkable
class SuggestsSampling(Protocol):
    """A target whose file may have sampling settings."""

    @property
    def suggested_sampling(self) -> Mapping[str, float]:
        """Fields of `Sampling`, not validated."""


def chat_sampling(target: Target, given: Mapping[str, float]) -> dict[str, float]:
    """Return sampling settings: `given`, else the model file's, else DEFAULT_CHAT_SAMPLING."""
    suggested: dict[str, Any] = dict(DEFAULT_CHAT_SAMPLING)
    if isinstance(target, SuggestsSampling):
        suggested |= target.suggested_sampling
    try:
        Sampling(**suggested)
    except UsageError:  # the file's values are invalid
        suggested = dict(DEFAULT_CHAT_SAMPLING)
    return {**suggested, **given}
