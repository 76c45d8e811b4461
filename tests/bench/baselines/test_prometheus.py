"""Counters of drafting from the text that servers publish."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.bench.baselines.prometheus import DraftCounts, drafts_between, read_metrics
from paceline.speculative.errors import PeerError

# Published by a vLLM of May 2026 (vllm-project/vllm, pull request 41916).
VLLM = """\
# HELP vllm:spec_decode_num_drafts_total Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_total counter
vllm:spec_decode_num_drafts_total{engine="0",model_name="Qwen/Qwen3.6-35B-A3B-FP8"} 6.491797e+06
# HELP vllm:spec_decode_num_drafts_created Number of spec decoding drafts.
# TYPE vllm:spec_decode_num_drafts_created gauge
vllm:spec_decode_num_drafts_created{engine="0",model_name="Qwen/Qwen3.6-35B-A3B-FP8"} 1.77692439403224e+09
# HELP vllm:spec_decode_num_draft_tokens_total Number of draft tokens.
# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="Qwen/Qwen3.6-35B-A3B-FP8"} 6.491797e+06
"""
# Published by llama.cpp's server (xllamacpp 2026.10.11549) after one request of 6 tokens.
LLAMA = """\
# HELP llamacpp:n_tokens_max Largest observed sequence length (prompt + generation)
# TYPE llamacpp:n_tokens_max counter
llamacpp:n_tokens_max 8
# HELP llamacpp:spec_decode_num_draft_tokens_total Speculative: Total draft tokens generated
# TYPE llamacpp:spec_decode_num_draft_tokens_total counter
llamacpp:spec_decode_num_draft_tokens_total 4
# HELP llamacpp:spec_decode_num_accepted_tokens_total Speculative: Total draft tokens accepted by the target model
# TYPE llamacpp:spec_decode_num_accepted_tokens_total counter
llamacpp:spec_decode_num_accepted_tokens_total 3
# HELP llamacpp:spec_decode_num_drafts_total Speculative: Total speculative decoding verification steps
# TYPE llamacpp:spec_decode_num_drafts_total counter
llamacpp:spec_decode_num_drafts_total 1
# HELP llamacpp:spec_decode_num_accepted_tokens_per_pos_total Accepted tokens per draft position
# TYPE llamacpp:spec_decode_num_accepted_tokens_per_pos_total counter
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 1
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 1
"""  # noqa: E501


def test_samples_are_read_by_name_and_summed_over_their_labels() -> None:
    read = read_metrics("peer", VLLM)
    assert read["vllm:spec_decode_num_draft_tokens_total"] == 6491797
    assert read["vllm:spec_decode_num_drafts_created"] == 1.77692439403224e09
    assert read_metrics("peer", LLAMA)["llamacpp:spec_decode_num_accepted_tokens_per_pos_total"] == 2
    engines = VLLM + VLLM.replace('engine="0"', 'engine="1"')
    assert read_metrics("peer", engines)["vllm:spec_decode_num_drafts_total"] == 2 * 6491797


def test_what_grew_between_two_readings_was_drafted_between_them() -> None:
    after = read_metrics("peer", LLAMA)
    assert drafts_between({}, after, 6) == DraftCounts(4, 3)
    assert drafts_between(after, after, 6) == DraftCounts(0, 0)
    before = {
        "vllm:spec_decode_num_draft_tokens_total": 10.0,
        "vllm:spec_decode_num_accepted_tokens_total": 7.0,
    }
    now = {
        "vllm:spec_decode_num_draft_tokens_total": 19.0,
        "vllm:spec_decode_num_accepted_tokens_total": 12.0,
    }
    assert drafts_between(before, now, 100) == DraftCounts(9, 5)


def test_sglang_counts_passes_and_the_rest_follows() -> None:
    # A token from the prompt; 10 passes of 4 rows: 10 tokens and 19 drafted ones.
    after = {"sglang:spec_verify_calls_total": 50.0, "sglang:spec_num_draft_tokens": 4.0}
    before = {"sglang:spec_verify_calls_total": 40.0, "sglang:spec_num_draft_tokens": 4.0}
    assert drafts_between(before, after, 30) == DraftCounts(30, 19)


def test_a_server_without_such_counters_tells_nothing() -> None:
    assert drafts_between({}, {"process_cpu_seconds_total": 1.0}, 6) is None


@pytest.mark.parametrize(
    "text",
    [
        "<html>not found</html>",
        "name value\n",
        '{"error": 1}',
        'a{b="' + '\\"' * 200_000 + '"} 1\n',
        'a{="x"} 1\n',
        "# TYPE a\n",
        "#  HELP   x \n{} 1\n",
        "a " + "9" * 10_000 + "x",
        "\x00\ufffd 1",
    ],
)
def test_other_text_is_an_error(text: str) -> None:
    with pytest.raises(PeerError, match="peer: its /metrics is not in Prometheus' format"):
        read_metrics("peer", text)


def test_what_is_no_number_is_left_out() -> None:
    text = f"a NaN\nb +Inf\nc 1\nd {'9' * 400}\nd 1\ne 1e308\ne 1e308\n"
    assert read_metrics("peer", text) == {"c": 1.0}


@given(st.text(st.sampled_from('a_{}="\\,# 19eE+-.\nTYPEHELP\t \x00'), max_size=40))
def test_whatever_is_said_is_samples_or_a_peer_error(text: str) -> None:
    try:
        found = read_metrics("peer", text)
    except PeerError as error:
        assert str(error).isprintable()  # noqa: PT017
    else:
        assert all(map(math.isfinite, found.values()))
