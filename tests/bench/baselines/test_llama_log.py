"""What llama.cpp printed when it failed, and what a person is told. The logs are of real runs."""

from __future__ import annotations

import pytest

from paceline.bench.baselines.llama_log import cause_of_failure, cause_of_silence

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
PORT_TAKEN = """\
0.00.006.484 E srv         start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 18233
0.00.006.535 E srv          init: exiting due to HTTP server error
"""
# llama-server, as quoted in a pull request of August 2026.
UNKNOWN_FLAG = "error: invalid argument: --draft-model\n"
HEALTHY = """\
0.00.132.767 I common_speculative_init_result: loading draft model 'paceline-draft.gguf'
0.00.167.555 I srv    load_model: initializing, n_slots = 1, n_ctx_slot = 2048, kv_unified = 'false'
0.00.175.519 I srv          init: model loaded
"""


@pytest.mark.parametrize(
    ("log", "cause"),
    [
        (OTHER_VOCABULARY, "the draft model has another vocabulary than the target"),
        (NO_FILE, "/nonexist.gguf cannot be opened"),
        (NO_GGUF, "a model file is no GGUF file"),
        (PORT_TAKEN, "its port is taken"),
        (UNKNOWN_FLAG, "it does not know the flag --draft-model"),
    ],
)
def test_a_failure_is_told_by_its_cause(log: str, cause: str) -> None:
    told = cause_of_failure(log)
    assert told is not None
    assert told.startswith(cause)


def test_a_log_without_a_failure_tells_none() -> None:
    assert cause_of_failure(HEALTHY) is None
    assert cause_of_silence(HEALTHY) is None
    assert cause_of_failure("") is None


def test_a_server_that_went_on_without_drafts_is_found_out() -> None:
    silence = cause_of_silence(OTHER_VOCABULARY)
    assert silence == cause_of_failure(OTHER_VOCABULARY)
    other = "E srv load_model: failed to initialize speculative decoding context: no memory left\n"
    assert cause_of_silence(other) == "it cannot speculate: no memory left"
    assert cause_of_silence(PORT_TAKEN) is None
