"""The tokens that two vocabularies share."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from paceline.speculative.vocabulary import Vocab
from paceline.vocab.lexicon import TokenizerVocab
from paceline.vocab.translation import Intersection
from tongues import untaught


def lexicon(said: Sequence[str], eos: Sequence[int] = ()) -> TokenizerVocab:
    """Make a lexicon by the tokens' texts; "<...>" is a control token."""
    pieces = [b"" if text.startswith("<") else text.encode() for text in said]
    names = [text.encode() for text in said]
    ends, text, piece = frozenset(eos), names.__getitem__, pieces.__getitem__
    return TokenizerVocab(Vocab(len(said), "test", None, ends, False, False, text, piece), untaught)


def pairs(target: TokenizerVocab, draft: TokenizerVocab) -> dict[int, int]:
    common = Intersection.of(target, draft)
    assert common.target_ids.tolist() == sorted(common.target_ids.tolist())
    assert len(common) == len(common.draft_ids)
    return dict(zip(common.target_ids.tolist(), common.draft_ids.tolist(), strict=True))


def test_tokens_match_by_bytes_control_tokens_by_name_and_never_with_text() -> None:
    assert pairs(lexicon(["a", "b", "ab", "c"]), lexicon(["x", "ab", "c"])) == {2: 1, 3: 2}
    assert pairs(lexicon(["<s>", "<pad>", "s"]), lexicon(["s", "<pad>", "<x>"])) == {1: 1, 2: 0}


def test_ends_match_by_name_and_if_named_differently_each_other_and_nothing_else() -> None:
    """Even if one's name is another's control token or text."""
    assert pairs(lexicon(["<end>", "<turn>"], [0, 1]), lexicon(["<stop>", "<turn>"], [0, 1])) == {1: 1}
    assert pairs(lexicon(["a", "</s>"], [1]), lexicon(["<end>", "a"], [0])) == {0: 1, 1: 0}
    assert pairs(lexicon(["<a>", "<b>"], [0]), lexicon(["<a>", "<b>"], [1])) == {0: 1}
    assert pairs(lexicon(["a", "b"], [1]), lexicon(["b", "a"], [1])) == {1: 1}


words = st.lists(st.sampled_from(["a", "b", "ab", "c", "<s>", "<t>", "<u>"]), min_size=1, max_size=8)


@given(target=words, draft=words, ends=st.tuples(st.integers(0, 7), st.integers(0, 7)))
def test_no_token_is_matched_twice_and_every_pair_has_the_same_text(
    target: list[str], draft: list[str], ends: tuple[int, int]
) -> None:
    ours = lexicon(target, [ends[0]] if ends[0] < len(target) else [])
    theirs = lexicon(draft, [ends[1]] if ends[1] < len(draft) else [])
    found = pairs(ours, theirs)
    assert len(set(found.values())) == len(found)
    for our, their in found.items():
        assert ours.token_bytes[our] == theirs.token_bytes[their]
        both_end = our in ours.vocab.eos and their in theirs.vocab.eos
        assert both_end or target[our] == draft[their]
