"""A session whose text may also become another one: a draft model reads what its target has emitted, and of a
translation or of a window that moves that is not always what it read before, with something behind it."""

from __future__ import annotations

from collections.abc import Sequence

from paceline.speculative.interfaces import Session, Target


class ResumableSession:
    """Owns a session of `target`; another one where its text goes back, which takes over what that one has
    computed as any new session does."""

    def __init__(self, target: Target, beside: Session | None = None) -> None:
        self._target, self._beside = target, beside
        self.session: Session = target.open(beside)
        self._text: Sequence[int] = ()
        self._n = 0  # of its tokens are the session's

    def sync_to(self, tokens: list[int]) -> None:
        """The committed text is `tokens`, the last one the root. The same list as the last time may only have
        been appended to, and is not compared again."""
        n = len(self.session.tokens)
        if (tokens is not self._text or n != self._n) and tokens[:n] != self.session.tokens:
            self.session.close()
            self.session, n = self._target.open(self._beside), 0
        self.session.extend(tokens[n:])
        self._text, self._n = tokens, len(tokens)

    def close(self) -> None:
        self.session.close()
