"""Inflation keeps the function: same greedy text, the size asked for, no half-written file."""

from __future__ import annotations

import struct
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from command_line import Done
from gguf_architectures import write_architecture
from gguf_files import convert, rewritten, write_llama
from paceline.models.headers import gguf_writer
from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.gguf_writer import TensorToWrite, metadata_field
from paceline.models.zoo import target_path
from paceline.speculative.errors import ModelError
from raw_gguf import ARRAY, U32, array, key
from tools.inflate import inflate, main, write_widened
from tools.layout import Layout, choose_layout, read_layout

Capture = pytest.CaptureFixture[str]
SOURCE = Layout(384, 6, 6, 2, 64, 1024, 8192, 1e-5)
PROMPT = b"import os\n\n\ndef read_lines(path):\n"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("llama_cpp")
    return convert(target_path(), tmp_path_factory.mktemp("plain") / "plain.gguf", "F16")


@pytest.fixture(scope="module")
def inflated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("llama_cpp")
    out = tmp_path_factory.mktemp("inflated") / "60m.gguf"
    inflate(target_path(), out, 60_000_000)
    return out


def greedy(path: Path, count: int = 48) -> list[int]:
    import llama_cpp

    model = llama_cpp.Llama(str(path), n_ctx=256, n_threads=1, n_threads_batch=1, verbose=False)
    prompt = model.tokenize(PROMPT, add_bos=False)
    stream: Any = model.generate(prompt, top_k=1, temp=0.0, repeat_penalty=1.0)
    return [token for token, _ in zip(stream, range(count), strict=False)]


@pytest.mark.parametrize("parameters", [60e6, 300e6, 2e9])
def test_layout_comes_within_five_percent_and_contains_the_source(parameters: float) -> None:
    layout = choose_layout(SOURCE, int(parameters))
    assert abs(layout.parameters / parameters - 1) < 0.05
    assert layout.heads // layout.kv_heads == SOURCE.heads // SOURCE.kv_heads
    assert min(layout.width - 384, layout.blocks - 6, layout.feed_forward - 1024) >= 0
    assert layout.width % 32 == layout.feed_forward % 32 == 0


def test_inflated_model_continues_with_the_same_greedy_text(plain: Path, inflated: Path) -> None:
    assert greedy(plain) == greedy(inflated)


def run(capsys: Capture, *args: str | Path) -> Done:
    return Done(main([*map(str, args)]), *capsys.readouterr())


@pytest.mark.slow
@pytest.mark.parametrize("ftype", ["Q4_0", "BF16"])
def test_other_types_load_and_generate(capsys: Capture, tmp_path: Path, ftype: str) -> None:
    pytest.importorskip("llama_cpp")
    out = tmp_path / "model.gguf"
    done = run(capsys, out, "--params", "20M", "--type", ftype)
    assert (done.code, done.out) == (0, f"{out}\n")
    assert done.err.endswith(f"M parameters, {out.stat().st_size / 1e6:,.0f} MB\n")
    assert len(greedy(out, 8)) == 8
    assert [path.name for path in tmp_path.iterdir()] == ["model.gguf"]


@pytest.mark.parametrize("arch", ["mamba2", "granitehybrid", "qwen3moe", "qwen35"])
def test_recurrent_layers_and_experts_are_widened_too(tmp_path: Path, arch: str) -> None:
    pytest.importorskip("llama_cpp")
    source = write_architecture(tmp_path / "source.gguf", arch)
    file = GGUFFile(source)
    layout = read_layout(file)
    mamba = layout.mamba.widened(2) if any(layout.recurrent) else layout.mamba
    larger = replace(layout, width=128, blocks=4, mamba=mamba)
    if layout.heads:
        larger = replace(larger, heads=8, kv_heads=4, feed_forward=192)
    write_widened(file, layout, larger, tmp_path / "larger.gguf", "F32")
    said = greedy(source, 12)
    assert len(set(said)) > 4
    assert greedy(tmp_path / "larger.gguf", 12) == said
    found = read_layout(GGUFFile(tmp_path / "larger.gguf"))
    assert found.parameters == larger.parameters
    assert [found.is_recurrent(i) for i in range(4)] == [larger.is_recurrent(i) for i in range(4)]
    wanted = 12 * layout.parameters
    assert abs(choose_layout(layout, wanted).parameters / wanted - 1) < 0.05


