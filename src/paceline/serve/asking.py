"""What one answer is to be, and what comes back of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from paceline.core.errors import PacelineError, UsageError
from paceline.core.ports import UNLIMITED
from paceline.core.record import Logprob, Stats, StopReason
from paceline.core.sampling import Sampling
from paceline.core.settings import checked
from paceline.engines.conversation import Tool
from paceline.engines.syntax import Syntax
from paceline.engines.tool_formats import Format


class FullError(UsageError):
    """More than the server takes. seconds: after which to try again."""

    def __init__(self, message: str, seconds: float) -> None:
        super().__init__(message)
        self.seconds = seconds


class ClosingError(PacelineError):
    """The server is going down, or its model has failed."""


class TooSlowError(PacelineError):
    """A request that took longer than the server allows."""


class FailedError(PacelineError):
    """The model has failed at a request; the log says why."""


@dataclass(frozen=True)
class Limits:
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
class Ask:
    """One answer. prompt: tokens. syntax: what its text has to match. n_draft, only: see core/request.py;
    the other fields are `LLM.stream`'s. calls: how its text is read for calls of tools."""

    prompt: Sequence[int]
    max_tokens: int
    sampling: Sampling = field(default_factory=Sampling)
    seed: int = 0
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False
    syntax: Syntax | None = None
    logprobs: int | None = None
    n_draft: int = UNLIMITED
    only: frozenset[str] | None = None
    calls: Calls | None = None

    @property
    def spelled(self) -> Mapping[int, bytes]:
        """Control tokens that are text all the same."""
        return {} if self.calls is None else self.calls.spelled


@dataclass(frozen=True)
class Calls:
    """format, tools: what a ToolCallStream is made of. begun: with what the answer begins, in its prompt
    already. spelled: control tokens that are a part of the format, and text to whoever reads it."""

    format: Format
    tools: Sequence[Tool]
    begun: str
    spelled: Mapping[int, bytes]


@dataclass(frozen=True)
class End:
    """How an answer came to its end: by a reason, or an error. n_cached: tokens of the prompt that did not
    have to be read. seconds: waiting in the queue, to the first token, and from there to the last."""

    reason: StopReason | None
    error: Exception | None
    n_prompt: int
    n_cached: int
    n_tokens: int
    waited: float
    first: float
    rest: float
    stats: Stats

    @property
    def cut(self) -> bool:
        """Whether there would have been more."""
        return self.reason not in ("eos", "stop")


@dataclass(frozen=True)
class Update:
    """What one pass has added to an answer. parts: text, each with the drafter it came from ("target": none).
    tokens: with their log-probabilities where they were asked for. end: with the last one."""

    parts: tuple[tuple[str, str], ...] = ()
    tokens: tuple[int, ...] = ()
    logprobs: tuple[Logprob, ...] = ()
    end: End | None = None

    @property
    def text(self) -> str:
        return "".join(text for text, _ in self.parts)


Deliver = Callable[[Update], None]
