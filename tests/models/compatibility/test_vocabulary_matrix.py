"""Real vocabularies, llama.cpp's own test files, against each other (tests/data/vocabularies)."""

from __future__ import annotations

import json
import lzma
from collections.abc import Sequence
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from model_facts import of
from paceline.models.compatibility.check import compare
from paceline.models.headers.facts import ModelFacts, TokenizerFacts
from paceline.models.headers.vocabulary import make_vocab
from paceline.speculative.errors import VocabError
from paceline.speculative.vocabulary import Vocab
from paceline.vocab.lexicon import TokenizerVocab
from paceline.vocab.translation import Intersection, check_shared

DATA = Path(__file__).parents[2] / "data" / "vocabularies" / "vocabularies.json.xz"


@cache
def record() -> dict[str, Any]:
    data: dict[str, Any] = json.loads(lzma.decompress(DATA.read_bytes()))
    return data


class Texts(Sequence[bytes]):
    """The first tokens as they are. Of the others, in blocks of which only a digest is kept, stand-ins that
    are equal exactly where the blocks are."""

    def __init__(self, first: list[str], digests: list[str], block: int, size: int) -> None:
        self._first = [text.encode(errors="surrogateescape") for text in first]
        self._digests, self._block, self._size = digests, block, size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, token: Any) -> Any:
        if not token < self._size:
            raise IndexError(token)
        if token < len(self._first):
            return self._first[token]
        return b"%s %d" % (self._digests[(token - len(self._first)) // self._block].encode(), token)


@cache
def facts(name: str) -> ModelFacts:
    said = record()["vocabularies"][name]
    texts = Texts(said["texts"], said["digests"], record()["block"], said["size"])
    same = ("kind", "pre", "types", "special", "add_bos", "add_eos", "add_space_prefix")
    tokenizer = TokenizerFacts(
        texts=texts, ends=frozenset(said["ends"]), **{field: said[field] for field in same}
    )
    known = {field: said[field] for field in ("arch", "family", "n_ctx", "chat_template")}
    files = (Path(f"{name}.gguf"),)
    return ModelFacts(files, "gguf", name=name, n_vocab=said["size"], tokenizer=tokenizer, **known)


NAMES = sorted(record()["vocabularies"])


def vocab(name: str) -> Vocab:
    tokenizer = facts(name).tokenizer
    assert tokenizer is not None
    return make_vocab(tokenizer)


def shares(target: str, draft: str) -> bool:
    try:
        check_shared(vocab(target), vocab(draft))
    except VocabError:
        return False
    return True


@pytest.mark.parametrize("name", NAMES)
def test_a_header_tells_what_llama_cpp_says_of_the_vocabulary(name: str) -> None:
    ours, theirs = vocab(name), record()["vocabularies"][name]["llama_cpp"]
    assert {field: getattr(ours, field) for field in theirs} == theirs | {"eos": frozenset(theirs["eos"])}


def test_of_all_pairs_those_share_a_vocabulary_that_share_one_in_llama_cpp() -> None:
    pairs = [(a, b) for a, b in product(NAMES, repeat=2) if a != b]
    assert len(pairs) == 19 * 18
    theirs = {tuple(pair) for pair in record()["shared"]}
    assert {(name, name) for name in NAMES} <= theirs
    assert {pair for pair in pairs if shares(*pair)} == {(a, b) for a, b in theirs if a != b}


@pytest.mark.parametrize(("target", "draft"), [("phi-3", "llama-spm"), ("refact", "starcoder")])
def test_as_much_is_in_common_as_translation_finds(target: str, draft: str) -> None:
    found = of(compare(facts(target), facts(draft)), "tokens in common")
    ours, theirs = (TokenizerVocab(vocab(name), lambda _: []) for name in (target, draft))
    pairs = Intersection.of(ours, theirs)
    common = sum(bool(ours.token_bytes[token]) for token in pairs.target_ids.tolist())
    assert found.target == f"{common:,} of {sum(map(bool, ours.token_bytes)):,}"
