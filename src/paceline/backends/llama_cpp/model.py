"""The settings of a GGUF model, and its weights in memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from paceline.backends.common import check_experts, describe_experts
from paceline.backends.llama_cpp import binding, gate, kernels
from paceline.backends.llama_cpp.cache import MAX_BRANCHES
from paceline.backends.llama_cpp.extras import PassExtra
from paceline.backends.llama_cpp.hidden_states import HiddenStates
from paceline.backends.llama_cpp.mtp import MtpStates
from paceline.backends.llama_cpp.placement import interleaved
from paceline.models.headers.header import read_parts
from paceline.speculative.errors import UsageError
from paceline.system.forks import ForkGuard
from paceline.system.home import file_fingerprint

MAX_SESSIONS = binding.MAX_SEQUENCES - MAX_BRANCHES
OVERRIDE_INT = 0  # LLAMA_KV_OVERRIDE_TYPE_INT

_with_kernels: Counter[bytes] = Counter()  # open loads by file (kernels.sharing_key)


def expert_counts(path: Path) -> tuple[str, int, int]:
    """Return the key of the number of experts a token uses, that number, and the number of experts.
    Raises UsageError for a mixture without such a key, with those that it has."""
    header = read_parts(path, tokens=False)[0]
    arch = header.text("general.architecture")
    key, experts = f"{arch}.expert_used_count", header.number(f"{arch}.expert_count")
    used = header.numbers(key)
    if experts and len(set(used)) != 1:
        found = ", ".join(sorted(name for name in header.values if "expert" in name))
        reason = "has a number for each layer" if used else "is missing"
        raise UsageError(f"{path}: {key} {reason}; its keys of experts are {found}")
    return key, (used or [0])[0], experts


class FewerExperts(PassExtra):
    """A mixture with another number of experts for each token: a key of its file, overridden for one load."""

    def __init__(self, path: Path, experts: int) -> None:
        self._path, self._experts = path, experts

    @property
    def modification(self) -> str:
        return describe_experts(self._experts, expert_counts(self._path)[1])

    def on_load(self, params: Any) -> None:
        """Override the file's number. Raises UsageError for a number that cannot be."""
        key, used, all_experts = expert_counts(self._path)
        check_experts(self._experts, used, all_experts, self._path)
        cpp = binding.llama_cpp()
        value = cpp.llama_model_kv_override_value(val_i64=self._experts)
        override = cpp.llama_model_kv_override(tag=OVERRIDE_INT, key=key.encode(), value=value)
        params.kv_overrides = (cpp.llama_model_kv_override * 2)(override)  # an empty key ends the list


@dataclass(frozen=True, kw_only=True)
class LlamaSettings:
    """Settings of a load. Raises UsageError for too many sessions.
    threads: of a pass.
    gpu_layers: layers on the GPU. flash_attention: None lets llama.cpp choose.
    cache_type: of keys and values, in binding.CACHE_TYPES. placement: see placement.py.
    exact_rows: rows that passes are filled up to if rows depend on their pass; 0 does not fill.
    kernels: use Paceline's kernels if there are any and memory is large enough.
    experts: of a mixture, used for each token; 0 for as many as the file says.
    mtp: load the layers for multi-token prediction, and show the hidden states that they read.
    n_ctx: context length of a session; 0 for that of the training, at most 4,096.
    sessions: number of sessions that may be open."""

    threads: int = 1
    gpu_layers: int = 0
    flash_attention: bool | None = None
    cache_type: str = "f16"
    placement: str = "system"
    exact_rows: int = 0
    kernels: bool = True
    experts: int = 0
    mtp: bool = False
    n_ctx: int = 0
    sessions: int = 1

    def __post_init__(self) -> None:
        if not 1 <= self.sessions <= MAX_SESSIONS:
            raise UsageError(f"{self.sessions} sessions: must be between 1 and {MAX_SESSIONS}")

    def of_passes(self) -> dict[str, Any]:
        """Return the settings that pass costs depend on (ModelSetup.settings)."""
        return {name: value for name, value in vars(self).items() if name in PASS_SETTINGS}

    def extras(self, path: Path, stop: int = 0) -> list[PassExtra]:
        """Return what the passes of the model can do besides logits. stop: see SupportsExits."""
        lossy: list[PassExtra] = [FewerExperts(path, self.experts)] if self.experts else []
        return [*lossy, HiddenStates(path, stop), *([MtpStates()] if self.mtp and not stop else [])]


PASS_SETTINGS = {field.name: field.default for field in fields(LlamaSettings)}
del PASS_SETTINGS["n_ctx"], PASS_SETTINGS["sessions"], PASS_SETTINGS["mtp"]
# In the keys of stored costs always; others only if they are set, so that a new field keeps old keys.
KEYED = ("threads", "gpu_layers", "flash_attention", "cache_type", "exact_rows", "kernels")


def identity(path: Path, settings: Mapping[str, Any], /) -> dict[str, Any]:
    """See ModelSetup. The key of the model's cached pass costs on disk, which must stay stable.
    Raises OSError if `path` does not exist, and MissingExtraError without llama.cpp."""
    model = file_fingerprint(path)
    given = {name: settings.get(name, usual) for name, usual in PASS_SETTINGS.items()}
    return {
        "model": model,
        "features": binding.llama_cpp().llama_print_system_info().decode(errors="replace"),
        "engine": f"llama-cpp-python {version('llama-cpp-python')}",
        **{name: value for name, value in given.items() if name in KEYED or value != PASS_SETTINGS[name]},
        "kernels": kernels.load_kernels().path if given["kernels"] else "",
    }


class LoadedModel:
    """The weights of a file, which several targets may share.
    pointer: llama.cpp's, None once closed. kernels: whether Paceline's kernels compute with the weights.
    process: the process that llama.cpp's threads belong to."""

    def __init__(self, path: Path, settings: LlamaSettings, extras: Sequence[PassExtra]) -> None:
        self.path, self._cpp, self.process = path, binding.llama_cpp(), ForkGuard()
        gate.require_gguf_path(path)
        key = kernels.sharing_key(path) if settings.kernels else b""
        shares = bool(_with_kernels[key])
        self.kernels = settings.kernels and kernels.fits_memory(path, shares=shares)
        kernels.set_enabled(self.kernels)
        changes = [extra.on_load for extra in extras]
        self._sharing_key = key if self.kernels else b""
        with kernels.sharing(self._sharing_key), interleaved(settings.placement):
            model: Any = binding.load_model(
                path, gpu_layers=settings.gpu_layers, mtp=settings.mtp, changes=changes
            )
        self.pointer = model
        _with_kernels[self._sharing_key] += bool(self._sharing_key)
        self.layers = int(self._cpp.llama_model_n_layer(model))
        self.hidden_size = int(self._cpp.llama_model_n_embd(model))
        self.size = int(self._cpp.llama_model_size(model))  # of the weights, in bytes
        self.trained_context = int(self._cpp.llama_model_n_ctx_train(model))
        self.architecture = binding.metadata(model, "general.architecture") or "unknown"
        is_recurrent, is_hybrid = self._cpp.llama_model_is_recurrent, self._cpp.llama_model_is_hybrid
        self.is_stateful = bool(is_recurrent(model) or is_hybrid(model))
        self.is_windowed = binding.is_windowed(model)

    def close(self) -> None:
        """Free the weights. A forked process only forgets them."""
        if self.pointer is not None:
            if self.process.is_current:
                self._cpp.llama_model_free(self.pointer)
            _with_kernels[self._sharing_key] -= bool(self._sharing_key)
            self.pointer = None
