"""A target that replays recorded outputs, so that drafters can be scored without the model.

After a text that agrees with the recording, the recorded token has probability 1. After any other text a
token that was not drafted there has it, so that no draft off the recording is accepted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.speculative.errors import UsageError
from paceline.speculative.forward_output import LogitsOutput
from paceline.speculative.interfaces import Caps, RequiredOutputs, Session, SessionBatch
from paceline.speculative.rng import GumbelNoise
from paceline.speculative.sessions import TreeSession
from paceline.speculative.tree import DraftTree
from paceline.speculative.vocabulary import Vocab

MAX_BRANCHES = 4096
MAX_SESSIONS = 4096
MAX_BATCH_TOKENS = 1 << 20
N_CTX = 1 << 31
OFF_RECORDING = -1  # a place


@dataclass(frozen=True, slots=True)
class Recording:
    """One recorded request. gumbel_noise: the sampling noise."""

    prompt: tuple[int, ...]
    tokens: tuple[int, ...]
    gumbel_noise: GumbelNoise | None = None

    def __post_init__(self) -> None:
        if not self.prompt or not self.tokens:
            raise UsageError("a recording without a prompt or without an answer: leave it out")


def numeric_vocab(size: int) -> Vocab:
    """Return a vocabulary whose tokens are spelled as their numbers."""
    spell = b"%d".__mod__
    return Vocab(size, "recorded", None, frozenset(), False, False, text=spell, piece=spell)


class ReplayTarget:
    """A target that answers the prompts of `recordings`; recordings with the same prompt take turns.
    A request has to stop where its recording ends. text: the tokenizer, if any."""

    def __init__(self, vocab: Vocab, recordings: Sequence[Recording], text: Any = None) -> None:
        self.vocab = vocab
        self.origin = "the record"
        self.caps = Caps(
            # Fewer branches than tokens: a row always has a token that was not drafted.
            max_branches=max(1, min(MAX_BRANCHES, vocab.size - 1)),
            rollback="free",
            max_sessions=MAX_SESSIONS,
            max_batch_tokens=MAX_BATCH_TOKENS,
            max_prefill_tokens=N_CTX,
            n_ctx=N_CTX,
            exact=True,
        )
        self._text = text
        self._by_prompt: dict[tuple[int, ...], deque[Recording]] = {}
        for recording in recordings:
            self._by_prompt.setdefault(recording.prompt, deque()).append(recording)

    @property
    def text(self) -> Any:
        if self._text is None:
            raise UsageError("the record holds token ids only, no text: name the model they are of")
        return self._text

    def recording(self, prompt: Sequence[int]) -> Recording:
        """Return the next recording with this prompt. Raises UsageError if there is none."""
        turns = self._by_prompt.get(tuple(prompt))
        if turns is None:
            raise UsageError(
                f"no recording has this prompt of {len(prompt):,} tokens: play what was recorded"
            )
        turns.rotate(-1)
        return turns[-1]

    def open(self, beside: Session | None = None) -> RecordedSession:
        return RecordedSession(self)

    def forward(self, batch: SessionBatch[RecordedSession], want: RequiredOutputs) -> list[RecordedForward]:
        outs = []
        for session, tree in batch:
            assert not isinstance(tree, int), "a recorded session has no pending tokens"
            computed = len(tree) + 1 - session.compute_tree(tree)
            outs.append(RecordedForward(self.vocab.size, session.recording, tree, session.places, computed))
        return outs

    def forget(self) -> None: ...

    def close(self) -> None: ...


class RecordedSession(TreeSession):
    """A session whose place is the number of committed tokens of a recording, or OFF_RECORDING.
    places: of the root and the nodes of the last tree."""

    def __init__(self, target: ReplayTarget) -> None:
        super().__init__()
        self._target = target
        self._place = 0
        self.recording: Recording
        self.places: list[int] = []

    def _append(self, tokens: Sequence[int]) -> None:
        if not self.tokens:
            self.recording = self._target.recording(tokens)
            return
        for token in tokens:
            self._place = self._after(self._place, token)

    def _compute(self, tree: DraftTree, first: int) -> None:
        self.places = [self._place]
        for token, parent in zip(tree.tokens, tree.parents, strict=True):
            self.places.append(self._after(self.places[parent + 1], token))

    def _after(self, place: int, token: int) -> int:
        recorded = self.recording.tokens
        agrees = 0 <= place < len(recorded) and recorded[place] == token
        return place + 1 if agrees else OFF_RECORDING


class RecordedForward(LogitsOutput):
    """The recorded tokens as rows of logits."""

    def __init__(
        self, n_vocab: int, recording: Recording, tree: DraftTree, places: Sequence[int], computed: int
    ) -> None:
        self._n_vocab, self._recording, self._tree, self._places = n_vocab, recording, tree, places
        super().__init__(computed)

    def argmax(self, row: int) -> int:
        place = self._places[row]
        if 0 <= place < len(self._recording.tokens):
            return self._recording.tokens[place]
        drafted = {self._tree.tokens[child] for child in self._tree.children(row - 1)}
        return next(token for token in range(self._n_vocab) if token not in drafted)

    def logits(self, row: int) -> NDArray[np.float32]:
        out = np.full(self._n_vocab, -np.inf, dtype=np.float32)
        out[self.argmax(row)] = 0.0
        out.setflags(write=False)
        return out
