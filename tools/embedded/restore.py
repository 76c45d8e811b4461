"""Begin a training run from shipped GGUF files: `python -m tools.embedded.restore --out runs/zoo`.

The inverse of `export.py`: tokenizer and weights come back (as Q8_0 and F16 kept them), the
optimisers begin anew. `train.py` then goes on from there.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from paceline.models.zoo import MODELS
from paceline.system.atomic import atomic_write
from tools.embedded.network import DRAFT, TARGET, Shape

Array = np.ndarray[Any, Any]


def halves(weight: Array, heads: int) -> Array:
    """Undo `export.interleave`: rotary pairs of neighbours back to (half, half)."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def weights_of(file: Path, shape: Shape) -> dict[str, Array]:
    """State-dict name -> float32 array, of a file that `export` wrote."""
    import gguf

    out: dict[str, Array] = {}
    for tensor in gguf.GGUFReader(file).tensors:
        array = np.array(gguf.quants.dequantize(tensor.data, tensor.tensor_type), np.float32)
        if "attn_q" in tensor.name or "attn_k" in tensor.name:
            array = halves(array, shape.heads if "attn_q" in tensor.name else shape.kv_heads)
        out[tensor.name] = np.ascontiguousarray(array)
    return out


def tokenizer_of(file: Path) -> Any:
    """The file's byte-level BPE, of the kinds `gpt-2` and `smollm`, as a `tokenizers.Tokenizer`."""
    import gguf
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    fields = gguf.GGUFReader(file).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    types = fields["tokenizer.ggml.token_type"].contents()
    merges = [tuple(merge.split(" ")) for merge in fields["tokenizer.ggml.merges"].contents()]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    words: Any = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if fields["tokenizer.ggml.pre"].contents() == "smollm":  # each digit by itself
        words = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), words])
    tokenizer.pre_tokenizer = words
    tokenizer.decoder = decoders.ByteLevel()
    control = [token for token, kind in zip(tokens, types, strict=True) if kind == gguf.TokenType.CONTROL]
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in control])
    return tokenizer


def begin(out: Path, tokenizer: str, weights: dict[str, Any]) -> None:
    """Write a run's `tokenizer.json` and first `checkpoint.pt` into `out`; refuses to replace a run.

    `weights` has a state dict for "target" and one for "draft"; the optimisers begin anew.
    """
    import torch

    if out.exists() and any(out.iterdir()):
        raise SystemExit(f"{out}: holds files already; name a new folder")
    out.mkdir(parents=True, exist_ok=True)
    with atomic_write(out / "tokenizer.json") as part:
        part.write_text(tokenizer, "utf-8")
    with atomic_write(out / "checkpoint.pt") as part:
        torch.save({**weights, "optimizers": [], "seconds": 0.0, "tokens": 0, "steps": 0}, part)


def restore(files: Path, out: Path) -> None:
    """Begin a run in `out` with the weights and the tokenizer of `files`; refuses to replace a run."""
    import torch

    state: dict[str, Any] = {}
    for role, shape in (("target", TARGET), ("draft", DRAFT)):
        arrays = weights_of(files / f"paceline-{role}.gguf", shape)
        state[role] = {name: torch.from_numpy(array) for name, array in arrays.items()}
    begin(out, tokenizer_of(files / "paceline-target.gguf").to_str(pretty=True), state)


def main() -> None:
    parser = argparse.ArgumentParser(description="GGUF to checkpoint.")
    parser.add_argument("--files", type=Path, default=MODELS, help="the folder of the two GGUF files")
    parser.add_argument("--out", type=Path, required=True, help="the folder of the new run")
    args = parser.parse_args()
    restore(args.files, args.out)


if __name__ == "__main__":
    main()
