from __future__ import annotations

import pytest

from paceline.models.headers.kv_bytes import AttentionShape, kv_bytes_per_token


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        # Llama 3.2 1B: 16 layers x 8 heads x (64 + 64) x 2 bytes.
        (AttentionShape("llama", 16, 2048, [32], [8]), 32_768),
        # Without head_count_kv every head has its own.
        (AttentionShape("gpt2", 12, 768, [12], []), 36_864),
        # DeepSeek V3: 61 layers of 512 + 64, values are part of it.
        (AttentionShape("deepseek2", 61, 7168, [128], [1], 576, 512, mla=True), 70_272),
        # One number a layer: where there are none, there is no attention.
        (AttentionShape("nemotron_h", 4, 64, [8, 8, 8, 8], [0, 2, 0, 4], 8, 8), 192),
        # Qwen3-Next: every fourth layer attends; told by the interval, by a list, or known by name.
        (AttentionShape("qwen3next", 48, 2048, [16], [2], 256, 256, recurrent=[1, 1, 1, 0] * 12), 24_576),
        (AttentionShape("qwen3next", 48, 2048, [16], [2], 256, 256), 24_576),
        (AttentionShape("llama", 16, 2048, [], [8]), 0),
        (AttentionShape("llama", 1 << 40, 2048, [1], [8]), 0),
    ],
)
def test_bytes_of_a_token_at_f16(layers: AttentionShape, expected: int) -> None:
    assert kv_bytes_per_token(layers) == expected
