"""Exported texts by engine and version, imported settings, and the engines' own parsers of both."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from transformers import GenerationConfig
from transformers.generation import GenerationMode

from command_line import command as run_command
from paceline import plan
from paceline.integrations.export import OLDEST, EngineRequest, exported
from paceline.integrations.export.reading import imported
from paceline.models import zoo
from paceline.settings import LoadOptions
from paceline.speculative.errors import UsageError
from paceline.storage import profiles

HELP = Path(__file__).parents[2] / "data" / "llama_cpp" / "0.3.36"
GGUF, GGUF_DRAFT, MODEL, DRAFT, HEAD = "t/T-GGUF:Q4_K_M", "d/D-GGUF/d.gguf", "t/T", "d/D", "h/T-eagle3"
LLAMA, SIMPLE, TREE, LOOKUP = "llama-server", "llama-speculative-simple", "llama-speculative", "llama-lookup"
PAIR = {"draft": GGUF_DRAFT, "n_draft": 8, "drafting_settings": {"p_min": 0.6}}
FIXED = {"draft": DRAFT, "n_draft": 8, "drafting_settings": {"policy": "fixed"}}
HUB = f"-hf {GGUF} -hfd d/D-GGUF -md d.gguf"
LENGTHS = {"ngram_min": 2, "ngram_max": 2}
COPIED = {"n_draft": 9, "drafters": ("lookup",), "drafting_settings": LENGTHS}
CONFIG = f"vllm serve {MODEL} --speculative-config "
LOAD = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained('t/T')
model = AutoModelForCausalLM.from_pretrained('t/T')
"""
ASSISTED = """\
assistant = AutoModelForCausalLM.from_pretrained('d/D')
assistant.generation_config.update(num_assistant_tokens=8, num_assistant_tokens_schedule='constant', \
assistant_confidence_threshold=0.0)
"""
GENERATE = """\
inputs = tokenizer("...", return_tensors="pt")
output = model.generate(**inputs, {})
print(tokenizer.decode(output[0]))"""
# Engine, version, what is exported, text.
GOLDEN: list[tuple[str, str, dict[str, Any], str]] = [
    (LLAMA, "", PAIR, f"{LLAMA} {HUB} --spec-type draft-simple --spec-draft-n-max 8 --spec-draft-p-min 0.6"),
    (LLAMA, "b9000", PAIR, f"{LLAMA} {HUB} --spec-draft-n-max 8 --spec-draft-p-min 0.6"),
    (LLAMA, "8954", PAIR, f"{LLAMA} {HUB} --draft-max 8 --draft-p-min 0.6"),
    (LLAMA, "8954", COPIED, f"{LLAMA} -hf {GGUF} --spec-type ngram-simple --spec-ngram-size-m 9 "
     "--spec-ngram-size-n 2"),
    (LLAMA, "", {**COPIED, "engine_options": {"flash_attention": True, "cache_type": "q8_0"}},
     f"{LLAMA} -hf {GGUF} --spec-type ngram-simple --spec-ngram-simple-size-m 9 --spec-ngram-simple-size-n 2 "
     "-fa on -ctk q8_0 -ctv q8_0"),
    (LLAMA, "", {"drafters": ("none",)}, f"{LLAMA} -hf {GGUF}"),
    (LLAMA, "", {}, f"{LLAMA} -hf {GGUF} --spec-type ngram-simple"),
    (LLAMA, "", {"drafters": ("mtp",), "n_draft": 2}, f"{LLAMA} -hf {GGUF} --spec-type draft-mtp "
     "--spec-draft-n-max 2"),
    (LLAMA, "10819", {"draft": "h/T-eagle3-GGUF:Q8_0", "name": "m", "n_ctx": 512, "extra_args": ("-x",)},
     f"{LLAMA} -hf {GGUF} -hfd h/T-eagle3-GGUF:Q8_0 --spec-type draft-eagle3 --ctx-size 512 --alias m -x"),
    (LLAMA, "", {"drafters": ("ngram",)}, f"{LLAMA} -hf {GGUF} --spec-type ngram-cache"),
    (SIMPLE, "", PAIR,
     f"{SIMPLE} {HUB} --spec-type draft-simple --spec-draft-n-max 8 --spec-draft-p-min 0.6"),
    (TREE, "", {"draft": GGUF_DRAFT, "n_draft": 8, "drafting_settings": {"width": 4, "p_split": 0.2}},
     f"{TREE} {HUB} --spec-draft-n-max 8 -np 4 --draft-p-split 0.2"),
    (LOOKUP, "", {"n_draft": 5, "n_ctx": 512, "corpora": (__file__,)},
     f"{LOOKUP} -hf {GGUF} --spec-draft-n-max 5 -lcs {__file__} --ctx-size 512"),
    ("vllm", "0.32", COPIED, CONFIG + "'{\"method\": \"ngram\", \"num_speculative_tokens\": 9, "
     "\"prompt_lookup_min\": 2, \"prompt_lookup_max\": 2}'"),
    ("vllm", "0.8.1", COPIED, f"vllm serve {MODEL} --speculative-model '[ngram]' --num-speculative-tokens 9 "
     "--ngram-prompt-lookup-min 2 --ngram-prompt-lookup-max 2"),
    ("vllm", "0.15", FIXED, CONFIG + "'{\"method\": \"draft_model\", \"model\": \"d/D\", "
     "\"num_speculative_tokens\": 8}'"),
    ("vllm", "0.9.2", FIXED, CONFIG + "'{\"model\": \"d/D\", \"num_speculative_tokens\": 8}'"),
    ("vllm", "v0.6.4", FIXED, f"vllm serve {MODEL} --speculative-model d/D --num-speculative-tokens 8"),
    ("sglang", "0.5.5", {"n_draft": 7}, f"python -m sglang.launch_server --model-path {MODEL} "
     "--speculative-algorithm NGRAM --speculative-num-draft-tokens 8"),
    ("transformers", "", FIXED, LOAD + ASSISTED + GENERATE.format("assistant_model=assistant")),
    ("transformers", "", {"n_draft": 9, "drafting_settings": {"ngram_max": 4}},
     LOAD + GENERATE.format("prompt_lookup_num_tokens=9, max_matching_ngram_size=4")),
    ("transformers", "5.24.0", {"drafters": ("mtp",)}, LOAD + GENERATE.format("use_mtp=True")),
    ("trtllm", "", {"n_draft": 5}, "disable_overlap_scheduler: true\nspeculative_config: {\"decoding_type\": "
     "\"NGram\", \"max_draft_len\": 5, \"max_matching_ngram_size\": 5, \"allow_advanced_sampling\": true}"),
    ("trtllm", "1.3.0rc29", {"draft": HEAD}, "speculative_config: {\"decoding_type\": \"Eagle3\", "
     "\"max_draft_len\": 3, \"speculative_model\": \"h/T-eagle3\", \"allow_advanced_sampling\": true}"),
    ("trtllm", "1.2.0", {"draft": HEAD, "n_ctx": 99}, "max_seq_len: 99\nspeculative_config: "
     "{\"decoding_type\": \"Eagle\", \"max_draft_len\": 3, \"speculative_model_dir\": \"h/T-eagle3\"}"),
    ("trtllm", "1.0", {"drafters": ("mtp",)}, "speculative_config: {\"decoding_type\": \"MTP\", "
     "\"num_nextn_predict_layers\": 2}"),
    ("ollama", "", {"drafters": ("mtp",), "n_ctx": 4096},
     "FROM hf.co/t/T\nPARAMETER num_ctx 4096\nPARAMETER draft_num_predict 2"),
    ("ollama", "0.32.14", {"drafters": ("none",)}, "FROM hf.co/t/T\nPARAMETER draft_num_predict 0"),
]  # fmt: skip


