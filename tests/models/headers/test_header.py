from __future__ import annotations

import os
import re
import shutil
import socket
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gguf_architectures import write_architecture
from gguf_files import write_llama, write_parts
from paceline.fits import ABSENT, NO_GRAPH, STRIPPED, USABLE
from paceline.models import zoo
from paceline.models.headers.facts import ATTENTION, HYBRID, RECURRENT
from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.header import kv_bytes_per_token, read_gguf, read_model_facts, read_parts
from paceline.speculative.errors import ModelError
from raw_gguf import ARCH, ARRAY, BOOL, F32, I32, STRING, U32, U64, array, key, text
from raw_gguf import gguf as raw

FOURTH = [1, 1, 1, 0] * 12


def number(name: str, value: int) -> bytes:
    return key(name, U32, struct.pack("<I", value))


def word(name: str, value: str) -> bytes:
    return key(name, STRING, text(value))


def tokens(*texts: str | bytes) -> bytes:
    return key("tokenizer.ggml.tokens", ARRAY, array(STRING, len(texts), b"".join(map(text, texts))))


GPT2 = [ARCH, word("tokenizer.ggml.model", "gpt2")]


def write(path: Path, *keys: bytes) -> Path:
    path.write_bytes(raw([*keys]))
    return path


def test_the_embedded_target() -> None:
    facts = read_gguf(zoo.target_path())
    assert (facts.path, facts.format, facts.name) == (zoo.target_path(), "gguf", "Paceline zoo target")
    assert (facts.arch, facts.family, facts.quantisation) == ("llama", "paceline-zoo", "Q8_0")
    assert (facts.parameters, facts.size) == (12_587_904, zoo.target_path().stat().st_size)
    assert (facts.n_ctx, facts.n_layers, facts.n_vocab, facts.kv_bytes) == (2048, 6, 8192, 3072)
    assert (facts.experts, facts.experts_used, facts.memory, facts.sliding_window) == (0, 0, ATTENTION, 0)
    tokenizer = facts.tokenizer
    assert tokenizer is not None
    assert (tokenizer.kind, tokenizer.pre) == ("BPE", "gpt-2")
    assert (tokenizer.add_bos, tokenizer.add_eos) == (False, None)
    assert len(tokenizer.texts) == len(tokenizer.types) == 8192
    assert tokenizer.special["eos"] in tokenizer.ends


@pytest.mark.parametrize(
    ("arch", "memory"), [("llama", ATTENTION), ("rwkv7", RECURRENT), ("falcon-h1", HYBRID)]
)
def test_architecture_decides_the_kind_of_memory(tmp_path: Path, arch: str, memory: str) -> None:
    keys = [word("general.architecture", arch), number(f"{arch}.block_count", 2)]
    keys += [number(f"{arch}.embedding_length", 64), number(f"{arch}.attention.head_count", 4)]
    facts = read_gguf(write(tmp_path / "m.gguf", *keys))
    assert facts.memory == memory
    assert (facts.kv_bytes == 0) == (memory == RECURRENT)


@pytest.mark.parametrize(
    ("said", "pooling"),
    [
        (number("llama.pooling_type", 0), 0),
        (number("llama.pooling_type", 3), 3),
        (number("llama.pooling_type", 4), 4),
        (key("llama.attention.causal", BOOL, b"\0"), 1),
        (key("llama.attention.causal", BOOL, b"\1"), 0),
    ],
    ids=["none", "last", "rank", "both ways", "causal"],
)
def test_whether_states_are_pooled_or_see_what_follows(tmp_path: Path, said: bytes, pooling: int) -> None:
    assert read_gguf(write(tmp_path / "m.gguf", ARCH, said)).pooling == pooling


