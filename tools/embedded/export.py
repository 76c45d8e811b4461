"""Write a training checkpoint as GGUF: `python -m tools.embedded.export --run runs/zoo`."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from paceline.models.zoo import MODELS
from paceline.system.atomic import atomic_write
from tools.embedded.corpus import END
from tools.embedded.network import DRAFT, TARGET, Shape

Array = np.ndarray[Any, Any]
CARDS = {
    "target": (
        "Paceline zoo target",
        "Q8_0",
        "Python, JSON, SQL and documentation; a test model, not an assistant",
    ),
    "draft": ("Paceline zoo draft", "F16", "Distilled from the zoo's target, to draft for it"),
}


def interleave(weight: Array, heads: int) -> Array:
    """Reorder the rows of a query or key matrix from (half, half) rotary pairs to llama.cpp's neighbours."""
    rows, columns = weight.shape
    return weight.reshape(heads, 2, rows // heads // 2, columns).swapaxes(1, 2).reshape(rows, columns)


def tensors_of(state: dict[str, Any], shape: Shape) -> dict[str, Array]:
    """GGUF tensor name -> float32 array, from a state dict whose names are GGUF's already."""
    out: dict[str, Array] = {}
    for name, value in state.items():
        array = value.float().numpy()
        if "attn_q" in name or "attn_k" in name:
            array = interleave(array, shape.heads if "attn_q" in name else shape.kv_heads)
        out[name] = np.ascontiguousarray(array)
    return out


def add_tokenizer(writer: Any, path: Path) -> None:
    """Tokens, merges and special ids of a `tokenizers` file; `<|endoftext|>` starts, ends and pads."""
    import gguf

    model = json.loads(path.read_text("utf-8"))["model"]
    tokens = sorted(model["vocab"], key=model["vocab"].__getitem__)
    control, normal = gguf.TokenType.CONTROL, gguf.TokenType.NORMAL
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in model["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([control if token == END else normal for token in tokens])
    writer.add_token_merges(merges)
    end = model["vocab"][END]
    writer.add_bos_token_id(end)
    writer.add_eos_token_id(end)
    writer.add_pad_token_id(end)
    # training windows start anywhere in a document, so a prompt needs no start token
    writer.add_add_bos_token(False)


def write_gguf(
    out: Path,
    tensors: dict[str, Array],
    shape: Shape,
    name: str,
    description: str,
    tokenizer: Callable[[Any], object],
    ftype: str = "F32",
) -> None:
    """Write float32 tensors of a Llama with the metadata that llama.cpp and transformers read."""
    numbers = {
        "context_length": shape.context, "embedding_length": shape.width, "block_count": shape.blocks,
        "feed_forward_length": shape.feed_forward, "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads, "attention.key_length": shape.head_dim,
        "attention.value_length": shape.head_dim, "vocab_size": shape.vocab,
        "rope.dimension_count": shape.head_dim, "rope.freq_base": shape.rope_base,
        "attention.layer_norm_rms_epsilon": shape.eps,
    }  # fmt: skip
    write_model(out, "llama", numbers, tensors, name, description, tokenizer, ftype)


def write_model(
    out: Path,
    arch: str,
    numbers: Mapping[str, int | float | list[int]],
    tensors: dict[str, Array],
    name: str,
    description: str,
    tokenizer: Callable[[Any], object],
    ftype: str = "F32",
    kept: Sequence[str] = (),
) -> None:
    """Write float32 tensors of an architecture, and its keys without the architecture's name.

    tokenizer: adds its own to a gguf.GGUFWriter. ftype: of the matrices, one that gguf can write.
    kept: parts of the names of tensors that stay F32, as those of a single row do.
    """
    import gguf

    kind = gguf.GGMLQuantizationType[ftype]
    writer = gguf.GGUFWriter(str(out), arch)
    writer.add_name(name)
    writer.add_description(description)
    writer.add_license("apache-2.0")
    writer.add_file_type(gguf.LlamaFileType[f"MOSTLY_{ftype}" if ftype != "F32" else "ALL_F32"])
    for key, number in numbers.items():
        types = {int: writer.add_uint32, float: writer.add_float32, list: writer.add_array}
        types[type(number)](f"{arch}.{key}", number)
    if ftype not in ("F32", "F16", "BF16"):
        writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    tokenizer(writer)
    for key, array in tensors.items():
        if array.ndim > 1 and not any(part in key for part in kept):
            writer.add_tensor(key, gguf.quants.quantize(array, kind), raw_dtype=kind)
        else:
            writer.add_tensor(key, array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def export(run: Path, out: Path) -> list[Path]:
    """Write `paceline-target.gguf` and `paceline-draft.gguf` from the run's last checkpoint into `out`."""
    import torch

    saved = torch.load(run / "checkpoint.pt", map_location="cpu")
    out.mkdir(parents=True, exist_ok=True)
    written = []
    for role, shape in (("target", TARGET), ("draft", DRAFT)):
        file = out / f"paceline-{role}.gguf"
        with atomic_write(file) as part:
            name, ftype, description = CARDS[role]
            tokenizer = partial(add_tokenizer, path=run / "tokenizer.json")
            write_gguf(part, tensors_of(saved[role], shape), shape, name, description, tokenizer, ftype)
        written.append(file)
    return written


def main() -> None:
    parser = argparse.ArgumentParser(description="Checkpoint to GGUF.")
    parser.add_argument("--run", type=Path, required=True, help="the folder that training wrote to")
    parser.add_argument("--out", type=Path, default=MODELS)
    args = parser.parse_args()
    for path in export(args.run, args.out):
        print(f"{path}: {path.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
