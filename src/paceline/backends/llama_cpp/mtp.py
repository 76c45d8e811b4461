"""Multi-token prediction: layers at the end of the target's own file that draft its next tokens (DeepSeek-V3,
arXiv:2412.19437, section 2.2).

A second llama.cpp context of the same weights computes them, with a KV cache of these layers only, which is
one of plain attention for recurrent targets, too. Rows are those of every head (heads/session.py): row p has
token p + 1 and the target's hidden state of token p, or for a drafted token the layers' own output above it.
Accepted tokens are computed again with the target's states, so the target may verify any tree.

A model with several trained layers drafts a token with each: layer i computes the drafted tokens before its
own again, and every layer computes the text (llama_set_nextn_layer_offset).
"""

from __future__ import annotations

import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.llama_cpp import binding, kernels
from paceline.backends.llama_cpp.batch import Batch
from paceline.backends.llama_cpp.draft_vocab import MIN_VOCAB, ReducedVocabulary
from paceline.backends.llama_cpp.extras import Hidden, PassExtra
from paceline.backends.llama_cpp.weights import ModelWeights
from paceline.heads.config import HeadConfig, TargetFacts
from paceline.heads.draft_base import MAX_BRANCHES, MAX_ROWS, DraftForward, HeadBase, Ids
from paceline.heads.session import HeadSession, next_level
from paceline.speculative.errors import BusyError, ModelError, UsageError
from paceline.speculative.interfaces import NO_OUTPUTS, Session, SessionBatch
from paceline.speculative.tree import EMPTY, ROOT, DraftTree

if TYPE_CHECKING:
    from paceline.backends.llama_cpp.model import LoadedModel
    from paceline.backends.llama_cpp.target import LlamaTarget

MAX_OUTPUTS = 256  # rows of a pass with logits
NO_SEQUENCE = -1
SHARED_HEAD = "blk.{}.nextn.shared_head_head.weight"
MAX_ERROR = 0.05  # of reduced logits, relative to the spread of the full ones: rounding to 8 bits is below it
# Architectures whose graph gives the layers' outputs for rows with logits only.
NARROW_OUTPUTS = ("deepseek4", "gemma4-assistant", "mimo2", "nemotron_h_moe", "qwen3next", "step35")


class MtpStates(PassExtra):
    """Shows the hidden states that the layers read, as layer n + 1 of a model with n layers. From the first
    time on that they are wanted, they are computed for all rows."""

    _in_use = False

    def on_load(self, params: Any) -> None:
        params.load_mtp = True

    def attach(self, target: LlamaTarget) -> None:
        self._context, self._width = target.context, output_width(target.model)
        self.layers = range(target.layers + 1, target.layers + 2)
        if self._in_use:
            _show_states(self._context, masked=False)

    def prepare(self, target: LlamaTarget, sessions: int) -> None:
        if not self._in_use:
            self._in_use = True
            _show_states(self._context, masked=False)

    @contextmanager
    def around_pass(self, batch: Batch, layers: Sequence[int], *, prefill: bool) -> Iterator[Hidden]:
        out = np.empty((len(batch), 1, self._width), np.float32)
        yield out
        out[:, 0] = shown_states(self._context, len(batch), self._width)


def output_width(model: LoadedModel) -> int:
    return int(binding.llama_cpp().llama_model_n_embd_out(model.pointer))


def _show_states(context: Any, *, masked: bool) -> None:
    """masked: for rows with logits only."""
    from llama_cpp import llama_cpp_ext

    llama_cpp_ext.llama_set_embeddings_nextn(context, True, masked)


def shown_states(context: Any, rows: int, width: int) -> NDArray[np.float32]:
    """Return the states of the last pass, a view of llama.cpp's buffer."""
    from llama_cpp import llama_cpp_ext

    return np.ctypeslib.as_array(llama_cpp_ext.llama_get_embeddings_nextn(context), shape=(rows, width))


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a pass. state: the layers' input, or the target's hidden states [layers, width].
    position: in the session's sequence, which leaves out the tokens of gaps."""

    token: int
    state: NDArray[np.float32]
    position: int
    sequence: int
    wants_logits: bool


