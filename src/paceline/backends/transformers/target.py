"""A transformers model as a Target: weights, and a cache for each session.

One pass verifies the trees of a batch. A 4-D mask separates branches and sessions, and the accepted path is
moved together in the cache (strip.py). Without masks drafts are chains, and each session has its own pass.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.backends.common import (
    LoadedTarget,
    check_exit,
    check_experts,
    describe_experts,
    parameters,
    require_experts,
)
from paceline.backends.interface import OutputHead
from paceline.backends.speculative_prefill import Attention, look_ahead
from paceline.backends.transformers import weights
from paceline.backends.transformers.attention_weights import attention_weights
from paceline.backends.transformers.forward import HfForward
from paceline.backends.transformers.kind import (
    MAX_PREFILL_TOKENS,
    ArchitectureTraits,
    eos_token_ids,
    experts_of,
    text_config,
)
from paceline.backends.transformers.loading import (
    cache_gguf_reader,
    check_device,
    identity,
    identity_of,
    is_out_of_memory,
    load_model,
    load_tokenizer,
    openmp_threads,
    out_of_memory_error,
)
from paceline.backends.transformers.mtp import HfAssistantDraft, HfMtpDraft
from paceline.backends.transformers.passes import PendingForward, compute
from paceline.backends.transformers.session import CacheSlots, HfSession
from paceline.backends.transformers.strip import SequenceCache, StateCache
from paceline.backends.transformers.text import HfText
from paceline.backends.transformers.trial import probe_traits
from paceline.backends.transformers.view import (
    ViewSession,
    build_view,
    search_skipped_layers,
    with_experts,
    without_output,
)
from paceline.backends.views import ModelView
from paceline.models.names import model_path
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.interfaces import (
    NO_FEATURES,
    Caps,
    Features,
    RequiredOutputs,
    Session,
    SessionBatch,
)
from paceline.speculative.request import MAX_FUSED_PREFILL
from paceline.speculative.tree import DraftTree
from paceline.speculative.vocabulary import Vocab

DEFAULT_CONTEXT = 4096
MAX_BRANCHES, MAX_ROWS = 64, 512


class HfTarget(LoadedTarget):
    """A model of `path`: a folder, or hf:FILE of a GGUF file.
    n_ctx: context length of a session (0: that of the training, at most 4,096).
    sessions: number of sessions that may be open. device: cpu, cuda, mps, or auto.
    dtype: of the weights (settings.DTYPES). attention: an implementation in transformers, or auto."""

    settings: Mapping[str, Any]
    _text: HfText | None = None
    _experts = 0  # a token, instead of the model's own number

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
        experts: int = 0,
        **_: Any,
    ) -> None:
        if exact_rows:
            raise UsageError(
                f"{path}: passes of one shape are for GGUF models; leave out exact_greedy (--exact-greedy)"
            )
        self.settings = {"threads": threads, "device": device, "dtype": dtype, "attention": attention}
        self._device = check_device(device)
        with cache_gguf_reader(path):
            tokenizer = load_tokenizer(path)
            model = load_model(path, device=self._device, dtype=dtype, attention=attention)
        if experts:
            model = self._reduced(path, model, experts)
        torch.set_num_threads(threads)
        self._use(path, model, sessions, n_ctx, identity(path, self.settings))
        self._text = HfText(tokenizer, self.vocab.size)
        self.vocab = self._text.vocab(self.vocab.eos)

    @classmethod
    def around(cls, model: Any, *, sessions: int = 1) -> HfTarget:
        """Return a target without text around a model in memory. Raises ModelError."""
        self = cls.__new__(cls)
        self.settings = {
            "threads": torch.get_num_threads(),
            "device": str(model.device),
            "dtype": str(model.dtype).removeprefix("torch."),
            "attention": str(getattr(model.config, "_attn_implementation", "auto")),
        }
        self._device = str(model.device)
        n_ctx = int(getattr(text_config(model.config), "max_position_embeddings", 0) or DEFAULT_CONTEXT)
        path = Path(model.name_or_path or "model")
        self._use(path, model, sessions, n_ctx, identity_of(model, self.settings))
        return self

    def _use(self, path: Path, model: Any, sessions: int, n_ctx: int, identity: Mapping[str, Any]) -> None:
        """Set up everything but the text. Raises ModelError for a model that cannot be decoded exactly."""
        self.path, self._model = path, model
        self.weight_bytes = int(model.get_memory_footprint())
        config = text_config(model.config)
        size = int(config.vocab_size)
        ends = frozenset(end for end in eos_token_ids(model.config, model.generation_config) if end < size)
        self.vocab = Vocab(size, "", None, ends, False, False, lambda _: b"", lambda _: b"")
        trained = int(getattr(config, "max_position_embeddings", 0) or DEFAULT_CONTEXT)
        self._base_target: HfTarget | None = None  # of a view
        self._view = ""  # its spec
        self._passes = 0  # to notice reads of an outdated output
        self.on_forward: Callable[[int, int, float], None] | None = None
        self._kind, self._slots = ArchitectureTraits(self._model, config), CacheSlots(0, list)
        depends_on = {name: identity[name] for name in ("model", "engine", "dtype", "attention")}
        traits = probe_traits(self, model, self._kind, depends_on | {"device": self._device})
        if traits.rejection_reason:
            raise ModelError(f"{path}: {traits.rejection_reason}")
        traits.limit(self._kind)
        self.caps = Caps(
            max_branches=MAX_BRANCHES if self._kind.supports_custom_masks else 1,
            rollback=self._kind.rollback,
            max_sessions=sessions if traits.multiple_sessions else 1,
            max_batch_tokens=MAX_ROWS,
            max_prefill_tokens=MAX_PREFILL_TOKENS,
            n_ctx=n_ctx or min(trained, DEFAULT_CONTEXT),
            sparse_prompts=self._kind.takes_sparse_prompts,
        )
        self._slots = CacheSlots(self.caps.max_sessions, self.make_cache, self._kind.rollback)

    def make_cache(self) -> Any:
        if self._kind.rollback == "free":
            return SequenceCache()
        model = self._require_open()
        if self._kind.state_in_modules:  # reset the last session's state
            model.get_decoder()._setup_cache(model.config, 1, self._device, model.dtype)
        return StateCache(model.config)

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
        return model_path(self.path).stem

    @property
    def description(self) -> str:
        model = self._require_open()
        n = sum(weight.numel() for weight in model.parameters())
        return f"{model.config.model_type} {parameters(n)} {str(model.dtype).removeprefix('torch.')}"

    def identity(self) -> dict[str, Any]:
        if self._text is not None:
            base = identity(self.path, self.settings)
        else:
            base = identity_of(self._require_open(), self.settings)
        base |= {"experts": self._experts} if self._experts else {}
        return base | ({"view": self._view} if self._view else {})

    @property
    def layers(self) -> int:
        return int(text_config(self._require_open().config).num_hidden_layers)

    @property
    def hidden_size(self) -> int:
        return int(text_config(self._require_open().config).hidden_size)

    def token_embeddings(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        return weights.token_embeddings(self._require_open(), tokens)

    @property
    def tensor_like(self) -> Any:
        """See ComputesWithTensors. On a processor numpy has less overhead for a few rows."""
        return None if self._device == "cpu" else torch.zeros(0, device=self._device)

    def output_head(self) -> OutputHead:
        return weights.output_head(self._require_open(), self.origin)

    def view(self, view: ModelView) -> HfTarget:
        attention, feed_forward = view.active_blocks(self.layers)
        assert self._kind.rollback == "free"  # see fits.py
        out = copy(self)
        out._model, out._base_target = build_view(self._model, attention, feed_forward), self
        if view.experts:
            view.require_fewer_experts(self.expert_counts()[0], self.path)
            out._model = out._reduced(self.path, out._model, view.experts)
        out._slots = CacheSlots(self.caps.max_sessions, out.make_cache, "free")
        out._view, out.weight_bytes = view.spec, int(out._model.get_memory_footprint())
        if n := view.n_skipped_blocks(self.layers):
            out._change = f"without {n} of {2 * self.layers} blocks"
        return out

    def open_mtp(self, path: Path | None = None) -> HfMtpDraft | HfAssistantDraft:
        """See PredictsFurtherTokens."""
        model = self._require_open()
        return HfMtpDraft(self, model) if path is None else HfAssistantDraft(self, model, path)

    def expert_counts(self) -> tuple[int, int]:
        used, experts = experts_of(text_config(self._require_open().config))
        require_experts(used, experts, self.path)
        return self._experts or used, experts

    def _reduced(self, path: Path, model: Any, experts: int) -> Any:
        """Return the model with another number of experts a token. Raises UsageError."""
        used, known = experts_of(text_config(model.config))
        check_experts(experts, used, known, path)
        used = self._experts or used
        self._experts, self._change = experts, describe_experts(experts, used)
        return with_experts(model, used, experts)

    def first_layers(self, n: int) -> HfTarget:
        check_exit(n, self.layers, self.path)
        out = self.view(ModelView(exit_layer=n))
        out._model = without_output(out._model, self.path)
        out._view += ",output=none"
        return out

    def search_skipped_layers(self, tokens: Sequence[int], n_outputs: int, most: int) -> list[frozenset[int]]:
        return search_skipped_layers(self._require_open(), tokens, n_outputs, most)

    def open(self, beside: Session | None = None) -> HfSession:
        self._require_open()
        base = self._base_target
        if isinstance(beside, HfSession) and base is not None and beside.slots is base._slots:
            return ViewSession(beside, self.caps.n_ctx)
        return HfSession(self._slots, self.caps.n_ctx, self.vocab.piece)

    def embed(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """See Embeds."""
        model = self._require_open()
        if self._kind.state_in_modules:  # which sessions use
            raise ModelError(f"{self.path}: no embeddings of this architecture: use its GGUF file")
        with torch.inference_mode():
            ids = torch.tensor([list(tokens)], device=self._device)
            states = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
        mean: NDArray[np.float32] = states.float().mean(dim=0).cpu().numpy()
        return mean

    def prompt_attention(self, prompt: Sequence[int], steps: int) -> Attention:
        """See ShowsAttention."""
        model = self._require_open()
        timed, self.on_forward = self.on_forward, None  # eager passes are slower than those of drafts
        try:
            return look_ahead(self, prompt, steps, lambda row: attention_weights(model, row, self.origin))
        finally:
            self.on_forward = timed

    @property
    def n_reused(self) -> int:
        return sum(slot.n_reused for slot in self._slots.slots)

    def forget(self) -> None:
        self._slots.clear_free()

    def close(self) -> None:
        self._model = None
        self._slots = CacheSlots(0, list)

    def forward(self, batch: SessionBatch[HfSession], want: RequiredOutputs) -> list[HfForward]:
        self._require_open()
        began = perf_counter()
        self._passes += 1
        try:
            with torch.inference_mode():
                due = [self._prefill(session, tree, want) for session, tree in batch]
                compute(self._require_open(), self._kind, [one for one in due if one.rows.tokens], want)
                outs = [self._answer(one, want) for one in due]
        except BaseException as error:  # also Ctrl-C: drop the pass from the caches
            for session, _ in batch:
                session.rollback()
            if is_out_of_memory(error):
                raise out_of_memory_error(self.path, error) from error
            raise
        openmp_threads().on_compute()
        if self.on_forward is not None and sum(one.n_prefill for one in due) <= MAX_FUSED_PREFILL:
            rows = sum(out.computed for out in outs)
            self.on_forward(rows, batch[0][0].context_length, perf_counter() - began)
        return outs

    def _prefill(self, session: HfSession, tree: DraftTree | int, want: RequiredOutputs) -> PendingForward:
        """Prefill in chunks, except the last, which is computed with the tree."""
        n = tree if isinstance(tree, int) else session.pending_tokens
        session.require_pending(n)
        begin, left, hidden = len(session.slot.cached), n, list[Any]()
        limit = MAX_PREFILL_TOKENS  # tokens computed together with the tree
        if self._kind.rollback == "restore":
            # A prompt should be in the checkpoint that a draft may return to.
            drafts = isinstance(tree, DraftTree) and len(tree) > 0
            limit = 0 if drafts and not session.slot.checkpoint else MAX_FUSED_PREFILL
        while left > limit or session.next_stop(left) is not None:
            part = min(session.next_stop(left) or left, MAX_PREFILL_TOKENS)
            due = PendingForward(session, part, session.plan_prefill(part), 0, begin)
            if due.rows.tokens:
                compute(self._require_open(), self._kind, [due], want)
                hidden.append(due.hidden)
            session.read(part)
            left -= part
        rows = session.plan_prefill(left) if isinstance(tree, int) else session.plan(tree)
        return PendingForward(session, tree, rows, n, begin, n - left, hidden)

    def _answer(self, due: PendingForward, want: RequiredOutputs) -> HfForward:
        session, rows, now = due.session, due.rows, self._passes
        if isinstance(due.tree, int):
            session.read(due.tree - due.n_prefilled)
        else:
            session.mark_computed()
        hidden = [*due.earlier, *([due.hidden] if due.hidden is not None else [])]
        computed = due.n_prefilled + len(rows.tokens)
        start = due.begin if rows.first_row == 0 else rows.start
        features = NO_FEATURES
        if want.layers and hidden:
            features = Features(None, torch.cat(hidden), computed - rows.n_outputs, start)
        logits = torch.empty(0) if due.logits is None else due.logits
        return HfForward(lambda: self._passes == now, logits, rows.first_row, computed, want, features)
