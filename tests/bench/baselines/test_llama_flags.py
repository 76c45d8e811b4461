"""The command line of llama-server, for builds of three years."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.bench.baselines.llama_flags import (
    Flags,
    model_arguments,
    needs_draft,
    read_flags,
    spec_types,
    speculation_arguments,
)
from paceline.speculative.errors import PeerError

# Lines, some cut short, of tools/server/README.md of the llama.cpp in llama-cpp-python 0.3.36 (autumn 2026).
NEW = Flags(
    "llama-server",
    r"""
| `-fa, --flash-attn [on\|off\|auto]` | set Flash Attention use ('on', 'off', or 'auto', default: 'auto')
| `-fit, --fit [on\|off]` | whether to adjust unset arguments to fit in device memory
| `--spec-draft-type-k, -ctkd, --cache-type-k-draft TYPE` | KV cache data type for K for the draft model
| `--spec-draft-type-v, -ctvd, --cache-type-v-draft TYPE` | KV cache data type for V for the draft model
| `-cram, --cache-ram N` | set the maximum cache size in MiB (default: 8192, -1 - no limit, 0 - disable)
| `--spec-draft-n-max N` | number of tokens to draft for speculative decoding (default: 3)
| `--spec-draft-n-min N` | minimum number of draft tokens to use for speculative decoding (default: 0)
| `--spec-draft-p-min, --draft-p-min P` | minimum speculative decoding probability (greedy) (default: 0.00)
| `--spec-draft-ngl, -ngld, --gpu-layers-draft, --n-gpu-layers-draft N` | max. number of draft model layers
| `--spec-type none,draft-simple,draft-eagle3,draft-mtp,draft-dflash,draft-dspark,ngram-simple,ngram-map-k,\
ngram-map-k4v,ngram-mod,ngram-cache` | comma-separated list of types of speculative decoding to use
| `--spec-ngram-simple-size-m N` | ngram size M for ngram-simple speculative decoding
| `--spec-ngram-map-k-size-m N` | ngram size M for ngram-map-k speculative decoding
| `--draft, --draft-n, --draft-max N` | the argument has been removed. use --spec-draft-n-max
| `--draft-min, --draft-n-min N` | the argument has been removed. use --spec-draft-n-min
""",
)
# Lines of --help of a build of October 2025; that of flash attention is of 2024.
OLD = Flags(
    "llama-server",
    """
-fa,   --flash-attn                     enable Flash Attention (default: disabled)
                                        (env: LLAMA_ARG_FLASH_ATTN)
--draft-max, --draft, --draft-n N       number of tokens to draft for speculative decoding (default: 16)
                                        (env: LLAMA_ARG_DRAFT_MAX)
--draft-min, --draft-n-min N            minimum number of draft tokens to use for speculative decoding
                                        (default: 0)
--draft-p-min P                         minimum speculative decoding probability (greedy) (default: 0.8)
-ngld, --gpu-layers-draft, --n-gpu-layers-draft N
                                        number of layers to store in VRAM for the draft model
-md,   --model-draft FNAME              draft model for speculative decoding (default: unused)
""",
)
# Types have names, but draft models are no type yet: the first two lines are of --help of a build of spring
# 2026, the others as in 2025.
BETWEEN = Flags(
    "llama-server",
    """
