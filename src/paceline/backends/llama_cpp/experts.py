"""The number of experts that a mixture uses for each token: a key of its file, overridden for one load."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.backends.common import check_experts, describe_experts
from paceline.backends.llama_cpp.binding import llama_cpp
from paceline.backends.llama_cpp.extras import PassExtra
from paceline.models.headers.header import read_parts
from paceline.speculative.errors import UsageError

OVERRIDE_INT = 0  # LLAMA_KV_OVERRIDE_TYPE_INT


def expert_counts(path: Path) -> tuple[str, int, int]:
    """Return the key of the number of experts a token uses, that number, and the number of experts.
    Raises UsageError for a mixture without such a key, with those that it has."""
    header = read_parts(path, tokens=False)[0]
    arch = header.text("general.architecture")
    key, experts = f"{arch}.expert_used_count", header.number(f"{arch}.expert_count")
    used = header.numbers(key)
    if experts and len(set(used)) != 1:
        found = ", ".join(sorted(name for name in header.metadata if "expert" in name))
        reason = "has a number for each layer" if used else "is missing"
        raise UsageError(f"{path}: {key} {reason}; its keys of experts are {found}")
    return key, (used or [0])[0], experts


class FewerExperts(PassExtra):
    """A mixture with another number of experts for each token."""

    def __init__(self, path: Path, experts: int) -> None:
        self._path, self._experts = path, experts

    @property
    def modification(self) -> str:
        return describe_experts(self._experts, expert_counts(self._path)[1])

    def on_load(self, params: Any) -> None:
        """Override the file's number. Raises UsageError for a number that cannot be."""
        key, used, all_experts = expert_counts(self._path)
        check_experts(self._experts, used, all_experts, self._path)
        cpp = llama_cpp()
        value = cpp.llama_model_kv_override_value(val_i64=self._experts)
        override = cpp.llama_model_kv_override(tag=OVERRIDE_INT, key=key.encode(), value=value)
        params.kv_overrides = (cpp.llama_model_kv_override * 2)(override)  # an empty key ends the list
