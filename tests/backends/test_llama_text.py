"""llama.cpp's tokenizers in the midst of a text."""

from __future__ import annotations

import pytest
from gguf import GGUFWriter, TokenType

from paceline.backends.llama_cpp.binding import load_model
from paceline.backends.llama_cpp.text import LlamaText, read_vocab
from paceline.vocab.lexicon import TokenizerVocab

WORDS = ["▁", "a", "b", "\n", "ab", "▁a", "▁ab", "é"]


@pytest.fixture(scope="module")
def sentencepiece(tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaText, TokenizerVocab]:
    """A vocabulary as Llama 2 has it: a space before every beginning, and a token for each byte."""
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *WORDS]
    special = [TokenType.UNKNOWN, TokenType.CONTROL, TokenType.CONTROL]
    path = tmp_path_factory.mktemp("spm") / "vocabulary.gguf"
    writer = GGUFWriter(path, "llama")
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("llama")
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * 259 + [-float(10 - len(word)) for word in WORDS])
    writer.add_token_types([*special, *[TokenType.BYTE] * 256, *[TokenType.NORMAL] * len(WORDS)])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    model = load_model(path, vocab_only=True)
    text = LlamaText(model)
    return text, TokenizerVocab(read_vocab(model), text.encode_continuation)


def said(text: LlamaText, tokens: list[int]) -> bytes:
    return b"".join(text.piece(token) for token in tokens)


def test_only_a_beginning_gets_a_space(sentencepiece: tuple[LlamaText, TokenizerVocab]) -> None:
    text, _ = sentencepiece
    assert said(text, text.encode("ab", add_bos=False)) == b" ab"
    assert said(text, text.encode_continuation("ab")) == b"ab"
    assert said(text, text.encode_continuation(" ab")) == b" ab"
    assert text.encode_continuation("") == []


def test_a_letters_own_token_says_it_rather_than_that_of_its_byte(
    sentencepiece: tuple[LlamaText, TokenizerVocab],
) -> None:
    _, lexicon = sentencepiece
    token = {word: 259 + i for i, word in enumerate(WORDS)}
    assert lexicon.token_bytes[3 + ord("a")] == lexicon.token_bytes[token["a"]] == b"a"
    assert lexicon.by_bytes[b"a"] == token["a"]
    assert lexicon.by_bytes[b" "] == token["▁"]
    assert lexicon.by_bytes[b"c"] == 3 + ord("c")
    assert lexicon.encode(b"ab") == [token["ab"]]
    assert lexicon.encode("aé€".encode()) == [token["a"], token["é"], *(3 + byte for byte in "€".encode())]
    assert lexicon.by_name == {b"<unk>": 0, b"<s>": 1, b"</s>": 2}
