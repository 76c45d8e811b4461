from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gguf_architectures import write_architecture
from hub_files import byte_level, write_folder, write_json
from paceline.drafts import header_traits
from paceline.fits import ABSENT, MTP, NO_GRAPH, STRIPPED, USABLE, why_not
from paceline.heads.files import write_safetensors
from paceline.models.headers.facts import ATTENTION, HYBRID, RECURRENT
from paceline.models.headers.hub_folder import arch_of, read_folder, read_weights
from paceline.speculative.errors import ModelError


def facts_of(folder: Path, **config: Any) -> Any:
    return read_folder(write_folder(folder, config), tokens=False)


def test_the_facts_of_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "Qwen2.5-0.5B-Instruct")
    (folder / "model.safetensors").write_bytes(bytes(2000))
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    facts = read_folder(folder)
    assert (facts.path, facts.format, facts.name) == (folder, "hf", "Qwen2.5-0.5B-Instruct")
    names = [file.name for file in facts.files[1:]]
    assert names == ["config.json", "tokenizer.json", "chat_template.jinja", "model.safetensors"]
    assert (facts.arch, facts.family, facts.quantisation) == ("qwen2", "qwen2.5", "BF16")
    assert (facts.parameters, facts.size) == (1000, 2000)
    assert (facts.n_ctx, facts.n_layers, facts.n_vocab) == (32768, 24, 262)
    assert facts.chat_template == "{{ messages }}"
    assert facts.tokenizer is not None
    assert facts.tokenizer.kind == "BPE"


def test_the_text_model_inside_one_for_pictures(tmp_path: Path) -> None:
    inner = {"model_type": "gemma3_text", "num_hidden_layers": 26, "hidden_size": 1152, "sliding_window": 512}
    write_json(tmp_path / "config.json", {"model_type": "gemma3", "text_config": inner, "eos_token_id": 106})
    write_json(tmp_path / "tokenizer.json", byte_level())
    facts = read_folder(tmp_path)
    assert (facts.arch, facts.n_layers, facts.sliding_window) == ("gemma3", 26, 512)
    assert facts.tokenizer is not None
    assert 106 in facts.tokenizer.ends


@pytest.mark.parametrize(
    ("model_type", "arch"),
    [
        *(("llama", "llama"), ("mistral", "llama"), ("qwen3_moe", "qwen3moe"), ("gemma3_text", "gemma3")),
        *(("phi", "phi2"), ("cohere", "command-r"), ("gpt_oss", "gpt-oss"), ("deepseek_v3", "deepseek2")),
        *(("falcon_h1", "falcon-h1"), ("qwen3_next", "qwen3next"), ("nemotron_h", "nemotron_h")),
        *(("gpt_neox", "gptneox"), ("granitemoehybrid", "granitehybrid"), ("somebody_new", "somebody_new")),
    ],
)
def test_architectures_have_llama_cpps_names(model_type: str, arch: str) -> None:
    assert arch_of(model_type) == arch


@pytest.mark.parametrize(
    ("config", "memory"),
    [
        ({}, ATTENTION), ({"model_type": "mamba2"}, RECURRENT), ({"model_type": "zamba2"}, HYBRID),
        ({"model_type": "qwen3_next"}, HYBRID),
        ({"layer_types": ["full_attention", "sliding_attention"]}, ATTENTION),
        ({"layer_types": ["linear_attention", "full_attention"]}, HYBRID),
        ({"layer_types": ["mamba", "mamba"]}, RECURRENT), ({"layer_types": "mamba"}, ATTENTION),
    ],
)  # fmt: skip
def test_config_decides_the_kind_of_memory(tmp_path: Path, config: dict[str, Any], memory: str) -> None:
    assert facts_of(tmp_path, **config).memory == memory


def test_experts_and_windows(tmp_path: Path) -> None:
    facts = facts_of(tmp_path / "a", n_routed_experts=256, num_experts_per_tok=8)
    assert (facts.experts, facts.experts_used) == (256, 8)
    assert facts_of(tmp_path / "b", sliding_window=4096).sliding_window == 4096
    assert facts_of(tmp_path / "c", sliding_window=4096, use_sliding_window=False).sliding_window == 0
    assert facts_of(tmp_path / "d", sliding_window=None).sliding_window == 0


@pytest.mark.parametrize(
    ("template", "read"),
    [
        *(("one", "one"), ([3], None), (3, None), ("", None)),
        ([{"name": "tool_use", "template": "two"}, {"name": "default", "template": "one"}], "one"),
        ([{"name": "tool_use", "template": "two"}], "two"),
    ],
)
def test_templates_in_the_settings(tmp_path: Path, template: Any, read: str | None) -> None:
    write_json(tmp_path / "tokenizer_config.json", {"chat_template": template})
    assert facts_of(tmp_path).chat_template == read


