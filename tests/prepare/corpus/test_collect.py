"""Collection of files and documents, and the reasons to skip some."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from paceline.prepare import documents
from paceline.prepare.documents import DocumentReader, Skipped, SourceFile, find
from paceline.speculative.errors import UsageError
from training_answers import write_lines as lines


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    root = tmp_path / "src"
    for name, data in {
        "a.py": b"import os\n",
        "sub/b.sql": b"select 1;\n",
        "sub/c.txt": b"text\n",
        "sub/same.txt": b"text\n",
        "empty.py": b"",
        "blank.py": b" \n\t\n",
        "latin.txt": "caf\xe9".encode("latin-1"),
        "program": b"\x7fELF\0\0\0\xff",
        "image.py": b"text\0with a zero",
        ".hidden": b"secret\n",
        ".git/config": b"[core]\n",
    }.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)
    (root / "link.py").symlink_to(root / "a.py")
    (root / "gone.py").symlink_to(root / "nowhere")
    os.mkfifo(root / "pipe")
    return root


def collected(*paths: Path, logs: tuple[Path, ...] = (), **options: Any) -> tuple[list[Any], Skipped]:
    skipped = Skipped()
    files, _ = find(paths, logs, options.pop("globs", ()), skipped)
    reader = DocumentReader(skipped, **options)
    return [content for file in files for content in reader.documents(file)], skipped


def test_texts_are_read_and_the_rest_is_counted_by_reason(tree: Path) -> None:
    texts, skipped = collected(tree)
    assert texts == ["import os\n", "select 1;\n", "text\n"]
    assert skipped.counts == {
        "hidden": 2,
        "empty": 2,
        "not UTF-8": 1,
        "binary": 2,
        "duplicate": 1,
        "link": 1,
        "not a file": 1,
        "unreadable": 1,
    }
    assert skipped.examples["duplicate"] == str(tree / "sub/same.txt")


def test_globs_choose_among_a_directorys_files(tree: Path) -> None:
    assert collected(tree, globs=["*.sql", "sub/c*"])[0] == ["select 1;\n", "text\n"]
    texts, skipped = collected(tree, tree / "a.py", globs=["*.rs"])
    assert texts == ["import os\n"]  # what was named itself is taken
    assert skipped.counts == {"hidden": 2}


def test_paths_that_overlap_are_read_once_and_count_for_the_first(tree: Path) -> None:
    files, given = find([tree / "sub", tree], [], [], Skipped())
    assert given == [tree / "sub", tree]
    assert [file.source for file in files if file.path.parent.name == "sub"] == [0, 0, 0]
    assert len({file.path.resolve() for file in files}) == len(files)


def test_a_path_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing: no such file or directory"):
        find([tmp_path / "missing"], [], [], Skipped())
    with pytest.raises(UsageError, match=r"is a directory; give the log's own file, or --from"):
        find([], [tmp_path], [], Skipped())


def test_a_file_that_disappears_is_counted(tmp_path: Path) -> None:
    skipped = Skipped()
    assert list(DocumentReader(skipped).documents(SourceFile(tmp_path / "gone.py", 0, 5, False))) == []
    assert skipped.counts == {"unreadable": 1}


def test_texts_that_are_too_large_are_counted_and_a_byte_order_mark_is_no_text(
    tree: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(documents, "MAX_TEXT_BYTES", 9)
    (tree / "sub" / "d.txt").write_bytes(b"\xef\xbb\xbfhello")
    texts, skipped = collected(tree / "a.py", tree / "sub")
    assert (texts, skipped.counts["too large"]) == (["text\n", "hello"], 2)


def test_a_log_gives_what_was_said_or_the_answers_alone(tmp_path: Path) -> None:
    log = lines(tmp_path / "log", {"prompt": "q", "completion": "a"}, "", {"tokens": [1, 2]})
    assert collected(logs=(log,))[0] == ["q", "a", [1, 2]]
    assert collected(logs=(log,), prompts=False)[0] == ["a", [1, 2]]


def test_lines_that_are_no_records_are_counted_with_their_numbers(tmp_path: Path) -> None:
    log = lines(tmp_path / "log", {"text": "a"}, "junk", {"messages": []}, '{"text": "cut sho')
    texts, skipped = collected(logs=(log,))
    assert texts == ["a"]
    assert skipped.counts == {"line that is no record": 2, "record without a text": 1}
    assert skipped.examples["line that is no record"] == f"{log}, line 2"


def test_a_log_without_a_record_is_refused_and_an_empty_one_counted(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no line of it is a JSON object with messages"):
        collected(logs=(lines(tmp_path / "log", "junk", {"key": 1}),))
    (tmp_path / "log").write_bytes(b"")
    assert collected(logs=(tmp_path / "log",))[1].counts == {"empty": 1}


def test_a_conversation_that_a_log_repeats_with_every_turn_is_taken_once(tmp_path: Path) -> None:
    turns = [
        {"role": "user", "content": "q"},
        {"role": "assistant", "content": "yes"},
        {"role": "user", "content": "sure?"},
        {"role": "assistant", "content": "yes"},
    ]
    other = [{"role": "user", "content": "another"}, turns[1]]
    log = lines(tmp_path / "log", {"messages": turns[:2]}, {"messages": turns}, {"messages": other})
    assert collected(logs=(log,))[0] == ["q", "yes", "sure?", "yes", "another", "yes"]
    assert collected(logs=(log,), prompts=False)[0] == ["yes", "yes", "yes"]


def test_json_lines_among_other_files_are_logs_where_they_look_like_it(tmp_path: Path) -> None:
    lines(tmp_path / "a.jsonl", {"prompt": "q", "completion": "a"}, "junk")
    lines(tmp_path / "b.jsonl", {"key": 1}, {"key": 2})
    texts, skipped = collected(tmp_path)
    assert texts == ["q", "a", '{"key": 1}\n{"key": 2}\n']
    assert skipped.counts == {"line that is no record": 1}
