"""N-gram caches: counts, llama.cpp's files, damage."""

from __future__ import annotations

import json
import struct
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from paceline.drafters import ngram_cache
from paceline.drafters.ngram import Counts
from paceline.drafters.ngram_cache import NgramCache
from paceline.models import zoo
from paceline.speculative.errors import ModelError

DATA = Path(__file__).parent.parent / "data" / "ngram"
TEXTS: dict[str, list[int]] = json.loads((DATA / "tokens.json").read_text())
Tally = dict[tuple[int, ...], dict[int, int]]

tokens = st.lists(st.integers(0, 3), max_size=30)
texts = st.lists(tokens, max_size=4)


def counted(streams: Sequence[Sequence[int]], ngram_min: int, ngram_max: int) -> Tally:
    """Return the counts of a cache of these texts."""
    out: Tally = {}
    for text in streams:
        for i, token in enumerate(text):
            for n in range(ngram_min, ngram_max + 1):
                if i >= n:
                    part = out.setdefault(tuple(text[i - n : i]), {})
                    part[token] = part.get(token, 0) + 1
    return out


def held(cache: NgramCache) -> Tally:
    ngrams = [tuple(token for token in row if token >= 0) for row in cache.ngrams().tolist()]
    return {ngram: dict(zip(*cache.continuations(ngram), strict=True)) for ngram in ngrams}


def records(data: bytes) -> list[tuple[tuple[int, ...], frozenset[tuple[int, int]]]]:
    """Return a file's records, sorted."""
    words, out = [word for (word,) in struct.iter_unpack("<i", data)], []
    while words:
        n = 5 + 2 * words[4]
        out.append((tuple(words[:4]), frozenset(zip(words[5:n:2], words[6:n:2], strict=True))))
        words = words[n:]
    return sorted(out, key=lambda record: record[0])


@given(streams=texts, lengths=st.sampled_from([(2, 2), (1, 4), (3, 4), (1, 1)]))
@settings(max_examples=80, deadline=None)
def test_a_built_cache_holds_what_a_count_by_hand_does(
    streams: list[list[int]], lengths: tuple[int, int]
) -> None:
    expected = counted(streams, *lengths)
    cache = NgramCache.build(streams, *lengths)
    merged = NgramCache.build([], *lengths).merge(*(NgramCache.build([text], *lengths) for text in streams))
    assert held(cache) == held(merged) == expected
    assert len(cache) == len(expected)
    # Tokens keep the order of their first appearance.
    assert [list(part) for part in held(cache).values()] == [list(expected[n]) for n in held(cache)]
    assert cache.continuations((9, 9)) == ((), ())
    assert cache.span() == max((t + 1 for n, p in expected.items() for t in (*n, *p)), default=0)


@given(streams=texts, split=st.integers(0, 30))
@settings(max_examples=60, deadline=None)
def test_counts_that_grow_are_those_of_the_texts(streams: list[list[int]], split: int) -> None:
    counts, expected = Counts(), counted(streams, 1, 4)
    for text in streams:
        counts.add(text[:split])
        counts.add(text, min(split, len(text)))  # goes on where it stopped
    assert len(counts) == len(expected)
    for ngram, part in expected.items():
        assert list(zip(*counts.continuations(ngram), strict=True)) == list(part.items())
    counts.thin(2)
    assert len(counts) == sum(sum(part.values()) >= 2 for part in expected.values())
    counts.forget()
    assert (len(counts), counts.continuations((1,))) == (0, ((), ()))


def test_many_short_texts_are_added_up_in_portions(monkeypatch: pytest.MonkeyPatch) -> None:
    streams = [[n % 3, n % 5, n % 2, 1] for n in range(60)]
    monkeypatch.setattr(ngram_cache, "SORT_ROWS", 7)
    assert held(NgramCache.build(iter(streams))) == counted(streams, 2, 2)


@pytest.mark.parametrize("name", ["one", "two"])
def test_a_built_file_is_llama_lookup_creates(name: str, tmp_path: Path) -> None:
    NgramCache.build([TEXTS[name]]).write(tmp_path / "ours.bin")
    theirs = DATA / f"{name}.bin"
    assert records((tmp_path / "ours.bin").read_bytes()) == records(theirs.read_bytes())
    assert held(NgramCache.read(theirs)) == counted([TEXTS[name]], 2, 2)