def test_folders_without_a_model_say_what_is_there(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"without config\.json"):
        read_folder(tmp_path)
    for name in ("b.gguf", "a.gguf"):
        (tmp_path / name).touch()
    with pytest.raises(ModelError, match=r"such as 'a\.gguf'"):
        read_folder(tmp_path)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        *((b"", "is no JSON"), (b"\xff{}", "cannot be read"), (b"[]", "holds no JSON object")),
        *((b"{}", "names no model_type"), (b'{"model_type": 3}', "names no model_type")),
        (b'{"a": NaN}', "NaN is no number"),
        (b'{"a": ' + b"9" * 5000 + b"}", "is no JSON"),
        (b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}", "is no JSON"),
        (b" " * ((8 << 20) + 1), "has more than 8 MiB"),
    ],
)
def test_a_config_that_is_not_what_it_says_is_refused(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelError, match=reason) as refused:
        read_folder(tmp_path)
    assert "\n" not in str(refused.value)


def test_more_values_than_a_model_needs_are_refused_before_they_take_memory(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "tokenizer.json").write_bytes(b"[" + b"[]," * (3 << 20) + b"[]]")
    with pytest.raises(ModelError, match="more values than any model needs"):
        read_folder(folder)


def test_all_that_an_index_names_is_weighed(tmp_path: Path) -> None:
    for i in range(2):
        (tmp_path / f"model-{i}.safetensors").write_bytes(b"whatever")
    names = {"t1": "model-1.safetensors", "n1": "model-1.safetensors", "t0": "model-0.safetensors"}
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": names})
    files, size = read_weights(tmp_path)
    assert [file.name for file in files] == ["model-0.safetensors", "model-1.safetensors"]
    assert size == 16


BESIDE = "does not name files of its folder"


@pytest.mark.parametrize(
    ("table", "reason"),
    [
        (["a"], BESIDE),
        ({"a": "model-7.safetensors"}, r"model-7\.safetensors.*fetch it too"),
        *(({"a": f"{name}x.safetensors"}, BESIDE) for name in ("../", "a/")),
        *(({"a": name}, BESIDE) for name in ("/etc/passwd", "..\\x", "", "a\0b", "..", "\ud800")),
    ],
)
def test_index_that_names_missing_or_other_files_is_refused(tmp_path: Path, table: Any, reason: str) -> None:
    write_json(tmp_path / "model.safetensors.index.json", {"weight_map": table})
    with pytest.raises(ModelError, match=reason):
        read_weights(tmp_path)


def test_layers_for_multi_token_prediction_and_what_a_step_of_them_reads(tmp_path: Path) -> None:
    def facts(model_type: str, *names: str, dtype: type = np.float32, **config: Any) -> Any:
        config |= {"num_hidden_layers": 2, "n_routed_experts": 4, "num_experts_per_tok": 1}
        sizes = [(name, 40 if ".experts." in name else 10) for name in ("lm_head.weight", *names)]
        write_safetensors(tmp_path / "model.safetensors", {name: np.zeros(n, dtype) for name, n in sizes})
        return facts_of(tmp_path, model_type=model_type, **config)

    trunk = "model.embed_tokens.weight", "model.layers.1.mlp.experts.0.up_proj.weight"
    own = "model.layers.46.eh_proj.weight", "model.layers.46.mlp.experts.0.up_proj.weight"
    copies = "model.layers.46.embed_tokens.weight", "model.layers.46.shared_head.head.weight"
    whole = facts("glm4_moe", *trunk, *own, *copies, num_nextn_predict_layers=1)
    assert (whole.mtp, whole.mtp_cost) == (USABLE, pytest.approx((20 + 10) / (10 + 10)))
    assert facts("glm4_moe", *trunk, *own, num_nextn_predict_layers=1, dtype=np.int8).mtp == NO_GRAPH
    assert facts("mellum", *trunk, "mtp.fc.weight", num_nextn_predict_layers=1).mtp == USABLE
    assert facts("glm4_moe", *trunk, num_nextn_predict_layers=1).mtp == STRIPPED
    assert facts("sarvam_moe", *trunk, "model.layers.2.x", num_nextn_predict_layers=1).mtp == NO_GRAPH
    assert facts("glm4_moe", *trunk, num_nextn_predict_layers=0).mtp == ABSENT
    assert facts("qwen3_5_text", *trunk, mtp_num_hidden_layers=1).mtp == NO_GRAPH
    assert "llama.cpp may, in a GGUF" in why_not(MTP, header_traits(tmp_path))
    (tmp_path / "model.safetensors").write_bytes(bytes(20))
    with pytest.raises(ModelError, match="cut short or damaged"):
        facts_of(tmp_path, model_type="glm4_moe", num_nextn_predict_layers=1)
    file = write_architecture(tmp_path / "m.gguf", "qwen35", next_token_heads=1)
    assert header_traits(Path(f"hf:{file}")).mtp == NO_GRAPH
