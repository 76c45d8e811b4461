"""A draft model's session that follows a text which may change, such as a translation or a sliding window."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.speculative.interfaces import Session, Target


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the common prefix."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


class ResumableSession:
    """A session that can be moved to another token sequence; a new session reuses the cached prefix."""

    def __init__(self, target: Target, beside: Session | None = None, session: Session | None = None) -> None:
        self._target, self._beside = target, beside
        self.session: Session = target.open(beside) if session is None else session
        self._synced: Sequence[int] = ()
        self._n_synced = 0

    def sync_to(self, tokens: list[int]) -> None:
        """Make `tokens` the committed sequence, the last one being the root.
        The same list as in the last call may only have grown, and is not compared again."""
        n = len(self.session.tokens)
        if (tokens is not self._synced or n != self._n_synced) and tokens[:n] != self.session.tokens:
            self.session.close()
            self.session, n = self._target.open(self._beside), 0
        self.session.extend(tokens[n:])
        self._synced, self._n_synced = tokens, len(tokens)

    def close(self) -> None:
        self.session.close()
