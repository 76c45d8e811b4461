from __future__ import annotations

from collections.abc import Iterator

import pytest

from paceline.models.headers.kv_bytes import AttentionShape, kv_bytes


@pytest.mark.parametrize(
    ("layers", "expected"),
    [
        # Llama 3.2 1B: 16 layers x 8 heads x (64 + 64) x 2 bytes.
        (AttentionShape("llama", 16, 2048, [32], [8]), 32_768),
        # Qwen3 0.6B: heads of 128, wider than 1024 / 16.
        (AttentionShape("qwen3", 28, 1024, [16], [8], 128, 128), 114_688),
        # Without head_count_kv every head has its own.
        (AttentionShape("gpt2", 12, 768, [12], []), 36_864),
        # DeepSeek V3: 61 layers of 512 + 64, values are part of it.
        (AttentionShape("deepseek2", 61, 7168, [128], [1], 576, 512, compressed=True), 70_272),
        # One number a layer: where there are none, there is no attention.
        (AttentionShape("nemotron_h", 4, 64, [8, 8, 8, 8], [0, 2, 0, 4], 8, 8), 192),
        # Qwen3-Next: every fourth layer attends; told by the interval, by a list, or known by name.
        (AttentionShape("qwen3next", 48, 2048, [16], [2], 256, 256, interval=4), 24_576),
        (AttentionShape("qwen3next", 48, 2048, [16], [2], 256, 256, recurrent=[1, 1, 1, 0] * 12), 24_576),
        (AttentionShape("qwen3next", 48, 2048, [16], [2], 256, 256), 24_576),
        # The last two of four use what the others keep.
        (AttentionShape("gemma4", 4, 64, [8], [1], 8, 8, shared=2), 64),
        # Layers with a window have other sizes.
        (AttentionShape("gemma4", 2, 64, [8], [1], 16, 16, local=[1, 0], local_key=8, local_value=8), 96),
        (AttentionShape("llama", 16, 2048, [], [8]), 0),
        (AttentionShape("llama", 16, 2048, [0], [8]), 0),
        (AttentionShape("llama", 1 << 40, 2048, [1], [8]), 0),
        (AttentionShape("llama", 2, 64, [8], [1], shared=9), 0),
    ],
)
def test_bytes_of_a_token_at_f16(layers: AttentionShape, expected: int) -> None:
    assert kv_bytes(layers) == expected


class Counted(list[int]):
    """Knows how often all of it was looked at."""

    looked = 0

    def __iter__(self) -> Iterator[int]:
        self.looked += 1
        return super().__iter__()


def test_what_is_told_for_each_layer_is_not_gone_through_for_each_layer() -> None:
    heads, kept = Counted([4] * 1000), Counted([2] * 1000)
    assert kv_bytes(AttentionShape("llama", 1000, 64, heads, kept)) == 1000 * 2 * 32 * 2
    assert (heads.looked, kept.looked) == (1, 0)