class MtpDraft(HeadBase):
    """The layers as a draft model. `inner` is the target, whose states HeadDrafter hands on.
    model: that of the layers, the target's own or another file's. config: by default that of MTP layers.
    has_lead: a row of the first token goes first, as in llama.cpp's own drafts, which no state precedes.
    all_outputs: the graph computes outputs for all rows of a pass or for none.
    Raises ModelError if llama.cpp makes no context for them."""

    has_lead, all_outputs = True, False

    def __init__(self, target: LlamaTarget, model: LoadedModel, config: HeadConfig | None = None) -> None:
        super().__init__(model.path, target)
        caps, self._model = target.caps, model
        # Another file's layers are one head together.
        count = binding.llama_cpp().llama_model_n_layer_nextn
        self.heads = int(count(model.pointer)) if model is target.model else 1
        if self.heads == 0:
            raise UsageError(
                f"{target.path}: its layers for multi-token prediction (MTP) are in a file of their own "
                "(mtp-*.gguf): give it as the draft (-md)"
            )
        self.width = output_width(model)
        self.config = config or HeadConfig(
            kind="mtp",
            target=TargetFacts(layers=target.layers, hidden=self.width, vocab=target.vocab.size),
            layer_ids=(target.layers + 1,),
        )
        self.kind = self.config.kind
        self.max_depth = self.heads if self.heads > 1 else caps.n_ctx
        branches = 1 + MAX_BRANCHES // caps.max_sessions if self.heads == 1 else 1
        self.caps = replace(self.caps, max_branches=branches)
        self.weight_bytes = None
        self._narrow = self._model.architecture in NARROW_OUTPUTS
        self._sessions: weakref.WeakSet[MtpSession] = weakref.WeakSet()
        # Closed sessions keep their rows, for texts that begin with theirs.
        mains = min(2 * caps.max_sessions, binding.MAX_SEQUENCES - MAX_BRANCHES)
        self._n_sequences = mains + MAX_BRANCHES
        self._free, self._free_branches = list(range(mains)), list(range(mains, self._n_sequences))
        self._cells = caps.n_ctx * caps.max_sessions + MAX_ROWS
        sizes = MAX_ROWS, MAX_OUTPUTS, target.vocab.size, self.width
        self._batch = Batch(*sizes, path=self.path, kernels=model.kernels)
        self.vocabulary: ReducedVocabulary | None = None
        self._all_ids: Ids | None = None  # as DraftBase._ids without a reduced vocabulary
        self.open_context()
        self.vocabulary = self._reduced_vocabulary()

    def open_context(self) -> None:
        kernels.set_enabled(self._model.kernels)
        self._context: Any = binding.make_context(
            self._model.pointer,
            self.path,
            self.inner._settings,
            n_ctx=self._cells,
            sequences=self._n_sequences,
            rows=MAX_OUTPUTS,
            n_batch=MAX_ROWS,
            changes=[self._as_draft],
            layers=self.heads,
        )
        self.memory = binding.llama_cpp().llama_get_memory(self._context)
        _show_states(self._context, masked=self._narrow)

    def _reduced_vocabulary(self) -> ReducedVocabulary | None:
        """Return a reduced draft vocabulary; None if the whole is small, or if the layers' outputs do not
        give the logits by themselves."""
        n_vocab, target = self.vocab.size, self.inner
        differs = self._narrow or self.all_outputs or self.heads > 1
        if differs or n_vocab < MIN_VOCAB or not self._model.kernels:
            return None
        try:
            rows = ModelWeights(self.path).output_rows(SHARED_HEAD.format(target.layers))
        except ModelError:  # a type of weights that is not read here
            return None
        reduced = ReducedVocabulary(n_vocab, rows.rows, partial(target.make_linear, bias=None))
        session = self.open()
        session.extend([0, 1, 2])
        (out,) = self.forward([(session, EMPTY)], NO_OUTPUTS)
        full = out.logits(0)[reduced.ids]
        error = np.abs(reduced.logits(np.stack(session._outputs))[0] - full).max()
        return reduced if error < MAX_ERROR * max(1e-6, float(np.std(full))) else None

    def _as_draft(self, params: Any) -> None:
        params.ctx_type = binding.llama_cpp().LLAMA_CONTEXT_TYPE_MTP

    @property
    def description(self) -> str:
        reduced = self.vocabulary
        some = "" if reduced is None else f", drafting {len(reduced.ids):,} of {self.vocab.size:,} tokens"
        return f"{self.heads} of the model's own layers (MTP){some}"

    def open(self, beside: Session | None = None) -> MtpSession:
        session = MtpSession(self, self.caps.n_ctx)
        self._sessions.add(session)
        return session

    def close(self) -> None:
        """Free the context, but not the target."""
        self.free_context()

    def free_context(self) -> None:
        if self._context is not None:
            context, self._context, self.memory = self._context, None, None
            if self.inner.model.process.is_current:
                binding.free_context(context)

    def take_sequence(self) -> int:
        """Return a free sequence, or that of a closed session. Raises BusyError if there is none."""
        if not self._free:
            owners = (one for one in self._sessions if not one.tokens and one.sequence != NO_SEQUENCE)
            closed = next(owners, None)
            if closed is None:
                raise BusyError(f"{self.path}: all sessions of its layers are in use")
            closed.drop()
        return self._free.pop()

    def release(self, sequence: int, branches: list[int]) -> None:
        """Take back the sequences of a session that is gone."""
        self.release_branches(branches)
        self.truncate(sequence, 0)
        self._free.append(sequence)

    def take_branch(self, source: int, end: int, branches: list[int]) -> int:
        """Return a sequence that shares the first `end` cells of another, and add it to `branches`."""
        branches.append(self._free_branches.pop())
        binding.llama_cpp().llama_memory_seq_cp(self.memory, source, branches[-1], 0, end)
        return branches[-1]

    def release_branches(self, branches: list[int]) -> None:
        for branch in branches:
            self.truncate(branch, 0)
        self._free_branches += branches
        branches.clear()

    def truncate(self, sequence: int, end: int) -> None:
        if self.memory is not None and sequence != NO_SEQUENCE:
            binding.llama_cpp().llama_memory_seq_rm(self.memory, sequence, end, -1)

    def _forward(self, batch: SessionBatch[MtpSession]) -> list[DraftForward]:
        self.inner.model.process.require()
        if self._context is None:  # the target's was made again, and there was no memory for this one
            raise ModelError(f"{self.path}: its layers have no context")
        try:
            firsts = [session.begin_pass(tree) for session, tree in batch]
            reduced = self.vocabulary if self.vocabulary is not None and self.vocabulary.suffices else None
            self._ids = self._all_ids if reduced is None else reduced.ids
            while self._compute([session for session, _ in batch]):
                pass
        except BaseException:  # also Ctrl-C: drop what was computed
            for session, _ in batch:
                session.abandon()
            raise
        return [
            DraftForward(self, session.end_pass(), first, session.computed)
            for (session, _), first in zip(batch, firsts, strict=True)
        ]

    def _compute(self, sessions: Sequence[MtpSession]) -> bool:
        """Compute the next rows of all sessions in one pass; return whether there were any."""
        depth = min((s.next_depth for s in sessions if s.has_rows), default=None)
        if depth is None:
            return False
        most = MAX_OUTPUTS if self.all_outputs else MAX_ROWS
        room, parts = most, list[tuple[MtpSession, list[Row]]]()
        for session in sessions:
            if session.has_rows and session.next_depth == depth and room:
                rows = session.next_rows(room)
                parts.append((session, rows))
                room -= len(rows)
        self._make_room(most - room)
        rows = [row for _, part in parts for row in part]
        reduced = self.vocabulary if self._ids is not None else None
        # The text is computed by every layer, and a drafted token by its own.
        for head in range(self.heads) if depth < 0 else [depth % self.heads]:
            if head:
                for session, part in parts:
                    self.truncate(session.sequence, part[0].position)
            self._decode(rows, head, with_logits=reduced is None)
        wanted = np.array([i for i, row in enumerate(rows) if row.wants_logits], np.int64)
        logits, states = self._batch.logits(self._context), np.empty((0, self.width), np.float32)
        if len(wanted):
            states = shown_states(self._context, len(wanted) if self._narrow else len(rows), self.width)
            states = states.copy() if self._narrow else states[wanted]
            if reduced is not None:
                logits = reduced.logits(states)
            elif self.all_outputs:
                logits = logits[wanted] if self._ids is None else logits[np.ix_(wanted, self._ids)]
        at = 0
        for session, part in parts:
            end = at + sum(row.wants_logits for row in part)
            session.take(len(part), states[at:end], logits[at:end])
            at = end
        return True

    def _decode(self, rows: Sequence[Row], head: int, *, with_logits: bool) -> None:
        if self.heads > 1:
            from llama_cpp import llama_cpp_ext

            llama_cpp_ext.llama_set_nextn_layer_offset(self._context, head)
        self._batch.clear(all_outputs=self.all_outputs and any(row.wants_logits for row in rows))
        for row in rows:
            self._batch.states[len(self._batch)] = row.state
            self._batch.add(row.token, row.position, [row.sequence], row.wants_logits and with_logits)
        self._batch.decode(self._context)

    def _make_room(self, n: int) -> None:
        """Drop rows of closed sessions if the cache has no cells for `n` more."""
        used = sum(session.cells for session in self._sessions)
        for session in list(self._sessions):
            if used + n > self._cells and not session.tokens:
                used -= session.cells
                session.drop()