def export(engine: str, version: str, given: dict[str, Any], form: str = "") -> str:
    model = GGUF if engine.startswith("llama") else MODEL
    return exported(engine, EngineRequest(model, version=version, **given), form)


@pytest.mark.parametrize(("engine", "version", "given", "text"), GOLDEN)
def test_export_has_the_names_of_the_version(
    engine: str, version: str, given: dict[str, Any], text: str
) -> None:
    comment, found = "# trtllm-serve t/T --extra_llm_api_options FILE\n", export(engine, version, given)
    assert found.removeprefix(comment) == text
    if found.startswith("#"):
        assert yaml.safe_load(found) == json.loads(export(engine, version, given, "json"))
    elif engine.startswith("llama") and not version:  # its help says so, of which a part was recorded
        known = (HELP / f"{engine}-help.out.txt").read_text().replace(",", " ").split()
        assert [word for word in shlex.split(found) if word[:1] == "-" and word not in known] in (
            [],
            ["-hf"],
            ["-hf", "-lcs"],
        )


def test_transformers_takes_the_exported_arguments() -> None:
    for given, mode in ((FIXED, GenerationMode.GREEDY_SEARCH), ({}, GenerationMode.ASSISTED_GENERATION)):
        arguments = json.loads(export("transformers", "", given, "json"))
        compile(export("transformers", "", given), "exported", "exec")
        config = GenerationConfig(**arguments["generate"])
        assert config.get_generation_mode() == mode
        assert GenerationConfig().update(**arguments["assistant"]) == {}  # unused ones


