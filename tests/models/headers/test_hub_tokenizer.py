from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gguf_files import write_llama
from hub_files import added, byte_level, write_folder, write_json
from paceline.models.headers.facts import TokenizerFacts
from paceline.models.headers.header import read_gguf
from paceline.models.headers.hub_folder import read_folder
from paceline.speculative.errors import ModelError

LAST = added(5, "a▁b", special=False)


def tokenizer_of(folder: Path) -> TokenizerFacts:
    tokenizer = read_folder(folder).tokenizer
    assert tokenizer is not None
    return tokenizer


def test_folder_reads_as_the_gguf_file_of_the_same_model(tmp_path: Path) -> None:
    file = write_llama(tmp_path / "m.gguf", added_tokens=("<think>",), vocab_only=True)
    converted = read_gguf(file).tokenizer
    content = byte_level([added(258, "<think>", special=False)])
    folder = write_folder(tmp_path / "m", {"vocab_size": 259}, content)
    ends = {"eos_token": "<|end|>", "bos_token": {"content": "<|end|>"}}
    write_json(folder / "tokenizer_config.json", ends)
    ours = tokenizer_of(folder)
    assert converted is not None
    assert list(ours.texts) == list(converted.texts)
    assert list(ours.types) == list(converted.types)
    assert (ours.kind, ours.special, ours.ends) == (converted.kind, converted.special, converted.ends)


def test_what_no_one_names_is_padding_up_to_the_size_of_the_output(tmp_path: Path) -> None:
    content = byte_level([added(260, "<|x|>", special=False)])
    tokenizer = tokenizer_of(write_folder(tmp_path, tokenizer=content))
    texts = "<|end|> ĠĠ [PAD258] [PAD259] <|x|> [PAD261]"
    assert list(tokenizer.texts[256:]) == texts.encode().split()
    assert list(tokenizer.types[256:]) == [3, 1, 5, 5, 3, 5]  # what looks special is


def test_sentencepiece_spelled_as_json(tmp_path: Path) -> None:
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2, "<0x0A>": 3, "▁the": 4}
    content = {
        "added_tokens": [*(added(i, f"<{name}>") for i, name in enumerate(("unk", "s", "/s"))), LAST],
        "model": {"type": "BPE", "vocab": vocab, "byte_fallback": True, "unk_token": "<unk>"},
        "post_processor": {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>"}}, {"Sequence": {"id": "A"}}],
        },
    }
    config = {"vocab_size": 6, "eos_token_id": 2, "bos_token_id": 1}
    tokenizer = tokenizer_of(write_folder(tmp_path, config, content))
    assert tokenizer.kind == "SPM"
    assert list(tokenizer.texts) == [b"<unk>", b"<s>", b"</s>", b"<0x0A>", "▁the".encode(), b"a b"]
    assert list(tokenizer.types) == [2, 3, 3, 6, 1, 4]
    assert (tokenizer.add_bos, tokenizer.add_eos) == (True, None)
    assert dict(tokenizer.special) == {"bos": 1, "eos": 2}
    assert tokenizer.ends == {2}


@pytest.mark.parametrize(
    ("eos", "special"),
    [(7, {"eos": 7}), ([7, 8], {}), (262, {}), (10**4200, {}), (-1, {}), (True, {}), (None, {})],
    ids=["one", "list", "outside", "huge", "negative", "flag", "null"],
)
def test_ends_are_those_that_the_converter_writes(tmp_path: Path, eos: Any, special: dict[str, int]) -> None:
    """A list is passed over, and generation_config.json not read; <|end|> is known by its text."""
    folder = write_folder(tmp_path, {"eos_token_id": eos, "bos_token_id": None})
    write_json(folder / "generation_config.json", {"eos_token_id": [8, 9]})
    tokenizer = tokenizer_of(folder)
    assert tokenizer.special == special
    assert tokenizer.ends == {256, *special.values()}


def test_a_size_that_no_model_has_is_refused_before_it_takes_memory(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"vocab_size of config\.json"):
        read_folder(write_folder(tmp_path, {"vocab_size": 10**12}))


def test_without_tokenizer_json_it_says_how_to_make_one(tmp_path: Path) -> None:
    folder = write_folder(tmp_path)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelError, match=r"has no tokenizer\.json.*save_pretrained"):
        read_folder(folder)
    assert read_folder(folder, tokens=False).tokenizer is None


@pytest.mark.parametrize(
    ("said", "reason"),
    [
        ({"model": "BPE"}, "is no tokenizer"),
        ({"model": {"type": "BPE"}}, "is no tokenizer .*'vocab'"),
        ({"model": {"vocab": {"a": "b"}}}, "1 tokens: each must"),
        ({"model": {"vocab": {"a": []}}}, "1 tokens: each must"),
        ({"model": {"vocab": {"a": -1}}}, "1 tokens: each must"),
        ({"model": {"vocab": {"a": 0, "b": 4_000_000}}}, "2 tokens: each must"),
        ({"model": {"vocab": [["a", 0.0], 7]}}, "is no tokenizer"),
        ({"model": {"vocab": [[7, 0.0]]}}, "1 tokens: each must"),
        ({"model": {"vocab": {}}, "added_tokens": ["a"]}, "is no tokenizer"),
        ({"model": {"vocab": {}}, "added_tokens": [{"id": [], "content": "a"}]}, "is no tokenizer"),
        ({"model": {"vocab": {}}, "added_tokens": [{"id": -1, "content": "a"}]}, "1 tokens: each must"),
    ],
)
def test_json_that_is_not_what_it_says_is_refused(tmp_path: Path, said: Any, reason: str) -> None:
    folder = write_folder(tmp_path, tokenizer=said)
    with pytest.raises(ModelError, match=reason) as refused:
        read_folder(folder)
    assert str(folder / "tokenizer.json") in str(refused.value)
