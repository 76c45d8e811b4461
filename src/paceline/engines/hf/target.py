"""A transformers model as a Target: weights, and a cache for each session.

Trees are verified in one pass: a 4-D mask says who attends to whom, a node's position is its depth, and what
is accepted is moved together in the cache (strip.py). Where no mask can be given, drafts are chains. Sessions
of one batch are computed one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from copy import copy
from functools import cached_property
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.core.answers import Answers
from paceline.core.errors import ContractError, ModelError, UsageError
from paceline.core.ports import NOTHING, Caps, Features, Session, Want
from paceline.core.sampling import require_numbers, top_k
from paceline.core.tree import DraftTree
from paceline.core.vocab import Vocab
from paceline.engines.alike import trie_of
from paceline.engines.grammar import TokenTrie
from paceline.engines.hf.cache import Slots
from paceline.engines.hf.identity import SETTINGS, identity, identity_of
from paceline.engines.hf.loading import (
    check_device,
    first_line,
    load_model,
    load_tokenizer,
    place_of,
    read_once,
)
from paceline.engines.hf.masks import attends, is_causal
from paceline.engines.hf.session import HfSession, Rows
from paceline.engines.hf.strip import Strips
from paceline.engines.hf.text import HfText
from paceline.engines.hf.view import ViewSession, reduced

DEFAULT_CONTEXT = 4096
MAX_BRANCHES, MAX_ROWS = 64, 512
CHUNK = 512  # tokens of prompts in one pass
FEW = 32  # tokens read along that leave a pass what it is
WINDOWED, WHOLE = "sliding_attention", "full_attention"
ONE_BY_ONE = ("mamba", "falcon_mamba", "jamba", "zamba")  # take no state into a pass of several tokens


class HfTarget:
    """Loads `path`: a folder, or hf:FILE of a GGUF file. n_ctx: positions a session may fill (0: what the
    model was trained for, at most 4,096). sessions: how many may be open at once. device: cpu, cuda, mps, or
    auto. dtype: of the weights (loading.DTYPES). attention: transformers' name of an implementation; auto:
    as it chooses.

    on_pass: told of every forward: rows that were computed, tokens of the first session, seconds."""

    alters = ""  # or what a view leaves out
    vocab: Vocab
    path: Path

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
            raise UsageError(f"{path}: passes of one shape are for GGUF models; leave --exact-greedy out")
        self._given = {"threads": threads, "device": device, "dtype": dtype, "attention": attention}
        self._device = check_device(device)
        with read_once(path):
            tokenizer = load_tokenizer(path)
            model = load_model(path, device=self._device, dtype=dtype, attention=attention)
        torch.set_num_threads(threads)
        self._use(path, model, sessions, n_ctx)
        self._text: HfText | None = HfText(tokenizer, self.vocab.size)
        self.vocab = self._text.vocab(self.vocab.eos)

    @classmethod
    def around(cls, model: Any, *, sessions: int = 1) -> HfTarget:
        """A model that somebody else has loaded, and goes on using. It has no text."""
        self = cls.__new__(cls)
        self._given = {
            "threads": torch.get_num_threads(),
            "device": str(model.device),
            "dtype": str(model.dtype).removeprefix("torch."),
            "attention": str(getattr(model.config, "_attn_implementation", "auto")),
        }
        self._device = str(model.device)
        n_ctx = int(getattr(text_config(model.config), "max_position_embeddings", 0) or DEFAULT_CONTEXT)
        self._use(Path(model.name_or_path or "model"), model, sessions, n_ctx)
        self._text = None
        return self

    def _use(self, path: Path, model: Any, sessions: int, n_ctx: int) -> None:
        self.path, self._model = path, model
        config = text_config(model.config)
        size = int(config.vocab_size)
        ends = frozenset(end for end in ends_of(model.config, model.generation_config) if end < size)
        self.vocab = Vocab(size, "", None, ends, False, False, lambda _: b"", lambda _: b"")
        trained = int(getattr(config, "max_position_embeddings", 0) or DEFAULT_CONTEXT)
        self._kind = Kind(self._model, config)
        self.caps = Caps(
            branch=MAX_BRANCHES if self._kind.masks else 1,
            rollback="free" if self._kind.rewinds else "none",
            sessions=sessions,
            rows=MAX_ROWS,
            chunk=CHUNK,
            n_ctx=n_ctx or min(trained, DEFAULT_CONTEXT),
        )
        self._slots = Slots(sessions, self._cache, self._kind.rewinds)
        self._whole: HfTarget | None = None  # of a view
        self._passes = 0  # counts forwards, so that an answer asked for too late is noticed
        self.on_pass: Callable[[int, int, float], None] | None = None

    def _cache(self) -> Any:
        if self._kind.rewinds:
            return Strips()
        from transformers import DynamicCache

        return DynamicCache(config=self._require_open().config)

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
        return str(self.path)

    @property
    def description(self) -> str:
        """Kind, size and type of number: llama 135M float32."""
        model = self._require_open()
        n = sum(weight.numel() for weight in model.parameters())
        size = f"{n / 1e9:.1f}B" if n >= 1e9 else f"{n / 1e6:.{1 if n < 99.5e6 else 0}f}M"
        return f"{model.config.model_type} {size} {str(model.dtype).removeprefix('torch.')}"

    @cached_property
    def trie(self) -> TokenTrie:
        return trie_of(self.vocab, self.text.markers())

    @property
    def settings(self) -> Mapping[str, Any]:
        return {name: self._given.get(name, usual) for name, usual in SETTINGS.items()}

    def identity(self) -> dict[str, Any]:
        if self._text is not None:
            return identity(self.path, self.settings)
        return identity_of(self._require_open(), self.settings)

    @property
    def memory(self) -> int:
        return int(self._require_open().get_memory_footprint())

    def view(
        self,
        *,
        exits: int = 0,
        skip_attention: Collection[int] = (),
        skip_feed_forward: Collection[int] = (),
    ) -> HfTarget:
        """A model of the same weights without some of the blocks: those behind the first `exits` layers (0:
        none), and these layers' own. Raises UsageError."""
        n = int(text_config(self._require_open().config).num_hidden_layers)
        if not 0 <= exits <= n or not {*skip_attention, *skip_feed_forward} <= set(range(n)):
            raise UsageError(f"{self.path}: has {n} layers, numbered from 0: not all of those are there")
        if not self._kind.rewinds:
            raise UsageError(f"{self.path}: its state cannot be rolled back: no part of it can draft for it")
        kept = range(exits or n)
        attention, feeding = set(kept) - {*skip_attention}, set(kept) - {*skip_feed_forward}
        view = copy(self)
        view._model, view._whole = reduced(self._model, attention, feeding), self
        view._slots = Slots(self.caps.sessions, view._cache, rewinds=True)
        left_out = 2 * n - len(attention) - len(feeding)
        view.alters = f"without {left_out} of {2 * n} blocks" if left_out else ""
        return view

    def open(self, beside: Session | None = None) -> HfSession:
        self._require_open()
        if isinstance(beside, HfSession) and self._whole is not None and beside.slots is self._whole._slots:
            return ViewSession(beside, self.caps.n_ctx)
        return HfSession(self._slots, self.caps.n_ctx, self._kind.rewinds)

    def forget(self) -> None:
        self._slots.forget()

    def close(self) -> None:
        self._model = None
        self._slots = Slots(0, list, rewinds=False)

    def forward(self, batch: Sequence[tuple[HfSession, DraftTree | int]], want: Want) -> list[HfForward]:
        self._require_open()
        began = perf_counter()
        self._passes += 1
        try:
            with torch.inference_mode():
                outs = [self._answer(session, tree, want) for session, tree in batch]
        except BaseException as error:  # Ctrl-C too: whatever is in the caches belongs to nobody
            for session, _ in batch:
                session.rollback()
            if (memory := self._memory_error(error)) is not None:
                raise memory from error
            raise
        reads = sum(out.read for out in outs)
        if self.on_pass is not None and reads <= FEW:
            rows = sum(out.computed for out in outs)
            self.on_pass(rows, len(batch[0][0].tokens), perf_counter() - began)
        return outs

    def _memory_error(self, error: BaseException) -> ModelError | None:
        lines = first_line(error)
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "not enough memory" in lines:
            return ModelError(f"{self.path}: out of memory in a pass ({lines}): use a smaller context (-c)")
        return None

    def _answer(self, session: HfSession, tree: DraftTree | int, want: Want) -> HfForward:
        """What is unread is read in chunks, the last of them together with the tree."""
        n = tree if isinstance(tree, int) else session.unread
        if not 0 <= n <= session.unread:
            raise ContractError(f"{n} tokens to be read, of {session.unread} that are unread")
        start, left, hidden = len(session.slot.cached), n, list[Any]()
        beside = self._kind.most if self._kind.most > 1 and not isinstance(tree, int) else 0
        while left > beside:
            part = min(left, self._kind.most)
            rows = session.plan_reading(part)
            if rows.tokens:
                hidden.append(self._pass(session, rows, want)[1])
            session.read(part)
            left -= part
        if isinstance(tree, int):
            return HfForward(self, torch.empty(0), 0, n, n, want, features_of(hidden, n, start, want))
        rows = session.plan(tree)
        logits, states = self._pass(session, rows, want) if rows.tokens else (torch.empty(0), None)
        session.computed()
        if rows.tokens:
            hidden.append(states)
        computed = n - left + len(rows.tokens)
        features = features_of(hidden, computed - rows.told, start if rows.first == 0 else rows.start, want)
        return HfForward(self, logits, rows.first, computed, n, want, features)

    def _pass(self, session: HfSession, rows: Rows, want: Want) -> tuple[Any, Any]:
        """Logits [told, n_vocab], and the inputs of the wanted layers [rows, layers, width]."""
        model, kind = self._require_open(), self._kind
        if kind.rewinds:
            session.slot.cache.cut(rows.start)  # a view may have left something behind
        given: dict[str, Any] = {"cache": session.slot.cache, "use_cache": True}
        mask = kind.mask(rows, self._device)
        if mask is not None:
            given["attention_mask"] = mask
        if kind.takes_positions:
            given["position_ids"] = torch.tensor([rows.positions], device=self._device)
        if kind.takes_few:
            given["logits_to_keep"] = torch.arange(
                len(rows.tokens) - max(1, rows.told), len(rows.tokens), device=self._device
            )
        if want.layers:
            given["output_hidden_states"] = list(want.layers)
        out = model(input_ids=torch.tensor([rows.tokens], device=self._device), **given)
        states = None
        if want.layers:
            states = torch.stack([layer[0] for layer in out.hidden_states if layer is not None], dim=1)
        return out.logits[0, out.logits.shape[1] - rows.told :], states


