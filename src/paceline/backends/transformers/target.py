"""A transformers model as a Target: weights, and a cache for each session.

Trees are verified in one pass: a 4-D mask says who attends to whom, a node's position is its depth, and what
is accepted is moved together in the cache (strip.py). Sessions of one batch stand in that pass one after the
other, and the mask keeps them apart. Where no mask can be given, drafts are chains, and each session has a
pass of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from paceline.backends.common import parameters, trie_of
from paceline.backends.transformers.cache import CacheSlots
from paceline.backends.transformers.forward import HfForward, features_of
from paceline.backends.transformers.kind import CHUNK, ArchitectureTraits, ends_of, text_config
from paceline.backends.transformers.loading import (
    SETTINGS,
    check_device,
    first_line,
    helpers,
    identity,
    identity_of,
    is_shortage,
    load_model,
    load_tokenizer,
    read_once,
)
from paceline.backends.transformers.passes import PendingForward, compute
from paceline.backends.transformers.session import HfSession
from paceline.backends.transformers.strip import SequenceCache
from paceline.backends.transformers.text import HfText
from paceline.backends.transformers.trial import abilities
from paceline.backends.transformers.view import ViewSession, closest, reduced
from paceline.backends.views import ModelView
from paceline.models.names import place_of
from paceline.speculative.errors import ContractError, ModelError, UsageError
from paceline.speculative.interfaces import Caps, RequiredOutputs, Session
from paceline.speculative.tree import DraftTree
from paceline.speculative.vocabulary import Vocab
from paceline.text.grammar import TokenTrie

DEFAULT_CONTEXT = 4096
MAX_BRANCHES, MAX_ROWS = 64, 512
FEW = 32  # tokens read along that leave a pass what it is


class HfTarget:
    """A model of `path`: a folder, or hf:FILE of a GGUF file.

    n_ctx: positions a session may fill (0: what the model was trained for, at most 4,096).
    sessions: how many may be open at once. device: cpu, cuda, mps, or auto.
    dtype: of the weights (loading.DTYPES). attention: transformers' name of an implementation, or auto."""

    alters = ""  # or what a view leaves out
    vocab: Vocab
    path: Path
    _text: HfText | None = None

    def __init__(
        self,
        path: Path,
        *,
        n_ctx: int = 0,
        threads: int = 1,
        sessions: int = 1,
        device: str = "auto",
        dtype: str = "auto",
        attention: str = "auto",
        exact_rows: int = 0,
        **_: Any,
    ) -> None:
        if sessions < 1:
            raise UsageError(f"{sessions} sessions: must be at least 1")
        if exact_rows:
            raise UsageError(
                f"{path}: passes of one shape are for GGUF models; leave out exact_greedy (--exact-greedy)"
            )
        self._given = {"threads": threads, "device": device, "dtype": dtype, "attention": attention}
        self._device = check_device(device)
        with read_once(path):
            tokenizer = load_tokenizer(path)
            model = load_model(path, device=self._device, dtype=dtype, attention=attention)
        torch.set_num_threads(threads)
        self._use(path, model, sessions, n_ctx, identity(path, self._given))
        self._text = HfText(tokenizer, self.vocab.size)
        self.vocab = self._text.vocab(self.vocab.eos)

    @classmethod
    def around(cls, model: Any, *, sessions: int = 1) -> HfTarget:
        """Return a target around a model that the caller goes on using. It has no text."""
        self = cls.__new__(cls)
        self._given = {
            "threads": torch.get_num_threads(),
            "device": str(model.device),
            "dtype": str(model.dtype).removeprefix("torch."),
            "attention": str(getattr(model.config, "_attn_implementation", "auto")),
        }
        self._device = str(model.device)
        n_ctx = int(getattr(text_config(model.config), "max_position_embeddings", 0) or DEFAULT_CONTEXT)
        self._use(
            Path(model.name_or_path or "model"), model, sessions, n_ctx, identity_of(model, self._given)
        )
        return self

    def _use(self, path: Path, model: Any, sessions: int, n_ctx: int, identity: Mapping[str, Any]) -> None:
        """Raises ModelError for one that cannot be decoded exactly."""
        self.path, self._model = path, model
        self._weights = int(model.get_memory_footprint())
        config = text_config(model.config)
        size = int(config.vocab_size)
        ends = frozenset(end for end in ends_of(model.config, model.generation_config) if end < size)
        self.vocab = Vocab(size, "", None, ends, False, False, lambda _: b"", lambda _: b"")
        trained = int(getattr(config, "max_position_embeddings", 0) or DEFAULT_CONTEXT)
        self._whole: HfTarget | None = None  # of a view
        self._view = ""  # which one it is
        self._passes = 0  # counts forwards, so that an answer asked for too late is noticed
        self.on_pass: Callable[[int, int, float], None] | None = None
        self._kind, self._slots = ArchitectureTraits(self._model, config), CacheSlots(0, list, rewinds=False)
        depends_on = {name: identity[name] for name in ("model", "engine", "dtype", "attention")}
        found = abilities(self, model, self._kind, depends_on | {"device": self._device})
        if found.refused:
            raise ModelError(f"{path}: {found.refused}")
        found.limit(self._kind)
        self.caps = Caps(
            branch=MAX_BRANCHES if self._kind.masks else 1,
            rollback="free" if self._kind.rewinds else "none",
            sessions=sessions if found.company else 1,
            rows=MAX_ROWS,
            chunk=CHUNK,
            n_ctx=n_ctx or min(trained, DEFAULT_CONTEXT),
        )
        self._slots = CacheSlots(self.caps.sessions, self.make_cache, self._kind.rewinds)

    def make_cache(self) -> Any:
        if self._kind.rewinds:
            return SequenceCache()
        from transformers import DynamicCache

        model = self._require_open()
        if self._kind.holds_state:  # that of the last session, until it is told to begin anew
            model.get_decoder()._setup_cache(model.config, 1, self._device, model.dtype)
        return DynamicCache(config=model.config)

    def _require_open(self) -> Any:
        if self._model is None:
            raise UsageError(f"{self.path}: the model is closed; load it again")
        return self._model

    @property
    def text(self) -> HfText:
        if self._text is None:
            raise UsageError(f"{self.path}: was given without its tokenizer, and has no text")
        return self._text

    @property
    def name(self) -> str:
        return place_of(self.path).stem

    @property
    def origin(self) -> str:
        return f"{self.path} {self.alters}".rstrip()

    @property
    def description(self) -> str:
        model = self._require_open()
        n = sum(weight.numel() for weight in model.parameters())
        return f"{model.config.model_type} {parameters(n)} {str(model.dtype).removeprefix('torch.')}"

    @cached_property
    def trie(self) -> TokenTrie:
        return trie_of(self.vocab, self.text.markers())

    @property
    def settings(self) -> Mapping[str, Any]:
        return {name: self._given.get(name, usual) for name, usual in SETTINGS.items()}

    def identity(self) -> dict[str, Any]:
        if self._text is not None:
            it = identity(self.path, self.settings)
        else:
            it = identity_of(self._require_open(), self.settings)
        return it | ({"view": self._view} if self._view else {})

    @property
    def memory(self) -> int:
        return self._weights

    @property
    def layers(self) -> int:
        return int(text_config(self._require_open().config).num_hidden_layers)

    def view(self, view: ModelView) -> HfTarget:
        attention, feed_forward = view.kept(self.layers)
        if not self._kind.rewinds:
            raise UsageError(f"{self.path}: its state cannot be rolled back: no part of it can draft for it")
        out = copy(self)
        out._model, out._whole = reduced(self._model, attention, feed_forward), self
        out._slots = CacheSlots(self.caps.sessions, out.make_cache, rewinds=True)
        out._view, out._weights = view.words, int(out._model.get_memory_footprint())
        if n := view.left_out(self.layers):
            out.alters = f"without {n} of {2 * self.layers} blocks"
        return out

    def closest(self, tokens: Sequence[int], told: int, most: int) -> list[frozenset[int]]:
        return closest(self._require_open(), tokens, told, most)

    def open(self, beside: Session | None = None) -> HfSession:
        self._require_open()
        if isinstance(beside, HfSession) and self._whole is not None and beside.slots is self._whole._slots:
            return ViewSession(beside, self.caps.n_ctx)
        return HfSession(self._slots, self.caps.n_ctx, self._kind.rewinds)

    def forget(self) -> None:
        self._slots.forget()

    def close(self) -> None:
        self._model = None
        self._slots = CacheSlots(0, list, rewinds=False)

    def forward(
        self, batch: Sequence[tuple[HfSession, DraftTree | int]], want: RequiredOutputs
    ) -> list[HfForward]:
        self._require_open()
        began = perf_counter()
        self._passes += 1
        try:
            with torch.inference_mode():
                due = [self._read(session, tree, want) for session, tree in batch]
                compute(self._require_open(), self._kind, [one for one in due if one.rows.tokens], want)
                outs = [self._answer(one, want) for one in due]
        except BaseException as error:  # Ctrl-C too: whatever is in the caches belongs to nobody
            for session, _ in batch:
                session.rollback()
            if is_shortage(error):
                raise self.shortage(error) from error
            raise
        helpers().worked()
        reads = sum(out.read for out in outs)
        if self.on_pass is not None and reads <= FEW:
            rows = sum(out.computed for out in outs)
            self.on_pass(rows, len(batch[0][0].tokens), perf_counter() - began)
        return outs

    def shortage(self, error: BaseException) -> ModelError:
        held = f"{self.memory / 1e6:,.0f} MB of weights, {self._slots.memory / 1e6:,.0f} MB of caches"
        return ModelError(
            f"{self.path}: out of memory in a pass ({first_line(error)}); held are {held}: use a smaller "
            "context (n_ctx, -c), fewer sessions, or bfloat16 (dtype, --dtype)"
        )

    def _read(self, session: HfSession, tree: DraftTree | int, want: RequiredOutputs) -> PendingForward:
        """Prefill in chunks, but for the last of them, which is computed with the tree."""
        n = tree if isinstance(tree, int) else session.pending_tokens
        if not 0 <= n <= session.pending_tokens:
            raise ContractError(f"{n} tokens to be read, of {session.pending_tokens} that are unread")
        most, begin, left, hidden = self._kind.most, len(session.slot.cached), n, list[Any]()
        beside = most if most > 1 else 0 if isinstance(tree, DraftTree) else 1
        while left > beside:
            part = min(left, most)
            due = PendingForward(session, part, session.plan_reading(part), 0, begin)
            if due.rows.tokens:
                compute(self._require_open(), self._kind, [due], want)
                hidden.append(due.hidden)
            session.read(part)
            left -= part
        rows = session.plan_reading(left) if isinstance(tree, int) else session.plan(tree)
        return PendingForward(session, tree, rows, n, begin, n - left, hidden)

    def _answer(self, due: PendingForward, want: RequiredOutputs) -> HfForward:
        session, rows, now = due.session, due.rows, self._passes
        if isinstance(due.tree, int):
            session.read(due.tree - due.before)
        else:
            session.computed()
        hidden = [*due.earlier, *([due.hidden] if due.hidden is not None else [])]
        computed = due.before + len(rows.tokens)
        start = due.begin if rows.first == 0 else rows.start
        features = features_of(hidden, computed - rows.told, start, want)
        logits = torch.empty(0) if due.logits is None else due.logits
        return HfForward(lambda: self._passes == now, logits, rows.first, computed, due.n, want, features)
