"""How answers are sampled where a request does not say."""

from __future__ import annotations

from collections.abc import Mapping

from paceline.core.errors import UsageError
from paceline.core.sampling import Sampling
from paceline.core.settings import checked
from paceline.llm import LLM

# What local servers begin with: at OpenAI's temperature of 1 and nothing else, small models talk at random.
LOCAL: Mapping[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


def of_chats(llm: LLM, given: Mapping[str, float]) -> dict[str, float]:
    """What the page begins with: `given` by the operator, or what the model's file suggests, or `LOCAL`."""
    suggested = {**LOCAL, **getattr(llm.target, "suggested_sampling", {})}
    try:
        checked(Sampling, suggested)
    except UsageError:  # a file that says nonsense
        suggested = dict(LOCAL)
    return {**suggested, **given}
