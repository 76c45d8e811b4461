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

N_WORKERS = max(1, min(2, (os.cpu_count() or 2) - 1))  # subprocesses, and threads; one core stays free
STACK_BYTES = 16 << 20  # more than the subprocess, which has compiled the grammar before

Done = Callable[[CompiledGrammar | Exception], None]


@dataclass(eq=False)
class GrammarJob:
    """A grammar to compile. done: called with the outcome in a thread of the pool, unless cancelled."""

    syntax: GrammarSource
    client: str
    done: Done
    cancelled: bool = False


class GrammarPool:
    """The queue of a model's grammars, compiled in threads of their own, one job per client at a time.
    trie: returns the model's trie; called in such a thread."""

    def __init__(self, trie: Callable[[], TokenTrie]) -> None:
        self._trie = trie
        self._lock = threading.Lock()  # guards all fields below
        self._queue: FairQueue[GrammarJob] = FairQueue()
        self._running: dict[str, tuple[GrammarJob, GrammarChecker, threading.Thread]] = {}  # by client
        self._idle = [GrammarChecker() for _ in range(N_WORKERS)]

    def compile(self, syntax: GrammarSource) -> CompiledGrammar:
        """Compile a grammar, which was checked, in the caller's thread. Raises UsageError."""
        return self._trie().compile(syntax)

    def submit(self, syntax: GrammarSource, client: str, done: Done) -> GrammarJob:
        """Queue a grammar, or call `done` at once if it is cached."""
        job = GrammarJob(syntax, client, done)
        try:
            outcome: CompiledGrammar | UsageError | None = self._trie().get_cached(syntax)
        except UsageError as error:  # the vocabulary has no end of text
            outcome = error
        if outcome is not None:
            done(outcome)
            return job
        with self._lock:
            self._queue.add(client, job)
            self._start()
        return job

    def cancel(self, job: GrammarJob) -> None:
        """Do not call `done`, and end a running check."""
        with self._lock:
            job.cancelled = True
            self._queue.remove(job.client, job)
            if (running := self._running.get(job.client)) and running[0] is job:
                running[1].kill()

    def close(self) -> None:
        """Cancel all jobs, and end the processes. Later jobs start new ones."""
        with self._lock:
            self._queue, running = FairQueue(), list(self._running.values())
            for job, checker, _ in running:
                job.cancelled = True
                checker.kill()
        for _, _, thread in running:
            thread.join()
        for checker in self._idle:
            checker.close()

    def _start(self) -> None:
        """Start jobs of clients that have none running, as long as there are processes for them."""
        with suppress(StopIteration):
            while self._idle:
                job = self._queue.pop(but=self._running)
                checker = self._idle.pop()
                given, name = (job, checker), "paceline-grammars"
                thread = threading.Thread(target=self._work, args=given, name=name, daemon=True)
                self._running[job.client] = job, checker, thread
                before = threading.stack_size(STACK_BYTES)
                try:
                    thread.start()
                finally:
                    threading.stack_size(before)

    def _work(self, job: GrammarJob, checker: GrammarChecker) -> None:
        if sys.platform == "linux":  # of this thread alone
            os.nice(NICENESS)
        try:
            trie = self._trie()
            outcome: CompiledGrammar | Exception | None = trie.get_cached(job.syntax)
            if outcome is None:
                checker.check(job.syntax)
                outcome = trie.compile(job.syntax)
        except Exception as error:
            outcome = error
        with self._lock:
            del self._running[job.client]
            self._idle.append(checker)
            self._queue.move_to_end(job.client)
            self._start()
        if not job.cancelled:
            job.done(outcome)
