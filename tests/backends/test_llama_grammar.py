"""Grammars with llama.cpp: the vocabulary as its file spells it, and drafted output that is plain output."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from llguidance import LLMatcher
from llguidance.llamacpp import lltokenizer_from_vocab

import paceline
from gguf_files import write_llama
from paceline.api import LLM
from paceline.backends.llama_cpp import LlamaTarget
from paceline.models import zoo
from paceline.request_handle import Generation
from paceline.text.grammar import TextGrammar
from paceline.text.grammar_source import from_pattern, from_schema

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "n": {"type": "integer", "minimum": 0, "maximum": 999},
        "tags": {"type": "array", "items": {"enum": ["red", "green", "blue"]}, "maxItems": 3},
    },
    "required": ["name", "n", "tags"],
    "additionalProperties": False,
}
# Not \d: the grammar takes every digit of Unicode for one, and Python's tables may be older.
PROMPT = '{"name": "addition", "n": 12, "tags": ["red"]}\n'
WAYS: dict[str, dict[str, Any]] = {
    "lookup": {"drafters": "lookup", "ngram_min": 1},
    "model": {"drafters": "model"},
    "model, trees": {"drafters": "model", "n_draft": 4, "width": 3, "p_split": 0.02, "p_min": 0.0},
    "lookup,model": {"drafters": "lookup,model"},
}
SAMPLINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.9, "seed": 1},
    {"temperature": 1.3, "top_k": 40, "min_p": 0.02, "seed": 2},
    {"temperature": 1.0, "repeat_penalty": 1.2, "xtc_probability": 0.4, "seed": 3},
]


@pytest.fixture(scope="module")
def embedded() -> Iterator[LlamaTarget]:
    target = LlamaTarget(zoo.target_path(), threads=1, n_ctx=64)
    yield target
    target.close()


@pytest.mark.filterwarnings("ignore:llama_token_get_attr is deprecated")
def test_tokens_are_spelled_as_llguidance_itself_reads_them(embedded: LlamaTarget) -> None:
    """The masks of a random text are those over the vocabulary that llguidance takes from llama.cpp."""
    theirs = lltokenizer_from_vocab(embedded.text._vocab)
    syntax = from_schema(SCHEMA)
    ours, matcher = TextGrammar(embedded.token_trie.compile(syntax)), LLMatcher(theirs, syntax.lark)
    random = np.random.default_rng(0)
    for _ in range(60):
        mask = ours.mask(())
        assert (embedded.token_trie.next_token_mask(matcher) == mask).all()
        token = int(random.choice(np.flatnonzero(mask)))
        if token in embedded.vocab.eos:
            break
        ours.commit([token])
        assert matcher.consume_token(token)
    assert token in embedded.vocab.eos


def test_every_end_of_text_ends_it_and_what_looks_like_a_control_token_is_no_text(tmp_path: Path) -> None:
    path = write_llama(
        tmp_path / "chat.gguf",
        extra_tokens=("<|turn|>",),
        added_tokens=("<think>", "thought"),
        metadata={"tokenizer.ggml.eot_token_id": 258},
    )
    target = LlamaTarget(path, threads=1)
    assert target.vocab.eos == {256, 258}
    assert target.vocab.piece(259) == b"<think>"
    anything = TextGrammar(target.token_trie.compile(from_pattern("(?s).*"))).mask(())
    allowed = {int(token) for token in np.flatnonzero(anything)}
    assert allowed >= {256, 258, 257, 260}
    assert 259 not in allowed
    target.close()


@pytest.fixture(scope="module", params=WAYS)
def exact(request: pytest.FixtureRequest, unrounded: Path) -> Iterator[LLM]:
    """F32 throughout: nothing is left to excuse a difference."""
    way = WAYS[request.param]
    draft = zoo.draft_path() if "model" in way["drafters"] else None
    with paceline.load(
        unrounded, draft, n_ctx=512, threads=1, flash_attention=False, cache_type="f32", **way
    ) as llm:
        yield llm


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_drafted_json_is_plain_json_and_satisfies_its_schema(exact: LLM, sampling: dict[str, Any]) -> None:
    request: dict[str, Any] = {"max_tokens": 150, "json_schema": SCHEMA, **sampling}
    plain = exact.generate(PROMPT, plain=True, **request)
    drafted = exact.generate(PROMPT, **request)
    assert drafted.tokens == plain.tokens
    assert (drafted.stop_reason, drafted.complete) == ("eos", True)
    said = json.loads(drafted.text)
    assert list(said) == ["name", "n", "tags"]
    assert len(said["name"]) <= 12
    assert 0 <= said["n"] <= 999
    assert {*said["tags"]} <= {"red", "green", "blue"}
    assert drafted.stats.drafted > 0
    if "model" in exact.drafting.drafters:
        assert drafted.stats.by_source["model"].accepted > 0


@pytest.fixture(scope="module")
def sampled() -> Iterator[LLM]:
    with paceline.load(threads=1, n_ctx=512, drafters="model", draft_temp=1.0, n_draft=4, width=2) as llm:
        yield llm


def test_sampled_drafts_keep_to_the_schema_and_are_accepted(sampled: LLM) -> None:
    def generate(seed: int) -> Generation:
        return sampled.generate(PROMPT, max_tokens=150, json_schema=SCHEMA, temperature=1.0, seed=seed)

    done = [generate(seed) for seed in range(4)]
    assert all(one.complete and from_schema(SCHEMA).matches(one.text) for one in done)
    assert sum(one.stats.accepted for one in done) > 0


def test_a_text_cut_short_is_not_complete_and_one_that_may_end_is(sampled: LLM) -> None:
    def complete(**request: Any) -> bool | None:
        return sampled.generate(PROMPT, **request).complete

    assert complete(max_tokens=5) is None
    assert complete(max_tokens=5, json_schema=SCHEMA) is False
    assert complete(max_tokens=150, json_schema=SCHEMA, stop='"n"') is False
    assert complete(max_tokens=5, regex=r"\d+") is True
    assert complete(max_tokens=150, regex=r"\d{30}") is True
