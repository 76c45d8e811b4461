"""The extension point of this backend: what a pass can do besides computing logits.

A `PassExtra` is one such ability. `LlamaSettings.extras` chooses those of a target, a caller may add some,
and `FilledPasses` comes first if rows turn out to depend on their pass. Target, cache, session, pass and
batch know this class only. An extra overrides what it needs:

| when | hook |
|---|---|
| the weights are loaded, unless they are shared | `on_load(params)` |
| a context is made | `on_context(params)`, then `attach(target)` |
| cache and context are ready | `limit(caps)`; `exact` and `equal_rows` are measured afterwards |
| before the context is freed | `detach()`, also without `attach`; frees nothing in a forked process |
| a forward begins | `joins(layers)`: does it take part? If so `needs_all_outputs`, then `prepare` |
| llama_decode runs | `around_pass(batch, layers)`, for each pass of the forward, prefill included |

Extras that do not join cost nothing more, and sparse prompts are computed without any. Hidden states travel
as `Features`: the pass cuts the array of `around_pass` into the rows of each session and joins the rows of a
prompt that took several passes. Extras that show layers stand in ascending order of these layers.

docs/architecture.md says how a further kind of draft is one; mtp.py is the example.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from paceline.backends.llama_cpp import kernels
from paceline.backends.llama_cpp.binding import llama_cpp
from paceline.speculative.errors import KernelError, ModelError
from paceline.speculative.interfaces import Caps

if TYPE_CHECKING:
    from paceline.backends.llama_cpp.batch import Batch
    from paceline.backends.llama_cpp.target import LlamaTarget

Hidden = NDArray[np.float32]  # [rows, layers, width]


class PassExtra:
    """An ability of passes. The hooks of this class do nothing.
    layers: those whose hidden states it shows, known once it is attached.
    one_shape: passes with outputs have one shape, and a prompt has passes to itself.
    cells: KV cells that it needs besides those of sessions."""

    layers = range(0)
    one_shape = False
    cells = 0

    @property
    def modification(self) -> str:
        """How it changes the model's output ("with 2 experts a token instead of 4"), or ""."""
        return ""

    def on_load(self, params: Any) -> None:
        """Change llama.cpp's parameters of a load."""

    def limit(self, caps: Caps) -> Caps:
        """Return the capabilities of a target with this extra."""
        return caps

    def on_context(self, params: Any) -> None:
        """Change llama.cpp's parameters of a context."""

    def attach(self, target: LlamaTarget) -> None:
        """Take note of a new context and its empty cache."""

    def detach(self) -> None:
        """Let go of the context."""

    def joins(self, layers: Sequence[int]) -> bool:
        """Return whether it takes part in passes that show the hidden states of these layers."""
        return any(layer in self.layers for layer in layers)

    def prepare(self, target: LlamaTarget, sessions: int) -> None:
        """Get ready before a forward of so many sessions is planned. May call `target.renew_context`."""

    def needs_all_outputs(self, layers: Sequence[int]) -> bool:
        """Return whether these hidden states are computed only for rows with logits."""
        return False

    def around_pass(
        self, batch: Batch, layers: Sequence[int], *, prefill: bool
    ) -> AbstractContextManager[Hidden | None]:
        """Return a context that llama_decode runs in; its value is filled with hidden states on exit.
        layers: those of `self.layers` that are wanted. prefill: the pass belongs to a prompt alone."""
        return nullcontext()


class EvalCallback(PassExtra):
    """An extra whose function in Paceline's compiled library sees the tensors of passes.
    purpose: what it is for, in messages. function: its name in the library.
    struct: the function's argument, which lives as long as contexts with the callback."""

    purpose: str
    function: str

    def __init__(self, path: Path, struct: ctypes.Structure) -> None:
        self._path, self._struct = path, struct
        self._callback: Any = None

    def load(self) -> None:
        """Load the function, which enters the next context. Raises ModelError without the library."""
        try:
            function = getattr(kernels.library_for_callbacks(), self.function)
        except KernelError as error:
            reason = f"{self.purpose} need Paceline's compiled library: {error}"
            raise ModelError(f"{self._path}: {reason}") from error
        self._callback = ctypes.cast(function, llama_cpp().ggml_backend_sched_eval_callback)

    def on_context(self, params: Any) -> None:
        if self._callback is not None:
            params.cb_eval, params.cb_eval_user_data = self._callback, ctypes.addressof(self._struct)


class JoinedExtras:
    """Those of `extras` that take part in passes that show these layers, in order."""

    def __init__(self, extras: Sequence[PassExtra], layers: Sequence[int]) -> None:
        self.joined = [extra for extra in extras if extra.joins(layers)]
        self._layers = [[layer for layer in layers if layer in extra.layers] for extra in self.joined]
        pairs = zip(self.joined, self._layers, strict=True)
        self.all_outputs = any(extra.needs_all_outputs(layers) for extra, layers in pairs)
        self.one_shape = any(extra.one_shape for extra in self.joined)

    def run(self, decode: Callable[[], None], batch: Batch, *, prefill: bool, start: int = 0) -> list[Hidden]:
        """Call `decode` within the extras from `start` on. Return the hidden states that they show."""
        if start == len(self.joined):
            decode()
            return []
        extra, layers = self.joined[start], self._layers[start]
        with extra.around_pass(batch, layers, prefill=prefill) as hidden:
            more = self.run(decode, batch, prefill=prefill, start=start + 1)
        return more if hidden is None else [hidden, *more]


NO_EXTRAS = JoinedExtras((), ())
