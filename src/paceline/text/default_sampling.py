"""Default sampling of chats: what a model's file suggests, else what local servers begin with."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.config import validate_drafting
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import Target
from paceline.speculative.sampling import Sampling

# At OpenAI's temperature of 1 and nothing else, small models talk at random.
DEFAULT_CHAT_SAMPLING: Mapping[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


def chat_sampling(target: Target, given: Mapping[str, float]) -> dict[str, float]:
    """The settings of `LOCAL`: as `given`, else as the file's `general.sampling.*` says, else as there."""
    suggested = {**DEFAULT_CHAT_SAMPLING, **getattr(target, "suggested_sampling", {})}
    try:
        validate_drafting(Sampling, suggested)
    except UsageError:  # a file that says nonsense
        suggested = dict(DEFAULT_CHAT_SAMPLING)
    return {**suggested, **given}
