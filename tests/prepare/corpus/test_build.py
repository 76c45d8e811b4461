"""Building of corpora: their content, and failed builds that leave the old corpus."""

from __future__ import annotations

import errno
import json
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest

from paceline.backends.registry import open_tokenizer
from paceline.drafters import suffix_sort
from paceline.drafters.datastore import DatastoreDrafter
from paceline.drafters.ngram_cache import NgramCache
from paceline.drafters.suffix_array import SuffixArray
from paceline.models import zoo
from paceline.prepare.corpus import PIECE, UNKNOWN_TOTAL, Sources, Tick, build
from paceline.speculative.errors import MissingExtraError, PacelineError, UsageError
from paceline.speculative.interfaces import Budget
from paceline.storage.corpora import Corpus, find_corpus
from paceline.text.interface import Tokenizer

CODE = "def add(first, second):\n    return first + second\n"
SQL = "select name, age from people where age > 30 order by name;\n"


@pytest.fixture(scope="module")
def tokenizer() -> Iterator[Tokenizer]:
    with closing(open_tokenizer(zoo.target_path())) as loaded:
        yield loaded


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    return tmp_path / "home" / "corpora"


@pytest.fixture
def sources(tmp_path: Path) -> Sources:
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(CODE)
    (tmp_path / "src" / "b.sql").write_text(SQL)
    (tmp_path / "src" / "empty").write_text("")
    (tmp_path / "log.jsonl").write_text(json.dumps({"completion": "the answer is 42"}))
    return Sources([tmp_path / "src"], [tmp_path / "log.jsonl"])


def left(home: Path) -> list[str]:
    return sorted(path.name for path in home.iterdir())


def test_a_corpus_holds_what_its_sources_do(sources: Sources, tokenizer: Tokenizer, home: Path) -> None:
    corpus, skipped = build("mine", sources, tokenizer)
    assert corpus == find_corpus("mine", tokenizer.vocab)
    code, sql, answer = (tokenizer.text.encode_continuation(t) for t in (CODE, SQL, "the answer is 42"))
    manifest = corpus.manifest
    assert (manifest.tokens, manifest.documents) == (len(code) + len(sql) + len(answer), 3)
    assert (manifest.model, manifest.n_vocab) == ("paceline-target.gguf", tokenizer.vocab.size)
    first, second = manifest.sources
    assert (first.files, first.documents, first.bytes) == (2, 2, len(CODE) + len(SQL))
    assert (second.files, second.tokens, second.bytes) == (1, len(answer), 16)
    assert manifest.skipped == skipped.counts == {"empty": 1}
    assert left(home) == ["mine"]
    assert left(corpus.folder) == ["datastore", "manifest.json", "static.ngram"]


def test_drafters_find_it_in_both_kinds(sources: Sources, tokenizer: Tokenizer) -> None:
    corpus, _ = build("mine", sources, tokenizer)
    assert corpus.datastore is not None
    assert corpus.static is not None
    sql = tokenizer.text.encode_continuation(SQL)
    drafter = DatastoreDrafter([SuffixArray(corpus.datastore)])
    (tree,) = drafter.propose([(drafter.open(sql[:5], 0), Budget(4, 4))])
    assert list(tree.tokens) == sql[5:9]
    drafter.close()
    tokens, counts = NgramCache.read(corpus.static).continuations(tuple(sql[:2]))
    assert (list(tokens), list(counts)) == ([sql[2]], [1])


def test_a_new_corpus_takes_the_place_of_the_old(sources: Sources, tokenizer: Tokenizer, home: Path) -> None:
    build("mine", sources, tokenizer)
    build("mine", Sources(logs=sources.logs), tokenizer, ["ngram"])
    assert find_corpus("mine", tokenizer.vocab).manifest.documents == 1
    assert left(home) == ["mine"]
    assert left(home / "mine") == ["manifest.json", "static.ngram"]


def test_a_corpus_of_another_tokenizer_is_replaced_with_force_only(
    sources: Sources, tokenizer: Tokenizer, models: Path
) -> None:
    build("mine", sources, tokenizer)
    with closing(open_tokenizer(models / "target.gguf")) as other:
        with pytest.raises(UsageError, match="another name, or replace it with --force"):
            build("mine", sources, other)
        find_corpus("mine", tokenizer.vocab)
        build("mine", sources, other, force=True)
        find_corpus("mine", other.vocab)


