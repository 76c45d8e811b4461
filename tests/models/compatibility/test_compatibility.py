"""Verdicts from headers made by hand: the rule and its edges."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from model_facts import END, TEXTS, TOKENIZER, check, model, of, padded, respelled, weights
from paceline.models.compatibility.check import compare
from paceline.models.headers.facts import TokenizerFacts
from paceline.models.headers.vocabulary import make_vocab
from paceline.speculative.errors import VocabError
from paceline.vocab.translation import check_shared


def test_the_same_header_is_the_same_and_needs_no_advice() -> None:
    found = check()
    assert (found.verdict, found.usable, found.advice) == ("same", True, ())
    assert {reason.weight for reason in found.reasons} == {"note"}


@pytest.mark.parametrize(
    ("draft", "verdict", "field"),
    [
        (padded(TOKENIZER, 1), "compatible", "vocabulary size"),
        (padded(TOKENIZER, 128), "compatible", "vocabulary size"),
        (padded(TOKENIZER, 129), "mappable", "vocabulary size"),
        (respelled(TOKENIZER, {4: b"other"}), "compatible", ""),
        (respelled(TOKENIZER, {5: b"other"}), "mappable", "token texts"),
        (respelled(TOKENIZER, {END - 1: b"other"}), "mappable", "token texts"),
        (replace(TOKENIZER, kind="SPM"), "mappable", "tokenizer"),
        (replace(TOKENIZER, special={"bos": 7, "eos": END}), "mappable", "BOS"),
        (replace(TOKENIZER, add_bos=True), "mappable", "BOS"),
        (replace(TOKENIZER, ends=frozenset({END, 7})), "mappable", "EOS"),
        (replace(TOKENIZER, add_eos=True), "mappable", "EOS"),
    ],
)
def test_tokens_map_one_to_one_only_if_type_specials_flags_and_texts_from_id_5_agree(
    draft: TokenizerFacts, verdict: str, field: str
) -> None:
    found = check(draft)
    for one in (found, compare(model("target", draft), model("draft"))):
        assert one.verdict == verdict
        if field:
            assert of(one, field).text
            assert of(one, field).weight == ("mapping" if verdict == "mappable" else "note")
    if field == "token texts":
        token = 5 if draft.texts[5] == b"other" else END - 1
        assert of(found, field).draft == f"{token} other"
        assert of(found, field).text == f"1 of {len(TEXTS) - 5} ids mean something else, from {token} on"


ID = st.none() | st.integers(0, 9)


@st.composite
def tokenizers(draw: st.DrawFn) -> TokenizerFacts:
    size = draw(st.integers(1, 300))
    texts = st.sampled_from([b"", b"a", b"\xff", b"<|end|>"])
    odd = draw(st.dictionaries(st.integers(0, size - 1), texts, max_size=2))
    special = {role: id_ for role in ("bos", "eos") if (id_ := draw(ID)) is not None}
    return TokenizerFacts(
        draw(st.sampled_from(["BPE", "SPM", "UGM", "RWKV", "PLaMo-2"])),
        draw(st.sampled_from(["", "default", "llama-bpe", "glm4"])),
        [odd.get(i, b"t%d" % i) for i in range(size)],
        special=special,
        ends=frozenset(draw(st.sets(st.integers(0, 9), max_size=1))),
        add_bos=draw(st.none() | st.booleans()),
        add_eos=draw(st.none() | st.booleans()),
    )


@settings(max_examples=60, deadline=None)
@given(tokenizers(), tokenizers(), st.booleans(), st.data())
def test_a_verdict_is_what_loading_the_two_would_say(
    target: TokenizerFacts, draft: TokenizerFacts, alike: bool, data: st.DataObject
) -> None:
    if alike:  # two at random never fit
        draft = padded(target, data.draw(st.sampled_from([0, 1, 128, 129])))
        draft = replace(draft, pre=data.draw(st.sampled_from(["", "default", "llama-bpe"])))
        draft = respelled(draft, dict.fromkeys(data.draw(st.sets(st.integers(0, 5))), b"other"))
    ours, theirs = model("target", target), model("draft", draft)
    found = compare(ours, theirs)
    try:
        check_shared(make_vocab(target), make_vocab(draft))
        shared = True
    except VocabError:
        shared = False
    assert (found.verdict in ("same", "compatible")) == shared
    assert (weights(found, "mapping") == []) == shared
    assert compare(ours, model("draft", target)).verdict == "same"
    back = compare(model("target", draft), model("draft", target)).verdict
    assert (back in ("same", "compatible")) == shared
    json.dumps(found.as_dict())


def test_without_a_text_in_common_nothing_can_be_translated() -> None:
    ours, theirs = ([b"%b%d" % (letter, i) for i in range(9)] for letter in (b"x", b"y"))
    alone = TokenizerFacts("BPE", "", ours, special={"bos": 0, "eos": 0}, ends=frozenset({0}))
    found = compare(model("target", alone, family="qwen2.5"), model("draft", replace(alone, texts=theirs)))
    assert (found.verdict, weights(found, "fatal")) == ("incompatible", ["tokens in common"])
    advice = "take a draft of the target's family (qwen2.5), or --draft lookup, which needs none"
    assert found.advice == (advice,)


def test_advice_can_be_pasted_into_a_shell() -> None:
    target = replace(model(family="qwen2.5"), files=(Path("my models/big one.gguf"),))
    found = compare(target, model("draft", respelled(TOKENIZER, {9: b"other"})))
    assert found.advice == (
        "draft with it as it is: paceline run -m 'my models/big one.gguf' -md draft.gguf --cross-vocab auto",
        "better take a draft of the target's family (qwen2.5) and vocabulary; or give this one the target's: "
        "paceline transplant draft.gguf --vocab-of 'my models/big one.gguf' -o OUT.gguf",
    )


@pytest.mark.parametrize("tokenizer", [None, replace(TOKENIZER, texts=())])
def test_without_tokens_there_is_nothing_to_compare(tokenizer: TokenizerFacts | None) -> None:
    found = check(tokenizer)
    assert (found.verdict, weights(found, "fatal")) == ("incompatible", ["tokenizer"])
    assert of(found, "tokenizer").text == "the draft has no tokenizer: tokens cannot be compared"