--spec-draft-n-max N                    number of tokens to draft for speculative decoding (default: 16)
--spec-type [none|mtp|ngram-cache|ngram-simple|ngram-map-k|ngram-map-k4v|ngram-mod]
--draft-min, --draft-n-min N            minimum number of draft tokens to use for speculative decoding
-ngld, --gpu-layers-draft, --n-gpu-layers-draft N
""",
)


def spec(flags: Flags, method: str, n_draft: int | None = 4, p_min: float | None = 0.5) -> list[str]:
    return speculation_arguments(
        flags,
        spec_types(method),
        Path("d.gguf"),
        n_draft=n_draft,
        p_min=p_min,
        cache_type="f16",
        gpu_layers=0,
    )


def model(flags: Flags, flash_attention: bool | None) -> list[str]:
    return model_arguments(
        flags,
        Path("t.gguf"),
        n_ctx=512,
        threads=2,
        parallel=3,
        flash_attention=flash_attention,
        cache_type="q8_0",
        gpu_layers=7,
    )


def test_the_target_gets_the_context_of_all_its_slots_and_nothing_to_choose_by_itself() -> None:
    common = "-m t.gguf -c 1536 -np 3 -t 2 -tb 2 -ngl 7 -ctk q8_0 -ctv q8_0"
    assert " ".join(model(NEW, None)) == f"{common} --cache-ram 0 --fit off"
    assert " ".join(model(OLD, None)) == common


@pytest.mark.parametrize(
    ("flags", "asked", "written"),
    [(NEW, True, ["-fa", "on"]), (NEW, False, ["-fa", "off"]), (OLD, True, ["-fa"]), (OLD, False, [])],
)
def test_flash_attention_is_a_switch_in_old_builds(flags: Flags, asked: bool, written: list[str]) -> None:
    arguments = model(flags, asked)
    start = model(OLD, None)
    assert arguments[: len(start) + len(written)] == [*start, *written]
    assert ("-fa" in arguments) == bool(written)


def test_a_draft_model_is_set_up_in_the_words_of_the_build() -> None:
    assert " ".join(spec(NEW, "model")) == (
        "-md d.gguf --spec-draft-ngl 0 -ctkd f16 -ctvd f16 --spec-draft-n-max 4 --spec-draft-n-min 0"
        " --spec-draft-p-min 0.5 --spec-type draft-simple"
    )
    assert " ".join(spec(OLD, "model")) == (
        "-md d.gguf -ngld 0 --draft-max 4 --draft-min 0 --draft-p-min 0.5"
    )


def test_where_draft_models_are_no_type_naming_the_file_is_enough() -> None:
    assert " ".join(spec(BETWEEN, "model", p_min=None)) == (
        "-md d.gguf -ngld 0 --spec-draft-n-max 4 --draft-min 0"
    )
    assert spec(BETWEEN, "lookup", None, None) == ["--spec-type", "ngram-simple"]


def test_what_is_left_open_is_left_to_the_program() -> None:
    assert spec(NEW, "draft-mtp", None, None) == ["--spec-type", "draft-mtp"]
    assert spec(NEW, "ngram-mod") == ["--spec-type", "ngram-mod"]
    assert spec(NEW, "plain") == []
    assert spec(OLD, "plain") == []


def test_methods_combine_and_our_names_are_translated() -> None:
    assert spec_types("lookup, model") == ("ngram-simple", "draft-simple")
    assert spec(NEW, "lookup,ngram-map-k") == [
        *("--spec-ngram-simple-size-m", "4", "--spec-ngram-map-k-size-m", "4"),
        *("--spec-type", "ngram-simple,ngram-map-k"),
    ]
    assert [needs_draft(spec_types(m)) for m in ("plain", "lookup", "draft-mtp", "lookup,draft-eagle3")] == [
        *(False, False, False, True)
    ]


def test_what_a_build_cannot_do_is_named() -> None:
    with pytest.raises(PeerError, match="llama-server does not draft by ngram-mod: see --spec-type"):
        spec(OLD, "ngram-mod")
    with pytest.raises(PeerError, match="llama-server does not draft by ngram-cube"):
        spec(NEW, "ngram-cube")
    with pytest.raises(PeerError, match="llama-server has no --spec-draft-p-min: it is too old or too new"):
        spec(BETWEEN, "model", p_min=0.5)


def test_a_program_is_asked_again_when_its_file_has_changed(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho --old-flag; echo run >> $0.log\n")
    program.chmod(0o755)
    assert read_flags([str(program)]).has("--old-flag")
    assert read_flags([str(program)]).has("--old-flag")
    assert (tmp_path / "llama-server.log").read_text() == "run\n"
    program.write_text("#!/bin/sh\necho --new-flag\n")
    assert read_flags([str(program)]).has("--new-flag")


def test_a_program_that_does_not_run_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(PeerError, match="there is no program /no/such/server"):
        read_flags(["/no/such/server"])
    broken = tmp_path / "broken"
    broken.write_text("#!/bin/sh\necho libggml.so is missing >&2; exit 127\n")
    broken.chmod(0o755)
    with pytest.raises(PeerError, match=r"broken --help failed with exit status 127: libggml.so is missing"):
        read_flags([str(broken)])