@pytest.mark.parametrize(
    ("engine", "version", "given", "words"),
    [
        ("vlm", "", {}, "unknown engine 'vlm' .did you mean vllm"),
        *((engine, "0.1", {}, f"since {oldest}") for engine, oldest in OLDEST.items()),
        ("vllm", "new", {}, "version 'new': write numbers"),
        ("vllm", "0.14.1", FIXED, "vLLM 0.14.1 is not known to have draft_model: 0.15 has it"),
        ("vllm", "0.20", {"drafters": ("suffix",)}, "not known to have suffix"),
        ("sglang", "0.5.1", {"draft": DRAFT}, "not known to have standalone"),
        (LLAMA, "", {"drafters": ("suffix",)}, "no counterpart of suffix"),
        (LLAMA, "", {"draft": "h/eagle-GGUF:F16"}, "no counterpart of eagle"),
        (LLAMA, "", {"drafters": ("mtp",), "drafting_settings": {"width": 3}}, "no counterpart of width"),
        (LLAMA, "", {"extra_args": ("--spec-type", "x")}, "--spec-type is made by Paceline"),
        (LLAMA, "", {"draft": DRAFT}, "reads GGUF files only"),
        (LLAMA, "7000", {}, "not known to have ngram-simple: 7864 has it"),
        (LLAMA, "9999", {"draft": "h/T-eagle3-GGUF:Q8_0"}, "not known to have draft-eagle3"),
        (LLAMA, "", {"drafters": ("ngram",), "n_draft": 4}, "drafts 8 tokens by ngram-cache"),
        (SIMPLE, "9000", {}, "not known to have ngram-simple"),
        (TREE, "", {}, "no counterpart of auto: give a draft model"),
        (TREE, "", PAIR, "no counterpart of p_min 0.6"),
        (LOOKUP, "", PAIR, "no counterpart of draft_model: use --draft ngram"),
        (LOOKUP, "", {"corpora": ("mine",)}, "reads one n-gram cache"),
        (LOOKUP, "", {"drafters": ("none",)}, "only decodes with drafts"),
        ("transformers", "", {"draft": HEAD}, "no counterpart of eagle3"),
        ("transformers", "5.0", {"drafters": ("mtp",)}, "not known to have use_mtp"),
        ("transformers", "", {"drafters": ("mtp",), "n_draft": 2}, "all MTP layers, not 2"),
        ("trtllm", "1.2", {"drafters": ("suffix",)}, "not known to have SA"),
        ("trtllm", "", {"draft": "h/dflash"}, "needs the length of its blocks"),
        ("ollama", "", {}, "no counterpart of lookup: it has mtp, dflash"),
        ("ollama", "", {"draft": "h/dflash"}, "takes a draft from a file"),
    ],
)
def test_what_an_engine_or_version_lacks_is_refused_by_name(
    engine: str, version: str, given: dict[str, Any], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        export(engine, version, given)


LOOKED_UP = {"drafters": ["lookup"], "policy": "fixed"}
SPECULATIVE = '{"method": "eagle3", "model": "h/H", "num_speculative_tokens": 3, "quantization": "fp8"}'


@pytest.mark.parametrize(
    ("engine", "text", "settings", "left"),
    [
        ("vllm", '{"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4}',
         {**LOOKED_UP, "ngram_min": 4, "ngram_max": 4, "n_draft": 5}, []),
        ("vllm", f"vllm serve t/T \\\n --speculative-config '{SPECULATIVE}' --max-model-len 512 -tp 2",
         {"drafters": ["eagle3"], "policy": "fixed", "draft": "h/H", "n_draft": 3, "target": "t/T",
          "n_ctx": 512}, ["quantization fp8", "-tp 2"]),
        ("vllm", '{"model": "d/D", "use_heterogeneous_vocab": true, "rejection_sample_method": "fly"}',
         {"drafters": ["model"], "policy": "fixed", "draft": "d/D", "cross_vocab": "tli"},
         ["rejection_sample_method fly"]),
        ("vllm", "vllm serve t/T", {"drafters": ["none"], "target": "t/T"}, []),
        (LLAMA, "llama-server -m t.gguf -md d.gguf --draft-max 8 --draft-p-min=0.6 -fa -ngl all --jinja",
         {"drafters": ["model"], "n_draft": 8, "target": "t.gguf", "draft": "d.gguf", "p_min": 0.6,
          "flash_attention": True, "policy": "p_min"}, ["-ngl all", "--jinja"]),
        (LLAMA, "llama-server -hf t/T --spec-type ngram-simple,ngram-mod -c 512 -lcs c.bin",
         {**LOOKED_UP, "n_draft": 48, "ngram_min": 12, "ngram_max": 12, "target": "t/T", "n_ctx": 512,
          "corpora": ["c.bin"]}, ["--spec-type ngram-mod"]),
        (LLAMA, "llama-server -m t.gguf", {"drafters": ["none"], "target": "t.gguf"}, []),
    ],
)  # fmt: skip
def test_import_says_what_means_the_same_and_what_has_no_counterpart(
    engine: str, text: str, settings: dict[str, Any], left: list[str]
) -> None:
    assert imported(engine, [text]) == (settings, left)
    LoadOptions.of(**settings)


@pytest.mark.parametrize(
    ("engine", "text", "words"),
    [
        ("vllm", '{"method": "ngra', "cannot be read: Unterminated string"),
        *(("vllm", text, "no JSON object, and no command") for text in ("", "[1]")),
        ("vllm", '{"method": [1]}', "unknown method of vLLM"),
        ("vllm", '{"method": "ngrams"}', "unknown method of vLLM 'ngrams' .did you mean ngram"),
        (LLAMA, "llama-server -c many", "cannot be read: no number"),
        (LLAMA, "llama-server 'x", "cannot be read: No closing quotation"),
        ("sglang", "", "unknown engine 'sglang'"),
    ],
)
def test_what_cannot_be_imported_is_refused(engine: str, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        imported(engine, [text])


def test_an_imported_profile_is_exported_for_another_machine(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path))
    target, flags = str(zoo.target_path()), "--spec-type ngram-simple --spec-ngram-simple-size-m 9 -t 2"
    (tmp_path / "flags").write_text(flags)
    done = run_command(capsys, "import", "--from", LLAMA, tmp_path / "flags", "--save", "mine", "-m", target)
    options = "--draft lookup --n-draft 9 --ngram-max 12 --threads 2 --ngram-min 12 --policy fixed"
    assert (done.code, done.out) == (0, f"paceline run {options} -m {target}\n")
    export_it = ("export", "--to", LLAMA, "-m", target, "--profile", "mine")
    monkeypatch.setattr(plan, "machine", lambda: {"processor": "another", "cores": 1})
    done = run_command(capsys, *export_it, "-o", tmp_path / "command")
    simple = "--spec-type ngram-simple --spec-ngram-simple-size-m 9 --spec-ngram-simple-size-n 12"
    assert (tmp_path / "command").read_text() == f"{LLAMA} -m {target} {simple} -t 2\n"
    assert (done.code, done.out, "(of the machine " in done.err) == (0, "", True)
    (profile,) = profiles.every(pytest.fail)
    profile.path.write_text(profile.path.read_text().replace('"threads": 2', '"lossy": "experts=2"'))
    refused = run_command(capsys, *export_it)
    assert (refused.code, "experts=2 changes the text" in refused.err) == (2, True)
