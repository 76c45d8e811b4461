"""The `timings` with which llama-server ends an answer. What is none raises ValueError."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.lab.peers.fields import count, milliseconds


def own_speed(timings: Mapping[str, Any]) -> float | None:
    """Tokens/s of decoding. Its clock for decoding starts when the first token is sampled, and its count of
    tokens includes that one: builds before 2026 divide the one by the other, and look too fast."""
    n, took = count(timings, "predicted_n", 0), milliseconds(timings, "predicted_ms")
    return (n - 1) / took * 1e3 if n > 1 and took > 0 else None


def decoding(timings: Mapping[str, Any], first: float, last: float, n_first: int) -> tuple[float, int]:
    """(seconds of decoding, tokens that were there when they began). first, last: when the first tokens,
    n_first together, and the last ones reached us. On a busy machine the first may come late, with others:
    the server cannot have decoded for less time than it says, and that time begins after one token."""
    own = min(milliseconds(timings, "predicted_ms") / 1e3, last)
    return (own, 1) if own > last - first else (last - first, n_first)


def drafts(timings: Mapping[str, Any], told: bool) -> tuple[int | None, int | None]:
    """Tokens (drafted, accepted). told: whether this server tells; it leaves out what is zero."""
    if "draft_n" not in timings and not told:
        return None, None
    drafted = count(timings, "draft_n", 0)
    return drafted, count(timings, "draft_n_accepted", 0, most=drafted)
