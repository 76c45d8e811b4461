"""The identity of a GGUF model: the key of its cached pass costs on disk, which must stay stable."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from paceline.backends.llama_cpp import binding
from paceline.backends.llama_cpp.kernels import load_kernels
from paceline.system.identity import file_fingerprint

# LlamaTarget's defaults.
SETTINGS: Mapping[str, Any] = {
    "threads": 1,
    "gpu_layers": 0,
    "flash_attention": None,
    "cache_type": "f16",
    "exact_rows": 0,
    "kernels": True,
}


def identity(path: Path, settings: Mapping[str, Any], /) -> dict[str, Any]:
    """See ModelSetup. Raises OSError if `path` does not exist, and MissingExtraError without llama.cpp."""
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
