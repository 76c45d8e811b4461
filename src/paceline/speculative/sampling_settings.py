"""The sampler settings of a request; `sampling` applies them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.speculative.errors import UsageError
from paceline.speculative.validation import MAX_LOGIT, setting, validate_fields

# Of chats. They are those of local servers: OpenAI's plain temperature of 1 makes small models incoherent.
DEFAULT_CHAT_SAMPLING: Mapping[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


@dataclass(frozen=True)
class Sampling:
    """The sampler settings of a request. Raises UsageError for values out of range."""

    temperature: float = setting(0.0, "Temperature; 0: greedy.", 0.0, MAX_LOGIT)
    top_k: int = setting(0, "Top-k sampling; 0: off.", 0)
    top_p: float = setting(1.0, "Top-p (nucleus) sampling; 1: off.", 0.0, 1.0)
    min_p: float = setting(0.0, "Min-p sampling; 0: off.", 0.0, 1.0)
    typical_p: float = setting(1.0, "Locally typical sampling; 1: off.", 0.0, 1.0)
    xtc_probability: float = setting(0.0, "XTC probability; 0: off.", 0.0, 1.0)
    xtc_threshold: float = setting(0.1, "XTC threshold.", 0.0, 1.0)
    repeat_penalty: float = setting(1.0, "Penalize repeated tokens; 1: off.", 1.0 / MAX_LOGIT, MAX_LOGIT)
    repeat_last_n: int = setting(64, "Last tokens to penalize; 0: none.", 0)
    presence_penalty: float = setting(0.0, "Presence penalty; 0: off.", -MAX_LOGIT, MAX_LOGIT)
    frequency_penalty: float = setting(0.0, "Penalty per occurrence; 0: off.", -MAX_LOGIT, MAX_LOGIT)
    logit_bias: Mapping[int, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate_fields(self)
        if self.greedy and (self.typical_p < 1.0 or self.xtc_probability > 0.0):
            raise UsageError("typical_p and XTC may leave the likeliest token out: set a temperature above 0")
        for token, bias in self.logit_bias.items():
            if token < 0 or not (abs(bias) <= MAX_LOGIT or bias == -math.inf):
                raise UsageError(
                    f"logit_bias {token}={bias}: needs a token id, and a number between {-MAX_LOGIT:g} and "
                    f"{MAX_LOGIT:g} (or -inf)"
                )

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    @property
    def penalised(self) -> bool:
        penalties = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
        return self.repeat_last_n > 0 and penalties != (1.0, 0.0, 0.0)

    @property
    def filtered(self) -> bool:
        """True if more than the temperature shapes the distribution."""
        cuts = min(self.typical_p, self.top_p) < 1.0
        return cuts or self.top_k > 0 or self.min_p > 0.0 or self.xtc_probability > 0.0

    @property
    def edits_logits(self) -> bool:
        """True if the likeliest token can differ from the argmax of the model's logits."""
        return bool(self.logit_bias) or self.penalised
