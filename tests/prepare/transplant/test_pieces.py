"""The pieces of a target token: by its text, or by the role of a control token."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from paceline.prepare.transplant import MOST_PIECES, STEP, TokenPieces, match
from paceline.speculative.vocabulary import Vocab
from paceline.vocab.lexicon import TokenizerVocab
from tongues import untaught


def lexicon(*texts: str | bytes, eos: tuple[int, ...] = (), bos: int | None = None) -> TokenizerVocab:
    """Return a vocabulary of these tokens; those in angle brackets are control tokens."""
    names = [text.encode() if isinstance(text, str) else text for text in texts]
    said = [b"" if name[:1] == b"<" and name[-1:] == b">" else name for name in names]
    vocab = Vocab(len(names), "BPE", bos, frozenset(eos), False, False, names.__getitem__, said.__getitem__)
    return TokenizerVocab(vocab, untaught)


def matched(
    target: TokenizerVocab,
    draft: TokenizerVocab,
    roles: dict[str, int] | None = None,
    others: dict[str, int] | None = None,
) -> TokenPieces:
    return match(target, draft, roles or {}, others or {}, lambda: None)


def of(pieces: TokenPieces, token: int) -> list[int]:
    return list(map(int, pieces.ids[pieces.starts[token] : pieces.starts[token + 1]]))


def test_the_same_text_is_the_same_token_and_another_is_spelled_in_order() -> None:
    target = lexicon("def", "default", "x", "ault")
    pieces = matched(target, lexicon("a", "u", "l", "t", "def", "x", "ult"))
    assert [of(pieces, token) for token in range(4)] == [[4], [4, 0, 6], [5], [0, 6]]
    assert not pieces.never_drafted.any()
    assert pieces.counts == {"same": 2, "spelled": 2, "special": 0, "silent": 0}


def test_of_tokens_of_one_text_only_that_which_the_tokenizer_writes_is_drafted() -> None:
    """SentencePiece vocabularies have a comma and the comma's byte token."""
    pieces = matched(lexicon(",", "b", ",", "ab", "ab"), lexicon("a", "b", ","))
    assert [of(pieces, token) for token in (0, 2)] == [[2], [2]]
    assert pieces.never_drafted.tolist() == [False, False, True, False, True]


def test_what_no_token_says_is_left_out_and_a_token_of_nothing_else_is_quiet() -> None:
    pieces = matched(lexicon("aé", "é"), lexicon("<e>", "a", eos=(0,)))
    assert (of(pieces, 0), of(pieces, 1)) == ([1], [])
    assert pieces.never_drafted.tolist() == [False, True]


def test_a_control_token_is_found_by_its_name_before_its_role() -> None:
    target = lexicon("<s>", "</s>", "a", eos=(1,))
    draft = lexicon("a", "<begin>", "<stop>", "</s>", eos=(2, 3))
    pieces = matched(target, draft, {"bos": 0, "eos": 1}, {"bos": 1, "eos": 2})
    assert [of(pieces, token) for token in (0, 1)] == [[1], [3]]
    assert pieces.counts["special"] == 2


def test_of_several_with_one_counterpart_one_is_drafted_and_an_end_rather_than_padding() -> None:
    target = lexicon("<pad>", "<eos>", "a", eos=(1,))
    pieces = matched(
        target, lexicon("a", "<e>", eos=(1,)), {"padding": 0, "eos": 1}, {"padding": 1, "eos": 1}
    )
    assert [of(pieces, token) for token in (0, 1)] == [[1], [1]]
    assert pieces.never_drafted.tolist() == [True, False, False]


def test_a_comma_that_a_file_calls_its_beginning_is_a_comma() -> None:
    """BPE's default BOS in llama.cpp is token 11: a comma in Qwen3-Coder-480B, and absent in Qwen's draft."""
    pieces = matched(lexicon("<s>", ","), lexicon("<e>", ",", eos=(0,)), {"bos": 1}, {"bos": 1})
    assert of(pieces, 1) == [1]
    assert of(pieces, 0) == []  # nothing of "<s>" can be spelled
    assert pieces.never_drafted.tolist() == [True, False]


def test_a_control_token_that_the_draft_does_not_have_is_read_as_its_spelling_and_never_drafted() -> None:
    pieces = matched(lexicon("<|user|>", "a"), lexicon("<", "|", ">", "user", "a"))
    assert of(pieces, 0) == [0, 1, 3, 1, 2]
    assert (bool(pieces.never_drafted[0]), pieces.counts["silent"]) == (True, 1)


def test_a_long_text_is_cut_though_the_draft_begins_with_control_tokens() -> None:
    asked: list[int] = []
    names = [*(b"<%d>" % i for i in range(STEP)), b"a", b"b"]
    said = [b"" if name[:1] == b"<" else name for name in names]
    vocab = Vocab(len(names), "BPE", None, frozenset(), False, False, names.__getitem__, said.__getitem__)

    def encode(text: str) -> list[int]:
        asked.append(len(text))
        return []

    pieces = matched(lexicon("a" * (1 << 20) + "b"), TokenizerVocab(vocab, encode))
    assert max(asked) == len(pieces.ids) == 2 * MOST_PIECES


texts = st.lists(st.binary(min_size=1, max_size=6), min_size=1, max_size=12, unique=True)


@given(texts, texts)
def test_pieces_spell_their_token_whenever_the_draft_has_every_byte(
    ours: list[bytes], theirs: list[bytes]
) -> None:
    said = [bytes([b]) for b in range(256)]
    said += [text for text in theirs if len(text) > 1]
    vocab = Vocab(len(said), "BPE", None, frozenset(), False, False, said.__getitem__, said.__getitem__)
    mine = replace(vocab, size=len(ours), text=ours.__getitem__, piece=ours.__getitem__)
    pieces = matched(TokenizerVocab(mine, untaught), TokenizerVocab(vocab, untaught))
    for token, text in enumerate(ours):
        assert b"".join(said[piece] for piece in of(pieces, token)) == text
