"""Interfaces of backends. Optional abilities are separate protocols, tested with isinstance."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from paceline.heads.draft_base import HeadBase
from paceline.speculative.interfaces import Target
from paceline.text.grammar import TokenTrie
from paceline.text.interface import Text, Tokenizer

# Called after a forward with the computed batch tokens, the first session's context length, and seconds.
ForwardCallback = Callable[[int, int, float], None]


class ModelSetup(Protocol):
    """A model and its settings, loaded or not (registry.BackendSpec)."""

    @property
    def path(self) -> Path:
        """A file, a folder, or another reference."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The backend's settings, by the names that `open_engine` takes."""

    def identity(self) -> dict[str, Any]:
        """Return a JSON object of all that pass costs depend on, except the machine.
        `model`: fingerprint of the weights. `engine`: name and version. Others: settings and build."""


@runtime_checkable
class HasExperts(Protocol):
    """A model that may be a mixture of experts."""

    def expert_counts(self) -> tuple[int, int]:
        """Return the experts that a token uses, and those that there are. Raises UsageError if unknown."""


class Backend(Target, ModelSetup, Protocol):
    """A loaded model."""

    on_forward: ForwardCallback | None

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str:
        """Architecture, size and precision."""

    @property
    def text(self) -> Text: ...

    @property
    def token_trie(self) -> TokenTrie:
        """The tokens that grammars are matched with. Raises UsageError if the model has no EOS token."""

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of the weights, if known."""

    @property
    def modification(self) -> str:
        """Difference from the model in the file ("without 2 of 12 blocks"), or ""."""


@runtime_checkable
class Embeds(Protocol):
    """A backend that makes vectors of texts."""

    def embed(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the mean of the states after the last layer and its norm [hidden_size].
        tokens: at least one, and no more than the context has. Raises ModelError."""


@runtime_checkable
class ReusesCache(Protocol):
    """A backend with a KV cache that outlives its sessions."""

    @property
    def n_reused(self) -> int:
        """Tokens that all sessions so far found in the cache when they began."""


@dataclass(frozen=True)
class OutputHead:
    """The last layers of a model: logits are `weight @ (norm * h / rms(h))` of a state h.
    norm: [hidden_size]; None for a norm of another kind.
    weight: [n_vocab, hidden_size]. Biases, scales and soft caps of logits are left out."""

    norm: NDArray[np.float32] | None
    weight: NDArray[np.float32]


@runtime_checkable
class ShowsHiddenStates(Protocol):
    """A backend for draft heads, whose forward returns hidden states (`RequiredOutputs.layers`)."""

    @property
    def hidden_size(self) -> int: ...

    @property
    def layers(self) -> int:
        """Number of layers; hidden states are those of 0 to this number."""

    def token_embeddings(self, tokens: Sequence[int]) -> NDArray[np.float32]:
        """Return the tokens' rows of the embedding matrix [n, hidden_size].
        Some models scale embeddings (Gemma): the hidden states of layer 0 are scaled, these rows are not."""

    def output_head(self) -> OutputHead:
        """Return a copy of the output layer. Raises ModelError for weights that cannot be read."""


@runtime_checkable
class MakesProducts(Protocol):
    """A backend whose own kernels multiply by matrices of others, such as those of a draft head."""

    @property
    def product_engine(self) -> str:
        """All that the time of such products depends on, except the machine; "" without kernels."""

    def make_linear(
        self, weight: NDArray[np.float32], bias: NDArray[np.float32] | None
    ) -> Callable[[NDArray[np.float32]], NDArray[np.float32]] | None:
        """Return the product of rows [n, inputs] with a matrix [outputs, inputs], plus the bias.
        Weights may be rounded to 8 bits. None if numpy is as fast, or without kernels."""


@runtime_checkable
class ComputesWithTensors(Protocol):
    """A backend whose hidden states are torch's, perhaps on a GPU."""

    @property
    def tensor_like(self) -> Any:
        """An empty tensor of the type and device that heads compute with; None if numpy is quicker."""


@runtime_checkable
class PredictsFurtherTokens(Protocol):
    """A backend for models whose file has layers for multi-token prediction (MTP)."""

    def open_mtp(self, path: Path | None = None) -> Backend:
        """Return these layers as a draft head; close it first. The model must have been loaded with them.
        path: of layers in a file or folder of their own. Raises ModelError."""


@runtime_checkable
class OffloadsHeads(Protocol):
    """A backend whose engine computes some draft heads, on a GPU where the model's layers are on one."""

    def offload_head(self, head: HeadBase) -> Backend | None:
        """Return a head as the engine computes it; None if it stays with us. Raises ModelError."""


@runtime_checkable
class SupportsExits(Protocol):
    """A backend whose first layers can be run by themselves, for heads that draft from these."""

    def first_layers(self, n: int) -> Target:
        """Return a model of the first `n` layers of the same weights; close it first. Raises UsageError.
        It shows the hidden states of layer `n`, and has no logits. Sessions opened beside one of this model
        use its cache if the backend can share it."""


@dataclass(frozen=True)
class BackendBuild:
    """Build facts of a backend.
    features: processor features, as the backend prints them. offload: supports GPU offload."""

    features: str
    offload: bool


@dataclass(frozen=True)
class KernelStatus:
    """State of Paceline's kernels in a backend.
    path: instruction set, or "". reason: why there are none; "" if the backend needs none."""

    path: str = ""
    reason: str = ""


class BackendModule(Protocol):
    """Functions of a backend's module. All raise MissingExtraError if its libraries are not installed."""

    def open_engine(self, path: Path, /, **settings: Any) -> Backend:
        """Load a model. Settings that the backend does not have are ignored."""

    def open_tokenizer(self, path: Path, /) -> Tokenizer: ...

    def identity(self, path: Path, settings: Mapping[str, Any], /) -> dict[str, Any]:
        """Return `ModelSetup.identity` of a model on disk. Raises OSError if it does not exist."""

    def build(self) -> BackendBuild: ...

    def kernel_status(self) -> KernelStatus:
        """Return the state of Paceline's kernels, which are compiled first if needed."""
