"""What a head is, read from its config.json.
Layouts: that of the speculators library (EAGLE-3, DFlash, DSpark), which vLLM and llama.cpp's converter read;
those of the authors of EAGLE and DFlash; and Paceline's own for other kinds, in the same style."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from paceline.heads.decoder import ROPE_FACTORS, LayerShape
from paceline.heads.entries import MAX_COUNT, MAX_VOCAB, MAX_WIDTH, Entries
from paceline.speculative.errors import ModelError

VERSION = 1  # of Paceline's own entries
KANGAROO_LAYER = 2  # the layers of the target that its authors' adapters run on
MIN_SCALE, MAX_SCALE = 1e-6, 1e6  # of embeddings
LAST_OUTPUT = -1  # in layer_ids: the output of the target's last layer, after the final norm
KIND_KEY, SPECULATORS_KEY = "paceline_head", "speculators_model_type"
# speculators' names of kinds.
SPECULATORS_KINDS = {"eagle3": "eagle3", "dflash": "block", "dspark": "block"}
EAGLE3_VARIANTS = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output")
MARKOV_KINDS = ("vanilla", "gated", "rnn")
OWN_KINDS = ("medusa", "eagle", "exits", "kangaroo", "pard")  # in Paceline's own layout
UNKNOWN_SHAPE = LayerShape(hidden=0, heads=1, kv_heads=1, head_dim=2, feed_forward=0)


@dataclass(frozen=True)
class TargetFacts:
    """The target that a head was trained for; empty or 0 where a published head does not say.
    model: fingerprint of its weights. hidden: width of its residual stream."""

    name: str = ""
    model: str = ""
    layers: int = 0
    hidden: int = 0
    vocab: int = 0


@dataclass(frozen=True)
class ExitFacts:
    """What was measured of one exit on held-out answers.
    temperature: divides its logits, so that the top probability is the rate at which the target agrees.
    length: tokens per step. speedup: the best quotient of tokens and cost, by the weights that are read."""

    temperature: float = 1.0
    length: float = 0.0
    speedup: float = 0.0


@dataclass(frozen=True)
class HeadConfig:
    """The architecture of a head.
    kind: a drafter's name. layer_ids: the hidden states it reads, as in RequiredOutputs, or LAST_OUTPUT;
    () means EAGLE-3's usual three layers.
    draft_vocab: tokens it can draft. n_layers: its own layers. depth: tokens of a parallel draft, 0 for an
    autoregressive head.
    norm_before_residual, norm_before_fc, fc_norm, norm_output: variants of EAGLE-3 in speculators.
    mask_token: the token that stands for tokens not drafted yet.
    embedding_scale: factor of the embeddings that a block reads.
    windows: positions that attention sees, by layer, 0 for all; () for all everywhere.
    causal_windows: in layers with a window, a block's slots see only earlier ones.
    markov: kind of DSpark's correction by the token before (networks.py), "" for none. markov_rank: its rank.
    from_root: the root's slot of a block drafts the first token.
    exits: of a head on the target's first layers, an entry for each of `layer_ids`; () before the training
    has measured them. default_exit: the place of the one that drafts.
    draft: folder or file of a parallel draft's model, relative to the head's folder."""

    kind: str
    target: TargetFacts
    shape: LayerShape = UNKNOWN_SHAPE
    draft_vocab: int = 0
    layer_ids: tuple[int, ...] = ()
    n_layers: int = 1
    depth: int = 0
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    mask_token: int = -1
    embedding_scale: float = 1.0
    windows: tuple[int, ...] = ()
    causal_windows: bool = False
    markov: str = ""
    markov_rank: int = 0
    from_root: bool = False
    exits: tuple[ExitFacts, ...] = ()
    default_exit: int = 0
    draft: str = ""

    def resolved(self, layers: int) -> HeadConfig:
        """Return the configuration with the layers of a target that has `layers`. Raises ModelError."""
        ids = self.layer_ids or (2, layers // 2, layers - 3)
        ids = tuple(layers if index == LAST_OUTPUT else index for index in ids)
        if any(not 0 <= index <= layers + (self.kind == "mtp") for index in ids):
            raise ModelError(
                f"the head reads the layers {', '.join(map(str, ids))} of its target, which has only {layers}"
            )
        return replace(self, layer_ids=ids)


def read_config(entries: Mapping[str, Any], where: str = "config.json") -> HeadConfig | None:
    """Return the head that a config.json describes; None if it is no head's. Raises ModelError."""
    data = Entries(entries, where)
    if KIND_KEY in data:
        return _own(data)
    if SPECULATORS_KEY in data:
        return _speculators(data)
    if "dflash_config" in data:
        return _dflash(data)
    if "medusa_num_heads" in data:
        return _medusa(data)
    return _safeailab(data)


def check_version(data: Entries) -> None:
    if (version := data.integer("version", MAX_WIDTH, 0)) > VERSION:
        raise ModelError(f"the head is of a newer version ({version}, this Paceline knows {VERSION}): update")