class MtpSession(HeadSession):
    """A text in the layers: a sequence of their cache, and branches for drafted trees.
    A row's position is one more than its number, since a row without a state goes first."""

    _head: MtpDraft

    def __init__(self, draft: MtpDraft, n_ctx: int) -> None:
        super().__init__(draft, np.zeros(0, np.float32), n_ctx)
        self.sequence = NO_SEQUENCE
        self._branches, self._sequences = list[int](), list[int]()  # in use, and those of the nodes
        self._goal: DraftTree | None = None
        self._left = self.computed = 0  # rows of the text to compute, and rows computed in this pass
        self._no_state = np.zeros(draft.width, np.float32)
        self._noted = 0  # tokens that the draft vocabulary has seen
        self._observed = False  # unlike sessions of measurements, whose tokens are no text
        self._outputs: list[NDArray[np.float32]] = []  # of the root and of the nodes
        # The first row is computed, or there is none; it is in this pass.
        self._has_lead, self._leads = not draft.has_lead, False

    @property
    def cells(self) -> int:
        """Cells in use."""
        return self._has_lead + self._next - self._first + len(self._rows)

    def observe(self, start: int, features: Any) -> None:
        self._observed = True
        super().observe(start, features)

    def rewind(self, n: int) -> None:
        super().rewind(n)
        self._noted = 0

    def drop(self) -> None:
        """Let go of all rows, and of the sequence."""
        self.rewind(0)
        if self.sequence != NO_SEQUENCE:
            self._release()
            self.sequence = NO_SEQUENCE

    def begin_pass(self, tree: DraftTree | int) -> int:
        """Note what to compute; return the first new row."""
        if self._head.vocabulary is not None and self._observed:
            self._head.vocabulary.observe(self.tokens[self._noted :], generated=self._noted > 0)
            self._noted = len(self.tokens)
        self._require_sequence()
        self.computed = first = 0
        if isinstance(tree, int):
            self.require_pending(tree)
            if tree:
                self.discard_tree()
            self._left, self._goal = tree, None
            return 0
        first = self.begin(tree)
        self._left, self._goal = self.pending_tokens if first == 0 else 0, tree
        return first

    def _require_sequence(self) -> None:
        if self.sequence == NO_SEQUENCE:
            sequence = self._head.take_sequence()
            self._release = weakref.finalize(self, self._head.release, sequence, self._branches)
            self.sequence = sequence

    def end_pass(self) -> list[NDArray[np.float32]]:
        """Return the logits of the root and of all nodes."""
        if self._goal is None:
            return []
        self.tree, self._goal = self._goal, None
        return self._rows

    def abandon(self) -> None:
        """Return to the rows of the text."""
        self._goal, self._left, self.tree = None, 0, None
        self._rewind()

    @property
    def has_rows(self) -> bool:
        goal = self._goal
        return self._left > 0 or (goal is not None and len(self._rows) < 1 + len(goal))

    @property
    def next_depth(self) -> int:
        """Depth of the next rows: 0 for the root, and for the text unless several layers compute it."""
        known = len(self._rows) - 1
        if self._left or not self._has_lead:
            return -1 if self._head.heads > 1 else 0
        return 0 if known < 0 or self._goal is None else self._goal.depths()[known]

    def next_rows(self, room: int) -> list[Row]:
        """Return the next rows, at most `room`: those of the text and the root, or a level of the tree."""
        start = 1 + self._next - self._first
        if not self._rows:
            self._leads, lead = not self._has_lead, list[Row]()
            if self._leads:
                lead, room = [Row(self.tokens[self._next], self._no_state, 0, self.sequence, False)], room - 1
                if self._head.heads > 1:
                    return lead
            n, at = min(self._left, room), self._next + 1
            # Several layers each compute the text, and only the first one the root.
            with_root = (
                self._goal is not None and n == self._left < room and (n == 0 or self._head.heads == 1)
            )
            tokens = self.tokens[at : at + n] + ([self.tokens[-1]] if with_root else [])
            states = self._features(len(tokens))
            return lead + [
                Row(token, state, start + i, self.sequence, i == n)
                for i, (token, state) in enumerate(zip(tokens, states, strict=True))
            ]
        assert self._goal is not None
        tree, known = self._goal, len(self._rows) - 1
        depth = tree.depths()[known]
        level = [
            Row(tree.tokens[node], self._outputs[tree.parents[node] + 1], start + depth,
                 self._sequence_of(node, tree, depth), True)
            for node in next_level(tree, known, room)
        ]  # fmt: skip
        if self._head.heads == 1:
            return level
        # The next layer has no rows of the drafted tokens above.
        above = [self.tokens[-1], *tree.tokens[:known]]
        states = [self._features(1)[0, 0], *self._outputs]
        self._head.truncate(self.sequence, start)
        return [
            *(Row(token, states[i], start + i, self.sequence, False) for i, token in enumerate(above)),
            *level,
        ]

    def _sequence_of(self, node: int, tree: DraftTree, depth: int) -> int:
        """Return the sequence of a node: its parent's for a first child, else a new branch."""
        parent = tree.parents[node]
        sequence = self.sequence if parent == ROOT else self._sequences[parent]
        if parent in tree.parents[:node]:
            end = 1 + self._next - self._first + depth
            sequence = self._head.take_branch(sequence, end, self._branches)
        self._sequences.append(sequence)
        return sequence

    def take(self, computed: int, states: NDArray[np.float32], logits: NDArray[np.float32]) -> None:
        """Count rows, and take the outputs of those that have some."""
        self.computed += computed
        n = min(self._left, computed - self._leads)
        self._has_lead, self._leads = self._has_lead or self._leads, False
        if n:
            self._advance(n)
            self._left -= n
        self._outputs += list(states)
        self._rows += list(logits.copy())

    def _commit(self, tree: DraftTree, path: Sequence[int]) -> None:
        """One layer of several has computed the root: it waits to be computed by all."""
        if self._head.heads == 1:
            super()._commit(tree, path)
        else:
            self._rewind()

    def _truncate(self, n: int) -> None:
        self._head.release_branches(self._branches)
        self._sequences, self._outputs = [], []
        self._has_lead = (self._has_lead and n > 0) or not self._head.has_lead
        self._head.truncate(self.sequence, n and 1 + n)