def whole(tokenizer: Tokenizer, home: Path, corpus: Corpus) -> None:
    """Require the corpus unchanged, and nothing else."""
    assert find_corpus("mine", tokenizer.vocab) == corpus
    assert left(home) == ["mine"]


def test_ctrl_c_at_any_moment_leaves_the_old_corpus_and_no_litter(
    sources: Sources, tokenizer: Tokenizer, home: Path
) -> None:
    corpus, _ = build("mine", Sources(logs=sources.logs), tokenizer)
    pressed_at = 0

    def attempt(moment: int) -> bool:
        """Return whether the build finished before the key was pressed."""
        moments = iter(range(moment, -1, -1))

        def key() -> None:
            if next(moments) == 0:
                raise KeyboardInterrupt

        @contextmanager
        def phase(work: Mapping[str, int]) -> Iterator[Tick]:
            yield lambda kind: key()

        try:
            build("mine", sources, tokenizer, phase=phase, check=key)
        except KeyboardInterrupt:
            return False
        return True

    while not attempt(pressed_at):
        whole(tokenizer, home, corpus)
        pressed_at += 1
    assert pressed_at > 8  # while tokenizing, counting and sorting
    assert find_corpus("mine", tokenizer.vocab).manifest.documents == 3


@pytest.mark.parametrize("where", ["prepare.corpus.TokenFile.add", "storage.corpora.replace"])
def test_a_full_disk_leaves_the_old_corpus_and_no_litter(
    sources: Sources, tokenizer: Tokenizer, home: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    corpus, _ = build("mine", sources, tokenizer)

    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(f"paceline.{where}", full)
    with pytest.raises(PacelineError, match=r"No space left on device.*what was there is as it was"):
        build("mine", sources, tokenizer)
    whole(tokenizer, home, corpus)


def test_a_missing_extra_is_told_before_anything_is_read(
    sources: Sources, tokenizer: Tokenizer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> None:
        raise MissingExtraError("install it")

    monkeypatch.setattr(suffix_sort, "sorter", missing)
    with pytest.raises(MissingExtraError):
        build("mine", Sources([home / "not even there"]), tokenizer)
    build("mine", sources, tokenizer, ["ngram"])


def test_nothing_to_build_from_says_what_was_found(tmp_path: Path, tokenizer: Tokenizer, home: Path) -> None:
    (tmp_path / "src").mkdir()
    with pytest.raises(UsageError, match=r"would be empty: nothing to read was found \(no file\)"):
        build("mine", Sources([tmp_path / "src"]), tokenizer)
    (tmp_path / "src" / "a").write_text("")
    (tmp_path / "src" / "b").write_bytes(b"\0")
    with pytest.raises(UsageError, match=r"\(1 empty, 1 binary\)"):
        build("mine", Sources([tmp_path / "src"]), tokenizer)
    assert left(home) == []


def test_token_ids_of_another_model_and_texts_too_short_for_ngrams_are_refused(
    tmp_path: Path, tokenizer: Tokenizer, home: Path
) -> None:
    log = tmp_path / "log"
    for stranger in (8192, 2**40, -1):
        log.write_text(json.dumps({"tokens": [1, 2, stranger]}))
        with pytest.raises(UsageError, match="name the model that the log is of with -m"):
            build("mine", Sources(logs=[log]), tokenizer)
    log.write_text("a")
    with pytest.raises(UsageError, match="too short to count n-grams in"):
        build("mine", Sources([log]), tokenizer)
    assert left(home) == []


def test_progress_reaches_exactly_what_was_announced(sources: Sources, tokenizer: Tokenizer) -> None:
    left: list[dict[str, int]] = []

    @contextmanager
    def phase(work: Mapping[str, int]) -> Iterator[Tick]:
        left.append(dict(work))

        def tick(kind: str) -> None:
            left[-1][kind] -= 1

        yield tick

    build("mine", sources, tokenizer, phase=phase)
    assert left == [{"look for files": UNKNOWN_TOTAL - 4}, {"tokenize": 0}, {"count n-grams": 0}, {"sort": 0}]


def test_long_texts_are_tokenized_as_they_would_be_whole(tmp_path: Path, tokenizer: Tokenizer) -> None:
    text = "".join(f"line {i} of it,\n\n   and {i * i} more\n" for i in range(6000))
    assert len(text) > 3 * PIECE
    (tmp_path / "a.txt").write_text(text)
    corpus, _ = build("mine", Sources([tmp_path / "a.txt"]), tokenizer, ["datastore"])
    assert corpus.manifest.tokens == len(tokenizer.text.encode_continuation(text))
