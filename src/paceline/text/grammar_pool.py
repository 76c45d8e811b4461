"""Grammars of requests, compiled beside the thread that decodes: one that takes long holds up nobody but the
client that sent it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

from paceline.speculative.fair_queue import FairQueue
from paceline.text.grammar import CompiledGrammar, TokenTrie
from paceline.text.grammar_check import GrammarChecker
from paceline.text.grammar_source import GrammarSource

WORKERS = 2  # threads, each with a process
STACK = 16 << 20  # bytes of a thread's: more than its process has, which a grammar has not overflowed


class GrammarJob:
    """One grammar on its way. done: told the outcome, in a worker's thread, unless it is cancelled."""

    def __init__(
        self, syntax: GrammarSource, client: str, done: Callable[[CompiledGrammar | Exception], None]
    ) -> None:
        self.syntax, self.client, self.done = syntax, client, done
        self.cancelled = False
        self.checker: GrammarChecker | None = None  # while it is checked


class GrammarPool:
    """Workers, which start when there is something to do; one at a time for each client, whose turns are
    those of the queue. Close it."""

    def __init__(self, trie: Callable[[], TokenTrie]) -> None:
        """trie: the model's, asked for in a worker's thread."""
        self._trie = trie
        self._changed = threading.Condition()  # with the lock of all below
        self._queue: FairQueue[GrammarJob] = FairQueue()
        self._busy: dict[str, GrammarJob] = {}  # by client
        self._threads: list[threading.Thread] = []
        self._closed = False

    def submit(
        self, syntax: GrammarSource, client: str, done: Callable[[CompiledGrammar | Exception], None]
    ) -> GrammarJob:
        """done: see GrammarJob. Nothing is told after `close`."""
        job = GrammarJob(syntax, client, done)
        with self._changed:
            if self._closed:
                return job
            self._queue.add(client, job)
            if len(self._threads) < min(WORKERS, len(self._busy) + len(self._queue)):
                self._start()
            self._changed.notify_all()
        return job

    def cancel(self, job: GrammarJob) -> None:
        """Nothing more is told of it, and its place is free. Harmless where it is over."""
        with self._changed:
            job.cancelled = True
            if not self._queue.remove(job.client, job) and job.checker is not None:
                job.checker.kill()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            jobs = [*self._queue, *self._busy.values()]
            self._changed.notify_all()
        for job in jobs:
            self.cancel(job)
        for thread in self._threads:
            thread.join()

    def _start(self) -> None:
        thread = threading.Thread(target=self._work, name="paceline-grammars", daemon=True)
        before = threading.stack_size(STACK)
        try:
            thread.start()
        finally:
            threading.stack_size(before)
        self._threads.append(thread)

    def _work(self) -> None:
        with closing(GrammarChecker()) as checker:
            while (job := self._next(checker)) is not None:
                try:
                    outcome: CompiledGrammar | Exception = self._compiled(job, checker)
                except Exception as error:
                    outcome = error
                with self._changed:
                    del self._busy[job.client]
                    self._changed.notify_all()
                if not job.cancelled:
                    job.done(outcome)

    def _next(self, checker: GrammarChecker) -> GrammarJob | None:
        """None where the pool is closed."""
        with self._changed:
            while not self._closed:
                try:
                    job = self._queue.pop(but=self._busy)
                except StopIteration:
                    self._changed.wait()
                    continue
                self._busy[job.client], job.checker = job, checker
                return job
        return None

    def _compiled(self, job: GrammarJob, checker: GrammarChecker) -> CompiledGrammar:
        """Raises UsageError for a grammar that cannot be used, and where its job is cancelled."""
        trie = self._trie()
        try:
            if (known := trie.cached(job.syntax)) is not None:
                return known
            checker.check(job.syntax, lambda: job.cancelled)
        finally:
            with self._changed:  # from here on it is not `checker` that would have to be ended
                job.checker = None
        return trie.compiled(job.syntax)
