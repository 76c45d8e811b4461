"""Causes of failures in real logs of llama.cpp."""

from __future__ import annotations

from pathlib import Path

import pytest

from paceline.bench.baselines.llama_log import cause, cause_of_no_speculation

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
