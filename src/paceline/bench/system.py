"""What can be measured: whatever answers requests, be it Paceline with some drafter or another program."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from paceline.speculative.sampling import Sampling


@dataclass(frozen=True)
class BenchRequest:
    """One request. tokens: the prompt as the target's own tokens; prompt: the same as text, for programs that
    take nothing else. ignore_eos: go on to max_tokens, so that every system decodes as much. sampling: greedy
    unless it says otherwise."""

    prompt: str
    tokens: tuple[int, ...]
    max_tokens: int
    seed: int = 0
    ignore_eos: bool = True
    sampling: Sampling = field(default_factory=Sampling)


@dataclass(frozen=True)
class BenchAnswer:
    """What one request came to, timed by the asker's clock, or the program's own where a docstring says so.

    tokens: None where the system tells no token ids. first, seconds: from asking to the first token, or the
    first few that came together, and to the last. decoded, decoding: how many tokens were decoded once the
    prompt was read, and the seconds that took: a first token that comes of the prompt's own pass is left out.
    rejected: the steps that kept less than was drafted. draft_seconds, decode_seconds: of drafting, and of
    all decoding. own_speed: tokens/s in the system's own words. What a system does not tell is None.
    """

    text: str
    tokens: tuple[int, ...] | None
    n_tokens: int
    n_prompt: int
    first: float
    seconds: float
    decoded: int
    decoding: float
    steps: int | None = None
    drafted: int | None = None
    accepted: int | None = None
    rejected: int | None = None
    draft_seconds: float | None = None
    decode_seconds: float | None = None
    own_speed: float | None = None


class System(Protocol):
    """One row of a comparison: one way to answer."""

    @property
    def name(self) -> str: ...

    def answer(self, ask: BenchRequest) -> BenchAnswer:
        """Answer one request from an empty cache. Raises PeerError if the program fails."""

    def memory(self) -> int | None:
        """Bytes of memory that answering takes, as far as they can be told apart; None where they cannot."""

    def close(self) -> None: ...
