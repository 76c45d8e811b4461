"""What a head is, read from its config.json.

Layouts: that of the speculators library (EAGLE-3, DFlash, DSpark), which vLLM and llama.cpp's converter read;
those of the authors of EAGLE and DFlash; and Paceline's own for other kinds, in the same style.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from paceline.heads.decoder import LayerShape
from paceline.speculative.errors import ModelError

VERSION = 1  # of Paceline's own entries
LAST_OUTPUT = -1  # in layer_ids: the output of the target's last layer, after the final norm
KIND_KEY, SPECULATORS_KEY = "paceline_head", "speculators_model_type"
# speculators' names of kinds.
SPECULATORS_KINDS = {"eagle3": "eagle3", "dflash": "block", "dspark": "block"}


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
    mask_token: the token that stands for tokens not drafted yet. window: positions that attention sees.
    markov_rank: of DSpark's correction by the token before, 0 for none.
    from_root: the root's slot of a block drafts the first token.
    exits: of a head on the target's first layers, an entry for each of `layer_ids`; () before the training
    has measured them. default_exit: the place of the one that drafts.
    extra: further entries of config.json, written back unchanged."""

    kind: str
    target: TargetFacts
    shape: LayerShape
    draft_vocab: int
    layer_ids: tuple[int, ...] = ()
    n_layers: int = 1
    depth: int = 0
    norm_before_residual: bool = False
    norm_before_fc: bool = False
    fc_norm: bool = False
    norm_output: bool = False
    mask_token: int = -1
    window: int = 0
    markov_rank: int = 0
    from_root: bool = False
    exits: tuple[ExitFacts, ...] = ()
    default_exit: int = 0
    extra: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def resolved(self, layers: int) -> HeadConfig:
        """Return the configuration with the layers of a target that has `layers`. Raises ModelError."""
        ids = self.layer_ids or (2, layers // 2, layers - 3)
        ids = tuple(layers if index == LAST_OUTPUT else index for index in ids)
        if any(not 0 <= index <= layers for index in ids):
            raise ModelError(
                f"the head reads the layers {', '.join(map(str, ids))} of its target, which has only {layers}"
            )
        return replace(self, layer_ids=ids)


def read_config(data: Mapping[str, Any]) -> HeadConfig | None:
    """Return the head that a config.json describes; None if it is no head's. Raises ModelError."""
    try:
        if KIND_KEY in data:
            return _own(data)
        if SPECULATORS_KEY in data:
            return _speculators(data)
        if "dflash_config" in data:
            return _dflash(data)
        return _safeailab(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"config.json is incomplete: {type(error).__name__}: {error}") from error


def _own(data: Mapping[str, Any]) -> HeadConfig:
    version = int(data.get("version", 0))
    if version > VERSION:
        raise ModelError(f"the head is of a newer version ({version}, this Paceline knows {VERSION}): update")
    exits = tuple(ExitFacts(**entry) for entry in data.get("exits", ()))
    default_exit = int(data.get("default_exit", 0))
    if exits and not (len(exits) == len(data["layer_ids"]) and 0 <= default_exit < len(exits)):
        raise ValueError("exits and layer_ids do not fit")
    return HeadConfig(
        kind=str(data[KIND_KEY]),
        target=TargetFacts(**data["target"]),
        shape=_shape(data["layer"]),
        draft_vocab=int(data["draft_vocab_size"]),
        layer_ids=tuple(map(int, data["layer_ids"])),
        n_layers=int(data.get("num_hidden_layers", 1)),
        depth=int(data.get("depth", 0)),
        mask_token=int(data.get("mask_token_id", -1)),
        exits=exits,
        default_exit=default_exit,
        extra=data,
    )


def _speculators(data: Mapping[str, Any]) -> HeadConfig:
    name = str(data[SPECULATORS_KEY])
    if name not in SPECULATORS_KINDS:
        known = ", ".join(SPECULATORS_KINDS)
        raise ModelError(f"a head of speculators' type {name!r}: only {known} are known")
    kind, layer = SPECULATORS_KINDS[name], data["transformer_layer_config"]
    own = data.get("paceline", {})
    if int(own.get("version", 0)) > VERSION:
        raise ModelError(f"the head is of a newer version ({own['version']}, known is {VERSION}): update")
    target = TargetFacts(**own["target"]) if "target" in own else _verifier(data, layer)
    out = HeadConfig(
        kind=kind,
        target=target,
        shape=_shape(layer),
        draft_vocab=int(data.get("draft_vocab_size") or layer["vocab_size"]),
        n_layers=int(layer.get("num_hidden_layers", 1)),
        window=_window(layer),
        extra=data,
    )
    if kind == "block":
        return _block(out, data, name == "dspark")
    return replace(
        out,
        layer_ids=tuple(map(int, data.get("eagle_aux_hidden_state_layer_ids") or ())),
        norm_before_residual=bool(data.get("norm_before_residual", False)),
        norm_before_fc=bool(data.get("norm_before_fc", False)),
        fc_norm=bool(data.get("fc_norm", False)),
        norm_output=bool(data.get("norm_output", False)),
    )


def _block(out: HeadConfig, data: Mapping[str, Any], is_dspark: bool) -> HeadConfig:
    if is_dspark and str(data.get("markov_head_type", "vanilla")) != "vanilla":
        raise ModelError(f"a Markov head of type {data['markov_head_type']!r}: only 'vanilla' is known")
    if out.window and not data.get("sliding_window_non_causal"):
        raise ModelError("a block head with causal sliding windows: only full attention is known")
    from_root = bool(data.get("sample_from_anchor", is_dspark))
    return replace(
        out,
        layer_ids=tuple(map(int, data["aux_hidden_state_layer_ids"])),
        depth=int(data["block_size"]) - (not from_root),
        mask_token=int(data["mask_token_id"]),
        markov_rank=int(data.get("markov_rank", 256)) if is_dspark else 0,
        from_root=from_root,
    )


def _dflash(data: Mapping[str, Any]) -> HeadConfig:
    """The layout of DFlash's authors, whose layers are numbered by their outputs."""
    own, shape, vocab = data["dflash_config"], _shape(data), int(data["vocab_size"])
    return HeadConfig(
        kind="block",
        target=TargetFacts(hidden=shape.hidden, vocab=vocab),
        shape=shape,
        draft_vocab=vocab,
        layer_ids=tuple(int(index) + 1 for index in own["target_layer_ids"]),
        n_layers=int(data["num_hidden_layers"]),
        depth=int(data["block_size"]) - 1,
        mask_token=int(own["mask_token_id"]),
        extra=data,
    )


def _safeailab(data: Mapping[str, Any]) -> HeadConfig | None:
    """EAGLE-3 has a draft vocabulary; EAGLE is a Llama of one layer, which only its weights tell apart."""
    names = [str(name) for name in data.get("architectures") or ()]
    is_eagle3 = any("Eagle3" in name for name in names) or "draft_vocab_size" in data
    if not is_eagle3 and data.get("num_hidden_layers") != 1:
        return None
    shape, vocab = _shape(data), int(data["vocab_size"])
    return HeadConfig(
        kind="eagle3" if is_eagle3 else "eagle",
        target=TargetFacts(hidden=int(data.get("target_hidden_size") or shape.hidden), vocab=vocab),
        shape=shape,
        draft_vocab=int(data.get("draft_vocab_size") or vocab),
        layer_ids=() if is_eagle3 else (LAST_OUTPUT,),
        extra=data,
    )


def _verifier(data: Mapping[str, Any], layer: Mapping[str, Any]) -> TargetFacts:
    named = data.get("speculators_config", {}).get("verifier", {})
    hidden = int(data.get("target_hidden_size") or layer["hidden_size"])
    return TargetFacts(str(named.get("name_or_path") or ""), hidden=hidden, vocab=int(layer["vocab_size"]))


def _window(layer: Mapping[str, Any]) -> int:
    sliding = "sliding_attention" in (layer.get("layer_types") or ())
    return int(layer.get("sliding_window") or 0) if sliding else 0


def _shape(layer: Mapping[str, Any]) -> LayerShape:
    hidden, heads = int(layer["hidden_size"]), int(layer["num_attention_heads"])
    rope = layer.get("rope_parameters") or layer.get("rope_scaling") or {}
    return LayerShape(
        hidden=hidden,
        heads=heads,
        kv_heads=int(layer.get("num_key_value_heads") or heads),
        head_dim=int(layer.get("head_dim") or hidden // heads),
        feed_forward=int(layer["intermediate_size"]),
        eps=float(layer.get("rms_norm_eps", 1e-6)),
        rope_theta=float(rope.get("rope_theta") or layer.get("rope_theta") or 10_000.0),
        rope_scaling=rope or None,
    )


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
