"""The sampler settings of a request; `sampling` applies them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from paceline.speculative.errors import UsageError
from paceline.speculative.validation import MAX_LOGIT, setting, validate_fields

# Of chats. They are those of local servers: OpenAI's plain temperature of 1 makes small models incoherent.
DEFAULT_CHAT_SAMPLING: Mapping[str, float] = {"temperature": 0.8, "top_k": 40, "top_p": 0.95, "min_p": 0.05}


MIROSTAT = (
    "mirostat is not available: it adjusts itself after each token by how probable that one was, and drafts "
    "are verified by the text and one row of logits alone; leave it out, or use min_p or top_n_sigma"
)
# The further tokens of each sequence breaker that begins with a token; () if its text alone has one.
Breakers = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Sampling:
    """The sampler settings of a request. Raises UsageError for values out of range."""

    temperature: float = setting(0.0, "Temperature; 0: greedy.", 0.0, MAX_LOGIT)
    top_k: int = setting(0, "Top-k sampling; 0: off.", 0)
    top_p: float = setting(1.0, "Top-p (nucleus) sampling; 1: off.", 0.0, 1.0)
    min_p: float = setting(0.0, "Min-p sampling; 0: off.", 0.0, 1.0)
    typical_p: float = setting(1.0, "Locally typical sampling; 1: off.", 0.0, 1.0)
    top_n_sigma: float = setting(0.0, "Top-n-sigma sampling; 0 and -1: off.", -1.0, MAX_LOGIT)
    xtc_probability: float = setting(0.0, "XTC probability; 0: off.", 0.0, 1.0)
    xtc_threshold: float = setting(0.1, "XTC threshold.", 0.0, 1.0)
    dynatemp_range: float = setting(0.0, "Temperature range, by entropy; 0: off.", 0.0, MAX_LOGIT)
    dynatemp_exponent: float = setting(1.0, "From entropy to temperature.", 0.0, MAX_LOGIT)
    repeat_penalty: float = setting(1.0, "Penalize repeated tokens; 1: off.", 1.0 / MAX_LOGIT, MAX_LOGIT)
    repeat_last_n: int = setting(64, "Last tokens to penalize; 0: none.", 0)
    presence_penalty: float = setting(0.0, "Presence penalty; 0: off.", -MAX_LOGIT, MAX_LOGIT)
    frequency_penalty: float = setting(0.0, "Penalty per occurrence; 0: off.", -MAX_LOGIT, MAX_LOGIT)
    dry_multiplier: float = setting(0.0, "DRY: penalize repeated sequences; 0: off.", 0.0, MAX_LOGIT)
    dry_base: float = setting(1.75, "DRY penalty per token of a repeat.", 1.0, MAX_LOGIT)
    dry_allowed_length: int = setting(2, "Length of repeats that DRY allows.", 0)
    dry_penalty_last_n: int = setting(64, "Last tokens that DRY reads; 0: none.", 0, 1 << 16)
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")  # repeats end there
    dry_breakers: Mapping[int, Breakers] = field(default_factory=dict)  # as tokens: LLM.sampling
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
        return self.temperature == 0.0 and self.dynatemp_range == 0.0

    @property
    def counts_tokens(self) -> bool:
        """True if tokens of the text are penalised one by one."""
        penalties = (self.repeat_penalty, self.presence_penalty, self.frequency_penalty)
        return self.repeat_last_n > 0 and penalties != (1.0, 0.0, 0.0)

    @property
    def dry(self) -> bool:
        return self.dry_multiplier > 0.0 and self.dry_penalty_last_n > 0

    @property
    def penalised(self) -> bool:
        """True if the distribution depends on the text so far in itself."""
        return self.counts_tokens or self.dry

    @property
    def reads_whole_row(self) -> bool:
        """True if a filter compares tokens with the whole vocabulary's."""
        return self.top_n_sigma > 0.0 or self.dynatemp_range > 0.0

    @property
    def filtered(self) -> bool:
        """True if more than the temperature shapes the distribution."""
        cuts = min(self.typical_p, self.top_p) < 1.0 or self.reads_whole_row
        return cuts or self.top_k > 0 or self.min_p > 0.0 or self.xtc_probability > 0.0

    @property
    def edits_logits(self) -> bool:
        """True if the likeliest token can differ from the argmax of the model's logits."""
        return bool(self.logit_bias) or self.penalised
