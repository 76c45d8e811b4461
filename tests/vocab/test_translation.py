"""Translation of the target's tokens for a draft model."""

from __future__ import annotations

from dataclasses import replace

import pytest

from paceline.speculative.errors import VocabError
from paceline.speculative.interfaces import Caps
from paceline.speculative.vocabulary import Vocab
from paceline.vocab.translation import Translation, check_shared, largest, window
from tongues import translation

OURS = [b"", b"", b"", b"a", b"b", b"ab", b"\xc3", b"\xa4", b"?"]
THEIRS = [b"", b"", b"", b"b", b"\xc3\xa4", b"a", b"\xc3", b"\xa4", b"<", b">", b"x"]


def vocab(pieces: list[bytes], names: list[bytes], **more: object) -> Vocab:
    text = [*names, *pieces[len(names) :]]
    base = Vocab(len(pieces), "test", 0, frozenset({1}), False, False, text.__getitem__, pieces.__getitem__)
    return replace(base, **more)  # type: ignore[arg-type]


@pytest.fixture
def read() -> Translation:
    target = vocab(OURS, [b"<s>", b"</s>", b"<x>"])
    return translation(target, vocab(THEIRS, [b"<bos>", b"<end>", b"<pad>"]))


def test_a_token_is_its_counterpart_or_its_bytes_encoded(read: Translation) -> None:
    assert read.token(3) == (5,)
    assert read.token(5) == (5, 3)
    assert read.token(6) == (6,)
    assert read.token(5) is read.token(5)


def test_an_end_is_the_drafts_end_and_another_control_token_is_its_name_encoded(read: Translation) -> None:
    assert read.token(1) == (1,)
    assert read.token(2) == (8, 10, 9)


def test_there_is_always_at_least_one_token(read: Translation) -> None:
    assert read.token(8) == (0,)
    nameless = vocab(OURS, [b"", b"</s>"])
    assert translation(nameless, vocab(THEIRS, [b""] * 3)).token(0) == (0,)
    assert translation(nameless, vocab(THEIRS, [b""] * 3)).prompt([]) == [0]


def test_a_text_is_read_as_one_text_that_control_tokens_divide(read: Translation) -> None:
    """Two bytes of one character are one token unless an end is between them."""
    assert read.text([3, 6, 7, 4]) == [5, 4, 3]
    assert read.text([6, 1, 7]) == [6, 1, 7]


@pytest.mark.parametrize(
    ("ours", "theirs", "read"),
    [
        *((False, False, [8, 10, 9, 5]), (True, False, [5])),
        *((True, True, [0, 5]), (False, True, [0, 8, 10, 9, 5])),
    ],
)
def test_a_prompt_begins_with_the_drafts_own_bos_where_it_wants_one(
    ours: bool, theirs: bool, read: list[int]
) -> None:
    target = vocab(OURS, [b"<s>", b"</s>", b"<x>"], bos=2, add_bos=ours)
    draft = vocab(THEIRS, [b"<bos>", b"<end>", b"<pad>"], add_bos=theirs)
    assert translation(target, draft).prompt([2, 3]) == read
    assert translation(target, draft).lead == theirs


def test_coverage_is_the_share_of_tokens_with_a_counterpart(read: Translation) -> None:
    assert read.coverage([3, 4, 5, 8]) == 0.5
    assert read.coverage([]) == 0.0


def caps(n_ctx: int, rows: int = 512) -> Caps:
    return Caps(4, "free", 1, rows, rows, n_ctx)


def test_a_text_that_fits_beside_the_largest_tree_is_read_whole() -> None:
    text = list(range(12))
    assert window(text, 0, caps(16, rows=4)) is text
    assert largest(caps(16, rows=4)) == 4


@pytest.mark.parametrize("lead", [0, 1])
@pytest.mark.parametrize("n_ctx", [1, 2, 3, 8, 20])
def test_of_a_longer_text_the_lead_and_the_end_are_read_and_the_cut_moves_seldom(
    n_ctx: int, lead: int
) -> None:
    limits = caps(n_ctx)
    room = n_ctx - largest(limits)
    cuts = set()
    for n in range(1, 200):
        read = window(list(range(n)), lead, limits)
        assert 1 <= len(read) <= room
        assert read[:lead] == list(range(min(lead, n)))
        if len(read) > lead:
            assert read[lead:] == list(range(read[lead], n))
            cuts.add(read[lead])
    assert len(cuts) <= 200 / max(1, room // 2) + 1


VOCAB = Vocab(1000, "BPE", 1, frozenset({2}), False, False, b"%d".__mod__, b"%d".__mod__)


def test_padding_and_control_tokens_may_differ() -> None:
    check_shared(VOCAB, VOCAB)
    check_shared(VOCAB, replace(VOCAB, size=1128))
    check_shared(VOCAB, replace(VOCAB, text=lambda token: b"?" if token < 5 else b"%d" % token))


@pytest.mark.parametrize(
    ("draft", "complaint"),
    [
        (replace(VOCAB, kind="SPM"), "tokenizer type is SPM, target BPE"),
        (replace(VOCAB, bos=3), r"BOS token is 3 \(is put before no text\), target 1 \("),
        (replace(VOCAB, bos=None), r"BOS token is none \("),
        (replace(VOCAB, add_bos=True), r"BOS token is 1 \(is put before every text\), target 1 \("),
        (replace(VOCAB, eos=frozenset({2, 3})), r"EOS token is 2, 3 \(is put after no text\), target 2 \("),
        (replace(VOCAB, size=1129), "1,129 tokens, target 1,000"),
        (replace(VOCAB, text=lambda token: b"x"), "token 5 is b'x', target b'5'"),
    ],
)
def test_another_vocabulary_is_refused_with_the_difference_and_advice(draft: Vocab, complaint: str) -> None:
    with pytest.raises(VocabError, match=f"{complaint}.*of the same family"):
        check_shared(VOCAB, draft)
