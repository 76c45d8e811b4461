"""The size of prefill chunks, and their division among prompts."""

from __future__ import annotations

from collections.abc import Sequence

MAX_STALL_SECONDS = 0.15  # prefill time added to a pass in which other requests decode
MAX_STALL_PASSES = 4  # the same in decoding passes; the larger limit counts
MIN_CHUNK_TOKENS = 16
MEAN_WINDOW = 8  # passes


class ChunkSize:
    """The prompt tokens of a pass, learned from pass times. most: the limit while nobody decodes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._token, self._pass = _Mean(), _Mean()  # seconds

    def limit(self, decoding: int) -> int:
        """Return the most prompt tokens of a pass with `decoding` requests."""
        if not decoding:
            return self.most
        if not self._token.n:
            return min(self.most, MIN_CHUNK_TOKENS)
        seconds = max(MAX_STALL_SECONDS, MAX_STALL_PASSES * self._pass.value)
        return max(min(self.most, MIN_CHUNK_TOKENS), int(min(self.most, seconds / self._token.value)))

    def update(self, decoding: int, read: int, seconds: float) -> None:
        """Record a pass with `decoding` requests and `read` prompt tokens."""
        if read:
            decode_seconds = self._pass.value if decoding else 0.0
            self._token.add(max(1e-9, seconds - decode_seconds) / read)
        elif decoding:
            self._pass.add(seconds)


class _Mean:
    """A running mean over about MEAN_WINDOW values."""

    def __init__(self) -> None:
        self.n, self.value = 0, 0.0

    def add(self, value: float) -> None:
        self.n = min(self.n + 1, MEAN_WINDOW)
        self.value += (value - self.value) / self.n


def split_chunk(pending_tokens: Sequence[int], chunk: int) -> list[int]:
    """Divide `chunk` tokens evenly among prompts with `pending_tokens` left, none more than it needs.
    A short prompt behind a long one is thus prefilled at once."""
    out = [0] * len(pending_tokens)
    remaining = chunk
    order = sorted([i for i, n in enumerate(pending_tokens) if n], key=pending_tokens.__getitem__)
    for place, i in enumerate(order):
        out[i] = min(pending_tokens[i], -(-remaining // (len(order) - place)))
        remaining -= out[i]
    return out
