"""Masks over a vocabulary of a dozen tokens against what they must be by definition."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.speculative.errors import UsageError
from paceline.text.grammar import CACHED_BYTES, MAX_COPIES, TextGrammar, TokenTrie
from paceline.text.grammar_source import from_pattern

# Overlapping tokens, one of them twice, parts of a character, one that says nothing; then two ends of text.
PIECES = [
    *(b"a", b"b", b"ab", b"ba", b"abb", b"a", b"", b"\xc3", b"\xa9"),
    *("é".encode(), "aé".encode(), b"", b"</s>"),
]
END, OTHER_END = 11, 12
V = len(PIECES)
TRIE = TokenTrie(PIECES, frozenset({END, OTHER_END}))


def grammar(pattern: str) -> TextGrammar:
    return TextGrammar(TRIE.compile(from_pattern(pattern)))


def ids(mask: np.ndarray) -> list[int]:
    return [int(token) for token in np.flatnonzero(mask)]


def expected(words: list[str], path: list[int]) -> list[int]:
    """Return the tokens that continue toward one of `words`, and the end tokens where the text is one."""
    if END in path or OTHER_END in path:
        return list(range(V))
    text = b"".join(PIECES[token] for token in path)
    spelled = [word.encode() for word in words]
    going_on = [t for t in range(END) if PIECES[t] and any(w.startswith(text + PIECES[t]) for w in spelled)]
    return going_on + ([END, OTHER_END] if text in spelled else [])


@st.composite
def walks(draw: st.DrawFn) -> tuple[list[str], list[list[int]], list[int]]:
    """Words; the text of one as committed token by token; and for each step what is asked before it."""
    words = draw(st.lists(st.text("abé", min_size=1, max_size=7), min_size=1, max_size=5))
    committed: list[int] = []
    drafts = []
    for _ in range(draw(st.integers(1, 5))):
        path: list[int] = []
        for _ in range(draw(st.integers(0, 4))):
            allowed = expected(words, committed + path)
            path.append(draw(st.sampled_from(allowed)))
        drafts.append(path)
        committed.append(draw(st.sampled_from(expected(words, committed))))
    return words, drafts, committed


@given(walk=walks())
@settings(max_examples=150, deadline=None)
def test_a_mask_is_what_can_still_become_a_match_wherever_drafts_went_before(
    walk: tuple[list[str], list[list[int]], list[int]],
) -> None:
    words, drafts, committed = walk
    followed = grammar("|".join(words))
    for n, path in enumerate(drafts):
        for depth in (len(path), *range(len(path))):
            assert ids(followed.mask(path[:depth])) == expected(words, committed[:n] + path[:depth])
        followed.commit(committed[n : n + 1])
    assert ids(followed.mask(())) == expected(words, committed)


def test_every_end_of_text_token_ends_it_and_then_anything_may_follow() -> None:
    followed = grammar("ab?")
    assert ids(followed.mask([0])) == [1, END, OTHER_END]
    assert followed.mask([0, OTHER_END]).all()
    assert followed.mask([0, OTHER_END, 6]).all()
    followed.commit([0, OTHER_END, 3])
    assert followed.mask([]).all()
    followed.commit([1])
    assert followed.mask([2]).all()


def test_after_a_forbidden_token_nothing_is_allowed_and_no_harm_is_done() -> None:
    followed = grammar("ab?")
    for path in ([1], [1, 0], [0, 0], [0, 1, 1, 1], [6], [END]):
        assert not followed.mask(path).any()
    assert ids(followed.mask([])) == [0, 2, 5]
    with pytest.raises(AssertionError, match="forbids the emitted token 1"):
        followed.commit([0, 1, 1])


def test_a_draft_into_a_dead_end_is_forbidden_there_and_the_text_can_still_go_elsewhere() -> None:
    """No token of this vocabulary says "c"."""
    followed = grammar("abc|ba")
    assert not followed.mask([2]).any()
    assert ids(followed.mask([])) == [0, 1, 2, 3, 5]
    assert ids(followed.mask([1])) == [0, 5]
    followed.commit([3])
    assert ids(followed.mask([])) == [END, OTHER_END]


def test_a_text_in_a_dead_end_says_so() -> None:
    followed = grammar("abc|ba")
    followed.commit([0, 1])
    with pytest.raises(UsageError, match="the regular expression: nothing can follow the text so far"):
        followed.mask([])


@pytest.mark.parametrize("pattern", ["c", r"[^\s\S]"])
def test_a_grammar_that_the_model_cannot_begin_is_refused(pattern: str) -> None:
    with pytest.raises(UsageError, match="no text can satisfy the regular expression"):
        grammar(pattern)


def test_a_model_without_an_end_of_text_cannot_follow_a_grammar() -> None:
    with pytest.raises(UsageError, match="this model has no end-of-text token"):
        TokenTrie(PIECES, frozenset())


@pytest.fixture(scope="module")
def demanding() -> tuple[TextGrammar, int]:
    """A grammar with twenty gaps of different lengths, any of which may be open, over thousands of tokens:
    after a few of them too much for llguidance; and one of its tokens."""
    letters = "abcdefghijklmnopqrstu"
    gaps = (f".*{letters[i]}.{{{20 + i}}}{letters[i + 1]}" for i in range(20))
    pieces = ["".join(three).encode() for three in itertools.product(letters, repeat=3)]
    trie = TokenTrie([*pieces, b"a", b""], frozenset({len(pieces) + 1}))
    return TextGrammar(trie.compile(from_pattern(f"a|{'|'.join(gaps)}"))), 5000


def walk(followed: TextGrammar, token: int) -> None:
    """A draft that goes on until it is too complex."""
    path: list[int] = []
    while followed.mask(path).any():
        path.append(token + 17 * len(path))


def test_a_text_that_is_too_complex_to_follow_says_so(demanding: tuple[TextGrammar, int]) -> None:
    followed, token = demanding

    def emit(n: int) -> None:
        for i in range(n):
            followed.commit([token + 17 * i])

    with pytest.raises(UsageError, match=r"expression is too complex for llguidance \(.*\): simplify it"):
        emit(100)


def test_a_text_that_is_too_complex_is_so_for_no_other_request(demanding: tuple[TextGrammar, int]) -> None:
    """Copies of a compiled grammar share a lexer, which is of no use any more."""
    trie, token = demanding[0]._trie, demanding[1]
    syntax = demanding[0].syntax
    first, second = TextGrammar(trie.compile(syntax)), TextGrammar(trie.compile(syntax))
    assert second.mask([token]).any()
    walk(first, token)
    second.commit([token])
    assert second.mask([]).any()
    assert TextGrammar(trie.compile(syntax)).mask([token]).any()


def test_a_grammar_that_takes_long_to_compile_is_not_compiled_again_in_an_answer(
    demanding: tuple[TextGrammar, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    trie, token = demanding[0]._trie, demanding[1]
    compiled = trie.compile(demanding[0].syntax)
    compiled.seconds = 1.0
    followed = TextGrammar(compiled)
    with monkeypatch.context() as patch:
        patch.setattr("paceline.text.grammar.CompiledGrammar", None)
        with pytest.raises(UsageError, match="too complex for llguidance"):
            walk(followed, token)
    assert trie.compile(demanding[0].syntax) is not compiled  # for whoever comes next


def test_grammars_are_kept_up_to_a_number_of_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    trie = TokenTrie(PIECES, frozenset({END}))
    made = trie.compile(from_pattern("a+"))
    assert trie.compile(from_pattern("a+")) is trie.get_cached(from_pattern("a+")) is made
    made.copies = MAX_COPIES
    assert trie.compile(from_pattern("a+")) is not made
    monkeypatch.setattr("paceline.text.grammar.BYTES_PER_GRAMMAR", CACHED_BYTES / 2.1)
    for n in range(1, 6):
        trie.compile(from_pattern(f"a{{{n}}}"))
        trie.get_cached(from_pattern("a{1}"))
    assert [n for n in range(1, 6) if trie.get_cached(from_pattern(f"a{{{n}}}"))] == [1, 5]
    monkeypatch.setattr("paceline.text.grammar.BYTES_PER_GRAMMAR", CACHED_BYTES)
    assert trie.compile(from_pattern("b")).first_mask.any()
    assert trie.get_cached(from_pattern("b"))  # one that alone is too large is kept, and pushes out one other
    assert sum(trie.get_cached(from_pattern(f"a{{{n}}}")) is not None for n in (1, 5)) == 1


def test_a_slow_grammar_ends_drafting_and_then_its_request(monkeypatch: pytest.MonkeyPatch) -> None:
    """Masks are computed in the thread that decodes for everybody."""
    followed, clock = grammar("a*"), itertools.count(0.0, 0.4)
    monkeypatch.setattr("paceline.text.grammar.thread_time", lambda: next(clock))
    for token in range(20):
        assert followed.is_slow == (token > 3)
        followed.commit([0])
    with pytest.raises(UsageError, match="expression is too slow to follow"):
        followed.commit([0] * 20)


def test_an_error_that_drafts_brought_about_is_tried_again_afresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Matcher states built for drafts count against its limits; masks must not depend on them."""
    followed = grammar("ab|ba")
    allowed = TRIE.next_token_mask
    failures = iter([True, False, False])  # the other one's first mask is looked at, too

    def failing_once(matcher: Any) -> Any:
        return TRIE.allow_none if next(failures) else allowed(matcher)

    monkeypatch.setattr(TRIE, "next_token_mask", failing_once)
    assert ids(followed.mask([0])) == [1]