def _facts(data: Entries) -> TargetFacts:
    """Return the facts of the target, as Paceline writes them."""
    return TargetFacts(
        data.text("name", ""),
        data.text("model", ""),
        data.integer("layers", MAX_COUNT, 0),
        data.integer("hidden", MAX_WIDTH, 0),
        data.integer("vocab", MAX_VOCAB, 0),
    )


def _own(data: Entries) -> HeadConfig:
    check_version(data)
    kind, target = data.choice(KIND_KEY, OWN_KINDS), _facts(data.part("target"))
    if kind == "pard":  # it has no weights of its own
        return HeadConfig(
            kind=kind,
            target=target,
            draft_vocab=target.vocab,
            depth=data.integer("depth", MAX_COUNT, least=1),
            mask_token=data.integer("mask_token_id", target.vocab - 1),
            draft=data.text("draft"),
        )
    layer_ids = data.integers("layer_ids", MAX_COUNT, LAST_OUTPUT)
    exits = tuple(
        ExitFacts(
            entry.number("temperature", 1e-3, 1e3, 1.0),
            entry.number("length", 0.0, MAX_COUNT, 0.0),
            entry.number("speedup", 0.0, 1e6, 0.0),
        )
        for entry in data.parts("exits")
    )
    n = len(layer_ids)
    if n == 0 or (n > 1 and kind != "exits") or len(exits) not in (0, n):
        raise data.error("layer_ids", "must be one layer, or those of the exits")
    return HeadConfig(
        kind=kind,
        target=target,
        shape=read_shape(data.part("layer")),
        draft_vocab=data.integer("draft_vocab_size", MAX_VOCAB),
        layer_ids=layer_ids,
        n_layers=data.integer("num_hidden_layers", MAX_COUNT, 1, least=1),
        depth=data.integer("depth", MAX_COUNT, 0),
        mask_token=data.integer("mask_token_id", MAX_VOCAB, -1, least=-1),
        exits=exits,
        default_exit=data.integer("default_exit", max(0, len(layer_ids) - 1), 0),
    )


def _speculators(data: Entries) -> HeadConfig:
    name = data.choice(SPECULATORS_KEY, SPECULATORS_KINDS)
    kind, layer, own = SPECULATORS_KINDS[name], data.part("transformer_layer_config"), data.part("paceline")
    check_version(own)
    vocab = layer.integer("vocab_size", MAX_VOCAB)
    verifier = TargetFacts(
        data.part("speculators_config").part("verifier").text("name_or_path", ""),
        hidden=data.integer("target_hidden_size", MAX_WIDTH, 0) or layer.integer("hidden_size", MAX_WIDTH),
        vocab=vocab,
    )
    out = HeadConfig(
        kind=kind,
        target=_facts(own.part("target")) if "target" in own else verifier,
        shape=read_shape(layer),
        draft_vocab=data.integer("draft_vocab_size", MAX_VOCAB, 0) or vocab,
        n_layers=layer.integer("num_hidden_layers", MAX_COUNT, 1, least=1),
        windows=_windows(layer),
    )
    if kind == "block":
        return _block(out, data, name == "dspark")
    if len(set(out.windows)) > 1:
        raise ModelError("an EAGLE-3 head with sliding windows in some of its layers only")
    flags: dict[str, Any] = {name: data.flag(name) for name in EAGLE3_VARIANTS}
    return replace(out, layer_ids=data.integers("eagle_aux_hidden_state_layer_ids", MAX_COUNT), **flags)


def _block(out: HeadConfig, data: Entries, is_dspark: bool) -> HeadConfig:
    from_root = data.flag("sample_from_anchor", is_dspark)
    rank = data.integer("markov_rank", MAX_WIDTH, 256) if is_dspark else 0
    markov = data.choice("markov_head_type", MARKOV_KINDS, "vanilla") if rank else ""
    return replace(
        out,
        layer_ids=data.integers("aux_hidden_state_layer_ids", MAX_COUNT),
        depth=data.integer("block_size", MAX_COUNT, least=2) - (not from_root),
        mask_token=data.integer("mask_token_id", out.target.vocab - 1),
        embedding_scale=data.number("input_embedding_scale", MIN_SCALE, MAX_SCALE, 1.0),
        causal_windows=bool(out.windows) and not data.flag("sliding_window_non_causal"),
        markov=markov,
        markov_rank=rank,
        from_root=from_root,
    )


def _dflash(data: Entries) -> HeadConfig:
    """The layout of DFlash's authors, whose layers are numbered by their outputs."""
    own, shape, vocab = data.part("dflash_config"), read_shape(data), data.integer("vocab_size", MAX_VOCAB)
    n_layers = data.integer("num_hidden_layers", MAX_COUNT, least=1)
    ids = own.integers("target_layer_ids", MAX_COUNT) or _spread(
        data.integer("num_target_layers", MAX_COUNT, least=4), n_layers
    )
    return HeadConfig(
        kind="block",
        target=TargetFacts(hidden=shape.hidden, vocab=vocab),
        shape=shape,
        draft_vocab=vocab,
        layer_ids=tuple(index + 1 for index in ids),
        n_layers=n_layers,
        depth=(data if "block_size" in data else own).integer("block_size", MAX_COUNT, least=2) - 1,
        mask_token=own.integer("mask_token_id", vocab - 1),
        embedding_scale=own.number("input_embedding_scale", MIN_SCALE, MAX_SCALE, 1.0),
        windows=_windows(data),
    )


