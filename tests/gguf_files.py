"""GGUF files made for a test: tiny Llama models with seeded random weights, and files that are not usable."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGUFWriter, TokenType
from numpy.typing import NDArray

import raw_gguf
from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.gguf_writer import TensorToWrite, copy_part, write_gguf
from tools.inflate import write_widened
from tools.layout import read_layout


def finish(writer: GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def rewritten(
    source: Path, out: Path, change: Callable[[dict[str, bytes], dict[str, TensorToWrite]], object]
) -> Path:
    """A copy of a GGUF file whose raw fields and tensors `change` may alter."""
    file = GGUFFile(source)
    fields = dict(file.fields)
    parts = {name: copy_part(file, tensor) for name, tensor in file.tensors.items()}
    change(fields, parts)
    write_gguf(out, [*fields.values()], [*parts.values()], file.alignment)
    return out


def copied(
    source: Path,
    out: Path,
    fields: Mapping[str, Any],
    change: Callable[[gguf.ReaderTensor], tuple[NDArray[Any], gguf.GGMLQuantizationType]],
) -> Path:
    """A copy of a GGUF file with other values of some fields, and of its tensors what `change` returns."""
    reader = gguf.GGUFReader(source)
    writer = GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            inner = field.types[-1] if len(field.types) > 1 else None
            writer.add_key_value(key, fields.get(key, field.contents()), field.types[0], inner)
    for tensor in reader.tensors:
        data, kind = change(tensor)
        writer.add_tensor(tensor.name, data, raw_dtype=kind)
    finish(writer)
    return out


def split(source: Path, folder: Path) -> list[Path]:
    """The same model in two parts, as llama-gguf-split writes them."""
    file, paths = GGUFFile(source), [folder / f"m-0000{i + 1}-of-00002.gguf" for i in range(2)]
    names, architecture = list(file.tensors), file.fields["general.architecture"]
    for i, path in enumerate(paths):
        fields = [architecture] if i else [*file.fields.values()]
        for key, kind, number in (("no", "H", i), ("count", "H", 2), ("tensors.count", "i", len(names))):
            fields.append(raw_gguf.key(f"split.{key}", {"H": 2, "i": 5}[kind], struct.pack(kind, number)))
        own = names[len(names) // 2 :] if i else names[: len(names) // 2]
        write_gguf(path, fields, [copy_part(file, file.tensors[name]) for name in own], file.alignment)
    return paths


def convert(source: Path, out: Path, ftype: str) -> Path:
    """A Llama file with another type of weights."""
    file = GGUFFile(source)
    layout = read_layout(file)
    write_widened(file, layout, layout, out, ftype)
    return out


def byte_tokens() -> list[str]:
    """The 256 bytes as byte-level BPE spells them (GPT-2's printable stand-ins)."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    spelled = {b: chr(b) for b in printable}
    spelled |= {b: chr(256 + i) for i, b in enumerate(b for b in range(256) if b not in printable)}
    return [spelled[b] for b in range(256)]


def byte_vocabulary() -> list[str]:
    """The bytes, an end of text and two spaces."""
    return [*byte_tokens(), "<|end|>", "ĠĠ"]


def write_llama(
    path: Path,
    *,
    seed: int = 0,
    extra_tokens: tuple[str, ...] = (),
    added_tokens: tuple[str, ...] = (),
    control_tokens: tuple[str, ...] = (),
    width: int = 64,
    inner: int = 0,
    layers: int = 2,
    heads: int = 4,
    kv_heads: int = 2,
    arch: str = "llama",
    chat_template: str | None = None,
    vocab_only: bool = False,
    metadata: dict[str, Any] | None = None,
    spread: float = 0.5,
    experts: int = 0,
) -> Path:
    """A byte-level model of about 100k parameters; `spread` sets how sharp its predictions are. inner: the
    width of its feed-forward layers, by default twice that of the others.
    added_tokens: marked as their makers' own, as <think> is; control_tokens: as <|end|> is. experts: of a
    mixture, one for each token."""
    tokens = [*byte_vocabulary(), *extra_tokens, *added_tokens, *control_tokens]
    random = np.random.default_rng(seed)
    inner = inner or 2 * width
    writer = GGUFWriter(path, arch)
    writer.add_name("random")
    numbers = {
        "context_length": 512, "embedding_length": width, "block_count": layers, "feed_forward_length": inner,
        "head_count": heads, "head_count_kv": kv_heads, "rope_dimension_count": width // heads,
    }  # fmt: skip
    for key, number in numbers.items():
        getattr(writer, f"add_{key}")(number)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(tokens))
    if experts:
        metadata = {f"{arch}.expert_count": experts, f"{arch}.expert_used_count": 1} | (metadata or {})
    for key, value in (metadata or {}).items():
        {bool: writer.add_bool, int: writer.add_uint32, str: writer.add_string,
         float: writer.add_float32}[type(value)](key, value)  # fmt: skip
    add_bytes(writer, tokens, len(added_tokens), len(control_tokens))
    if chat_template is not None:
        writer.add_chat_template(chat_template)
    if not vocab_only:

        def add(name: str, *shape: int) -> None:
            # Loud values and outputs: what one token of the past says must show in the logits.
            scale = 3 * spread if "attn_v" in name or "attn_output" in name else spread
            values = random.normal(size=shape, scale=scale) if len(shape) > 1 else np.ones(shape)
            writer.add_tensor(name, values.astype(np.float32))

        kv_width = width // heads * kv_heads
        add("token_embd.weight", len(tokens), width)
        add("output_norm.weight", width)
        add("output.weight", len(tokens), width)
        of, each = ("_exps", (experts,)) if experts else ("", ())
        layer: dict[str, tuple[int, ...]] = {
            "attn_norm": (width,), "ffn_norm": (width,), "attn_q": (width, width),
            "attn_k": (kv_width, width), "attn_v": (kv_width, width), "attn_output": (width, width),
            **({"ffn_gate_inp": (experts, width)} if experts else {}), f"ffn_gate{of}": (*each, inner, width),
            f"ffn_up{of}": (*each, inner, width), f"ffn_down{of}": (*each, width, inner),
        }  # fmt: skip
        for i in range(layers):
            for name, shape in layer.items():
                add(f"blk.{i}.{name}.weight", *shape)
    finish(writer)
    return path


