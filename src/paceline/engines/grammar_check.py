"""Grammars from strangers, before this process compiles them: a process of its own tries them first."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import Timer

from paceline.core.errors import PacelineError, UsageError
from paceline.engines.grammar_trial import STARTED
from paceline.engines.syntax import Syntax, complaint

DEADLINE = 10.0  # seconds of waiting for a grammar, on a machine that has other things to do, too
START = 60.0  # seconds for the process to start in


class GrammarChecker:
    """Owns one process, which is started for the first grammar (0.3 s), kept for the next, and replaced where
    a grammar has ended it. One thread checks; any may call `kill`."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = False

    def check(self, syntax: Syntax, cancelled: Callable[[], bool] = lambda: False) -> None:
        """cancelled: whether it is still wanted, for a `kill` that comes before there is a process. Raises
        UsageError for a grammar that llguidance cannot use, does not survive, or has no end of compiling;
        PacelineError where no process can be started."""
        process = self._running()
        if cancelled():
            raise UsageError(f"{syntax.name} is not wanted any more")
        lark = syntax.lark.encode()
        assert process.stdin is not None
        assert process.stdout is not None
        said: bytes | None = None
        with self._deadline(DEADLINE), suppress(OSError):  # it ends while it is written to
            process.stdin.write(len(lark).to_bytes(8) + lark)
            process.stdin.flush()
            if len(length := process.stdout.read(8)) == 8:
                said = process.stdout.read(int.from_bytes(length))
        if said is None:
            process.wait()
            slow = self._killed or process.returncode == -getattr(signal, "SIGXCPU", 0)
            self.close()
            raise UsageError(
                f"{syntax.name} {'takes too long' if slow else 'is too complex'} to compile: simplify it"
            )
        if said:
            raise UsageError(complaint(syntax.name, said.decode(errors="replace")))

    def kill(self) -> None:
        """End the check that is under way: it raises UsageError."""
        self._killed = True
        process = self._process
        if process is not None:
            process.kill()

    def close(self) -> None:
        process, self._process, self._killed = self._process, None, False
        if process is not None:
            process.kill()
            with process, suppress(OSError):  # what was not written yet cannot be
                assert process.stdin is not None
                process.stdin.close()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and not self._killed and self._process.poll() is None:
            return self._process
        self.close()
        code = "from paceline.engines.grammar_trial import main; main()"
        try:
            process = self._process = subprocess.Popen(
                [sys.executable, "-c", code],
                env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for whoever started it
            )
        except OSError as error:
            raise PacelineError(f"grammars cannot be checked: no process starts ({error})") from error
        assert process.stdout is not None
        with self._deadline(START):
            begun = process.stdout.read(1)
        if begun != STARTED and not self._killed:
            self.close()
            raise PacelineError("grammars cannot be checked: the process for it does not start")
        return process

    @contextmanager
    def _deadline(self, seconds: float) -> Iterator[None]:
        timer = Timer(seconds, self.kill)
        timer.daemon = True
        timer.start()
        try:
            yield
        finally:
            timer.cancel()
            timer.join()  # it ends no later process
