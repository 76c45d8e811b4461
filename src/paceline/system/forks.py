"""Detection of forks: a forked process has its parent's memory, but not its threads and their locks."""

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
    """The process that created this object."""

    def __init__(self) -> None:
        self._made = _count

    @property
    def is_current(self) -> bool:
        return self._made == _count

    def require(self) -> None:
        """Raise UsageError in a process that was forked since."""
        if not self.is_current:
            why = "this process was forked from one that uses models and lacks its threads: load them only "
            why += "after the fork, or start processes with multiprocessing.get_context('spawn')"
            raise UsageError(why)