@pytest.mark.parametrize("arch", ["qwen35", "mimo2"])
def test_a_block_that_guesses_further_tokens_is_widened_too(tmp_path: Path, arch: str) -> None:
    pytest.importorskip("llama_cpp")
    from mtp_context import MTPContext

    source = tmp_path / "source.gguf"
    if arch == "mimo2":
        pytest.importorskip("torch")
        from paceline.prepare.training.mtp import add_mtp

        add_mtp(GGUFFile(write_llama(tmp_path / "llama.gguf", spread=0.2)), tmp_path / "added.gguf")
        convert(tmp_path / "added.gguf", source, "F32")
    else:
        write_architecture(source, arch, next_token_heads=1)
    file, out = GGUFFile(source), tmp_path / "larger.gguf"
    layout = read_layout(file)
    assert (layout.blocks, layout.mtp_blocks) == (2, 1)
    larger = replace(
        layout, width=128, blocks=4, heads=8, kv_heads=4, feed_forward=192, mamba=layout.mamba.widened(2)
    )
    write_widened(file, layout, larger, out, "F32")
    assert greedy(out, 12) == greedy(source, 12)
    assert read_layout(GGUFFile(out)).parameters == larger.parameters
    hidden = np.random.default_rng(0).standard_normal((5, 64)).astype(np.float32)
    with closing(MTPContext(source)) as small, closing(MTPContext(out)) as large:
        for tokens, start in (([40, 41, 7, 60, 9], 0), ([11], 5), ([12], 6)):
            logits, state = small.decode(tokens, start, hidden)
            others, padded = large.decode(tokens, start, np.pad(hidden, ((0, 0), (0, 64))))
            assert np.allclose(others, logits, atol=1e-4 * np.abs(logits).max())
            assert np.allclose(padded, np.pad(state, (0, 64)), atol=1e-4)
            hidden = state[None]


Fields = dict[str, bytes]
Parts = dict[str, TensorToWrite]


def constant(name: str, value: float, *dims: int) -> TensorToWrite:
    values = np.full(dims[::-1], value, np.float32)
    return gguf_writer.quantise_part(name, dims, gguf_writer.weight_type("F32"), lambda: iter([values]))


def tie(_fields: Fields, parts: Parts) -> None:
    del parts["output.weight"]


@pytest.mark.parametrize("ftype", ["F32", "Q4_0"])
@pytest.mark.parametrize("change", [tie, None], ids=["tied", "untied"])
def test_whatever_the_source_is_the_same_weights_say_the_same(
    tmp_path: Path, ftype: str, change: Callable[..., None] | None
) -> None:
    """Compare in F32 with a copy of the same weights that is not inflated."""
    pytest.importorskip("llama_cpp")
    source = write_llama(tmp_path / "source.gguf", layers=3, heads=4, chat_template="{{ messages }}")
    if change is not None:
        source = rewritten(source, tmp_path / "changed.gguf", change)
    if ftype != "F32":
        source = convert(source, tmp_path / "small.gguf", ftype)
    file = GGUFFile(source)
    layout = read_layout(file)
    assert layout.tied == (change is tie)
    write_widened(file, layout, layout, tmp_path / "same.gguf", "F32")
    larger = replace(layout, width=96, blocks=5, heads=6, kv_heads=3, feed_forward=192)
    write_widened(file, layout, larger, tmp_path / "larger.gguf", "F32")
    said = greedy(tmp_path / "same.gguf", 12)  # the cache of keys and values is F16: near-ties may swap later
    assert len(set(said)) > 4
    assert greedy(tmp_path / "larger.gguf", 12) == said
    made = gguf.GGUFReader(tmp_path / "larger.gguf")
    assert sum(int(tensor.n_elements) for tensor in made.tensors) == larger.parameters
    found = read_layout(GGUFFile(tmp_path / "larger.gguf"))
    assert found.eps == pytest.approx(larger.eps / 1.5)
    assert replace(found, eps=larger.eps) == larger
    assert made.get_field("tokenizer.chat_template").contents() == "{{ messages }}"


