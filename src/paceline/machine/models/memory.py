"""How a model remembers, by llama.cpp's name of its architecture (0.3.36's, src/llama-arch.cpp)."""

from __future__ import annotations

from paceline.machine.models.facts import ATTENTION, HYBRID, RECURRENT

RECURRENT_ARCHS = frozenset({"mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"})
HYBRID_ARCHS = frozenset(
    {
        *("jamba", "falcon-h1", "plamo2", "granitehybrid", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe"),
        *("qwen3next", "qwen35", "qwen35moe", "qwen4exp", "kimi-linear", "kimi-k3", "bailingmoe3"),
        *("glm5-next", "deepseek4", "minimax-01"),
    }
)


def memory_of(arch: str) -> str:
    return RECURRENT if arch in RECURRENT_ARCHS else HYBRID if arch in HYBRID_ARCHS else ATTENTION
