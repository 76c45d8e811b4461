"""What the costs of a GGUF model depend on. They are kept on disk by it, so what it says must not change."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.backends.llama_cpp import binding
from paceline.backends.llama_cpp.kernels import load_kernels
from paceline.system.identity import file_fingerprint

# How LlamaTarget runs a model where nothing else is said.
SETTINGS: Mapping[str, Any] = {
    "threads": 1,
    "gpu_layers": 0,
    "flash_attention": None,
    "cache_type": "f16",
    "exact_rows": 0,
    "kernels": True,
}


def identity(path: Path, settings: Mapping[str, Any], /) -> dict[str, Any]:
    """Raises OSError where `path` is not there and MissingExtraError without llama.cpp."""
    from importlib.metadata import version

    model = file_fingerprint(path)
    given = {name: settings.get(name, usual) for name, usual in SETTINGS.items()}
    return {
        "model": model,
        "features": binding.llama_cpp().llama_print_system_info().decode(errors="replace"),
        "engine": f"llama-cpp-python {version('llama-cpp-python')}",
        **given,
        "kernels": load_kernels().path if given["kernels"] else "",
    }
