"""The dimensions of a GGUF file, of a widened model, and the resulting tensors.
A dimension of a tensor is a row of segments, such as the five projections of a Mamba-2 layer's input matrix
or the experts of a mixture: each is widened by itself."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from typing import Any

import numpy as np

from paceline.models.headers.gguf_file import GGUFFile
from paceline.speculative.errors import ModelError, UsageError

ASPECT = {"mamba2": 36}  # typical width per block of models from 0.1B to 3B
USUAL_ASPECT, USUAL_FEED_FORWARD = 85, 2.75  # of a Llama; the latter times the width
WIDEST, DEEPEST = 4096, 80  # search limits

Segments = tuple[str, ...]  # names of dimensions
# Tensors of a block: the segments of their rows and columns.
ATTENTION: Mapping[str, tuple[Segments, ...]] = {
    "attn_q.weight": (("query",), ("width",)),
    "attn_k.weight": (("key",), ("width",)),
    "attn_v.weight": (("key",), ("width",)),
    "attn_output.weight": (("width",), ("query",)),
}
HEAD_NORMS: Mapping[str, tuple[Segments, ...]] = {
    "attn_q_norm.weight": (("head",),),
    "attn_k_norm.weight": (("head",),),
}
MAMBA2: Mapping[str, tuple[Segments, ...]] = {
    "ssm_in.weight": (("inner", "inner", "states", "states", "steps"), ("width",)),
    "ssm_conv1d.weight": (("inner", "states", "states"), ("kernel",)),
    "ssm_conv1d.bias": (("inner", "states", "states"),),
    "ssm_dt.bias": (("steps",),),
    "ssm_a": (("steps",), ("one",)),
    "ssm_d": (("steps",), ("one",)),
    "ssm_norm.weight": (("groups",), ("group",)),
    "ssm_out.weight": (("width",), ("inner",)),
}
# Of qwen35: the rows of a head's queries are followed by those of its gate.
GATED_ATTENTION = {**ATTENTION, "attn_q.weight": (("gated query",), ("width",)), **HEAD_NORMS}
MTP_INPUTS: Mapping[str, tuple[Segments, ...]] = {
    "nextn.eh_proj.weight": (("width",), ("width", "width")),
    **{f"nextn.{norm}.weight": (("width",),) for norm in ("enorm", "hnorm", "shared_head_norm")},
}
# Of mimo2 as `paceline train mtp` writes it: only its MTP block has one matrix for all three.
FUSED_ATTENTION = {
    "attn_qkv.weight": (("query", "key", "key"), ("width",)),
    "attn_output.weight": ATTENTION["attn_output.weight"],
}
FEED_FORWARD: Mapping[str, tuple[Segments, ...]] = {
    "ffn_gate": (("feed",), ("width",)),
    "ffn_up": (("feed",), ("width",)),
    "ffn_down": (("width",), ("feed",)),
}


def delta_net(repeats: int) -> Mapping[str, tuple[Segments, ...]]:
    """Return the tensors of a gated delta net. Value head i reads key head i % key heads, so the values are
    `repeats` segments as long as that of keys."""
    values, heads = ("states",) * repeats, ("groups",) * repeats
    return {
        "attn_qkv.weight": (("states", "states", *values), ("width",)),
        "attn_gate.weight": (values, ("width",)),
        "ssm_conv1d.weight": (("states", "states", *values), ("kernel",)),
        "ssm_dt.bias": (heads,),
        "ssm_a": (heads,),
        "ssm_alpha.weight": (heads, ("width",)),
        "ssm_beta.weight": (heads, ("width",)),
        "ssm_norm.weight": (("state",),),
        "ssm_out.weight": (("width",), values),
    }


MIXERS = {
    "llama": ATTENTION, "qwen3moe": {**ATTENTION, **HEAD_NORMS}, "granitehybrid": ATTENTION,
    "qwen35": GATED_ATTENTION, "mimo2": ATTENTION,
}  # fmt: skip
MIXERS_OF_STATE = {"mamba2": MAMBA2, "granitehybrid": MAMBA2, "qwen35": delta_net(1)}
ARCHITECTURES = frozenset(MIXERS | MIXERS_OF_STATE)


@dataclass(frozen=True)
class Mamba:
    """The dimensions of Mamba-2 layers. steps: heads. states: of a group. In a gated delta net
    `groups` are heads of keys, `steps` those of values."""

    inner: int
    steps: int
    state: int
    groups: int
    kernel: int

    def widened(self, factor: int) -> Mamba:
        """Return the dimensions with so many times the groups, each as it is."""
        inner, steps, groups = (factor * n for n in (self.inner, self.steps, self.groups))
        return replace(self, inner=inner, steps=steps, groups=groups)


@dataclass(frozen=True)
class Layout:
    """The dimensions of a GGUF file. tied: the embedding is also the output matrix.
    feed_forward: 0 for none, and that of an expert in a mixture of `experts`.
    recurrent: whether each block is; further blocks repeat the pattern. mtp_blocks: those
    that follow, and guess further tokens."""

    width: int
    blocks: int
    heads: int
    kv_heads: int
    head_dim: int
    feed_forward: int
    vocab: int
    eps: float
    tied: bool = True
    arch: str = "llama"
    experts: int = 0
    recurrent: tuple[bool, ...] = (False,)
    mamba: Mamba = Mamba(0, 0, 0, 1, 0)
    mtp_blocks: int = 0

    @property
    def parameters(self) -> int:
        """Return the weights of all tensors; a tied embedding counts once."""
        kinds = Counter(map(self.is_recurrent, range(self.blocks)))
        blocks = sum(n * sum(map(prod, block_shapes(self, kind).values())) for kind, n in kinds.items())
        blocks += self.mtp_blocks * sum(map(prod, block_shapes(self, False, is_mtp=True).values()))
        ends = self.vocab * self.width * (1 if self.tied else 2)
        return ends + blocks + self.width

    def is_recurrent(self, block: int) -> bool:
        return self.recurrent[block % len(self.recurrent)]

    @property
    def dimensions(self) -> Mapping[str, int]:
        """The length of each segment."""
        m = self.mamba
        return {
            "width": self.width, "query": self.heads * self.head_dim, "key": self.kv_heads * self.head_dim,
            "head": self.head_dim, "feed": self.feed_forward, "experts": self.experts, "one": 1,
            "inner": m.inner, "states": m.groups * m.state, "steps": m.steps, "groups": m.groups,
            "group": m.inner // m.groups, "kernel": m.kernel, "vocab": self.vocab, "state": m.state,
            "gated query": 2 * self.heads * self.head_dim,
        }  # fmt: skip


def segments_of(layout: Layout, name: str) -> tuple[Segments, ...]:
    """Return the segments of a tensor's rows and columns. The rows of all experts follow one another."""
    if name in ("token_embd.weight", "output.weight"):
        return ("vocab",), ("width",)
    part = name.split(".", 2)[2] if name.startswith("blk.") else name
    if part.startswith("ffn_") and "norm" not in part:
        if part == "ffn_gate_inp.weight":
            return ("experts",), ("width",)
        rows, columns = FEED_FORWARD[part.removesuffix(".weight").removesuffix("_exps")]
        return rows * max(1, layout.experts), columns
    known = {**ATTENTION, **HEAD_NORMS, **MAMBA2, **FUSED_ATTENTION, **MTP_INPUTS}
    if layout.arch == "qwen35":
        known = {**GATED_ATTENTION, **MTP_INPUTS, **delta_net(layout.mamba.steps // layout.mamba.groups)}
    return known.get(part, (("width",),))


def block_shapes(layout: Layout, recurrent: bool, *, is_mtp: bool = False) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a block's tensors in file order: (width,), (rows, columns) or
    (experts, rows, columns)."""
    mixer = (MIXERS_OF_STATE if recurrent else MIXERS).get(layout.arch, {})
    mixer = FUSED_ATTENTION if is_mtp and layout.arch == "mimo2" else mixer
    names = ["attn_norm.weight", *mixer]
    if layout.arch != "mamba2":
        after = "post_attention_norm" if layout.arch == "qwen35" else "ffn_norm"
        names += [f"{after}.weight", *(["ffn_gate_inp.weight"] if layout.experts else [])]
        names += [f"{name}{'_exps' if layout.experts else ''}.weight" for name in FEED_FORWARD]
    names += MTP_INPUTS if is_mtp else ()
    dimensions, shapes = layout.dimensions, dict[str, tuple[int, ...]]()
    for name in names:
        segments = segments_of(layout, f"blk.0.{name}")
        shape = tuple(sum(dimensions[part] for part in parts) for parts in segments)
        is_mixture = "_exps" in name
        shapes[name] = (layout.experts, shape[0] // layout.experts, shape[1]) if is_mixture else shape
    return shapes


def tensor_shapes(layout: Layout) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield each tensor's name and shape in file order."""
    yield "token_embd.weight", (layout.vocab, layout.width)
    kinds = [block_shapes(layout, recurrent) for recurrent in (False, True)]
    for i in range(layout.blocks):
        yield from ((f"blk.{i}.{name}", shape) for name, shape in kinds[layout.is_recurrent(i)].items())
    for i in range(layout.blocks, layout.blocks + layout.mtp_blocks):
        kind = block_shapes(layout, False, is_mtp=True)
        yield from ((f"blk.{i}.{name}", shape) for name, shape in kind.items())
    yield "output_norm.weight", (layout.width,)
    if not layout.tied:
        yield "output.weight", (layout.vocab, layout.width)


def read_layout(file: GGUFFile) -> Layout:
    """Return a file's dimensions. Raises ModelError for a model that cannot be widened."""
    path, arch = file.path, file.text("general.architecture")
    if arch not in ARCHITECTURES:
        known = ", ".join(sorted(ARCHITECTURES))
        raise ModelError(f"{path} is a {arch} model: only these can be inflated: {known}")

    def number(key: str, kind: Any = int) -> Any:
        found: Any = file.values.get(f"{arch}.{key}")
        if not isinstance(found, kind) or not found > 0:
            raise ModelError(f"{path}: can't be inflated: needs one positive {arch}.{key} for all blocks")
        return found

    shapes = {name: tensor.shape[::-1] for name, tensor in file.tensors.items()}
    mtp_blocks = file.number(f"{arch}.nextn_predict_layers")
    width, blocks = number("embedding_length"), number("block_count") - mtp_blocks
    heads = kv_heads = head_dim = 0
    recurrent: tuple[bool, ...] = (arch == "mamba2",)
    if arch != "mamba2":
        heads = number("attention.head_count")
        has_length = f"{arch}.attention.key_length" in file.values
        head_dim = number("attention.key_length") if has_length else width // heads
        recurrent = tuple(f"blk.{i}.ssm_out.weight" in file.tensors for i in range(blocks))
        if arch == "granitehybrid":  # its number of key/value heads is a list
            keys = [shape for name, shape in shapes.items() if name.endswith("attn_k.weight")]
            kv_heads = keys[0][0] // head_dim if keys and keys[0] else 1
        else:
            kv_heads = number("attention.head_count_kv")
    is_mixture = arch == "qwen3moe"
    layout = Layout(
        width=width,
        blocks=blocks,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=0 if arch == "mamba2" else number(f"{'expert_' * is_mixture}feed_forward_length"),
        vocab=(shapes.get("token_embd.weight") or (0,))[0],
        eps=number("attention.layer_norm_rms_epsilon", float),
        tied="output.weight" not in file.tensors,
        arch=arch,
        experts=number("expert_count") if is_mixture else 0,
        recurrent=recurrent if any(recurrent) else (False,),
        mtp_blocks=mtp_blocks,
    )
    if any(recurrent):
        sizes = ("inner_size", "time_step_rank", "state_size", "group_count", "conv_kernel")
        layout = replace(layout, mamba=Mamba(*(number(f"ssm.{key}") for key in sizes)))
    for name, shape in shapes.items() ^ dict(tensor_shapes(layout)).items():
        which = f"{name} of {' x '.join(map(str, shape))} weights"
        able = "only models without biases, shared experts or other additions can be inflated"
        raise ModelError(f"{path}: {which} is missing, or there is no place for it: {able}")
    return layout


def choose_layout(source: Layout, parameters: int) -> Layout:
    """Return the layout of usual proportions nearest to `parameters` weights that contains `source`. Raises
    UsageError if none comes within 5%."""
    proportion = source.feed_forward / source.width if source.arch != "llama" else USUAL_FEED_FORWARD
    best: tuple[float, Layout] | None = None
    period = len(source.recurrent)
    depths = range(source.blocks, max(DEEPEST, source.blocks + 1), period)
    for wider, blocks in product(_wider(source), depths):
        empty = replace(wider, blocks=blocks, feed_forward=0)
        layout, ratio = empty, 0.0
        if source.feed_forward:
            each = 3 * wider.width * (blocks + source.mtp_blocks) * max(1, source.experts)
            wanted = (parameters - empty.parameters) / each
            feed_forward = max(source.feed_forward, round(wanted / 64) * 64)
            layout = replace(empty, feed_forward=feed_forward)
            ratio = np.log(feed_forward / wider.width / proportion)
        miss = abs(layout.parameters / parameters - 1)
        aspect = ASPECT.get(source.arch, USUAL_ASPECT)
        cost = abs(np.log(wider.width / blocks / aspect)) + 2 * abs(ratio) + 4 * miss
        if miss < 0.05 and (best is None or cost < best[0]):
            best = (cost, layout)
    if best is None:
        why = f"cannot make a model of {parameters:,} parameters from one of {source.parameters:,}"
        raise UsageError(f"{why}: ask for a size between twice the source's and about 3,000,000,000")
    return best[1]


def _wider(source: Layout) -> Iterator[Layout]:
    """Yield layouts of growing widths."""
    if source.heads:
        group = source.heads // source.kv_heads
        step = source.head_dim * group  # width of one more key/value head
        for kv_heads in range(max(source.kv_heads, -(-source.width // step)), max(64, WIDEST // step) + 1):
            wider = replace(source, width=kv_heads * step, heads=kv_heads * group, kv_heads=kv_heads)
            if not any(source.recurrent):
                yield wider
            elif wider.width % source.width == 0:  # llama.cpp wants Mamba layers of twice the width
                yield replace(wider, mamba=source.mamba.widened(wider.width // source.width))
    else:
        for width in range(source.width, WIDEST + 1, 64):
            mamba = source.mamba.widened(max(1, round(width / source.width)))
            yield replace(source, width=width, mamba=mamba)
