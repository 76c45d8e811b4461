"""A GGUF model as a Target: weights, a context, and sequence ids for sessions."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.common import LoadedTarget, check_exit, require_experts
from paceline.backends.interface import OutputHead
from paceline.backends.llama_cpp import binding, mtp_sidecar
from paceline.backends.llama_cpp import kernels as own_kernels
from paceline.backends.llama_cpp.attention_weights import AttentionWeights
from paceline.backends.llama_cpp.batch import LlamaForward
from paceline.backends.llama_cpp.cache import MAX_BRANCHES, LlamaKvCache
from paceline.backends.llama_cpp.embeddings import EmbeddingContext
from paceline.backends.llama_cpp.exactness import (
    FilledPasses,
    drops_rejected_drafts,
    require_exact,
    rows_are_equal,
)
from paceline.backends.llama_cpp.extras import JoinedExtras, PassExtra
from paceline.backends.llama_cpp.kernels.matrices import KernelLinear
from paceline.backends.llama_cpp.model import LlamaSettings, LoadedModel, expert_counts, identity
from paceline.backends.llama_cpp.mtp import MtpDraft
from paceline.backends.llama_cpp.mtp_assistant import AssistantDraft
from paceline.backends.llama_cpp.passes import CHUNK, MAX_ROWS, N_BATCH, PassRunner
from paceline.backends.llama_cpp.saved_prompts import SavedPrompts
from paceline.backends.llama_cpp.session import LlamaSession
from paceline.backends.llama_cpp.text import LlamaText, read_vocab
from paceline.backends.llama_cpp.weights import ModelWeights
from paceline.backends.speculative_prefill import look_ahead
from paceline.backends.views import ModelView
from paceline.heads.draft_base import HeadBase
from paceline.models.headers.facts import HEAD_ARCHS
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.interfaces import Caps, RequiredOutputs, Session, SessionBatch
from paceline.speculative.request import MAX_FUSED_PREFILL

DEFAULT_CONTEXT = 4096


class LlamaTarget(LoadedTarget):
    """A model of a GGUF file.
    weights: a target of the same file that shares its weights; close it later.
    stop: the layer before which passes end, 0 for none; see SupportsExits.
    extras: what passes can do, in addition to what the settings choose.
    prompt_cache: a folder for saved prompts. settings: see LlamaSettings."""

    caps: Caps
    cache: LlamaKvCache
    model: LoadedModel
    layers: int
    hidden_size: int

    def __init__(
        self,
        path: Path,
        *,
        weights: LlamaTarget | None = None,
        stop: int = 0,
        extras: Sequence[PassExtra] = (),
        prompt_cache: str = "",
        **settings: Any,
    ) -> None:
        given = LlamaSettings(**settings)
        self.path, self._stop = path, stop
        self.extras = [*given.extras(path, stop), *extras]
        self._owns_model = weights is None
        self.model = LoadedModel(path, given, self.extras) if weights is None else weights.model
        # Rows are filled up only if they turn out to depend on their pass.
        self._settings = replace(given, exact_rows=0, kernels=given.kernels and self.model.kernels)
        self.context: Any = None
        self.on_forward: Callable[[int, int, float], None] | None = None
        self._prompt_reader: LlamaTarget | None = None
        self._embedding: EmbeddingContext | None = None
        try:
            if (arch := self.model.architecture) in HEAD_ARCHS:
                advice = "give it by -md, and its target by -m"
                raise ModelError(f"{path}: is a draft head ({arch}), no model: {advice}")
            self.vocab = read_vocab(self.model.pointer, self._require_open)
            self._text = LlamaText(self.model.pointer)
            self.layers, self.hidden_size = self.model.layers, self.model.hidden_size
            self._open_context()
            if not stop:
                self._check_rows(given.exact_rows)
            if prompt_cache:
                self._save_prompts(prompt_cache)
        except BaseException:
            self.close()
            raise

    def _open_context(self) -> None:
        """Make a cache and a context, and state their capabilities."""
        self._free_context()
        given, model = self._settings, self.model
        self.cache = LlamaKvCache(
            self.path,
            given.sessions,
            given.n_ctx or min(model.trained_context, DEFAULT_CONTEXT),
            self._require_open,
            stateful=model.is_stateful,
            windowed=model.is_windowed,
            one_shape=any(extra.one_shape for extra in self.extras),
        )
        self._decoder = PassRunner(self.path, self.cache, self.vocab.size, kernels=given.kernels)
        self._make_context()
        self.caps = Caps(
            # A first child needs no branch.
            max_branches=1 if self.cache.stateful else 1 + MAX_BRANCHES // given.sessions,
            rollback="restore" if self.cache.stateful else "free",
            max_sessions=given.sessions,
            max_batch_tokens=MAX_ROWS,
            max_prefill_tokens=CHUNK,
            n_ctx=self.cache.n_ctx,
            sparse_prompts=self.cache.can_spread
            and binding.keeps_other_keys(model.pointer, given.cache_type),
        )
        for extra in self.extras:
            self.caps = extra.limit(self.caps)
        self._change = ", ".join(filter(None, (extra.modification for extra in self.extras)))

    def _make_context(self) -> None:
        own_kernels.set_enabled(self._settings.kernels)  # a context reserves scratch space for its operations
        self.context = self._decoder.context = binding.make_context(
            self.model.pointer,
            self.path,
            self._settings,
            n_ctx=self.cache.n_ctx * self._settings.sessions + sum(extra.cells for extra in self.extras),
            sequences=self.cache.n_sequences,
            rows=MAX_ROWS,
            n_batch=N_BATCH,
            changes=[extra.on_context for extra in self.extras],
        )
        self.cache.reset(self.context)
        for extra in self.extras:
            extra.attach(self)
        self._joined: dict[tuple[int, ...], JoinedExtras] = {}

    def renew_context(self) -> None:
        """Make a new context. Open sessions compute their tokens again."""
        self._free_context()
        self._make_context()

    def _check_rows(self, exact_rows: int) -> None:
        """Find out what drafting changes of a row, and fill passes up if that is wanted and helps.
        Raises ModelError if exact rows are wanted and cannot be."""
        if self.cache.stateful and not drops_rejected_drafts(self):
            self.caps = replace(self.caps, rollback="none")
        equal = rows_are_equal(self)
        self.caps = replace(self.caps, exact=equal, equal_rows=equal)
        if not exact_rows or equal:
            return
        if self.cache.stateful:
            raise ModelError(
                f"{self.path}: a recurrent model has no exact greedy output without Paceline's kernels; "
                "leave out exact_greedy (--exact-greedy)"
            )
        self._settings = replace(self._settings, exact_rows=exact_rows)
        self.extras.insert(0, FilledPasses(exact_rows))
        self._open_context()
        require_exact(self)

    def _save_prompts(self, folder: str) -> None:
        """Save prompts in a folder. Raises UsageError where their memory cannot be had again."""
        cache = self.cache
        if self.model.is_windowed or cache.one_shape:
            reason = "an attention window" if self.model.is_windowed else "exact_greedy without kernels"
            raise UsageError(f"{self.path}: prompts with {reason} cannot be saved: leave out prompt_cache")
        key = {**self.identity(), "threads": 0, "cells": cache.n_ctx * self._settings.sessions}
        given = {"n_ctx": cache.n_ctx, "n_vocab": self.vocab.size, "is_stateful": cache.stateful}
        cache.saved_prompts = SavedPrompts(folder, key, given)

    @property
    def name(self) -> str:
        return binding.metadata(self.model.pointer, "general.name") or self.path.stem

    def expert_counts(self) -> tuple[int, int]:
        _, used, experts = expert_counts(self.path)
        require_experts(used, experts, self.path)
        return self._settings.experts or used, experts

    def view(self, view: ModelView) -> LlamaTarget:
        """Load the file again with fewer experts; repacked weights and pages of the file are shared."""
        self._require_open()
        assert replace(view, experts=0) == ModelView()  # see fits.py
        view.require_fewer_experts(self.expert_counts()[0], self.path)
        given = replace(self._settings, n_ctx=self.caps.n_ctx, exact_rows=0, experts=view.experts, mtp=False)
        return LlamaTarget(self.path, **vars(given))

    @property
    def text(self) -> LlamaText:
        self._require_open()
        return self._text

    @property
    def description(self) -> str:
        return binding.description(self.model.pointer)

    @property
    def settings(self) -> Mapping[str, Any]:
        return self._settings.of_passes()

    @property
    def suggested_sampling(self) -> dict[str, float]:
        """Sampling settings that the file suggests, by the names of `Sampling`."""
        self._require_open()
        return binding.suggested_sampling(self.model.pointer)

    def identity(self) -> dict[str, Any]:
        return identity(self.path, self.settings)

    @property
    def weight_bytes(self) -> int:
        self._require_open()
        return self.model.size

    @property
    def n_reused(self) -> int:
        return sum(slot.n_reused for slot in self.cache.slots)

    def _require_open(self) -> None:
        """Raise UsageError if the model is closed, or was loaded before a fork."""
        self.model.process.require()
        if self.context is None:
            raise UsageError(f"{self.path}: the model is closed; load it again")

    def open_mtp(self, path: Path | None = None) -> MtpDraft:
        """See PredictsFurtherTokens."""
        self._require_open()
        return MtpDraft(self, self.model) if path is None else AssistantDraft(self, path)

    def offload_head(self, head: HeadBase) -> mtp_sidecar.SidecarDraft | None:
        """See OffloadsHeads."""
        self._require_open()
        kind = mtp_sidecar.kind_of_draft(head) if mtp_sidecar.offloads(self._settings) else None
        if kind is None:
            return None
        # Showing these layers may renew the context, which the draft's reads.
        self._join_extras(tuple(sorted({*head.config.layer_ids})), 1)
        return kind(self, head)

    def first_layers(self, n: int) -> LlamaTarget:
        check_exit(n, self.layers, self.path)
        return self.with_shared_weights(stop=n, n_ctx=self.caps.n_ctx)

    def with_shared_weights(
        self, *, stop: int = 0, extras: Sequence[PassExtra] = (), **changes: Any
    ) -> LlamaTarget:
        """Return a further target of these weights. changes: of the settings."""
        self._require_open()
        given = replace(self._settings, exact_rows=0, mtp=False, **changes)
        return LlamaTarget(self.path, weights=self, stop=stop, extras=extras, **vars(given))

    @cached_property
    def _weights(self) -> ModelWeights:
        return ModelWeights(self.path)

    def token_embeddings(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        self._require_open()
        return self._weights.token_embeddings(tokens)

    def output_head(self) -> OutputHead:
        self._require_open()
        return self._weights.output_head()

    @property
    def product_engine(self) -> str:
        """See MakesProducts."""
        given = self._settings
        return f"{own_kernels.load_kernels().path} x {given.threads}" if given.kernels else ""

    def make_linear(self, weight: Any, bias: Any) -> KernelLinear | None:
        """See MakesProducts."""
        given = self._settings
        return own_kernels.make_linear(weight, bias, given.threads) if given.kernels else None

    def open(self, beside: Session | None = None) -> LlamaSession:
        self._require_open()
        return LlamaSession(self.cache, self.vocab.piece)

    def forget(self) -> None:
        """Drop the prefixes of closed sessions from the cache."""
        self.cache.clear_free()
        if self._prompt_reader is not None:
            self._prompt_reader.forget()

    def close(self) -> None:
        """Free context and weights. A forked process lacks their threads and only forgets them."""
        if self._prompt_reader is not None:
            self._prompt_reader.close()
            self._prompt_reader = None
        if self._embedding is not None and self.model.process.is_current:
            self._embedding.close()
        self._embedding = None
        self._free_context()
        if self._owns_model:
            self.model.close()

    def _free_context(self) -> None:
        if self.context is not None:
            for extra in self.extras:
                extra.detach()
            if self.model.process.is_current:
                for slot in self.cache.slots:
                    self.cache.save_prompt(slot, len(slot.cached))
                binding.free_context(self.context)
            self.context = self._decoder.context = None
            self.cache.reset(None)

    def forward(self, batch: SessionBatch[LlamaSession], want: RequiredOutputs) -> list[LlamaForward]:
        self._require_open()
        if self._stop:
            want = RequiredOutputs(layers=(self._stop,))
        extras = self._join_extras(want.layers, len(batch))
        if self.cache.stateful:
            for session, tree in batch:  # rolls back before pending tokens are counted
                session.discard_tree() if isinstance(tree, int) else session.begin(tree)
        batch = self._decoder.finish_sparse_prompts(batch)
        began = perf_counter()
        prefills = [tree if isinstance(tree, int) else session.pending_tokens for session, tree in batch]
        outs = self._decoder.forward(batch, prefills, want, extras)
        if self.on_forward is not None and sum(prefills) <= MAX_FUSED_PREFILL:
            rows = sum(out.computed for out in outs)
            self.on_forward(rows, batch[0][0].context_length, perf_counter() - began)
        return outs

    def _join_extras(self, layers: tuple[int, ...], sessions: int) -> JoinedExtras:
        """Return the extras of a pass that shows these layers, ready for it."""
        extras = self._joined.get(layers)
        if extras is None:
            shown = {layer for extra in self.extras for layer in extra.layers}
            assert shown.issuperset(layers), f"hidden states of layers {layers}"
            extras = self._joined[layers] = JoinedExtras(self.extras, layers)
        for extra in extras.joined:
            extra.prepare(self, sessions)
        return extras

    def embed(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """See Embeds. The first call makes a further context."""
        self._require_open()
        if self._embedding is None:
            self._embedding = EmbeddingContext(self, self._settings)
        return self._embedding.mean(tokens)

    def prompt_attention(self, prompt: Sequence[int], steps: int) -> NDArray[np.float32]:
        """See ShowsAttention. The first call makes a further context."""
        self._require_open()
        if self._prompt_reader is None:
            self._attention = AttentionWeights(self.path)
            self._prompt_reader = self.with_shared_weights(
                n_ctx=self.caps.n_ctx, sessions=1, extras=[self._attention]
            )
        return look_ahead(self._prompt_reader, prompt, steps, self._attention.into)
