from __future__ import annotations

from paceline.models.headers.end_tokens import end_tokens

GPT_OSS = [b"a", b"<|end|>", b"<|return|>", b"<|call|>", b"<|endoftext|>"]


def test_what_the_file_names_and_what_llama_cpp_knows_by_text() -> None:
    texts = [b"a", b"<|im_end|>", b"<|endoftext|>", b"<|im_start|>", b"b", b"<|end_of_text|>"]
    assert end_tokens(texts, {"bos": 3, "eos": 4}) == {1, 2, 4, 5}


def test_only_messages_end_where_turns_have_an_end_of_their_own() -> None:
    assert end_tokens(GPT_OSS, {"eos": 2}) == {2, 3, 4}
    assert end_tokens(GPT_OSS[:3], {}) == {1, 2}
    assert end_tokens([b"<|end|>", b"<|flush|>", b"<|calls|>"], {}) == {1, 2}
    assert end_tokens([b"<|end|>", b"<|flush|>"], {}) == {0, 1}


def test_in_gemma_4_the_old_end_is_a_text_like_others() -> None:
    assert end_tokens([b"</s>", b"<eos>"], {"eos": 1}) == {0, 1}
    assert end_tokens([b"</s>", b"<eos>", b"<|tool_response>"], {"eos": 1}) == {1, 2}


def test_padding_and_file_ends_of_code_models_end_too() -> None:
    texts = [b"<|fim_pad|>", b"<|repo_name|>", b"<|file_sep|>", b"<|fim_prefix|>", b"x"]
    assert end_tokens(texts, {}) == {0, 1, 2}
    assert end_tokens(texts, {"fim_pad": 4}) == {1, 2, 4}
