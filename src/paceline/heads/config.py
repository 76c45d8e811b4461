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
KANGAROO_LAYER = 2  # the layers of the target that its authors' adapters run on
LAST_OUTPUT = -1  # in layer_ids: the output of the target's last layer, after the final norm
KIND_KEY, SPECULATORS_KEY = "paceline_head", "speculators_model_type"
# speculators' names of kinds.
SPECULATORS_KINDS = {"eagle3": "eagle3", "dflash": "block", "dspark": "block"}
MARKOV_KINDS = ("vanilla", "gated", "rnn")
OWN_KINDS = ("medusa", "eagle", "exits", "kangaroo", "pard")  # in Paceline's own layout


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
    windows: positions that attention sees, by layer, 0 for all; () for all everywhere.
    causal_windows: in layers with a window, a block's slots see only earlier ones.
    markov: kind of DSpark's correction by the token before (markov.py), "" for none. markov_rank: its rank.
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
    windows: tuple[int, ...] = ()
    causal_windows: bool = False
    markov: str = ""
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
        if "medusa_num_heads" in data:
            return _medusa(data)
        return _safeailab(data)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise ModelError(f"config.json is incomplete: {type(error).__name__}: {error}") from error


def _own(data: Mapping[str, Any]) -> HeadConfig:
    version = int(data.get("version", 0))
    if version > VERSION:
        raise ModelError(f"the head is of a newer version ({version}, this Paceline knows {VERSION}): update")
    kind = str(data[KIND_KEY])
    if kind not in OWN_KINDS:
        raise ModelError(f"a head of the kind {kind!r}: only {', '.join(OWN_KINDS)} are known here")
    if kind == "pard":
        return _parallel_draft(data)
    exits = tuple(ExitFacts(**entry) for entry in data.get("exits", ()))
    default_exit = int(data.get("default_exit", 0))
    if exits and not (len(exits) == len(data["layer_ids"]) and 0 <= default_exit < len(exits)):
        raise ValueError("exits and layer_ids do not fit")
    return HeadConfig(
        kind=kind,
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


def _parallel_draft(data: Mapping[str, Any]) -> HeadConfig:
    """`draft` names its model, relative to the folder. It has no weights of its own."""
    target, depth, mask = TargetFacts(**data["target"]), int(data["depth"]), int(data["mask_token_id"])
    if not (depth >= 1 and 0 <= mask < target.vocab and isinstance(data["draft"], str)):
        raise ValueError("depth, mask_token_id or draft is wrong")
    shape = LayerShape(target.hidden, 1, 1, 1, 0)
    return HeadConfig("pard", target, shape, target.vocab, depth=depth, mask_token=mask, extra=data)


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
        windows=_windows(layer),
        extra=data,
    )
    if kind == "block":
        return _block(out, data, name == "dspark")
    if len(set(out.windows)) > 1:
        raise ModelError("an EAGLE-3 head with sliding windows in some of its layers only")
    return replace(
        out,
        layer_ids=tuple(map(int, data.get("eagle_aux_hidden_state_layer_ids") or ())),
        norm_before_residual=bool(data.get("norm_before_residual", False)),
        norm_before_fc=bool(data.get("norm_before_fc", False)),
        fc_norm=bool(data.get("fc_norm", False)),
        norm_output=bool(data.get("norm_output", False)),
    )


def _block(out: HeadConfig, data: Mapping[str, Any], is_dspark: bool) -> HeadConfig:
    from_root = bool(data.get("sample_from_anchor", is_dspark))
    rank = int(data.get("markov_rank", 256)) if is_dspark else 0
    markov = str(data.get("markov_head_type", "vanilla")) if rank else ""
    if markov and markov not in MARKOV_KINDS:
        raise ModelError(f"a Markov head of type {markov!r}: only {', '.join(MARKOV_KINDS)} are known")
    return replace(
        out,
        layer_ids=tuple(map(int, data["aux_hidden_state_layer_ids"])),
        depth=int(data["block_size"]) - (not from_root),
        mask_token=int(data["mask_token_id"]),
        causal_windows=bool(out.windows) and not data.get("sliding_window_non_causal", False),
        markov=markov,
        markov_rank=rank,
        from_root=from_root,
    )


def _dflash(data: Mapping[str, Any]) -> HeadConfig:
    """The layout of DFlash's authors, whose layers are numbered by their outputs."""
    own, shape, vocab = data["dflash_config"], _shape(data), int(data["vocab_size"])
    n_layers = int(data["num_hidden_layers"])
    ids = own.get("target_layer_ids") or _spread(int(data["num_target_layers"]), n_layers)
    return HeadConfig(
        kind="block",
        target=TargetFacts(hidden=shape.hidden, vocab=vocab),
        shape=shape,
        draft_vocab=vocab,
        layer_ids=tuple(int(index) + 1 for index in ids),
        n_layers=n_layers,
        depth=int(data.get("block_size") or own["block_size"]) - 1,
        mask_token=int(own["mask_token_id"]),
        windows=_windows(data),
        extra=data,
    )


def _spread(layers: int, n: int) -> list[int]:
    """Return the layers that a DFlash head of `n` layers reads if it does not say which."""
    if n == 1:
        return [layers // 2]
    return [round(1 + i * (layers - 4) / (n - 1)) for i in range(n)]


def _medusa(data: Mapping[str, Any]) -> HeadConfig:
    """The layout of Medusa's authors, where only the weights tell widths and vocabulary."""
    return HeadConfig(
        kind="medusa",
        target=TargetFacts(str(data.get("base_model_name_or_path") or "")),
        shape=LayerShape(hidden=0, heads=1, kv_heads=1, head_dim=2, feed_forward=0),
        draft_vocab=0,
        layer_ids=(LAST_OUTPUT,),
        n_layers=int(data.get("medusa_num_layers", 1)),
        depth=int(data["medusa_num_heads"]),
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


def as_kangaroo(config: HeadConfig) -> HeadConfig:
    """Return the configuration of a published Kangaroo adapter, whose config.json is a Llama's of one layer.
    Its authors' class has the usual exit layer, and ignores rope_theta."""
    shape = replace(config.shape, rope_theta=10_000.0, rope_scaling=None, feed_forward=0)
    return replace(config, kind="kangaroo", shape=shape, layer_ids=(KANGAROO_LAYER,))


def _verifier(data: Mapping[str, Any], layer: Mapping[str, Any]) -> TargetFacts:
    named = data.get("speculators_config", {}).get("verifier", {})
    hidden = int(data.get("target_hidden_size") or layer["hidden_size"])
    return TargetFacts(str(named.get("name_or_path") or ""), hidden=hidden, vocab=int(layer["vocab_size"]))


def _windows(layer: Mapping[str, Any]) -> tuple[int, ...]:
    """Return the windows by layer. Qwen3's configuration drops them unless it is told to use them."""
    window = int(layer.get("sliding_window") or 0)
    if layer.get("model_type") == "qwen3" and not layer.get("use_sliding_window"):
        window = 0
    out = tuple(window * (kind == "sliding_attention") for kind in layer.get("layer_types") or ())
    return out if any(out) else ()


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
