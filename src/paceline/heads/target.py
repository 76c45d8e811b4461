"""A head as a draft model: a Target whose sessions are also given the real target's hidden states."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from paceline.heads.arrays import array
from paceline.heads.config import HeadConfig
from paceline.heads.decoder import MakeLinear
from paceline.heads.draft_base import HeadBase
from paceline.heads.entries import prefix_errors
from paceline.heads.files import HeadFiles, weights_file
from paceline.heads.networks import BlockHead, EagleHead, ExitsHead, KangarooHead, MedusaHead
from paceline.heads.session import SESSIONS
from paceline.speculative.errors import ModelError
from paceline.speculative.interfaces import Session
from paceline.speculative.tree import chain
from paceline.system.home import file_fingerprint

MAX_EMBEDDINGS = 4096  # of the target, kept in memory
KINDS: Mapping[str, Callable[[HeadConfig, Any, MakeLinear | None], Any]] = {
    "eagle": EagleHead,
    "eagle3": EagleHead,
    "medusa": MedusaHead,
    "block": BlockHead,
    "exits": ExitsHead,
    "kangaroo": KangarooHead,
}
TABLES = ("embed_tokens.weight", "markov_head.markov_w1.weight")  # weights by token
SAMPLE_TOKENS = 16  # rows of the target's embedding, by which it is recognised
MIN_SAMPLE_COSINE = 0.9  # quantised and fine-tuned models are above it


class HeadTarget(HeadBase):
    """A head beside its target. Raises ModelError for another target's head.
    base: a Backend that is a ShowsHiddenStates (backends/interface.py).
    make_linear: makes products that are faster than numpy's. engine: what computes them, "" for numpy.
    like: an array of the type and device to compute with, by default numpy's."""

    def __init__(
        self,
        files: HeadFiles,
        base: Any,
        make_linear: MakeLinear | None = None,
        engine: str = "",
        like: Any = None,
    ) -> None:
        super().__init__(files.path, base)
        self.config = check_target(files.path, files.config, base)
        self.kind = self.config.kind
        weights: dict[str, Any] = dict(files.weights)
        check_sample(files.path, files.sample, base, self.config)
        if not any(name.startswith("lm_head.") for name in weights):
            weights["lm_head.weight"] = base.output_head().weight[:, : self.config.target.hidden]
        self._ids = draft_ids(files.path, weights, self.config)
        self.settings = {"threads": 1}
        self._engine = engine or f"numpy {np.__version__}"
        self._n_weights = sum(value.size for value in weights.values())
        self.weight_bytes = sum(value.nbytes for value in weights.values())
        self._like = np.zeros(0, np.float32) if like is None else like
        weights = {name: array(self._like, value) for name, value in weights.items()}
        self._own_embeddings = weights.get("embed_tokens.weight")
        self._embeddings: OrderedDict[int, NDArray[np.float32]] = OrderedDict()
        self.max_depth = self.config.depth or base.caps.n_ctx
        with prefix_errors(self.path):
            try:
                self._head = KINDS[self.kind](self.config, weights, make_linear)
                self._try_out([weights[name] for name in TABLES if name in weights])
            except KeyError as error:
                raise ModelError(f"has no weights {error}: it is incomplete") from error
            except (ValueError, IndexError, TypeError, RuntimeError, AssertionError) as error:
                why = f"{type(error).__name__}: {error}"
                raise ModelError(f"its weights do not fit its configuration ({why})") from error

    def _try_out(self, tables: Sequence[Any]) -> None:
        """Raise ValueError unless the network computes rows of logits, and tables have rows of all tokens."""
        vocab = self.config.target.vocab
        drafted = vocab if self._ids is None else len(self._ids)
        with np.errstate(all="ignore"):  # empty weights
            shapes = {tuple(row.shape) for row in self._two_rows()}
        if shapes != {(drafted,)}:
            raise ValueError(f"its logits are {shapes}")
        if any(table.shape[:1] != (vocab,) for table in tables):
            raise ValueError(f"a table has not {vocab:,} tokens")

    def _two_rows(self) -> Any:
        session = self.open()
        session.extend([0, 0, 0])
        return session.compute(chain([0], self.kind))[1]

    @property
    def description(self) -> str:
        return f"{self.kind} head {self._n_weights / 1e6:.1f}M"

    def identity(self) -> dict[str, Any]:
        """See ModelSetup. Costs depend on the shapes and the target's context only."""
        return {"model": file_fingerprint(weights_file(self.path)), "engine": self._engine}

    def embed(self, tokens: Sequence[int]) -> Any:
        """Return embeddings [n, hidden], the head's own or the target's."""
        if self._own_embeddings is not None:
            return self._own_embeddings[list(tokens)]
        known = self._embeddings
        if missing := [token for token in dict.fromkeys(tokens) if token not in known]:
            rows = self.inner.token_embeddings(missing)[:, : self.config.target.hidden]
            known.update(zip(missing, rows, strict=True))
        out = np.stack([known[token] for token in tokens])
        while len(known) > MAX_EMBEDDINGS:
            known.popitem(last=False)
        return out

    def open(self, beside: Session | None = None) -> Any:
        return SESSIONS[type(self._head)](self._head, self._like, self.caps.n_ctx, self.embed)

    def close(self) -> None: ...