@pytest.mark.parametrize(
    ("model", "kind"),
    [("llama", "SPM"), ("gemma4", "BPE"), ("bert", "WPM"), ("t5", "UGM"), ("plamo2", "PLaMo-2")],
)
def test_kinds_of_tokenizers(tmp_path: Path, model: str, kind: str) -> None:
    ids = [number("tokenizer.ggml.prefix_token_id", 0), number("tokenizer.ggml.fim_pre_token_id", 1)]
    ids += [number("tokenizer.ggml.eos_token_id", 3), number("tokenizer.ggml.seperator_token_id", 2)]
    keys = [ARCH, word("tokenizer.ggml.model", model), tokens("a", b"\xff", ""), *ids]
    tokenizer = read_gguf(write(tmp_path / "m.gguf", *keys)).tokenizer
    assert tokenizer is not None
    assert (tokenizer.kind, list(tokenizer.texts)) == (kind, [b"a", b"\xff", b""])
    assert tokenizer.special == {"fim_pre": 1, "sep": 2}  # 3 is no token's; the deprecated word gives way


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ([word("general.architecture", "llama\n")], "names no architecture"),
        ([word("general.architecture", "llama" * 99)], "names no architecture"),
        ([number("general.architecture", 1)], "'general.architecture' is not a text"),
        ([ARCH, word("llama.context_length", "8192")], "'llama.context_length' is not a whole number"),
        ([ARCH, key("llama.context_length", F32, struct.pack("<f", float("nan")))], "is not a whole number"),
        ([ARCH, key("llama.block_count", I32, struct.pack("<i", -1))], "is not a whole number of at least 0"),
        ([*GPT2, key("tokenizer.ggml.tokens", ARRAY, array(U64, 1, bytes(8)))], "is not a list of texts"),
        ([*GPT2, number("tokenizer.ggml.add_bos_token", 1)], "is not true or false"),
    ],
)
def test_value_of_a_wrong_type_is_refused(tmp_path: Path, keys: list[bytes], reason: str) -> None:
    path = write(tmp_path / "m.gguf", *keys)
    with pytest.raises(ModelError, match=reason):
        read_gguf(path)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture], database=None
)
@given(data=st.data())
def test_changed_bytes_give_facts_or_a_model_error(tmp_path: Path, data: st.DataObject) -> None:
    path = write_llama(tmp_path / "m.gguf", vocab_only=True, experts=2)
    content = bytearray(path.read_bytes())
    keys = [found.start() for found in re.finditer(b"llama\\.|tokeni|genera", content)]
    for _ in range(data.draw(st.integers(1, 3))):  # behind a name is its type, and then the value
        at = data.draw(st.sampled_from(keys)) + data.draw(st.integers(0, 60))
        new = data.draw(st.binary(min_size=1, max_size=8) | st.integers(0, 12).map(lambda n: bytes([n])))
        content[at : at + len(new)] = new
    path.write_bytes(content)
    for tokens in (True, False):
        try:
            facts = read_gguf(path, tokens=tokens)
        except ModelError as error:
            assert str(error).startswith(str(path))  # noqa: PT017  # either is right
        else:
            assert facts.arch.isprintable()
            assert min(facts.n_ctx, facts.n_layers, facts.kv_bytes) >= 0


def test_any_part_tells_the_whole(tmp_path: Path) -> None:
    paths = write_parts(tmp_path)
    facts = [read_gguf(path) for path in paths]
    assert facts[0] == facts[1] == facts[2]
    assert facts[0].files == tuple(paths)
    assert facts[0].parameters == 6 * 32
    assert facts[0].size == sum(path.stat().st_size for path in paths)
    assert (facts[0].name, facts[0].family, facts[0].n_layers) == ("Llama 3.2 3B", "llama-3.2", 5)


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first, second, third = write_parts(tmp_path)
    second.unlink()
    for path in (first, third):
        with pytest.raises(ModelError, match=rf"{second.name}: is missing, one of 3 parts"):
            read_gguf(path)


def test_parts_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    first, second, _ = write_parts(tmp_path)
    shutil.copy(first, second)
    with pytest.raises(ModelError, match=rf"{second.name}: is not part 2 of 3"):
        read_gguf(first)
    alone = first.rename(tmp_path / "renamed.gguf")
    with pytest.raises(ModelError, match=r"is one of 3 parts, and llama\.cpp finds them by their names"):
        read_gguf(alone)


