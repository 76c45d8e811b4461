"""A forked process has its parent's memory but none of its threads: what they held stays held for ever."""

from __future__ import annotations

import os

from paceline.speculative.errors import UsageError

_count = 0


def _forked() -> None:
    global _count
    _count += 1


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_forked)


class ForkGuard:
    """The process in which this object was made."""

    def __init__(self) -> None:
        self._made = _count

    @property
    def is_current(self) -> bool:
        return self._made == _count

    def require(self) -> None:
        """Raises UsageError in a process that was forked from it since."""
        if not self.is_current:
            raise UsageError(
                "this process was forked from one that uses models and lacks its threads: load them only "
                "after the fork, or start processes with multiprocessing.get_context('spawn')"
            )