def check_target(path: Path, config: HeadConfig, base: Any) -> HeadConfig:
    """Return the configuration if the head fits the target. Raises ModelError."""
    facts = config.target
    wrong = []
    if facts.hidden > base.hidden_size:
        wrong.append(f"hidden states of width {facts.hidden}, not {base.hidden_size}")
    if facts.vocab and facts.vocab != base.vocab.size:
        wrong.append(f"{facts.vocab:,} tokens, not {base.vocab.size:,}")
    if facts.layers > base.layers:
        wrong.append(f"{facts.layers} layers, not {base.layers}")
    if wrong:
        whose = facts.name or "another model"
        raise ModelError(
            f"{path}: is a head for {whose}, which has {' and '.join(wrong)} as {base.origin} has"
        )
    facts = replace(facts, hidden=facts.hidden or base.hidden_size, vocab=facts.vocab or base.vocab.size)
    with prefix_errors(path):
        return replace(config, target=facts).resolved(base.layers)


def check_sample(path: Path, sample: Any, base: Any, config: HeadConfig) -> None:
    """Raise ModelError if the target's embeddings are not those that the head was trained with.
    A wider target passes if its other columns are zero, as in an inflated model."""
    width, hidden = config.target.hidden, base.hidden_size
    if sample is None:
        if width != hidden:
            raise ModelError(f"{path}: is for hidden states of width {width}, and {base.origin} has {hidden}")
        return
    rows = base.token_embeddings(sample_tokens(base.vocab.size))
    if sample.shape != (len(rows), width):
        raise ModelError(f"{path}: the sample of its target's embeddings is damaged: fetch or train it again")
    ours, rest = rows[:, :width].ravel(), rows[:, width:]
    cosine = float(ours @ sample.ravel()) / max(1e-12, float(np.linalg.norm(ours) * np.linalg.norm(sample)))
    if not cosine >= MIN_SAMPLE_COSINE or np.abs(rest).max(initial=0.0) > 0:
        raise ModelError(
            f"{path}: was trained for {config.target.name or 'another model'}, and {base.origin} is another "
            f"model (their embeddings agree by {cosine:.2f}): train one for it (paceline train)"
        )


def sample_tokens(n_vocab: int) -> list[int]:
    """Return the tokens whose embeddings are compared."""
    return [n_vocab * (2 * i + 1) // (2 * SAMPLE_TOKENS) for i in range(SAMPLE_TOKENS)]


def draft_ids(path: Path, weights: dict[str, Any], config: HeadConfig) -> NDArray[np.int64] | None:
    """Return the target's ids of the draft vocabulary, None if it is the whole. Raises ModelError."""
    offsets = weights.pop("d2t", None)
    weights.pop("t2d", None)
    rows = next(value.shape[:1] for name, value in weights.items() if name.startswith("lm_head."))
    if offsets is None:
        if rows != (config.target.vocab,):
            raise ModelError(f"{path}: drafts {sum(rows):,} tokens, and does not say which (d2t)")
        return None
    is_sound = offsets.dtype.kind in "iu" and offsets.shape == rows
    ids: NDArray[np.int64] = (
        np.arange(len(offsets)) + offsets.astype(np.int64) if is_sound else np.array([-1])
    )
    if ids.min(initial=0) < 0 or ids.max(initial=0) >= config.target.vocab or len(set(ids)) < len(ids):
        raise ModelError(f"{path}: is damaged: its draft vocabulary is none of the target's tokens (d2t)")
    return ids