@pytest.mark.skipif(os.name == "nt", reason="there are none")
def test_pipes_sockets_and_links_in_circles_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # names of sockets must be short
    os.mkfifo("pipe.gguf")
    Path("loop.gguf").symlink_to("loop.gguf")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("socket.gguf")
        for name in ("pipe.gguf", "socket.gguf", "loop.gguf", "/dev/zero", "gone.gguf"):
            with pytest.raises(ModelError, match=f"{name}: (is neither|cannot be read)"):
                read_model_facts(Path(name))


@pytest.mark.parametrize(
    ("arch", "dimensions", "expected"),
    [
        # Llama 3.2 1B: 16 layers x 8 heads x (64 + 64) x 2 bytes.
        ("llama", (16, 2048, [32], [8]), 32_768),
        # Without head_count_kv every head has its own.
        ("gpt2", (12, 768, [12], []), 36_864),
        # DeepSeek V3: 61 layers of 512 + 64, values are part of it.
        ("deepseek2", (61, 7168, [128], [1], 576, 512, {"attention.key_length_mla": 192}), 70_272),
        # One number a layer: where there are none, there is no attention.
        ("nemotron_h", (4, 64, [8, 8, 8, 8], [0, 2, 0, 4], 8, 8), 192),
        # Qwen3-Next: every fourth layer attends; by a list, by the interval, or known by name.
        ("qwen3next", (48, 2048, [16], [2], 256, 256, {"attention.recurrent_layers": FOURTH}), 24_576),
        ("else", (48, 2048, [16], [2], 256, 256, {"full_attention_interval": 4}), 24_576),
        ("qwen3next", (48, 2048, [16], [2], 256, 256), 24_576),
        ("llama", (16, 2048, [], [8]), 0),
        ("llama", (1 << 40, 2048, [1], [8]), 0),
    ],
)  # fmt: skip
def test_bytes_of_a_token_in_the_kv_cache(arch: str, dimensions: tuple[Any, ...], expected: int) -> None:
    names = ("block_count", "embedding_length", "attention.head_count", "attention.head_count_kv")
    more = dimensions[-1] if isinstance(dimensions[-1], dict) else {}
    known = (
        dict(zip((*names, "attention.key_length", "attention.value_length"), dimensions, strict=False)) | more
    )
    values = {f"{arch}.{name}": np.array(v, int) if isinstance(v, list) else v for name, v in known.items()}
    file = GGUFFile(zoo.draft_path())
    file.values = values
    assert kv_bytes_per_token(file, arch) == expected


@pytest.mark.parametrize(("heads", "state"), [(1, USABLE), (0, STRIPPED)])
def test_layers_for_multi_token_prediction_and_what_a_step_of_them_reads(
    tmp_path: Path, heads: int, state: str
) -> None:
    path = write_architecture(tmp_path / "m.gguf", "qwen35", next_token_heads=heads)
    facts = read_model_facts(path)
    assert (facts.mtp, facts.traits.mtp) == (state, state)
    sizes = {tensor.name: tensor.length for tensor in read_parts(path, tokens=False)[0].tensors.values()}
    own = sum(n for name, n in sizes.items() if name.startswith("blk.2."))
    output = sizes["output.weight"]
    trunk = sum(sizes.values()) - own - sizes["token_embd.weight"]
    assert facts.mtp_cost == (pytest.approx((own + output) / trunk) if heads else 0.0)


def test_what_a_header_says_of_layers_that_no_graph_computes(tmp_path: Path) -> None:
    plain = write_llama(tmp_path / "plain.gguf")
    assert read_model_facts(plain).mtp == ABSENT
    keys = {"llama.nextn_predict_layers": 1}
    assert read_model_facts(write_llama(tmp_path / "nextn.gguf", metadata=keys)).mtp == NO_GRAPH