def features_of(hidden: Sequence[Any], lead: int, start: int, want: Want) -> Features:
    if not want.layers or not hidden:
        return NOTHING
    return Features(None, torch.cat(list(hidden)), lead, start)


class Kind:
    """What is to be known of an architecture. masks: it can be told who attends to whom. rewinds: its cache
    can. window: of the layers that do not see all of the text. most: tokens that it may read in one pass."""

    def __init__(self, model: Any, config: Any) -> None:
        import inspect

        takes = inspect.signature(model.forward).parameters
        self.takes_positions, self.takes_few = "position_ids" in takes, "logits_to_keep" in takes
        attention = str(getattr(config, "_attn_implementation", "eager"))
        self._adds = attention == "eager"  # a mask of truth values would be added, and mask nothing
        self._dtype = model.dtype
        layers = set(getattr(config, "layer_types", None) or ())
        window = getattr(config, "sliding_window", None)
        self.window = int(window) if window and (not layers or WINDOWED in layers) else None
        self.rewinds = layers <= {WHOLE, WINDOWED} and not getattr(model, "_is_stateful", False)
        known = layers <= {WHOLE, WINDOWED} and attention in ("eager", "sdpa")
        biased = bool(getattr(config, "alibi", False)) or config.model_type in ("bloom", "mpt")
        self.masks = known and not biased and self.takes_positions and self.rewinds
        self._mixed = layers >= {WHOLE, WINDOWED}
        self.most = 1 if config.model_type in ONE_BY_ONE else CHUNK

    def mask(self, rows: Rows, device: str) -> Any:
        """None where the model's own is meant."""
        window = self.window if self.window is not None and rows.places > self.window else None
        alone = rows.start == 0 or len(rows.tokens) == 1
        if not self.masks or (is_causal(rows) and window is None and alone):
            return None
        whole = self._tensor(attends(rows), device)
        if window is None:
            return whole
        windowed = self._tensor(attends(rows, window), device)
        return {WHOLE: whole, WINDOWED: windowed} if self._mixed else windowed

    def _tensor(self, mask: NDArray[np.bool_], device: str) -> Any:
        attends = torch.from_numpy(mask)[None, None].to(device)
        if not self._adds:
            return attends
        return torch.zeros(attends.shape, dtype=self._dtype, device=device).masked_fill_(~attends, -torch.inf)


