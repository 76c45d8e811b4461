"""A model loaded from files, as everything outside this package sees it: which engine it is does not matter.

What only some engines can do is a protocol of its own, to be asked for with isinstance.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from paceline.speculative.interfaces import Caps, Target
from paceline.text.grammar import TokenTrie
from paceline.text.interface import Text, Tokenizer

ForwardCallback = Callable[[int, int, float], None]


class ModelSetup(Protocol):
    """A model and how it is run. One that is not loaded has it too (openers.Way)."""

    @property
    def path(self) -> Path:
        """What it was opened by: a file, a folder, or another reference."""

    @property
    def settings(self) -> Mapping[str, Any]:
        """How it is run, with the names that its opener takes (threads, gpu_layers, ...): those that mean
        something to this engine."""

    def identity(self) -> dict[str, Any]:
        """All that its costs depend on but the machine, as JSON has it. `model`: a fingerprint of the
        weights. `engine`: its name and version. The rest is the engine's own: the settings, what the build
        can use of the processor, and what it `alters`, if anything."""


class Backend(Target, ModelSetup, Protocol):
    """A loaded model: what llm, costing, lab, cli and the composition root may ask of it."""

    # Told of every forward: rows that were computed, tokens of the first session, seconds.
    on_pass: ForwardCallback | None

    @property
    def name(self) -> str: ...

    @property
    def description(self) -> str:
        """Its kind and size, in the engine's words."""

    @property
    def text(self) -> Text: ...

    @property
    def trie(self) -> TokenTrie:
        """What grammars are matched with. Raises UsageError for a model that cannot end a text."""

    @property
    def memory(self) -> int | None:
        """Bytes of its weights; None where that is not known."""

    @property
    def alters(self) -> str:
        """What makes it another target than its file says ("4 of 8 experts"); empty for the model itself."""


@runtime_checkable
class FlashAttentionSwitch(Protocol):
    """An engine that can do with flash attention or without."""

    @property
    def caps(self) -> Caps: ...

    def use_flash_attention(self, flash: bool | None) -> None:
        """From the next session on; none may be open. None: as the engine chooses. Raises ModelError where
        there is no room, and is as it was."""

    def sibling(self, *, n_ctx: int, flash_attention: bool | None) -> Target:
        """The same weights with a cache of its own. To be closed before this one. Raises ModelError."""

    def scores(self) -> int:
        """Bytes that it takes more without flash attention."""


@runtime_checkable
class ThreadSwitch(Protocol):
    """An engine whose number of threads can be changed."""

    @property
    def memory(self) -> int | None: ...

    def use_threads(self, threads: int) -> None:
        """From the next pass on."""

    def copy(self) -> Backend:
        """The same model once more, with weights of its own in memory. Raises ModelError."""


@dataclass(frozen=True)
class BackendBuild:
    """What the engine was built for. features: of the processor, in its own words. offload: it can use a
    GPU."""

    features: str
    offload: bool


@dataclass(frozen=True)
class KernelStatus:
    """Kernels of our own in an engine. path: the instruction set that they use; "" without kernels. reason:
    one line why there are none; "" where the engine has no use for them."""

    path: str = ""
    reason: str = ""


class BackendModule(Protocol):
    """One engine's side of openers.TABLE; a module can be one."""

    def open_engine(self, path: Path, /, **settings: Any) -> Backend:
        """settings: n_ctx, sessions, threads, gpu_layers, flash_attention, cache_type, exact_rows and
        kernels; what means nothing to the engine is left out of account."""

    def open_tokenizer(self, path: Path, /) -> Tokenizer: ...

    def identity(self, path: Path, settings: Mapping[str, Any], /) -> dict[str, Any]:
        """What the engine would tell of itself, opened like this. Raises OSError where `path` is not there
        and MissingExtraError without the engine."""

    def build(self) -> BackendBuild:
        """Raises MissingExtraError without the engine."""

    def kernels(self) -> KernelStatus:
        """Kernels of our own, compiled first where that is still to do."""