def add_bias(_fields: Fields, parts: Parts) -> None:
    parts["bias"] = constant("blk.0.attn_q.bias", 0, 64)


def lose_embedding(_fields: Fields, parts: Parts) -> None:
    del parts["token_embd.weight"]


def vary_heads(fields: Fields, _parts: Parts) -> None:
    name = "llama.attention.head_count_kv"
    fields[name] = key(name, ARRAY, array(U32, 2, struct.pack("<II", 2, 1)))


def rename(fields: Fields, _parts: Parts) -> None:
    fields["general.architecture"] = metadata_field("general.architecture", "qwen2")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (add_bias, "blk.0.attn_q.bias of 64 weights is missing, or there is no place for it: only"),
        (lose_embedding, "is missing, or there is no place for it"),
        (vary_heads, "needs one positive llama.attention.head_count_kv"),
        (rename, "is a qwen2 model: only these can be inflated"),
    ],
    ids=lambda one: getattr(one, "__name__", ""),
)
def test_other_models_are_refused_in_one_line(
    tmp_path: Path, change: Callable[..., None], words: str
) -> None:
    source = rewritten(write_llama(tmp_path / "llama.gguf"), tmp_path / "source.gguf", change)
    with pytest.raises(ModelError) as caught:
        inflate(source, tmp_path / "out.gguf", 1_000_000)
    assert words in str(caught.value)
    assert str(caught.value).startswith(f"{source}")
    assert not (tmp_path / "out.gguf").exists()


def test_only_a_piece_of_a_tensor_is_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    largest, read = 0, gguf.quants.dequantize

    def watched(data: Any, kind: Any) -> Any:
        nonlocal largest
        found = read(data, kind)
        largest = max(largest, found.shape[0] if found.ndim > 1 else 1)
        return found

    monkeypatch.setattr("tools.inflate.CHUNK_ROWS", 512)
    monkeypatch.setattr(gguf.quants, "dequantize", watched)
    inflate(target_path(), tmp_path / "model.gguf", 20_000_000)
    assert largest == 512  # of the embedding's 8,192 rows


def huge(_fields: Fields, parts: Parts) -> None:
    parts["blk.0.attn_q.weight"] = constant("blk.0.attn_q.weight", 1e6, 64, 64)


def test_weights_beyond_half_precision_are_refused_for_f16_only(tmp_path: Path) -> None:
    source = rewritten(write_llama(tmp_path / "llama.gguf"), tmp_path / "source.gguf", huge)
    with pytest.raises(ModelError, match=r"blk.0.attn_q.weight has weights too large for F16: use BF16"):
        inflate(source, tmp_path / "out.gguf", 1_000_000, "F16")
    assert not (tmp_path / "out.gguf").exists()
    inflate(source, tmp_path / "out.gguf", 1_000_000, "BF16")


@pytest.mark.parametrize(
    ("args", "words"),
    [
        ("", "kept.gguf: exists"),
        ("--params lots", "lots: write a number"),
        ("--type Q8", "did you mean Q8_0?"),
    ],
)
def test_a_refusal_leaves_the_disk_unchanged(capsys: Capture, tmp_path: Path, args: str, words: str) -> None:
    kept = tmp_path / "kept.gguf"
    kept.write_bytes(b"precious")
    run(capsys, tmp_path / "new.gguf" if args else kept, *args.split()).refused(2, words)
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("kept.gguf", b"precious")]
