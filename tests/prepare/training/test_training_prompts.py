"""Prompts to train on: the shapes of files, what is left out, and the split."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from paceline.bench.suites import workload
from paceline.prepare.training.prompts import TrainingPrompts, read_prompts
from paceline.speculative.errors import UsageError
from training_answers import write_lines as lines

MANY = [f"question {number}" for number in range(400)]


def filler(folder: Path, n: int = len(MANY)) -> Path:
    """Enough prompts that some are held out."""
    return lines(folder / "filler.jsonl", *({"prompt": text} for text in MANY[:n]))


def read(*files: Path, chat: bool = True, **options: Any) -> TrainingPrompts:
    """The prompts of the files, and those of `filler`."""
    return read_prompts([*files, filler(files[0].parent / "more")], chat=chat, **options)


def found(prompts: TrainingPrompts) -> set[Any]:
    """The messages, or the text, of each prompt that is not of `filler`."""
    made = {item.messages or item.prompt for item in prompts.items}
    return made - {(("user", text),) for text in MANY} - set(MANY)


def user(text: str) -> tuple[tuple[str, str | None], ...]:
    return (("user", text),)


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        ({"prompt": "Why?"}, [user("Why?")]),
        ({"prompt": "Why?", "completion": "Because."}, [user("Why?")]),
        ({"text": "Once"}, [user("Once")]),
        ({"messages": [{"role": "user", "content": "Hi"}]}, [user("Hi")]),
        (
            {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Hi"}]},
            [(("system", "S"), ("user", "Hi"))],
        ),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]}, [user("Hi")]),
        (
            {"conversations": [{"from": "human", "value": "Hi"}, {"from": "gpt", "value": "Hello"}]},
            [user("Hi")],
        ),
        (
            {"conversations": [{"from": "gpt", "value": "Welcome"}, {"from": "human", "value": "Hi"}]},
            [user("Hi")],
        ),
        ({"turns": ["A", "B"]}, [user("A"), (("user", "A"), ("assistant", None), ("user", "B"))]),
        (
            {"messages": [{"role": "user", "content": "A"}, {"role": "user", "content": "B"}]},
            [user("A\n\nB")],
        ),
        (
            {"request": {"messages": [{"role": "user", "content": "A"}]}, "response": {"choices": []}},
            [user("A")],
        ),
    ],
)
def test_the_usual_shapes_of_records_are_read(tmp_path: Path, record: Any, expected: Any) -> None:
    assert found(read(lines(tmp_path / "a.jsonl", record))) == set(expected)


def test_without_a_chat_template_a_prompt_is_completed_and_a_conversation_is_one(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "Hi"}]}
    file = lines(tmp_path / "a.jsonl", {"prompt": "def f("}, {"text": "Once"}, chat)
    assert found(read(file, chat=False)) == {"def f(", "Once", user("Hi")}


def test_each_turn_of_a_conversation_is_a_prompt_behind_the_targets_own_answers(tmp_path: Path) -> None:
    said = [("human", "A"), ("gpt", "a"), ("human", "B"), ("gpt", "b"), ("human", "C")]
    record = {"conversations": [{"from": who, "value": text} for who, text in said]}
    items = [item for item in read(lines(tmp_path / "a.jsonl", record)).items if item.messages[0][1] == "A"]
    assert [item.messages[-1] for item in items] == [("user", "A"), ("user", "B"), ("user", "C")]
    assert items[2].messages == (*user("A"), ("assistant", None), *user("B"), ("assistant", None), *user("C"))
    assert [item.referred for item in items] == [(), (items[0].id,), (items[0].id, items[1].id)]
    assert {item.session for item in items} == {items[0].id}


def test_recorded_answers_stay_beside_the_results_of_tools(tmp_path: Path) -> None:
    said = [("user", "A"), ("assistant", "call"), ("tool", "42"), ("assistant", "It is 42.")]
    record = {"messages": [{"role": role, "content": text} for role, text in said]}
    assert found(read(lines(tmp_path / "a.jsonl", record))) == {
        user("A"),
        (*user("A"), ("assistant", "call"), *user("42")),
    }


def test_a_text_has_a_prompt_a_paragraph_and_any_other_file_is_one(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n\n \nthree\n", "utf-8")
    (tmp_path / "b.py").write_text("import os\n\nprint()\n", "utf-8")
    prompts = read(tmp_path / "a.txt", tmp_path / "b.py")
    assert found(prompts) == {user("one\ntwo"), user("three"), user("import os\n\nprint()\n")}
    places = {item.messages: item.category for item in prompts.items}
    assert places[user("three")] == f"{tmp_path / 'a.txt'}, line 5"


def test_folders_are_searched_for_prompts_and_an_array_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    lines(folder / "sub" / "a.jsonl", {"prompt": "A"})
    (folder / "b.json").write_text('\ufeff [{"prompt": "B"},\n {"prompt": "C"}, 7]', "utf-8")
    (folder / "c.txt").write_text("D")
    (folder / "program.py").write_text("not a prompt")
    prompts = read(folder)
    assert found(prompts) == {user("A"), user("B"), user("C"), user("D")}
    assert prompts.skipped.counts == {"no JSON object": 1}
    found_in = [(Path(source.path).name, source.prompts) for source in prompts.sources]
    assert found_in == [("b.json", 2), ("c.txt", 1), ("a.jsonl", 1), ("filler.jsonl", len(MANY))]


def test_unusable_lines_are_counted_with_the_place_of_the_first(tmp_path: Path) -> None:
    file = lines(
        tmp_path / "a.jsonl", {"prompt": "A"}, "{torn", "[1]", {"answer": "B"}, {"prompt": " "}, {"turns": []}
    )
    skipped = read(file).skipped
    assert skipped.counts == {"unusable line": 2, "record without a prompt": 3}
    assert skipped.examples["unusable line"].startswith(f"{file}, line 2 is no JSON (")
    assert skipped.examples["record without a prompt"] == f"{file}, line 4"


@pytest.mark.parametrize(
    ("name", "data", "why"),
    [
        ("a.jsonl", b'{"answer": 1}\n{torn', r"has no prompt \(record without a prompt: .*a.jsonl, line 1\)"),
        ("a.jsonl", b"", "has no prompt; give lines such as"),
        ("a.txt", b" \n\n", r"has no prompt \(empty: "),
        ("a.txt", b"caf\xe9", r"has no prompt \(not UTF-8: "),
        ("a.json", b"[{]", "cannot be read as JSON"),
    ],
)
def test_a_file_without_a_prompt_is_refused(tmp_path: Path, name: str, data: bytes, why: str) -> None:
    (tmp_path / name).write_bytes(data)
    with pytest.raises(UsageError, match=f"{name}: {why}"):
        read(tmp_path / name)


def test_nothing_to_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="missing: no such file or directory"):
        read_prompts([tmp_path / "missing"], chat=True)
    with pytest.raises(UsageError, match=r"no prompts to train on: name files or folders \(--data\)"):
        read_prompts([], chat=True)


def test_duplicates_are_dropped_also_between_shapes(tmp_path: Path) -> None:
    first = lines(tmp_path / "a.jsonl", {"prompt": "A"}, {"prompt": "A"}, {"turns": ["A", "B"]})
    second = lines(tmp_path / "b.jsonl", {"messages": [{"role": "user", "content": "A"}]})
    prompts = read(first, second)
    assert len(found(prompts)) == 2
    assert prompts.skipped.counts == {"duplicate": 3}
    assert prompts.skipped.examples == {"duplicate": f"{first}, line 2"}


def held_out(prompts: TrainingPrompts, answered: int | None = None) -> dict[str, bool]:
    """The split of the first prompts, each with an answer of a hundred tokens."""
    ids = [item.id for item in prompts.items[:answered]]
    chosen = prompts.held_out_ids(dict.fromkeys(ids, 100), 100)
    return {id_: id_ in chosen for id_ in ids}


def test_more_data_moves_no_prompt_between_training_and_held_out(tmp_path: Path) -> None:
    small = held_out(read_prompts([filler(tmp_path, 150)], chat=True))
    large = held_out(
        read_prompts([filler(tmp_path), lines(tmp_path / "a.jsonl", {"prompt": "A"})], chat=True)
    )
    completed = held_out(read_prompts([filler(tmp_path)], chat=False))
    assert large.items() > small.items()
    assert large.items() > completed.items()
    assert 0.02 < sum(large.values()) / len(large) < 0.09


def test_a_larger_share_only_adds_to_the_held_out_prompts(tmp_path: Path) -> None:
    few = held_out(read_prompts([filler(tmp_path)], chat=True))
    many = held_out(read_prompts([filler(tmp_path)], chat=True, held_out=0.5))
    assert all(many[id_] for id_, is_held_out in few.items() if is_held_out)
    assert 0.4 < sum(many.values()) / len(many) < 0.6


def test_the_turns_of_a_conversation_are_on_one_side(tmp_path: Path) -> None:
    file = lines(tmp_path / "a.jsonl", *({"turns": [text, "And then?", "Why?"]} for text in MANY))
    prompts = read_prompts([file], chat=True)
    sides, split = {item.session: set[bool]() for item in prompts.items}, held_out(prompts)
    for item in prompts.items:
        sides[item.session].add(split[item.id])
    assert len(sides) == len(MANY)
    assert all(len(side) == 1 for side in sides.values())


@pytest.mark.parametrize(("share", "n"), [(0.001, 1), (0.999, 2)])
def test_both_sides_have_enough_tokens_whatever_the_share(tmp_path: Path, share: float, n: int) -> None:
    prompts = read_prompts([filler(tmp_path, 3)], chat=True, held_out=share)
    assert sum(held_out(prompts).values()) == n
    for tokens, least in ((100, 151), (0, 1)):
        with pytest.raises(UsageError, match="3 answers of up to"):
            prompts.held_out_ids({item.id: tokens for item in prompts.items}, least)


def test_a_run_cut_anywhere_holds_out_its_share(tmp_path: Path) -> None:
    """A thousand runs, each over other prompts; none has only held-out answers, or none."""
    cuts, counts = np.random.default_rng(0).integers(2, 81, 1000), list[int]()
    for run, n in enumerate(cuts.tolist()):
        file = lines(tmp_path / "run.jsonl", *({"prompt": f"{run} {k}"} for k in range(80)))
        counts.append(sum(held_out(read_prompts([file], chat=True, held_out=0.2), n).values()))
        assert 0 < counts[-1] < n
    shares = np.array(counts) / cuts
    assert abs(shares.mean() - 0.2) < 0.03
    assert (np.abs(shares - 0.2)[cuts > 30] < 0.31).all()  # more than four standard deviations


def test_a_share_of_nothing_or_all_is_refused(tmp_path: Path) -> None:
    for share in (0.0, 1.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match=r"\(--held-out\)"):
            read_prompts([filler(tmp_path)], chat=True, held_out=share)


def test_suites_of_the_benchmark_are_prompts_too() -> None:
    prompts = read_prompts([], "toy,real", chat=True)
    items = {item.id: item for item in prompts.items}
    assert len(items) > 150
    assert {Path(source.path).name for source in prompts.sources} == {
        f"{name}.jsonl" for group in workload.GROUPS.values() for name in group
    }
    assert all(one in items for item in items.values() for one in item.referred)
    assert any(item.referred for item in items.values())
    assert all(len(source.sha256) == 64 for source in prompts.sources)


def test_a_suites_prompts_are_what_the_benchmark_asks(tmp_path: Path) -> None:
    questions = [{"question_id": n, "category": "qa", "turns": [text, "Why?"]} for n, text in enumerate(MANY)]
    file = lines(tmp_path / "questions.jsonl", *questions)
    prompts = read_prompts([], str(file), chat=True)
    same = read_prompts([file], chat=True)
    key = [(item.id, item.messages, item.referred, item.session) for item in prompts.items]
    assert key == [(item.id, item.messages, item.referred, item.session) for item in same.items]
    assert {item.category for item in prompts.items} >= {f"{file}, 0.1", f"{file}, 0.2"}