def _spread(layers: int, n: int) -> list[int]:
    """Return the layers that a DFlash head of `n` layers reads if it does not say which."""
    if n == 1:
        return [layers // 2]
    return [round(1 + i * (layers - 4) / (n - 1)) for i in range(n)]


def _medusa(data: Entries) -> HeadConfig:
    """The layout of Medusa's authors, where only the weights tell widths and vocabulary."""
    return HeadConfig(
        kind="medusa",
        target=TargetFacts(data.text("base_model_name_or_path", "")),
        layer_ids=(LAST_OUTPUT,),
        n_layers=data.integer("medusa_num_layers", MAX_COUNT, 1, least=1),
        depth=data.integer("medusa_num_heads", MAX_COUNT, least=1),
    )


def _safeailab(data: Entries) -> HeadConfig | None:
    """EAGLE-3 has a draft vocabulary; EAGLE is a Llama of one layer, which only its weights tell apart."""
    is_eagle3 = any("Eagle3" in name for name in data.texts("architectures")) or "draft_vocab_size" in data
    if not is_eagle3 and data.data.get("num_hidden_layers") != 1:
        return None
    shape, vocab = read_shape(data), data.integer("vocab_size", MAX_VOCAB)
    hidden = data.integer("target_hidden_size", MAX_WIDTH, 0) or shape.hidden
    return HeadConfig(
        kind="eagle3" if is_eagle3 else "eagle",
        target=TargetFacts(hidden=hidden, vocab=vocab),
        shape=shape,
        draft_vocab=data.integer("draft_vocab_size", MAX_VOCAB, 0) or vocab,
        layer_ids=() if is_eagle3 else (LAST_OUTPUT,),
    )


def as_kangaroo(config: HeadConfig) -> HeadConfig:
    """Return the configuration of a published Kangaroo adapter, whose config.json is a Llama's of one layer.
    Its authors' class has the usual exit layer, and ignores rope_theta."""
    shape = replace(config.shape, rope_theta=10_000.0, rope_scaling=None, feed_forward=0)
    return replace(config, kind="kangaroo", shape=shape, layer_ids=(KANGAROO_LAYER,))


def _windows(layer: Entries) -> tuple[int, ...]:
    """Return the windows by layer. Qwen3's configuration drops them unless it is told to use them."""
    window = layer.integer("sliding_window", 1 << 30, 0)
    if layer.text("model_type", "") == "qwen3" and not layer.flag("use_sliding_window"):
        window = 0
    out = tuple(window * (kind == "sliding_attention") for kind in layer.texts("layer_types"))
    return out if any(out) else ()


def read_shape(layer: Entries) -> LayerShape:
    """Return the dimensions of a layer under the names of config.json. Raises ModelError."""
    hidden = layer.integer("hidden_size", MAX_WIDTH, least=1)
    heads = layer.integer("num_attention_heads", MAX_COUNT, least=1)
    kv_heads = layer.integer("num_key_value_heads", heads, 0) or heads
    head_dim = layer.integer("head_dim", MAX_WIDTH, 0) or hidden // heads
    if heads % kv_heads or head_dim < 2 or head_dim % 2:
        raise ModelError(f"{heads} heads of {head_dim} with {kv_heads} of keys: attention has no such shape")
    rope = next((part for key in ("rope_parameters", "rope_scaling") if (part := layer.part(key)).data), None)
    theta = layer.number("rope_theta", 1.0, 1e12, 10_000.0)
    return LayerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        feed_forward=layer.integer("intermediate_size", MAX_WIDTH),
        eps=layer.number("rms_norm_eps", 1e-12, 1.0, 1e-6),
        rope_theta=theta if rope is None else rope.number("rope_theta", 1.0, 1e12, theta),
        rope_scaling=None if rope is None else rope_scaling(rope),
    )


def rope_scaling(rope: Entries) -> Mapping[str, Any]:
    """Return a checked entry of rotary positions."""
    kind = rope.choice("rope_type" if "rope_type" in rope else "type", ROPE_FACTORS, "default")
    found = {key: rope.number(key, 1e-3, 1e9) for key in ROPE_FACTORS[kind]}
    if kind == "llama3" and found["high_freq_factor"] <= found["low_freq_factor"]:
        raise rope.error("high_freq_factor", "must be above low_freq_factor")
    return rope.data


def layer_entries(shape: LayerShape) -> dict[str, Any]:
    """Return a layer's dimensions under the names of config.json."""
    return {
        "hidden_size": shape.hidden,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "intermediate_size": shape.feed_forward,
        "rms_norm_eps": shape.eps,
        "rope_theta": shape.rope_theta,
        "rope_scaling": dict(shape.rope_scaling) if shape.rope_scaling else None,
        "hidden_act": "silu",
        "attention_bias": False,
    }
