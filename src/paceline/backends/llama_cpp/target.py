"""A GGUF model as a Target: weights, one context, and the sequence ids that sessions draw from."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.common import trie_of
from paceline.backends.llama_cpp import binding, gate
from paceline.backends.llama_cpp import kernels as own_kernels
from paceline.backends.llama_cpp.batch import Batch
from paceline.backends.llama_cpp.cache import MAX_BRANCHES, LlamaKvCache, SequenceSlot
from paceline.backends.llama_cpp.exactness import require_exact, rows_are_equal
from paceline.backends.llama_cpp.identity import SETTINGS, identity
from paceline.backends.llama_cpp.session import LlamaSession
from paceline.backends.llama_cpp.text import LlamaText, read_vocab
from paceline.speculative.errors import ContractError, ModelError, UsageError
from paceline.speculative.forward_output import LogitsOutput, place
from paceline.speculative.interfaces import NOTHING, Caps, Features, RequiredOutputs, Session
from paceline.speculative.sampling import top_k
from paceline.speculative.tree import DraftTree
from paceline.system.forks import ForkGuard
from paceline.text.grammar import TokenTrie

DEFAULT_CONTEXT = 4096
MAX_SESSIONS = binding.MAX_SEQUENCES - MAX_BRANCHES
MAX_ROWS = 512
CHUNK = 2048  # tokens of prompts in one pass
N_BATCH = CHUNK + MAX_ROWS
FEW = 32  # tokens read along that leave a pass what it is
SMALL = 1e9  # parameters, below which llama.cpp's names of sizes say little

_OUT_OF_CELLS = 1  # llama_decode's code for "no KV slot"


class LlamaTarget:
    """Loads `path`. n_ctx: positions a session may fill (0: what the model was trained for, at most 4,096).
    sessions: how many may be open at once. threads: physical cores are best (assemble.py counts them).
    exact_rows: where rows depend on the passes they are in, every pass is filled up to so many, so that plain
    and drafted decoding run the same kernels and give the same numbers to the last bit (0: as they come).
    mmap: weights are mapped from the file; else they are read into memory of this process's own. weights: a
    target of the same file whose weights to use, which stays open for longer. kernels: compute with
    kernels of our own, where there are any and memory allows.

    on_pass: told of every forward: rows that were computed, tokens of the first session, seconds."""

    alters = ""  # a file is run as it is

    def __init__(
        self,
        path: Path,
        *,
        n_ctx: int = 0,
        threads: int = 1,
        sessions: int = 1,
        gpu_layers: int = 0,
        flash_attention: bool | None = None,
        cache_type: str = "f16",
        exact_rows: int = 0,
        mmap: bool = True,
        weights: LlamaTarget | None = None,
        kernels: bool = True,
    ) -> None:
        if not 1 <= sessions <= MAX_SESSIONS:
            raise UsageError(f"{sessions} sessions: must be between 1 and {MAX_SESSIONS}")
        self._cpp = binding.llama_cpp()
        self._process = ForkGuard()
        self.path = path
        self.threads = threads
        self.gpu_layers, self.flash_attention, self.cache_type = gpu_layers, flash_attention, cache_type
        self._owns_model = weights is None
        laid_out = (
            kernels and own_kernels.usable(gate.sizes(path), path) if weights is None else weights.kernels
        )
        self.kernels: bool = kernels and laid_out
        own_kernels.use(self.kernels)
        self._model: Any = (
            binding.load_model(path, gpu_layers=gpu_layers, mmap=mmap) if weights is None else weights._model
        )
        self._context: Any = None
        self._passes = 0  # counts forwards, so that an answer asked for too late is noticed
        self.on_pass: Callable[[int, int, float], None] | None = None
        try:
            self._set_up(n_ctx, sessions, 0)
            self.vocab = read_vocab(self._model, self._require_open)
            self._text = LlamaText(self._model)
            self._batch = Batch(N_BATCH)
            self._claim_equal_rows()
            if exact_rows and not self.caps.exact:
                self._set_up(n_ctx, sessions, exact_rows)
                require_exact(self)
        except BaseException:
            self.close()
            raise

    def _set_up(self, n_ctx: int, sessions: int, exact_rows: int) -> None:
        """A new cache and context."""
        stateful = bool(
            self._cpp.llama_model_is_recurrent(self._model) or self._cpp.llama_model_is_hybrid(self._model)
        )
        windowed = binding.is_windowed(self._model)
        trained = int(self._cpp.llama_model_n_ctx_train(self._model))
        per_session = n_ctx or min(trained, DEFAULT_CONTEXT)
        self.exact_rows = exact_rows
        self._free_context()
        self._cells = per_session * sessions + exact_rows  # what fills a pass needs cells too
        self.cache = LlamaKvCache(
            self.path,
            sessions,
            per_session,
            self._require_open,
            shares=not stateful and not exact_rows and not windowed,
            windowed=windowed,
        )
        self._make_context(sessions)
        self.caps = Caps(
            # A first child needs no branch. Cells of a branch lie in another order than plain decoding's.
            branch=1 if stateful or exact_rows > 0 else 1 + MAX_BRANCHES // sessions,
            rollback="none" if stateful else "free",
            sessions=sessions,
            rows=exact_rows or MAX_ROWS,
            chunk=per_session if exact_rows else CHUNK,
            n_ctx=per_session,
            exact=exact_rows > 0 and sessions == 1,  # sessions share passes, which then vary in shape
        )

    def _make_context(self, sessions: int) -> None:
        own_kernels.use(self.kernels)  # which operations a context has room for depends on it
        self._context = binding.make_context(
            self._model,
            self.path,
            n_ctx=self._cells,
            threads=self.threads,
            sequences=sessions + MAX_BRANCHES,
            rows=MAX_ROWS,
            n_batch=N_BATCH,
            flash_attention=self.flash_attention,
            cache_type=self.cache_type,
        )
        self.cache.reset(self._context)
        self._address = 0  # of `_logits`, of whose rows only those of the last pass are llama.cpp's
        self._filler = SequenceSlot(-1)  # the owner of what fills a pass

    @property
    def name(self) -> str:
        return binding.metadata(self._model, "general.name") or self.path.stem

    @property
    def origin(self) -> str:
        return str(self.path)

    @property
    def text(self) -> LlamaText:
        self._require_open()
        return self._text

    @cached_property
    def trie(self) -> TokenTrie:
        return trie_of(self.vocab, self.text.markers())

    @property
    def description(self) -> str:
        """Architecture, size class and quantisation in llama.cpp's words: llama 7B Q8_0. Of small models
        it knows no class ("?B") or another one's, and their parameters are told: llama 135M Q4_1."""
        buffer = ctypes.create_string_buffer(256)
        self._cpp.llama_model_desc(self._model, buffer, len(buffer))
        words = buffer.value.decode(errors="replace").split(" ")
        n = int(self._cpp.llama_model_n_params(self._model))
        if len(words) > 1 and (n < SMALL or words[1] == "?B"):
            words[1] = f"{n / 1e9:.1f}B" if n >= SMALL else f"{n / 1e6:.{1 if n < 99.5e6 else 0}f}M"
        return " ".join(words)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in SETTINGS}

    @property
    def suggested_sampling(self) -> dict[str, float]:
        """What the file says of how to sample from it, by the names of `Sampling`."""
        self._require_open()
        return binding.suggested_sampling(self._model)

    def identity(self) -> dict[str, Any]:
        return identity(self.path, self.settings)

    @property
    def memory(self) -> int:
        self._require_open()
        return int(self._cpp.llama_model_size(self._model))

    def _require_open(self) -> None:
        """llama.cpp would follow a freed pointer, or wait for threads that are not there."""
        self._process.require()
        if self._context is None:
            raise UsageError(f"{self.path}: the model is closed; load it again")

    def use_threads(self, threads: int) -> None:
        """From the next pass on."""
        self._require_open()
        self.threads = threads
        self._cpp.llama_set_n_threads(self._context, threads, threads)

    def use_flash_attention(self, flash: bool | None) -> None:
        """From the next session on; none may be open. What closed ones left in the cache is dropped. Raises
        ModelError where no context can be made with it, and is as it was."""
        self._require_open()
        if not all(slot.is_free for slot in self.cache.slots):
            raise ContractError("flash attention is changed while a session is open")
        before, self.flash_attention = self.flash_attention, flash
        self._free_context()
        try:
            self._make_context(self.caps.sessions)
        except BaseException:
            self.flash_attention = before
            self._make_context(self.caps.sessions)
            raise
        if not self.exact_rows:
            self._claim_equal_rows()

    def sibling(self, *, n_ctx: int, flash_attention: bool | None) -> LlamaTarget:
        """The same weights with a cache of its own. To be closed before this one. Raises ModelError."""
        self._require_open()
        return LlamaTarget(
            self.path,
            n_ctx=n_ctx,
            threads=self.threads,
            gpu_layers=self.gpu_layers,
            flash_attention=flash_attention,
            cache_type=self.cache_type,
            weights=self,
            kernels=self.kernels,
        )

    def copy(self) -> LlamaTarget:
        """The same model once more, its weights read into memory of their own. Raises ModelError."""
        return LlamaTarget(self.path, n_ctx=self.caps.n_ctx, mmap=False, **self.settings)

    def scores(self) -> int:
        """Bytes that attention without flash attention takes besides: what all rows of a pass over a prompt
        make of all cells, in all heads."""
        self._require_open()
        heads, rows = self._cpp.llama_model_n_head(self._model), self._cpp.llama_n_ubatch(self._context)
        return 4 * int(heads) * int(rows) * self._cells

    def open(self, beside: Session | None = None) -> LlamaSession:
        self._require_open()
        return LlamaSession(self.cache, as_prompts=self.exact_rows > 0)

    def forget(self) -> None:
        """Drop what closed sessions left in the cache, so that the next prompt is computed from its start."""
        self.cache.forget()

    def close(self) -> None:
        """In a forked process only forget them: freeing would wait for threads that are not there."""
        self._free_context()
        if self._model is not None:
            if self._owns_model and self._process.is_this:
                self._cpp.llama_model_free(self._model)
            self._model = None

    def _free_context(self) -> None:
        if self._context is not None:
            if self._process.is_this:
                self._cpp.llama_free(self._context)
            self._context = None
            self.cache.reset(None)

    def forward(
        self, batch: Sequence[tuple[LlamaSession, DraftTree | int]], want: RequiredOutputs
    ) -> list[LlamaForward]:
        self._require_open()
        if want.layers:
            raise ModelError(f"{self.path}: llama.cpp does not show the hidden states of its layers")
        began = perf_counter()
        reads = [tree if isinstance(tree, int) else session.pending_tokens for session, tree in batch]
        if sum(reads) > CHUNK or (self.exact_rows and any(reads)):
            # In passes of their own: more than fits, or of another shape.
            for (session, _), n in zip(batch, reads, strict=True):
                self._read(session, n)
            outs = self._pass([(s, 0 if isinstance(tree, int) else tree) for s, tree in batch], want)
        else:
            outs = self._pass(batch, want)
        for out, n in zip(outs, reads, strict=True):
            out.computed += n
        if self.on_pass is not None and sum(reads) <= FEW:
            rows = sum(out.computed for out in outs)
            self.on_pass(rows, len(batch[0][0].tokens), perf_counter() - began)
        return outs

    def _pass(
        self, batch: Sequence[tuple[LlamaSession, DraftTree | int]], want: RequiredOutputs
    ) -> list[LlamaForward]:
        """computed: without what was read."""
        self._passes += 1
        self._batch.clear()
        places: dict[int, tuple[int, int, int]] = {}  # of outputs: from, to, and the first one's row
        try:
            for at, (session, tree) in enumerate(batch):
                start, first = self._batch.outputs, 0
                if isinstance(tree, int):
                    session.plan_reading(tree, self._batch)
                else:
                    first = session.plan(tree, self._batch)
                places[at] = start, self._batch.outputs, first
            if len(self._batch):
                self._decode_filled()
            for session, tree in batch:
                if isinstance(tree, int):
                    session.read(tree)
                else:
                    session.computed()
        except BaseException:  # Ctrl-C too: whatever of the pass is in the cache belongs to nobody
            for session, _ in batch:
                session.rollback()
            raise
        rows = self._output_rows(self._batch.outputs)
        return [
            LlamaForward(self, rows[start:end], first, want)
            for start, end, first in (places[at] for at in range(len(batch)))
        ]

    def _read(self, session: LlamaSession, n: int) -> None:
        """The next `n` unread tokens, in as few passes as they fit in."""
        slot, is_whole = session.slot, not session.slot.cached
        end = len(slot.cached) + n
        while len(slot.cached) < end:
            self._passes += 1
            self._batch.clear()
            part = min(CHUNK, end - len(slot.cached))
            try:
                session.plan_reading(part, self._batch)
                self._decode()
            except BaseException:
                session.rollback()
                raise
            session.read(part)
        if n:
            slot.prompt = end if is_whole else 0

    def _claim_equal_rows(self) -> None:
        equal = rows_are_equal(self)
        self.caps = replace(self.caps, exact=equal, equal_rows=equal)

    def _decode_filled(self) -> None:
        """The planned pass, filled up to `exact_rows` by a sequence that is dropped at once."""
        missing = self.exact_rows - self._batch.outputs
        if missing <= 0:
            self._decode()
            return
        try:
            filler = self.cache.take_branch(self._filler)
            for pos in range(missing):
                self._batch.add(0, pos, [filler], True)
            self._decode()
        finally:
            self.cache.free_branches(self._filler)

    def _decode(self) -> None:
        if self._batch.outputs > MAX_ROWS:
            raise UsageError(f"{self._batch.outputs} rows in one pass, at most {MAX_ROWS}: draft less")
        own_kernels.use(self.kernels)
        code = self._batch.decode(self._context)
        binding.helpers().worked()
        if code == _OUT_OF_CELLS:
            raise ModelError(f"{self.path}: the KV cache is full; ask for a larger context (n_ctx, -c)")
        if code != 0:
            raise ModelError(f"{self.path}: llama_decode failed with code {code}")

    def _output_rows(self, n: int) -> NDArray[np.float32]:
        """The pass's logits [n, n_vocab], in the order asked for: llama.cpp's own buffer, not a copy."""
        if n == 0:
            return np.empty((0, self.vocab.size), dtype=np.float32)
        buffer = self._cpp.llama_get_logits(self._context)
        address = ctypes.addressof(buffer.contents)
        if address != self._address:  # an array of foreign memory takes a while to make, and it rarely moves
            self._address = address
            self._logits = np.ctypeslib.as_array(buffer, shape=(MAX_ROWS, self.vocab.size))
        return self._logits[:n]


class LlamaForward(LogitsOutput):
    """Rows `first`, `first + 1`, ... of one session, viewed in llama.cpp's output buffer."""

    def __init__(
        self, target: LlamaTarget, rows: NDArray[np.float32], first: int, want: RequiredOutputs
    ) -> None:
        self._target, self._rows, self._first = target, rows, first
        self._pass = target._passes
        top = want.top_k > 0 and len(rows) > 0
        features = Features(np.stack([top_k(row, want.top_k) for row in rows])) if top else NOTHING
        super().__init__(len(rows), features)

    def logits(self, row: int) -> NDArray[np.float32]:
        rows = range(self._first, self._first + len(self._rows))
        out: NDArray[np.float32] = self._rows[place(row, rows, self._pass == self._target._passes)]
        return out
