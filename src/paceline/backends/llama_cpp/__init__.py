"""The llama.cpp backend, for GGUF models. This package is a BackendModule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from paceline.backends.interface import BackendBuild, KernelStatus
from paceline.backends.llama_cpp import binding
from paceline.backends.llama_cpp.kernels import load_kernels
from paceline.backends.llama_cpp.model import identity as identity
from paceline.backends.llama_cpp.target import LlamaTarget as LlamaTarget
from paceline.backends.llama_cpp.text import LlamaTokenizer

TRANSFORMERS_SETTINGS = ("device", "dtype", "attention")  # settings that only transformers models have


def open_engine(path: Path, /, **settings: Any) -> LlamaTarget:
    return LlamaTarget(
        path, **{name: value for name, value in settings.items() if name not in TRANSFORMERS_SETTINGS}
    )


def open_tokenizer(path: Path, /) -> LlamaTokenizer:
    return LlamaTokenizer(path)


def kernel_status() -> KernelStatus:
    return load_kernels()


def build() -> BackendBuild:
    cpp = binding.llama_cpp()
    features = cpp.llama_print_system_info().decode(errors="replace")
    return BackendBuild(features, bool(cpp.llama_supports_gpu_offload()))
