"""A model loaded from files, whatever the backend. What only some backends can do is a protocol of its own,
to be asked for with isinstance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from paceline.speculative.interfaces import Caps, Target
from paceline.text.grammar import TokenTrie
from paceline.text.interface import Text, Tokenizer

# Called after a forward: rows that were computed, tokens of the first session, seconds.
ForwardCallback = Callable[[int, int, float], None]


class ModelSetup(Protocol):
    """A model, loaded or not (registry.BackendSpec), and the settings that it is run with."""

    @property
    def path(self) -> Path:
        """A file, a folder, or another reference."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """The settings that mean something to the backend, by the names that `open_engine` takes."""

    def identity(self) -> dict[str, Any]:
        """Return all that its costs depend on but the machine, as JSON has it: `model` (a fingerprint of the
        weights), `engine` (name and version), and the backend's settings and build."""


class Backend(Target, ModelSetup, Protocol):
    """A loaded model."""

    on_forward: ForwardCallback | None

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str:
        """Its kind and size."""

    @property
    def text(self) -> Text: ...

    @property
    def token_trie(self) -> TokenTrie:
        """The tokens that grammars are matched with. Raises UsageError for a model that cannot end a text."""

    @property
    def weight_bytes(self) -> int | None:
        """Bytes of its weights, if known."""

    @property
    def modification(self) -> str:
        """What makes it another target than its file says ("without 2 of 12 blocks"), or ""."""


@runtime_checkable
class FlashAttentionSwitch(Protocol):
    """A backend that computes with flash attention or without."""

    @property
    def caps(self) -> Caps: ...

    def use_flash_attention(self, flash: bool | None) -> None:
        """Change it for the next sessions; none may be open. None: as the backend chooses. Raises ModelError
        without room for it, and changes nothing."""

    def with_shared_weights(self, *, n_ctx: int, flash_attention: bool | None) -> Target:
        """Return the same weights with another cache. To be closed before this one. Raises ModelError."""

    def attention_score_bytes(self) -> int:
        """Return the bytes that attention takes more without flash attention."""


@runtime_checkable
class ThreadSwitch(Protocol):
    """A backend whose number of threads can be changed."""

    @property
    def weight_bytes(self) -> int | None: ...

    def use_threads(self, threads: int) -> None:
        """Use so many from the next pass on."""


@dataclass(frozen=True)
class BackendBuild:
    """What a backend was compiled for: features of the processor, in its own words; offload to a GPU."""

    features: str
    offload: bool


@dataclass(frozen=True)
class KernelStatus:
    """Our own kernels in a backend. path: their instruction set, or "". reason: one line why there are none;
    "" for a backend that has no use for them."""

    path: str = ""
    reason: str = ""


class BackendModule(Protocol):
    """A backend's row in the registry; a module can be one. Its functions raise MissingExtraError
    where its libraries are not installed."""

    def open_engine(self, path: Path, /, **settings: Any) -> Backend:
        """settings: n_ctx, sessions, threads, gpu_layers, flash_attention, cache_type, exact_rows and
        kernels; those that mean nothing to the backend are ignored."""

    def open_tokenizer(self, path: Path, /) -> Tokenizer: ...

    def identity(self, path: Path, settings: Mapping[str, Any], /) -> dict[str, Any]:
        """Return `ModelSetup.identity` of a model that is not loaded. Raises OSError without a file."""

    def build(self) -> BackendBuild: ...

    def kernels_status(self) -> KernelStatus:
        """Return the state of our own kernels, compiled first where that is still to do."""