def add_bytes(writer: GGUFWriter, tokens: list[str], added: int = 0, controls: int = 0) -> None:
    """A byte-level vocabulary, whose 257th token ends a text; the last so many are the makers' own, and
    control tokens."""
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    normal = len(tokens) - 257 - added - controls
    kinds = [TokenType.NORMAL] * 256 + [TokenType.CONTROL] + [TokenType.NORMAL] * normal
    kinds += [TokenType.USER_DEFINED] * added + [TokenType.CONTROL] * controls
    writer.add_token_types(kinds)
    writer.add_token_merges(["Ġ Ġ"])
    writer.add_bos_token_id(256)
    writer.add_eos_token_id(256)
    writer.add_add_bos_token(False)


def write_parts(folder: Path, count: int = 3, name: str = "big") -> list[Path]:
    """A model in parts, as llama.cpp splits it: the first one has all that is said of the model."""
    paths = [folder / f"{name}-{i + 1:05d}-of-{count:05d}.gguf" for i in range(count)]
    for i, path in enumerate(paths):
        writer = GGUFWriter(path, "llama")
        if i == 0:
            writer.add_name("Llama 3.2 3B")
            writer.add_block_count(5)
        writer.add_uint16("split.no", i)
        writer.add_uint16("split.count", count)
        writer.add_int32("split.tensors.count", 2 * count)
        for j in range(2):
            writer.add_tensor(f"blk.{i}.{j}", np.ones((4, 8), np.float32))
        finish(writer)
    return paths
