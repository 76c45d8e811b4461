"""The MTP layer of a GGUF file (multi-token prediction, `blk.N.nextn.*`), trained with all else frozen.

A file of a Llama gets one: it is written as llama.cpp's `mimo2`, whose layers without experts are those of a
Llama, with the two halves of a head as rotated pairs. Its logits stay the same but for rounding."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.api import LLM
from paceline.drafts import header_traits, require_fit
from paceline.fits import LLAMA_CPP, MTP
from paceline.heads.config import HeadConfig
from paceline.heads.decoder import LayerShape, Weights
from paceline.heads.files import CARD
from paceline.heads.networks import EagleHead, MtpHead
from paceline.heads.sidecar import EAGLE3, LLAMA_LAYER_NAMES, gguf_name, reordered
from paceline.loading import load_plan
from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.gguf_writer import (
    TensorToWrite,
    copy_part,
    metadata_field,
    write_gguf,
)
from paceline.plan import resolve
from paceline.prepare.training.dataset import TrainingBatch, make_batch
from paceline.prepare.training.evaluate import Acceptance, walk
from paceline.prepare.training.features import Recorded, TrainingSequence
from paceline.prepare.training.gguf_files import llama_names, read_shape, tensor, written
from paceline.prepare.training.options import TrainingOptions, mtp_file
from paceline.prepare.training.recipes import Eagle3Recipe
from paceline.settings import LoadOptions
from paceline.speculative.errors import ModelError, UsageError
from paceline.system.atomic import write_json, write_output

# llama.cpp's names of the weights of MtpHead.
NAMES = {
    "fc": "nextn.eh_proj",
    "enorm": "nextn.enorm",
    "hnorm": "nextn.hnorm",
    "norm": "nextn.shared_head_norm",
    **{f"layers.0.{name}": part for name, part in LLAMA_LAYER_NAMES.items()},
}
QK_NORMS = {f"layers.0.self_attn.{name}_norm": f"attn_{name}_norm" for name in "qk"}
POST_NORM = {"layers.0.post_attention_layernorm": "post_attention_norm"}
ARCHITECTURES = {"mimo2": NAMES, "qwen35": NAMES | QK_NORMS | POST_NORM}
QKV = ("attn_q", "attn_k", "attn_v")
# In qwen35, the rows of a head's gate follow its queries'.
QUERIES, GATE = "layers.0.self_attn.q_proj", "layers.0.self_attn.gate_proj"
WINDOW = 1 << 20  # of the MTP layer's attention in a file of a Llama: more than any text has
# What a `mimo2` says of its layers, but for the window.
KEYS = {
    *("block_count", "context_length", "embedding_length", "feed_forward_length", "vocab_size"),
    *("attention.head_count", "attention.head_count_kv", "attention.key_length", "attention.value_length"),
    *("attention.layer_norm_rms_epsilon", "rope.dimension_count", "rope.freq_base"),
}


def load_trainable(models: LoadOptions, options: TrainingOptions) -> LLM:
    """Load the model, or a Llama as `mimo2` from the run's folder, with the hidden states that its MTP layer
    reads. Raises UsageError or ModelError for a model that cannot have such a layer."""
    load = resolve(models)
    traits = header_traits(load.target)
    file = GGUFFile(load.target) if traits.backend == LLAMA_CPP else None
    if file is not None and file.number("split.count") > 1:
        raise UsageError(f"{file.path}: is in several parts: join them first (llama-gguf-split --merge)")
    if file is not None and file.text("general.architecture") == "llama":
        out = options.folder / f"{load.target.stem}.gguf"
        if not out.exists():
            options.folder.mkdir(parents=True, exist_ok=True)
            add_mtp(file, out)
        load = resolve(replace(models, target=out))
    else:
        require_fit(f"{load.target}: an MTP layer", MTP, traits)
        read_mtp(GGUFFile(load.target))  # or raise
    return load_plan(replace(load, settings={**load.settings, "mtp": True}))


def add_mtp(file: GGUFFile, out: Path) -> None:
    """Write a Llama's file as a `mimo2` with an MTP layer, which begins as the last of its layers.
    Raises ModelError."""
    shape, names, n = read_shape(file), llama_names(file), file.number("llama.block_count")
    fields = dict[str, bytes]()
    for key, raw in file.fields.items():
        if key.startswith("llama.") and key.removeprefix("llama.") not in KEYS:
            raise ModelError(f"{file.path}: no MTP layer can be added to a Llama with {key}")
        name = key.replace("llama.", "mimo2.")
        fields[name] = struct.pack("<Q", len(name)) + name.encode() + raw[8 + len(key) :]
    changed: dict[str, Any] = {
        "general.architecture": "mimo2",
        "mimo2.block_count": n + 1,
        "mimo2.nextn_predict_layers": 1,
        "mimo2.expert_feed_forward_length": 0,
        "mimo2.attention.sliding_window": WINDOW,  # llama.cpp's graph wants a layer with a window
        "mimo2.rope.freq_base_swa": shape.rope_theta,
        "mimo2.attention.sliding_window_pattern": [0] * n + [1],
    }
    fields |= {key: metadata_field(key, value) for key, value in changed.items()}
    parts, weights = list[TensorToWrite](), dict[str, Any]()
    for name in names:
        part = copy_part(file, file.tensors[gguf_name(name, EAGLE3)])
        if name.endswith("proj.weight"):
            rows = file.weights(file.tensors[part.name]).reshape(part.dims[1], -1)
            rows = np.ascontiguousarray(reordered(name, rows, shape, (-1, 2)))
            part = replace(part, blocks=partial(iter, [rows]))
        parts.append(part)
    matrix = "output.weight" if "output.weight" in file.tensors else "token_embd.weight"
    parts.append(replace(copy_part(file, file.tensors[matrix]), name="output.weight"))
    for name in LLAMA_LAYER_NAMES:
        rows = tensor(file, gguf_name(f"layers.{n - 1}.{name}.weight", EAGLE3))
        weights[f"layers.0.{name}"] = reordered(f"{name}.weight", rows, shape, (-1, 2))
    ones, eye = np.ones(shape.hidden, np.float32), np.eye(shape.hidden, dtype=np.float32)
    weights |= {"fc": np.concatenate([eye, eye], 1), "enorm": ones, "hnorm": ones}
    weights["norm"] = tensor(file, "output_norm.weight")
    parts += MtpLayer("mimo2", f"blk.{n}.", shape, weights).parts()
    with write_output(out) as opened:
        write_gguf(opened, [*fields.values()], parts, file.alignment)


@dataclass(frozen=True)
class MtpLayer:
    """The tensors of a file whose names begin with `stem`.
    weights: in float32, under the names of MtpHead without ".weight"."""

    arch: str
    stem: str
    shape: LayerShape
    weights: Weights

    def parts(self) -> list[TensorToWrite]:
        names, weights = ARCHITECTURES[self.arch], dict(self.weights)
        if (gate := weights.pop(GATE, None)) is not None:
            heads = (self.shape.heads, self.shape.head_dim, -1)
            both = np.concatenate([weights[QUERIES].reshape(heads), gate.reshape(heads)], 1)
            weights[QUERIES] = both.reshape(-1, self.shape.hidden)
        found = {names[name]: np.asarray(value) for name, value in weights.items()}
        if self.arch == "mimo2":
            found["attn_qkv"] = np.concatenate([found.pop(name) for name in QKV])
        return [written(f"{self.stem}{name}.weight", value) for name, value in found.items()]


def read_mtp(file: GGUFFile) -> MtpLayer:
    """Read the MTP layer of a file. Raises ModelError for another kind of layer."""
    arch = file.text("general.architecture")
    names, stem = ARCHITECTURES.get(arch), f"blk.{file.number(f'{arch}.block_count') - 1}."
    is_whole = arch != "mimo2" or file.number("mimo2.attention.sliding_window") >= WINDOW
    if names is None or file.number(f"{arch}.nextn_predict_layers") != 1 or not is_whole:
        raise ModelError(
            f"{file.path}: a model can be trained that has one MTP layer as in {' or '.join(ARCHITECTURES)}, "
            f"or a llama; this {arch} has another kind, or several"
        )
    shape = replace(read_shape(file), rotary=file.number(f"{arch}.rope.dimension_count"))
    found = [name for name in file.tensors if name.startswith(stem)]
    parts = {name.removeprefix(stem).removesuffix(".weight"): tensor(file, name) for name in found}
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    if (fused := parts.pop("attn_qkv", None)) is not None:
        parts |= zip(QKV, np.split(fused, [queries, queries + keys]), strict=True)
    parts.setdefault("nextn.shared_head_norm", tensor(file, "output_norm.weight"))
    if others := set(parts) ^ set(names.values()):
        raise ModelError(
            f"{file.path}: its MTP layer cannot be trained: {sorted(others)[0]} is missing or unknown"
        )
    weights = {name: parts[part] for name, part in names.items()}
    if arch == "qwen35":
        both = weights[QUERIES].reshape(shape.heads, 2, -1)
        weights[QUERIES], weights[GATE] = (both[:, i].reshape(queries, -1) for i in range(2))
    return MtpLayer(arch, stem, shape, weights)


class MtpRecipe(Eagle3Recipe):
    """Training-time test as EAGLE-3's, with the target's output matrix."""

    kind, network_class, reads_three, drafts_all = "mtp", MtpHead, False, True
    frozen = frozenset({"lm_head.weight"})
    evaluates_first, norm_output = True, False
    layer: MtpLayer

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.layer_ids = (self.target.layers + 1,)  # see backends/llama_cpp/mtp.py

    @property
    def config(self) -> HeadConfig:
        return replace(super().config, norm_output=self.norm_output)

    def begin(self, target: Path, base: Path | None) -> None:
        self.layer = read_mtp(GGUFFile(target))
        self.shape, self.norm_output = self.layer.shape, self.layer.arch == "qwen35"

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        own = {f"{name}.weight": torch.tensor(value) for name, value in self.layer.weights.items()}
        return own | {"lm_head.weight": self.rows_of(output)}

    def first_rows(self, network: EagleHead, batch: TrainingBatch, embed: Any, caches: Any) -> Any:
        """A row of each text's first token without a state: see MtpSession."""
        document = batch.document
        starts = (document.diff(prepend=document[:1] - 1) != 0).nonzero()[:, 0]
        no_state = torch.zeros_like(network.fuse(batch.hidden[starts]))
        own = torch.eye(len(starts), dtype=torch.bool, device=document.device)
        network.forward(embed(batch.tokens[starts]), no_state, starts.cpu().numpy() - 1, caches, own)
        return document[:, None] == document[starts][None]

    def acceptance(self, weights: Weights, embedding: Any, sequences: Recorded, n_draft: int) -> Acceptance:
        """See Recipe. A chain is right as long as each guess behind the true text is."""
        network = self.network({name: torch.from_numpy(value) for name, value in weights.items()})
        table = torch.from_numpy(embedding)

        def right_tokens(sequence: TrainingSequence) -> NDArray[np.int64]:
            batch = make_batch([sequence], self.vocabulary, "cpu", len(sequence.tokens))
            rows = torch.arange(sequence.first_answer - 1, len(batch) - 2)
            text = torch.cat([batch.tokens, torch.full((n_draft,), -1)])
            lengths, right = np.zeros(len(rows), np.int64), torch.ones(len(rows), dtype=torch.bool)
            with torch.inference_mode():
                outputs = self.steps(network, batch, lambda tokens: table[tokens], rows, n_draft)
                for depth, output in enumerate(outputs):
                    some = right.nonzero()[:, 0]
                    right[some] = network.logits(output[some]).argmax(1) == text[rows[some] + 2 + depth]
                    lengths += right.numpy()
                    if not right.any():
                        break
            return np.append(0, lengths)  # nothing is drafted at the answer's first token

        drafts = ((sequence, right_tokens(sequence).item) for sequence in sequences)
        return walk(drafts, n_draft, reads_target=True)

    def path(self, folder: Path, target: Any) -> Path:
        return mtp_file(folder)

    def write(self, folder: Path, target: Any, weights: Weights, card: Mapping[str, Any]) -> None:
        """Write the target's file with these weights of its layer. Raises OSError."""
        file, own = GGUFFile(target.path), {name.removesuffix(".weight"): w for name, w in weights.items()}
        del own["lm_head"]
        others = [part for name, part in file.tensors.items() if not name.startswith(self.layer.stem)]
        parts = [*(copy_part(file, part) for part in others), *replace(self.layer, weights=own).parts()]
        with write_output(mtp_file(folder)) as out:
            write_gguf(out, [*file.fields.values()], parts, file.alignment)
        write_json(folder / CARD, card)
