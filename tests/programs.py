"""Random programs of sessions on one target, and the same texts decoded plainly.

A program opens sessions, reads prompts in chunks, verifies trees and commits or drops what they hold. Each
row that it computes is compared, bit by bit, with that of one session which reads the text a token a pass."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from random import Random
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from paceline.speculative.interfaces import RequiredOutputs, Target
from paceline.speculative.tree import EMPTY, ROOT, DraftTree

SESSIONS = 4
NODES = 12  # of a tree
CONTEXT = 160
LONGEST = CONTEXT - 3 * NODES  # tokens of a session that goes on
PROMPT = 40
SHARED = [7, 3, 9, 3, 7, 1, 0, 2, 11, 5, 8, 8, 4, 200, 31, 7, 3, 9]  # how prompts may begin

Action = tuple[str, int]  # what to do, and the seed of everything that is left open in it
actions = st.tuples(
    st.sampled_from(("open", "pass", "pass", "pass", "rewind", "close")), st.integers(0, 2**16)
)
programs = st.lists(actions, min_size=6, max_size=40)


@dataclass(frozen=True)
class Row:
    """Logits that predict what follows `text`, and where in a program they were computed."""

    text: tuple[int, ...]
    logits: NDArray[np.float32]
    place: str


@dataclass
class Machine:
    """A target in the middle of a program."""

    target: Target
    vocab: int
    sessions: list[Any] = field(default_factory=list)
    trees: dict[int, DraftTree] = field(default_factory=dict)  # of sessions that were verified, by identity
    rows: list[Row] = field(default_factory=list)

    def run(self, program: Sequence[Action]) -> list[Row]:
        for at, (name, seed) in enumerate([("open", 0), *program, ("pass", 0)]):
            random = Random(seed)
            if name == "open":
                self._open(random)
            elif name == "pass":
                self._pass(random, at)
            elif self.sessions:
                session = random.choice(self.sessions)
                self._rewind(session, random) if name == "rewind" else self._close(session)
        return self.rows

    def close(self) -> None:
        for session in self.sessions[:]:
            self._close(session)

    def _open(self, random: Random) -> None:
        if len(self.sessions) == SESSIONS:
            return
        start = SHARED[: random.randint(1, len(SHARED))] if random.random() < 0.6 else []
        session = self.target.open()
        self.sessions.append(session)
        session.extend([*start, *self._tokens(random, random.randint(1, PROMPT))])

    def _close(self, session: Any) -> None:
        self.sessions.remove(session)
        self.trees.pop(id(session), None)
        session.close()

    def _rewind(self, session: Any, random: Random) -> None:
        """Back to the committed text, or on along the tree and off it."""
        tree = self.trees.pop(id(session), EMPTY)
        path = tree.path_tokens(random.randint(ROOT, len(tree) - 1))
        session.extend(() if random.random() < 0.5 else [*path, *self._tokens(random, random.randint(1, 3))])

    def _pass(self, random: Random, at: int) -> None:
        for session in [session for session in self.sessions if len(session.tokens) > LONGEST]:
            self._close(session)
        if not self.sessions:
            return
        taken = random.sample(self.sessions, random.randint(1, len(self.sessions)))
        batch = [(session, self._work(session, random)) for session in taken]
        outs = self.target.forward(batch, RequiredOutputs())
        for (session, work), out in zip(batch, outs, strict=True):
            if isinstance(work, int):
                continue
            known = self.trees.get(id(session), EMPTY)
            grows = id(session) in self.trees and work.starts_with(known)
            for row in range(len(known) + 1 if grows else 0, len(work) + 1):
                text = (*session.tokens, *work.path_tokens(row - 1))
                place = f"action {at}, row {row} of tree {work.parents}, {len(batch)} sessions"
                self.rows.append(Row(text, np.array(out.logits(row)), place))
            self.trees[id(session)] = work
        for session, work in batch:
            if not isinstance(work, int) and random.random() < 0.7:
                path = []
                node = random.randint(ROOT, len(work) - 1)
                while node != ROOT:
                    path.append(node)
                    node = work.parents[node]
                del self.trees[id(session)]
                session.commit(path[::-1], self._tokens(random, 1)[0])

    def _work(self, session: Any, random: Random) -> DraftTree | int:
        """Some of the prompt to read, or a tree: a new one, or more of the last."""
        if session.pending_tokens and random.random() < 0.5:
            return random.randint(1, session.pending_tokens)
        known = self.trees.get(id(session), EMPTY)
        old = known if random.random() < 0.5 else EMPTY
        parents, n = list(old.parents), random.randint(len(old), NODES)
        for node in range(len(old), n):
            parents.append(node - 1 if random.random() < 0.5 else random.randint(ROOT, node - 1))
        tokens = (*old.tokens, *self._tokens(random, n - len(old)))
        return DraftTree(tokens, tuple(parents), (0.5,) * n, ("test",) * n)

    def _tokens(self, random: Random, n: int) -> list[int]:
        """Often of few, so that texts meet again."""
        return [random.randrange(12 if random.random() < 0.3 else self.vocab) for _ in range(n)]


@contextmanager
def running(target: Any) -> Iterator[Machine]:
    """Nothing is open before or afterwards, and no text is taken over."""
    target.forget()
    machine = Machine(target, target.vocab.size)
    try:
        yield machine
    finally:
        machine.close()


def differences(rows: Iterable[Row], plain: Any) -> list[str]:
    """Places of the rows whose bits are not those of plain decoding."""
    by_text: dict[tuple[int, ...], list[Row]] = {}
    for row in rows:
        by_text.setdefault(row.text, []).append(row)
    out = []
    texts = sorted(by_text)  # each goes on from the one before, as far as they begin alike
    for text, logits in zip(texts, plain_rows(plain, texts), strict=True):
        for row in by_text[text]:
            if row.logits.tobytes() != logits.tobytes():
                out.append(f"{row.place}: {np.abs(row.logits - logits).max()} apart")
    return out


def plain_rows(target: Any, texts: Iterable[tuple[int, ...]]) -> Iterator[NDArray[np.float32]]:
    """Yield the row after each text, read in one session with one token a pass."""
    for text in texts:
        session = target.open()
        session.extend(text)
        while session.pending_tokens:
            target.forward([(session, 1)], RequiredOutputs())
        (out,) = target.forward([(session, EMPTY)], RequiredOutputs())
        yield np.array(out.logits(0))
        session.close()
