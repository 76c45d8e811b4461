"""Compilation of requests' grammars beside the decoding thread. A slow grammar delays only its client."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

from paceline.speculative.errors import UsageError
from paceline.speculative.fair_queue import FairQueue
from paceline.text.grammar import CompiledGrammar, TokenTrie
from paceline.text.grammar_source import NICENESS, GrammarChecker, GrammarSource

N_WORKERS = max(1, min(2, (os.cpu_count() or 2) - 1))  # threads, each with a subprocess; one core stays free
STACK_BYTES = 16 << 20  # more than the subprocess, which has compiled the grammar before

Done = Callable[[CompiledGrammar | Exception], None]


@dataclass(eq=False)
class GrammarJob:
    """A grammar to compile. done: called with the outcome in a worker's thread, unless cancelled."""

    syntax: GrammarSource
    client: str
    done: Done
    cancelled: bool = False


class GrammarPool:
    """The queue of a model's grammars, with workers that start with the first jobs, one job per client at a
    time. trie: returns the model's trie; called in a worker's thread."""

    def __init__(self, trie: Callable[[], TokenTrie]) -> None:
        self._trie = trie
        self._changed = threading.Condition()  # guards all fields below
        self._queue: FairQueue[GrammarJob] = FairQueue()
        self._busy: dict[str, tuple[GrammarJob, GrammarChecker]] = {}  # by client
        self._workers: list[tuple[threading.Thread, GrammarChecker]] = []
        self._closing = False

    def compile(self, syntax: GrammarSource) -> CompiledGrammar:
        """Compile a grammar, which was checked, in the caller's thread. Raises UsageError."""
        return self._trie().compile(syntax)

    def submit(self, syntax: GrammarSource, client: str, done: Done) -> GrammarJob:
        """Queue a grammar, or call `done` at once if it is cached. A pool that is closing ignores it."""
        job = GrammarJob(syntax, client, done)
        try:
            outcome: CompiledGrammar | UsageError | None = self._trie().get_cached(syntax)
        except UsageError as error:  # the vocabulary has no end of text
            outcome = error
        if outcome is not None:
            done(outcome)
            return job
        with self._changed:
            if not self._closing:
                self._queue.add(client, job)
                if len(self._workers) < min(N_WORKERS, len(self._busy) + len(self._queue)):
                    self._start()
                self._changed.notify_all()
        return job

    def cancel(self, job: GrammarJob) -> None:
        """Do not call `done`, and end a running check."""
        with self._changed:
            job.cancelled = True
            self._queue.remove(job.client, job)
            running, checker = self._busy.get(job.client, (None, None))
            if running is job and checker is not None:
                checker.kill()

    def close(self) -> None:
        """Cancel all jobs and end the workers. Later jobs start new ones."""
        with self._changed:
            self._closing, self._queue = True, FairQueue()
            for job, _ in self._busy.values():
                job.cancelled = True
            self._changed.notify_all()
        for thread, checker in self._workers:
            checker.kill()
            thread.join()
            checker.close()
        self._workers, self._closing = [], False

    def _start(self) -> None:
        checker = GrammarChecker()
        thread = threading.Thread(target=self._work, args=(checker,), name="paceline-grammars", daemon=True)
        before = threading.stack_size(STACK_BYTES)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
        self._workers.append((thread, checker))

    def _work(self, checker: GrammarChecker) -> None:
        if sys.platform == "linux":  # of this thread alone
            os.nice(NICENESS)
        while (job := self._next(checker)) is not None:
            try:
                outcome: CompiledGrammar | Exception = self._compile(job.syntax, checker)
            except Exception as error:
                outcome = error
            with self._changed:
                del self._busy[job.client]
                self._queue.move_to_end(job.client)
                self._changed.notify_all()
            if not job.cancelled:
                job.done(outcome)

    def _next(self, checker: GrammarChecker) -> GrammarJob | None:
        """Wait for a job of a client that has none running. Return None if the pool is closing."""
        with self._changed:
            while not self._closing:
                with suppress(StopIteration):
                    job = self._queue.pop(but=self._busy)
                    self._busy[job.client] = job, checker
                    return job
                self._changed.wait()
        return None

    def _compile(self, syntax: GrammarSource, checker: GrammarChecker) -> CompiledGrammar:
        trie = self._trie()
        if (grammar := trie.get_cached(syntax)) is not None:
            return grammar
        checker.check(syntax)
        return trie.compile(syntax)