def test_a_merged_file_is_llama_lookup_merges(tmp_path: Path) -> None:
    one, two = (NgramCache.read(DATA / f"{name}.bin") for name in ("one", "two"))
    one.merge(two).write(tmp_path / "ours.bin")
    assert records((tmp_path / "ours.bin").read_bytes()) == records((DATA / "merged.bin").read_bytes())


def test_a_dynamic_file_of_llama_lookup_is_read_and_written(tmp_path: Path) -> None:
    cache = NgramCache.read(DATA / "dynamic.bin")
    cache.write(tmp_path / "same.bin")
    assert records((tmp_path / "same.bin").read_bytes()) == records((DATA / "dynamic.bin").read_bytes())


@given(streams=texts.filter(lambda found: any(len(text) > 1 for text in found)))
@settings(max_examples=30, deadline=None)
def test_reading_gives_back_what_was_written(
    tmp_path_factory: pytest.TempPathFactory, streams: list[list[int]]
) -> None:
    path = tmp_path_factory.mktemp("ngram") / "x.bin"
    cache = NgramCache.build(streams, 1, 4)
    cache.write(path)
    again = NgramCache.read(path)
    assert held(again) == held(cache)
    assert [*map(list, held(again).values())] == [*map(list, held(cache).values())]


def test_large_tokens_and_counts_keep_their_value(tmp_path: Path) -> None:
    cache = NgramCache.build([[2**31 - 1, 2**31 - 1, 2**31 - 1, 0]])
    for _ in range(32):
        cache = cache.merge(cache)
    cache.write(tmp_path / "x.bin")
    top = 2**31 - 1
    assert held(NgramCache.read(tmp_path / "x.bin")) == {(top, top): {top: top, 0: top}}


WHOLE = struct.pack("<14i", 1, 2, -1, -1, 1, 3, 5, 1, 3, -1, -1, 1, 4, 6)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "not an n-gram cache"),
        (WHOLE[:30], "cut short or damaged at byte 28, after 1 n-grams"),
        (WHOLE[:52], "cut short or damaged at byte 28, after 1 n-grams"),
        (WHOLE[:53], "cut short or damaged at byte 28, after 1 n-grams"),
        (WHOLE + b"\0", "cut short or damaged at byte 56, after 2 n-grams"),
        (WHOLE[:20], "not an n-gram cache"),
        (WHOLE[:3], "not an n-gram cache"),
        (b"GGUF" + bytes(60), "not an n-gram cache"),
        (b"SELECT id, name FROM users WHERE id = 1;\n" * 9, "not an n-gram cache"),
        (struct.pack("<7i", 1, -1, 2, -1, 1, 3, 5), "what cannot be"),
        (struct.pack("<7i", 1, -2, -1, -1, 1, 3, 5), "what cannot be"),
        (struct.pack("<7i", 1, 2, -1, -1, 1, -3, 5), "what cannot be"),
        (struct.pack("<7i", 1, 2, -1, -1, 1, 3, 0), "what cannot be"),
        (WHOLE * 2, "what cannot be"),
    ],
)
def test_a_damaged_or_foreign_file_is_refused_with_its_reason(
    data: bytes, message: str, tmp_path: Path
) -> None:
    path = tmp_path / "x.bin"
    path.write_bytes(data)
    with pytest.raises(ModelError, match=message) as caught:
        NgramCache.read(path)
    assert str(path) in str(caught.value)
    assert path.read_bytes() == data


@pytest.mark.parametrize("kind", ["json", "python", "sql"])
def test_the_shipped_idioms_are_small_static_caches_of_the_embedded_tokenizer(kind: str) -> None:
    path = zoo.MODELS.parent / "idioms" / f"{kind}.ngram"
    cache = NgramCache.read(path)
    assert len(cache) > 2_000
    assert cache.span() <= 8_192
    assert path.stat().st_size <= 100_000
