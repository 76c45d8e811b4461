"""A GGUF model as a Target: weights, a context, and sequence ids for sessions."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.common import (
    check_exit,
    check_layers,
    check_tokens,
    describe_changes,
    describe_experts,
    make_token_trie,
    require_experts,
)
from paceline.backends.interface import OutputHead
from paceline.backends.llama_cpp import binding, gate
from paceline.backends.llama_cpp import kernels as own_kernels
from paceline.backends.llama_cpp.attention_weights import PromptReader
from paceline.backends.llama_cpp.batch import LlamaForward
from paceline.backends.llama_cpp.cache import MAX_BRANCHES, LlamaKvCache
from paceline.backends.llama_cpp.exactness import drops_rejected_drafts, require_exact, rows_are_equal
from paceline.backends.llama_cpp.experts import expert_counts
from paceline.backends.llama_cpp.hidden_states import HiddenStateCapture
from paceline.backends.llama_cpp.kernels.matrices import KernelLinear
from paceline.backends.llama_cpp.passes import CHUNK, MAX_ROWS, N_BATCH, PassRunner
from paceline.backends.llama_cpp.session import LlamaSession
from paceline.backends.llama_cpp.text import LlamaText, read_vocab
from paceline.backends.llama_cpp.weights import ModelWeights
from paceline.backends.views import ModelView
from paceline.models.names import VIEW_PREFIX
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.interfaces import Caps, PromptSelector, RequiredOutputs, Session
from paceline.speculative.request import MAX_FUSED_PREFILL
from paceline.speculative.tree import DraftTree
from paceline.system.forks import ForkGuard
from paceline.system.identity import file_fingerprint
from paceline.text.grammar import TokenTrie

DEFAULT_CONTEXT = 4096
MAX_SESSIONS = binding.MAX_SEQUENCES - MAX_BRANCHES
SETTINGS: Mapping[str, Any] = {
    "threads": 1,
    "gpu_layers": 0,
    "flash_attention": None,
    "cache_type": "f16",
    "exact_rows": 0,
    "kernels": True,
    "experts": 0,
}  # LlamaTarget's defaults

_with_kernels: Counter[bytes] = Counter()  # open loads by file (kernels.sharing_key)


def identity(path: Path, settings: Mapping[str, Any], /) -> dict[str, Any]:
    """See ModelSetup. The key of the model's cached pass costs on disk, which must stay stable.
    Raises OSError if `path` does not exist, and MissingExtraError without llama.cpp."""
    model = file_fingerprint(path)
    given = {name: settings.get(name, usual) for name, usual in SETTINGS.items()}
    return {
        "model": model,
        "features": binding.llama_cpp().llama_print_system_info().decode(errors="replace"),
        "engine": f"llama-cpp-python {version('llama-cpp-python')}",
        **{name: value for name, value in given.items() if name != "experts" or value},
        "kernels": own_kernels.load_kernels().path if given["kernels"] else "",
    }


class LlamaTarget:
    """A model of a GGUF file.
    n_ctx: context length of a session (0: that of the training, at most 4,096).
    sessions: number of sessions that may be open.
    exact_rows: fill every pass up to so many rows if rows depend on their pass. Plain and speculative
    decoding then run the same kernels and give the same bits (0: do not fill).
    weights: a target of the same file that shares its weights; close it later.
    kernels: use Paceline's kernels if there are any and memory is large enough.
    stop: the layer before which passes end, 0 for none; see SupportsExits.
    experts: of a mixture, used for each token; 0 for as many as the file says."""

    caps: Caps

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
        weights: LlamaTarget | None = None,
        kernels: bool = True,
        stop: int = 0,
        experts: int = 0,
    ) -> None:
        if not 1 <= sessions <= MAX_SESSIONS:
            raise UsageError(f"{sessions} sessions: must be between 1 and {MAX_SESSIONS}")
        self._cpp = binding.llama_cpp()
        self._process = ForkGuard()
        self.path = path
        self.threads = threads
        self.gpu_layers, self.flash_attention, self.cache_type = gpu_layers, flash_attention, cache_type
        self._owns_model, self._stop, self.experts = weights is None, stop, experts
        self._sharing_key = b""
        if weights is None:
            key = own_kernels.sharing_key(path) if kernels else b""
            shares = bool(_with_kernels[key])
            self.kernels: bool = kernels and own_kernels.fits_memory(gate.sizes(path), path, shares=shares)
            own_kernels.set_enabled(self.kernels)
            with own_kernels.sharing(key) if self.kernels else nullcontext():
                self._model: Any = binding.load_model(path, gpu_layers=gpu_layers, experts=experts)
            if self.kernels:
                self._sharing_key = key
                _with_kernels[key] += 1
        else:
            self.kernels, self._model = kernels and weights.kernels, weights._model
        self._context: Any = None
        self.on_forward: Callable[[int, int, float], None] | None = None
        self.prompt_selector: PromptSelector | None = None
        self._callback: binding.EvalCallback | None = None
        self._prompt_reader: PromptReader | None = None
        try:
            self.vocab = read_vocab(self._model, self._require_open)
            self.layers = int(self._cpp.llama_model_n_layer(self._model))
            self.hidden_size = int(self._cpp.llama_model_n_embd(self._model))
            self._set_up(n_ctx, sessions, 0)
            self._text = LlamaText(self._model)
            if stop:
                self._show_hidden_states(1, (stop,))
                return
            if self.cache.stateful and not drops_rejected_drafts(self):
                self.caps = replace(self.caps, rollback="none")
            self._set_equal_rows()
            if exact_rows and not self.caps.exact:
                if self.cache.stateful:
                    raise ModelError(
                        f"{path}: a recurrent model has no exact greedy output without Paceline's kernels; "
                        "leave out exact_greedy (--exact-greedy)"
                    )
                self._set_up(n_ctx, sessions, exact_rows)
                require_exact(self)
        except BaseException:
            self.close()
            raise

    def _set_up(self, n_ctx: int, sessions: int, exact_rows: int) -> None:
        """Make a new cache and context."""
        stateful = bool(
            self._cpp.llama_model_is_recurrent(self._model) or self._cpp.llama_model_is_hybrid(self._model)
        )
        windowed = binding.is_windowed(self._model)
        trained = int(self._cpp.llama_model_n_ctx_train(self._model))
        per_session = n_ctx or min(trained, DEFAULT_CONTEXT)
        self.exact_rows = exact_rows
        self._free_context()
        self._cells = per_session * sessions + exact_rows  # filler rows need cells, too
        if stateful and 2 * sessions > binding.MAX_SEQUENCES:  # each has a checkpoint
            raise UsageError(
                f"{sessions} sessions of a recurrent model: must be at most {binding.MAX_SEQUENCES // 2}"
            )
        self.cache = LlamaKvCache(
            self.path,
            sessions,
            per_session,
            self._require_open,
            shares=not stateful and not exact_rows and not windowed,
            stateful=stateful,
            windowed=windowed,
        )
        self._decoder = PassRunner(
            self.path,
            self.cache,
            self.vocab.size,
            self.layers,
            exact_rows=exact_rows,
            kernels=self.kernels,
        )
        self._make_context()
        self.caps = Caps(
            # A first child needs no branch. Cells of branches are not in the order of plain decoding.
            max_branches=1 if stateful or exact_rows > 0 else 1 + MAX_BRANCHES // sessions,
            rollback="restore" if stateful else "free",
            max_sessions=sessions,
            max_batch_tokens=exact_rows or MAX_ROWS,
            max_prefill_tokens=per_session if exact_rows else CHUNK,
            n_ctx=per_session,
            exact=exact_rows > 0 and sessions == 1,  # passes over several sessions vary in shape
            sparse_prompts=not (stateful or windowed or exact_rows)
            and self.cache.can_shift
            and binding.keeps_other_keys(self._model, self.cache_type),
        )

    def _make_context(self) -> None:
        own_kernels.set_enabled(self.kernels)  # a context reserves scratch space for its operations
        self._context = binding.make_context(
            self._model,
            self.path,
            n_ctx=self._cells,
            threads=self.threads,
            sequences=self.cache.n_sequences,
            rows=MAX_ROWS,
            n_batch=N_BATCH,
            flash_attention=self.flash_attention,
            cache_type=self.cache_type,
            callback=self._callback,
        )
        self._decoder.context = self._context
        self.cache.reset(self._context)

    @property
    def name(self) -> str:
        return binding.metadata(self._model, "general.name") or self.path.stem

    @property
    def origin(self) -> str:
        return f"{self.path} {self.modification}".rstrip()

    @property
    def modification(self) -> str:
        experts = describe_experts(self.experts, expert_counts(self.path)[1]) if self.experts else ""
        return describe_changes(experts, self.prompt_selector)

    def expert_counts(self) -> tuple[int, int]:
        _, used, experts = expert_counts(self.path)
        require_experts(used, experts, self.path)
        return self.experts or used, experts

    def view(self, view: ModelView) -> LlamaTarget:
        """Load the file again with fewer experts; repacked weights and pages of the file are shared."""
        self._require_open()
        if not view.experts or replace(view, experts=0) != ModelView():
            _, used, _ = expert_counts(self.path)
            mixture = f"; it has view:experts=N, N below {used}" if used > 1 else ""
            remedy = "; load it with transformers (-m hf:FILE), or write the part to a file of its own "
            remedy += "(paceline views materialise)"
            raise UsageError(
                f"{VIEW_PREFIX}{view.spec}: llama.cpp cannot leave out layers of {self.path}{mixture}"
                + remedy * (self.caps.rollback == "free")  # nothing else drafts for a recurrent model
            )
        view.require_fewer_experts(self.expert_counts()[0], self.path)
        caps, given = self.caps, {**self.settings, "exact_rows": 0, "experts": view.experts}
        return LlamaTarget(self.path, n_ctx=caps.n_ctx, sessions=caps.max_sessions, **given)

    @property
    def text(self) -> LlamaText:
        self._require_open()
        return self._text

    @cached_property
    def token_trie(self) -> TokenTrie:
        return make_token_trie(self.vocab, self.text.added_tokens())

    @property
    def description(self) -> str:
        return binding.description(self._model)

    @property
    def settings(self) -> Mapping[str, Any]:
        return {name: getattr(self, name) for name in SETTINGS}

    @property
    def suggested_sampling(self) -> dict[str, float]:
        """Sampling settings that the file suggests, by the names of `Sampling`."""
        self._require_open()
        return binding.suggested_sampling(self._model)

    def identity(self) -> dict[str, Any]:
        return identity(self.path, self.settings)

    @property
    def weight_bytes(self) -> int:
        self._require_open()
        return int(self._cpp.llama_model_size(self._model))

    def _require_open(self) -> None:
        """Raise UsageError if the model is closed, or was loaded before a fork."""
        self._process.require()
        if self._context is None:
            raise UsageError(f"{self.path}: the model is closed; load it again")

    def with_shared_weights(self, *, n_ctx: int, flash_attention: bool | None) -> LlamaTarget:
        self._require_open()
        given = {**self.settings, "flash_attention": flash_attention, "exact_rows": 0}
        return LlamaTarget(self.path, n_ctx=n_ctx, weights=self, **given)

    def first_layers(self, n: int) -> LlamaTarget:
        self._require_open()
        check_exit(n, self.layers, self.path)
        given = {**self.settings, "exact_rows": 0}
        caps = self.caps
        return LlamaTarget(
            self.path, n_ctx=caps.n_ctx, sessions=caps.max_sessions, weights=self, stop=n, **given
        )

    @cached_property
    def _weights(self) -> ModelWeights:
        return ModelWeights(self.path)

    def token_embeddings(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        self._require_open()
        check_tokens(tokens, self.vocab.size, self.origin)
        return self._weights.token_embeddings(tokens)

    def output_head(self) -> OutputHead:
        self._require_open()
        return self._weights.output_head()

    @property
    def product_engine(self) -> str:
        """See MakesProducts."""
        return f"{own_kernels.load_kernels().path} x {self.threads}" if self.kernels else ""

    def make_linear(self, weight: Any, bias: Any) -> KernelLinear | None:
        """See MakesProducts."""
        return own_kernels.make_linear(weight, bias, self.threads) if self.kernels else None

    def open(self, beside: Session | None = None) -> LlamaSession:
        self._require_open()
        return LlamaSession(self.cache, as_prompts=self.exact_rows > 0)

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
        self._free_context()
        if self._model is not None:
            if self._owns_model and self._process.is_current:
                self._cpp.llama_model_free(self._model)
            if self._sharing_key:
                _with_kernels[self._sharing_key] -= 1
            self._model = None

    def _free_context(self) -> None:
        if self._context is not None:
            if self._process.is_current:
                self._cpp.llama_free(self._context)
            self._context = self._decoder.context = None
            self.cache.reset(None)

    def forward(
        self, batch: Sequence[tuple[LlamaSession, DraftTree | int]], want: RequiredOutputs
    ) -> list[LlamaForward]:
        self._require_open()
        if self._stop:
            want = RequiredOutputs(layers=(self._stop,))
        if want.layers:
            self._show_hidden_states(len(batch), want.layers)
        if self.cache.stateful:
            for session, tree in batch:
                session.drop_other_tree(tree)
        batch = [(session, self._spread_first(session, tree, want)) for session, tree in batch]
        began = perf_counter()
        prefills = [tree if isinstance(tree, int) else session.pending_tokens for session, tree in batch]
        outs = self._decoder.forward(batch, prefills, want)
        if self.on_forward is not None and sum(prefills) <= MAX_FUSED_PREFILL:
            rows = sum(out.computed for out in outs)
            self.on_forward(rows, batch[0][0].context_length, perf_counter() - began)
        return outs

    def _spread_first(
        self, session: LlamaSession, tree: DraftTree | int, want: RequiredOutputs
    ) -> DraftTree | int:
        """Compute a sparse prompt before what follows it. Return what is left to compute."""
        n = session.until_spread
        if n is None or (isinstance(tree, int) and tree <= n):
            return tree
        self._decoder.forward([(session, n)], [n], want)
        return tree - n if isinstance(tree, int) else tree

    def _show_hidden_states(self, sessions: int, layers: Sequence[int]) -> None:
        """Make a context with the callback that copies hidden states, the first time they are wanted.
        Open sessions compute their tokens again. Raises ModelError."""
        check_layers(layers, self.layers, self.path)
        if sessions > 1 and self.cache.stateful:  # llama.cpp may reorder the rows of such sessions
            raise ModelError(f"{self.path}: its hidden states can be had of one session at a time only")
        if self._decoder.capture is None:
            arch = binding.metadata(self._model, "general.architecture") or "unknown"
            capture = HiddenStateCapture(self.path, arch, self.layers, self.hidden_size, self._stop)
            self._decoder.capture = capture
            self.use_callback(capture)

    def use_callback(self, callback: binding.EvalCallback) -> None:
        """Make a new context with ggml's evaluation callback."""
        self._callback = callback
        self._free_context()
        self._make_context()

    def prompt_attention(self, prompt: Sequence[int], steps: int) -> NDArray[np.float32]:
        """See ShowsAttention. The first call makes a further context."""
        self._require_open()
        if self._prompt_reader is None:
            self._prompt_reader = PromptReader(self)
        return self._prompt_reader.attention(prompt, steps)

    def _set_equal_rows(self) -> None:
        equal = rows_are_equal(self)
        self.caps = replace(self.caps, exact=equal, equal_rows=equal)
