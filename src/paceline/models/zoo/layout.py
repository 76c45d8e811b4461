"""The dimensions of a Llama GGUF file, of a widened model, and the resulting tensors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from paceline.models.headers.gguf_file import GGUFFile
from paceline.speculative.errors import ModelError, UsageError

ASPECT = 85  # typical width per block of models from 0.1B to 3B
WIDEST, DEEPEST = 4096, 80  # search limits


@dataclass(frozen=True)
class Layout:
    """The dimensions of a Llama GGUF file. tied: the embedding is also the output matrix."""

    width: int
    blocks: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocab: int
    eps: float
    tied: bool = True

    @property
    def parameters(self) -> int:
        """Return the weights of all tensors; a tied embedding counts once."""
        attention = 2 * self.width * self.head_dim * (self.heads + self.kv_heads)
        block = attention + 3 * self.width * self.feed_forward + 2 * self.width
        ends = self.vocab * self.width * (1 if self.tied else 2)
        return ends + self.blocks * block + self.width


def read_layout(file: GGUFFile) -> Layout:
    """Return a file's dimensions. Raises ModelError for a model that cannot be widened."""
    path = file.path

    def value(key: str) -> Any:
        if key not in file.values:
            raise ModelError(f"{path} has no {key}: not a complete Llama model")
        return file.values[key]

    if value("general.architecture") != "llama":
        raise ModelError(f"{path} is a {value('general.architecture')} model: only llama can be inflated")

    def number(key: str) -> int:
        found = value(f"llama.{key}")
        if not isinstance(found, int):
            raise ModelError(f"{path} has blocks of several kinds (llama.{key}): it can't be inflated")
        if found < 1:
            raise ModelError(f"{path} is damaged: llama.{key} is {found}")
        return found

    embedding = file.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelError(f"{path} has no token_embd.weight: not a complete Llama model")
    width, heads = number("embedding_length"), number("attention.head_count")
    has_length = "llama.attention.key_length" in file.values
    layout = Layout(
        width=width,
        blocks=number("block_count"),
        heads=heads,
        kv_heads=number("attention.head_count_kv"),
        head_dim=number("attention.key_length") if has_length else width // heads,
        feed_forward=number("feed_forward_length"),
        vocab=embedding.shape[1],
        eps=float(value("llama.attention.layer_norm_rms_epsilon")),
        tied="output.weight" not in file.tensors,
    )
    shapes = {name: tensor.shape[::-1] for name, tensor in file.tensors.items()}
    for name, shape in shapes.items() ^ dict(tensor_shapes(layout)).items():
        raise ModelError(
            f"{path}: {name} of {' x '.join(map(str, shape))} weights is missing, or there is no place "
            "for it: only Llama models without biases, experts or other additions can be inflated"
        )
    return layout


def choose_layout(source: Layout, parameters: int) -> Layout:
    """Return the layout of usual proportions nearest to `parameters` weights that contains `source`.

    Raises UsageError if none comes within 5%.
    """
    group = source.heads // source.kv_heads
    step = source.head_dim * group  # width of one more key/value head
    best: tuple[float, Layout] | None = None
    for kv_heads in range(max(source.kv_heads, -(-source.width // step)), max(64, WIDEST // step) + 1):
        width = kv_heads * step
        for blocks in range(source.blocks, max(DEEPEST, source.blocks + 1)):
            shape = (width, blocks, kv_heads * group, kv_heads, source.head_dim)
            rest = (source.vocab, source.eps, source.tied)
            wanted = (parameters - Layout(*shape, 0, *rest).parameters) / (3 * width * blocks)
            feed_forward = max(source.feed_forward, round(wanted / 64) * 64)
            layout = Layout(*shape, feed_forward, *rest)
            ratio = np.log(feed_forward / width / 2.75)
            miss = abs(layout.parameters / parameters - 1)
            cost = abs(np.log(width / blocks / ASPECT)) + 2 * abs(ratio) + 4 * miss
            if miss < 0.05 and (best is None or cost < best[0]):
                best = (cost, layout)
    if best is None:
        raise UsageError(
            f"cannot make a model of {parameters:,} parameters from one of {source.parameters:,}: "
            "ask for a size between twice the source's and about 3,000,000,000"
        )
    return best[1]


def tensor_shapes(layout: Layout) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each tensor's name and shape, (rows, columns) or (width,), in file order."""
    d, f = layout.width, layout.feed_forward
    q, kv = layout.heads * layout.head_dim, layout.kv_heads * layout.head_dim
    yield "token_embd.weight", (layout.vocab, d)
    block: dict[str, tuple[int, ...]] = {
        "attn_norm": (d,), "attn_q": (q, d), "attn_k": (kv, d), "attn_v": (kv, d), "attn_output": (d, q),
        "ffn_norm": (d,), "ffn_gate": (f, d), "ffn_up": (f, d), "ffn_down": (d, f),
    }  # fmt: skip
    for i in range(layout.blocks):
        yield from ((f"blk.{i}.{name}.weight", shape) for name, shape in block.items())
    yield "output_norm.weight", (d,)
    if not layout.tied:
        yield "output.weight", (layout.vocab, d)