class HfForward(Answers):
    """Rows `first`, `first + 1`, ... of one session; what is asked for comes off the device, and no more.
    read: tokens of a prompt among those computed."""

    def __init__(
        self,
        target: HfTarget,
        rows: Any,
        first: int,
        computed: int,
        read: int,
        want: Want,
        features: Features,
    ) -> None:
        self._target, self._rows, self._first, self.read = target, rows, first, read
        self._pass = target._passes
        self._best: list[int] | None = None
        if want.top_k > 0 and len(rows) > 0:
            best = np.stack([top_k(row, want.top_k) for row in rows.float().cpu().numpy()])
            features = Features(best, features.hidden, features.lead, features.start)
        super().__init__(computed, features)

    def _place(self, row: int) -> int:
        if self._pass != self._target._passes:
            raise ContractError("this answer was overwritten by the target's next forward")
        if not self._first <= row < self._first + len(self._rows):
            raise ContractError(f"row {row} is not among those this forward computed")
        return row - self._first

    def argmax(self, row: int) -> int:
        at = self._place(row)
        if self._best is None:  # all rows at once, on the device
            best = self._rows.argmax(-1)
            values = self._rows.gather(-1, best[:, None])[:, 0].float()
            self._best, self._values = best.tolist(), values.cpu().numpy()
        require_numbers(self._values[at])
        return self._best[at]

    def logits(self, row: int) -> NDArray[np.float32]:
        out: NDArray[np.float32] = self._rows[self._place(row)].float().cpu().numpy()
        return out


def text_config(config: Any) -> Any:
    """Of a model that sees as well, the part that reads."""
    return config.get_text_config(decoder=True)


def ends_of(config: Any, generation: Any) -> Collection[int]:
    """What ends a text, by both of a model's configurations."""
    found: set[int] = set()
    for one in (config, generation):
        said = getattr(one, "eos_token_id", None)
        found.update(said if isinstance(said, list | tuple) else () if said is None else (said,))
    return found
