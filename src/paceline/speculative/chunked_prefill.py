"""How the tokens that one pass reads of prompts are shared out."""

from __future__ import annotations

from collections.abc import Sequence

MAX_STALL_SECONDS = 0.15  # seconds that a prompt may add to a pass in which others decode
MAX_STALL_PASSES = 4  # or so many times what their own passes take, where that is more
MIN_CHUNK_TOKENS = 16  # prompt tokens in a pass
MEAN_WINDOW = 8  # passes that a mean follows


class ChunkSize:
    """How many prompt tokens a pass may read, learned from the time of passes. most: where nobody decodes."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._token, self._pass = _Mean(), _Mean()  # seconds

    def limit(self, decoding: int) -> int:
        """Tokens for a pass in which so many requests decode."""
        if not decoding:
            return self.most
        if not self._token.n:
            return min(self.most, MIN_CHUNK_TOKENS)
        seconds = max(MAX_STALL_SECONDS, MAX_STALL_PASSES * self._pass.value)
        return max(min(self.most, MIN_CHUNK_TOKENS), int(min(self.most, seconds / self._token.value)))

    def update(self, decoding: int, read: int, seconds: float) -> None:
        """A pass in which so many requests decoded and so many prompt tokens were read."""
        if read:
            own = self._pass.value if decoding else 0.0
            self._token.add(max(1e-9, seconds - own) / read)
        elif decoding:
            self._pass.add(seconds)


class _Mean:
    def __init__(self) -> None:
        self.n, self.value = 0, 0.0

    def add(self, value: float) -> None:
        self.n = min(self.n + 1, MEAN_WINDOW)
        self.value += (value - self.value) / self.n


def split_chunk(pending_tokens: Sequence[int], chunk: int) -> list[int]:
    """Share out `chunk` tokens among prompts with so many left: evenly, but none more than it needs, so that
    a short prompt behind a long one is read at once."""
    out = [0] * len(pending_tokens)
    left = chunk
    order = sorted([i for i, n in enumerate(pending_tokens) if n], key=pending_tokens.__getitem__)
    for place, i in enumerate(order):
        out[i] = min(pending_tokens[i], -(-left // (len(order) - place)))
        left -= out[i]
    return out
