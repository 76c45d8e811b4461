"""What one answer is to be, and what comes back of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from paceline.config import checked
from paceline.speculative.errors import PacelineError, UsageError
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.text.messages import Tool
from paceline.text.tools.formats import ToolFormat


class QueueFullError(UsageError):
    """More than the server takes. seconds: after which to try again."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class ModelFailedError(PacelineError):
    """The model has failed at a request; the log says why."""


@dataclass(frozen=True)
class ServerLimits:
    """apart: past answers of a client are drafts for that client alone. queue: requests that wait, at most.
    each: requests of one client that are open, at most; 0: as many as there is room for. seconds: from a
    request's arrival to its last token. n_predict: tokens of an answer; 0: as many as the context has.
    sampling: fields of `Sampling` for requests that do not say; the others are OpenAI's defaults. Raises
    UsageError."""

    apart: bool = False
    queue: int = 64
    each: int = 0
    seconds: float = 600.0
    n_predict: int = 0
    sampling: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        checked(Sampling, self.sampling)


@dataclass(frozen=True)
class ParsedRequest:
    """An HTTP request as the engine takes it. requests: one an answer. calls: how their text is read for tool
    calls."""

    requests: Sequence[GenerationRequest]
    calls: ToolCallParsing | None = None


@dataclass(frozen=True)
class ToolCallParsing:
    """format, tools: what a ToolCallStream is made of. begun: with what the answer begins, in its prompt
    already. spelled: control tokens that are a part of the format, and text to whoever reads it."""

    format: ToolFormat
    tools: Sequence[Tool]
    begun: str
    spelled: Mapping[int, bytes]
