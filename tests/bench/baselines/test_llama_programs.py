"""llama.cpp's programs: command lines, checked against their --help (tests/data/llama_cpp), and logs."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.bench.baselines.llama_programs import (
    cause,
    cause_of_no_speculation,
    greedy_arguments,
    model_arguments,
    needs_draft,
    output_of,
    require_types,
    spec_types,
    speculation_arguments,
)
from paceline.speculative.errors import PeerError
from paceline.speculative.sampling import Sampling

DATA = Path(__file__).parents[2] / "data" / "llama_cpp" / "0.3.36"
# xllamacpp 2026.10.11549.
OTHER_VOCABULARY = """\
0.00.060.694 I common_speculative_init_result: loading draft model 'foreign.gguf'
0.00.068.865 I srv    load_model: initializing, n_slots = 1, n_ctx_slot = 2048, kv_unified = 'false'
0.00.068.938 E spec common_specu: the target and draft vocabs are not compatible
0.00.069.451 E srv    load_model: failed to initialize speculative decoding context: draft model vocab type \
must match target model to use speculation
0.00.072.056 I srv          init: model loaded
"""
NO_FILE = """\
0.00.004.081 E gguf_init_from_file: failed to open GGUF file '/nonexist.gguf' (No such file or directory)
0.00.004.199 E llama_model_load: error loading model: llama_model_loader: failed to load model from \
/nonexist.gguf
0.00.004.240 E srv    load_model: failed to load model, '/nonexist.gguf'
"""
NO_GGUF = """\
0.00.006.684 E gguf_init_from_reader: invalid magic characters: 'not ', expected 'GGUF'
0.00.006.800 E llama_model_load: error loading model: llama_model_loader: failed to load model from bad.gguf
"""
# llama-server, as quoted in a pull request of August 2026.
UNKNOWN_FLAG = "error: invalid argument: --draft-model\n"
HEALTHY = """\
0.00.132.767 I common_speculative_init_result: loading draft model 'paceline-draft.gguf'
0.00.167.555 I srv    load_model: initializing, n_slots = 1, n_ctx_slot = 2048, kv_unified = 'false'
0.00.175.519 I srv          init: model loaded
"""


def test_the_server_knows_every_flag_that_it_may_be_given() -> None:
    target, draft = Path("t.gguf"), Path("d.gguf")
    model = model_arguments(target, draft, n_ctx=512, threads=2, flash_attention=False, cache_type="q8_0")
    assert " ".join(model) == (
        "-m t.gguf -c 512 -t 2 -tb 2 -ngl 0 -ctk q8_0 -ctv q8_0 -fa off -md d.gguf --spec-draft-ngl 0 "
        "-ctkd q8_0 -ctvd q8_0 --fit off"
    )
    spec = speculation_arguments(spec_types("model, lookup,ngram-map-k"), 4, 0.5)
    assert " ".join(spec) == (
        "--spec-draft-n-max 4 --spec-draft-n-min 0 --spec-draft-p-min 0.5 --spec-ngram-simple-size-m 4 "
        "--spec-ngram-map-k-size-m 4 --spec-type draft-simple,ngram-simple,ngram-map-k"
    )
    known = (DATA / "llama-server-help.out.txt").read_text().replace(",", " ").split()
    assert [flag for flag in [*model, *spec] if flag[:1] == "-" and flag not in known] == []


def test_the_programs_know_every_flag_of_penalties() -> None:
    given = greedy_arguments(Sampling(repeat_penalty=1.1, logit_bias={5: -1.5}))
    assert " ".join(given) == (
        "--temp 0 --repeat-last-n 64 --repeat-penalty 1.1 --presence-penalty 0 --frequency-penalty 0 -l 5-1.5"
    )
    known = (DATA / "llama-lookup-help.out.txt").read_text().replace(",", " ").split()
    assert [flag for flag in given if flag[:1] == "-" and flag not in known] == []
    assert greedy_arguments(Sampling()) == ["--temp", "0"]


def test_what_is_left_open_is_left_to_the_program() -> None:
    assert speculation_arguments(("draft-mtp",), None, None) == ["--spec-type", "draft-mtp"]
    assert speculation_arguments(("ngram-mod",), 4, 0.5) == ["--spec-type", "ngram-mod"]
    assert speculation_arguments(spec_types("plain"), 4, 0.5) == []
    methods = ("plain", "lookup", "draft-mtp", "lookup,draft-eagle3")
    assert [needs_draft(spec_types(method)) for method in methods] == [False, False, False, True]


def test_what_a_program_cannot_do_or_say_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "llama-server"
    program.write_text("#!/bin/sh\necho --spec-type ngram-simple\n")
    program.chmod(0o755)
    require_types([str(program)], ["ngram-simple"])
    with pytest.raises(PeerError, match="llama-server does not draft by ngram: see --spec-type"):
        require_types([str(program)], ["ngram"])
    program.write_text("#!/bin/sh\necho libggml.so is missing >&2; exit 127\n")
    with pytest.raises(PeerError, match=r"--help ended with exit status 127; .*libggml.so is missing"):
        output_of([str(program)], "--help")


@pytest.mark.parametrize(
    ("log", "words"),
    [
        (OTHER_VOCABULARY, "the draft model has another vocabulary than the target"),
        (NO_FILE, "/nonexist.gguf cannot be opened"),
        (NO_GGUF, "a model file is no GGUF file"),
        (UNKNOWN_FLAG, "it does not know the flag --draft-model"),
        (HEALTHY, ""),
        ("vocabs are not " * 300_000, ""),
    ],
)
def test_a_failure_is_told_by_its_cause(log: str, words: str) -> None:
    assert cause(log).startswith(words)
    assert bool(cause(log)) == bool(words)


def test_a_server_that_went_on_without_drafts_is_found_out() -> None:
    recorded = (DATA / "llama-server-vocabulary.err.txt").read_text()
    assert (
        cause_of_no_speculation(OTHER_VOCABULARY)
        == cause(OTHER_VOCABULARY)
        == cause_of_no_speculation(recorded)
    )
    other = "E srv load_model: failed to initialize speculative decoding context: no memory left\n"
    assert cause_of_no_speculation(other) == "it cannot speculate: no memory left"
    assert cause_of_no_speculation(HEALTHY) == cause_of_no_speculation(NO_FILE) == ""
