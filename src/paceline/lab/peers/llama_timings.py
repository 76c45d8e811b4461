"""The `timings` with which llama-server ends an answer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def own_speed(timings: Mapping[str, Any]) -> float | None:
    """Tokens/s of decoding. Its clock for decoding starts when the first token is sampled, and its count of
    tokens includes that one: builds before 2026 divide the one by the other, and look too fast."""
    n, milliseconds = timings.get("predicted_n", 0), timings.get("predicted_ms", 0.0)
    return (n - 1) / milliseconds * 1e3 if n > 1 and milliseconds > 0 else None


def decoding_seconds(timings: Mapping[str, Any], first: float, last: float) -> float:
    """Seconds from the first token to the last, which reached us after `first` and `last` seconds. On a busy
    machine the first may come late, together with others: the server cannot have decoded for less time than
    it says, so it was before."""
    return max(last - first, min(float(timings.get("predicted_ms", 0.0)) / 1e3, last))


def drafts(timings: Mapping[str, Any], told: bool) -> tuple[int | None, int | None]:
    """Tokens (drafted, accepted). told: whether this server tells; it leaves out what is zero."""
    if "draft_n" not in timings and not told:
        return None, None
    return int(timings.get("draft_n", 0)), int(timings.get("draft_n_accepted", 0))
