"""Answers of the target: the same as of plain decoding, and kept whatever ends a run."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import paceline
from paceline.api import LLM
from paceline.backends.toy import ToyTarget
from paceline.bench.replay.recording import append_line
from paceline.prepare.training import generation
from paceline.prepare.training.answers import HEADER, LINES
from paceline.prepare.training.generation import AnswerRun, GenerationProgress, generate_answers
from paceline.prepare.training.prompts import TrainingPrompts, read_prompts
from paceline.speculative.errors import ModelError, PacelineError, UsageError
from training_answers import number_prompts, write_lines

N = 40
TOY = "toy:seed=3,eos=7"


@pytest.fixture
def prompts(tmp_path: Path) -> TrainingPrompts:
    return some_prompts(tmp_path, N)


def some_prompts(folder: Path, n: int, **options: Any) -> TrainingPrompts:
    file = number_prompts(folder / "prompts.jsonl", n)
    return read_prompts([file], chat=False, **{"held_out": 0.2} | options)


def lines(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / LINES).read_text().splitlines()]


def content(found: AnswerRun) -> dict[str, tuple[Any, ...]]:
    return {one.id: (one.prompt.tolist(), one.tokens.tolist(), one.finish) for one in found.answers}


def stop_after(n: int) -> Callable[[GenerationProgress], None]:
    """As Ctrl-C once `n` answers are there."""

    def report(progress: GenerationProgress) -> None:
        if progress.done >= n:
            raise KeyboardInterrupt

    return report


def interrupted(llm: LLM, prompts: TrainingPrompts, folder: Path, n: int, **options: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        generate_answers(llm, prompts, folder, report=stop_after(n), **options)


def test_drafted_and_batched_answers_are_those_of_plain_decoding(
    toy: LLM, prompts: TrainingPrompts, tmp_path: Path
) -> None:
    found = generate_answers(toy, prompts, tmp_path / "out", max_tokens=20)
    assert (found.missing, found.skipped.counts, len(found.answers)) == (0, {}, N)
    texts = {item.id: item for item in prompts.items}
    for answer in found.answers:
        plain = toy.generate(texts[answer.id].prompt, plain=True, max_tokens=20)
        assert answer.tokens.tolist() == list(plain.tokens)
        assert answer.prompt.tolist() == toy.tokens(texts[answer.id].prompt)
        assert answer.finish == plain.stop_reason
    assert {answer.finish for answer in found.answers} == {"eos", "length"}


def test_the_folder_has_a_line_an_answer_and_what_they_were_made_with(
    toy: LLM, prompts: TrainingPrompts, tmp_path: Path
) -> None:
    found = generate_answers(toy, prompts, tmp_path / "out", max_tokens=8, temperature=0.5, seed=7)
    ids = [answer.id for answer in found.answers]
    written = {line.pop("id"): (*line.values(),) for line in lines(tmp_path / "out")}
    assert (written, [*written]) == (content(found), ids)
    header = json.loads((tmp_path / "out" / HEADER).read_bytes())
    assert header["settings"]["model"] == toy.target.identity()["model"]
    assert [header["settings"][name] for name in ("max_tokens", "temperature", "seed")] == [8, 0.5, 7]
    assert header["prompts"] == N
    assert header["sources"] == [vars(source) for source in prompts.sources]
    assert header["provenance"]["target"]["name"] == TOY


def test_each_prompt_has_a_seed_of_its_own_whatever_is_decoded_beside_it(tmp_path: Path) -> None:
    options: dict[str, Any] = {"max_tokens": 12, "temperature": 1.0}
    with paceline.load(TOY, drafters="none", sessions=5) as several:
        together = content(generate_answers(several, some_prompts(tmp_path, N), tmp_path / "a", **options))
        other = generate_answers(several, some_prompts(tmp_path, N), tmp_path / "b", **options, seed=1)
    with paceline.load(TOY, drafters="none") as single:
        alone = content(generate_answers(single, some_prompts(tmp_path, 25), tmp_path / "c", **options))
    assert {id_: together[id_] for id_ in alone} == alone
    assert sum(together[id_] != one for id_, one in content(other).items()) > N // 2
    one_prompt = [tokens for prompt, tokens, *_ in together.values()]
    assert len({tuple(tokens) for tokens in one_prompt}) > N // 2


@pytest.mark.parametrize("n", [1, 7, N - 1])
def test_an_interrupted_run_goes_on_where_it_was(
    toy: LLM, prompts: TrainingPrompts, tmp_path: Path, n: int
) -> None:
    whole = content(generate_answers(toy, prompts, tmp_path / "whole", max_tokens=12))
    interrupted(toy, prompts, tmp_path / "out", n, max_tokens=12)
    kept = lines(tmp_path / "out")
    assert n <= len(kept) <= n + 1  # two sessions may end in one pass
    seen = list[GenerationProgress]()
    found = generate_answers(toy, prompts, tmp_path / "out", max_tokens=12, report=seen.append)
    assert content(found) == whole
    assert lines(tmp_path / "out")[: len(kept)] == kept
    assert seen[0].before == len(kept)
    new = sum(len(one.tokens) for one in found.answers[len(kept) :])
    assert (seen[-1].done, seen[-1].total, seen[-1].tokens) == (N, N, new)
    again = list[GenerationProgress]()
    assert (
        content(generate_answers(toy, prompts, tmp_path / "out", max_tokens=12, report=again.append)) == whole
    )
    assert not again  # nothing was decoded


def test_a_torn_last_line_is_repaired(toy: LLM, prompts: TrainingPrompts, tmp_path: Path) -> None:
    out = tmp_path / "out"
    whole = content(generate_answers(toy, prompts, out, max_tokens=4))
    data = (out / LINES).read_bytes()
    last = data.rindex(b"\n", 0, -1) + 1
    for size in (len(data) - 1, (last + len(data)) // 2, last + 1, last, 3, 0):
        (out / LINES).write_bytes(data[:size])
        assert content(generate_answers(toy, prompts, out, max_tokens=4)) == whole


@pytest.mark.parametrize(
    "line",
    [
        "{torn",
        "[]",
        "{}",
        '{"id":"1","prompt":[1],"tokens":[8],"finish":"eos","held_out":false}',
        '{"id":"1","prompt":[],"tokens":[1],"finish":"eos","held_out":false}',
        '{"id":"1","prompt":[1],"tokens":[-1],"finish":"eos","held_out":false}',
        '{"id":"1","prompt":[1],"tokens":["1"],"finish":"eos","held_out":false}',
        '{"id":"1","prompt":[1],"tokens":[0.5],"finish":"eos","held_out":false}',
        '{"id":"1","prompt":[1],"finish":"eos","held_out":false}',
        '{"id":"1","prompt":[1],"tokens":[1],"held_out":false}',
    ],
)
def test_a_damaged_line_is_answered_again(
    toy: LLM, prompts: TrainingPrompts, tmp_path: Path, line: str
) -> None:
    interrupted(toy, prompts, tmp_path, 2, max_tokens=4)
    good = (tmp_path / LINES).read_text()
    (tmp_path / LINES).write_text(f"{line}\n{good}")
    assert len(generate_answers(toy, prompts, tmp_path, max_tokens=4).answers) == N
    assert (tmp_path / LINES).read_text().startswith(f"{line}\n{good}")


@pytest.mark.parametrize(
    ("changed", "named"),
    [
        ({"max_tokens": 9}, r"max_tokens \(-n\) \(8, now 9\)"),
        ({"temperature": 0.5}, r"the temperature \(0.0, now 0.5\)"),
        ({"seed": 1, "max_tokens": 9}, r"max_tokens \(-n\) \(8, now 9\); the seed \(0, now 1\)"),
    ],
)
def test_other_settings_are_refused_in_the_same_folder(
    toy: LLM, prompts: TrainingPrompts, tmp_path: Path, changed: dict[str, Any], named: str
) -> None:
    generate_answers(toy, prompts, tmp_path / "out", max_tokens=8)
    before = (tmp_path / "out" / LINES).read_bytes(), (tmp_path / "out" / HEADER).read_bytes()
    with pytest.raises(UsageError, match=f"made with other settings: {named}; choose another folder"):
        generate_answers(toy, prompts, tmp_path / "out", **{"max_tokens": 8} | changed)
    assert before == ((tmp_path / "out" / LINES).read_bytes(), (tmp_path / "out" / HEADER).read_bytes())


def test_another_target_or_tokenizer_is_refused(toy: LLM, prompts: TrainingPrompts, tmp_path: Path) -> None:
    out = tmp_path / "out"
    generate_answers(toy, prompts, out, max_tokens=8)
    old, new = toy.target.identity()["model"][:8], ToyTarget(seed=4).identity()["model"][:8]
    for model, different in (
        ("toy:seed=4", rf"the target \({old}, now {new}\); choose"),
        ("toy:n_vocab=10", r"the target \(.*\); its tokenizer \(.*\); choose"),
    ):
        with paceline.load(model, drafters="none") as other, pytest.raises(UsageError, match=different):
            generate_answers(other, prompts, out, max_tokens=8)


def test_another_held_out_share_keeps_the_answers(toy: LLM, tmp_path: Path) -> None:
    first = generate_answers(toy, some_prompts(tmp_path, N), tmp_path / "out", max_tokens=8)
    other = some_prompts(tmp_path, N, held_out=0.3)
    again = generate_answers(toy, other, tmp_path / "out", max_tokens=8, report=stop_after(0))
    assert content(again) == content(first)


def test_the_same_folder_takes_more_prompts_and_returns_those_asked_for(toy: LLM, tmp_path: Path) -> None:
    few, many = some_prompts(tmp_path, 30), some_prompts(tmp_path, N)
    first = content(generate_answers(toy, few, tmp_path / "out", max_tokens=8))
    both = content(generate_answers(toy, many, tmp_path / "out", max_tokens=8))
    assert len(both) == N
    assert both.items() > first.items()
    assert content(generate_answers(toy, few, tmp_path / "out", max_tokens=8)) == first
    assert len(lines(tmp_path / "out")) == N


@pytest.mark.parametrize(
    ("header", "why"),
    [
        *((header, "is missing or damaged") for header in (None, "{", "[]", '{"format": 1}')),
        ('{"format": 3, "settings": {}}', "of something else or a newer Paceline"),
        ('{"format": 1, "settings": {}}', r"the target \(None, now "),
    ],
)
def test_a_folder_of_something_else_is_left_alone(
    toy: LLM, prompts: TrainingPrompts, tmp_path: Path, header: str | None, why: str
) -> None:
    (tmp_path / LINES).write_text("mine\n")
    if header is not None:
        (tmp_path / HEADER).write_text(header)
    with pytest.raises(UsageError, match=why):
        generate_answers(toy, prompts, tmp_path)
    assert (tmp_path / LINES).read_text() == "mine\n"


def test_a_full_disk_loses_nothing(
    toy: LLM, prompts: TrainingPrompts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = content(generate_answers(toy, prompts, tmp_path / "whole", max_tokens=8))
    out = tmp_path / "out"

    def full(path: Path, line: bytes) -> None:
        if path.exists() and len(lines(out)) == 5:
            raise OSError(errno.ENOSPC, "No space left on device")
        append_line(path, line)

    with monkeypatch.context() as patch:
        patch.setattr("paceline.prepare.training.answers.append_line", full)
        with pytest.raises(PacelineError, match=r"No space left on device.*all 5 answers"):
            generate_answers(toy, prompts, out, max_tokens=8)
    assert len(lines(out)) == 5
    assert content(generate_answers(toy, prompts, out, max_tokens=8)) == whole


def test_a_folder_that_cannot_be_made_is_told_before_anything_is_decoded(
    toy: LLM, prompts: TrainingPrompts, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PacelineError, match=r"cannot be written \("):
        generate_answers(toy, prompts, tmp_path / "file" / "out", report=stop_after(0))


def test_after_the_time_no_prompt_is_begun_and_those_begun_are_finished(
    toy: LLM, prompts: TrainingPrompts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = iter(range(10**6))
    monkeypatch.setattr(generation, "monotonic", lambda: float(next(seconds)))
    seen = list[GenerationProgress]()
    found = generate_answers(toy, prompts, tmp_path, max_tokens=20, minutes=0.5, report=seen.append)
    assert 4 <= len(found.answers) < N
    assert found.missing == N - len(found.answers)
    assert len(found.answers) == len(lines(tmp_path)) == seen[-1].done
    assert seen[-1].seconds > 30
    assert seen[-1].seconds_left == 0.0
    nothing = generate_answers(toy, prompts, tmp_path, max_tokens=20, minutes=0)
    assert (len(nothing.answers), nothing.missing) == (len(found.answers), found.missing)


def test_progress_tells_the_speed_and_the_time_left() -> None:
    progress = GenerationProgress(done=30, total=50, before=10, tokens=400, seconds=8.0, limit=None)
    assert progress.tokens_per_second == 50.0
    assert progress.seconds_left == 8.0 / 20 * 20
    limited = GenerationProgress(done=30, total=50, before=10, tokens=400, seconds=8.0, limit=9.0)
    assert limited.seconds_left == 1.0
    fresh = GenerationProgress(done=10, total=50, before=10, tokens=0, seconds=0.0, limit=None)
    assert (fresh.seconds_left, fresh.tokens_per_second) == (None, 0.0)


def test_a_later_turn_goes_on_from_the_targets_own_answer(tmp_path: Path) -> None:
    file = write_lines(tmp_path / "prompts.jsonl", *({"turns": [f"{n}", "5"]} for n in range(100, 130)))
    prompts = read_prompts([file], chat=False, held_out=0.3)
    with paceline.load(TOY, drafters="lookup", sessions=3, n_ctx=400) as llm:
        interrupted(llm, prompts, tmp_path / "out", 11, max_tokens=6)
        answered = generate_answers(llm, prompts, tmp_path / "out", max_tokens=6).answers
        found = {answer.id: answer for answer in answered}
        assert len(found) == 60
        for item in prompts.items:
            if item.referred:
                (first,) = item.referred
                text = llm.target.text
                said = b"".join(map(text.piece, found[first].tokens.tolist())).decode()
                begun = f"User: {item.messages[0][1]}\n\nAssistant: {said}\n\nUser: 5\n\nAssistant:"
                assert found[item.id].prompt.tolist() == text.encode(begun)


def test_prompts_too_long_are_skipped_with_what_goes_on_from_them(tmp_path: Path) -> None:
    records: list[Any] = [{"prompt": f"{n}"} for n in range(30)]
    records += [{"turns": ["1" * 300, "2", "3"]}, {"prompt": "1" * 90}, {"prompt": "1" * 100}]
    file = write_lines(tmp_path / "prompts.jsonl", *records)
    prompts = read_prompts([file], chat=False, held_out=0.3)
    with paceline.load(TOY, drafters="none", n_ctx=100) as llm:
        seen = list[GenerationProgress]()
        found = generate_answers(llm, prompts, tmp_path / "out", max_tokens=10, report=seen.append)
    assert (len(found.answers), found.missing) == (31, 0)
    long = "too long for the context with 10 tokens of answer"
    assert found.skipped.counts == {long: 2, "goes on from a skipped prompt": 2}
    assert f"{file}, line 3" in found.skipped.examples[long]
    assert (seen[-1].done, seen[-1].total) == (31, 31)


def test_an_error_of_the_target_ends_the_run_and_keeps_the_answers(
    toy: LLM, prompts: TrainingPrompts, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forward = toy.target.forward

    def failing(*given: Any) -> Any:
        if (tmp_path / "out" / LINES).exists():
            raise ModelError("out of memory")
        return forward(*given)

    with monkeypatch.context() as patch:
        patch.setattr(toy.target, "forward", failing)
        with pytest.raises(ModelError, match="out of memory"):
            generate_answers(toy, prompts, tmp_path / "out", max_tokens=8)
    n = len(lines(tmp_path / "out"))
    assert n >= 1
    assert len(generate_answers(toy, prompts, tmp_path / "out", max_tokens=8).answers) == N


def test_the_embedded_model_answers_texts(tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("\n\n".join(f"def function_{n}(value):" for n in range(8)))
    prompts = read_prompts([tmp_path / "prompts.txt"], chat=False, held_out=0.4)
    with paceline.load(sessions=4) as llm:
        found = generate_answers(llm, prompts, tmp_path / "out", max_tokens=16)
        texts = {item.id: item.prompt for item in prompts.items}
        for answer in found.answers:
            assert answer.prompt.tolist() == llm.tokens(texts[answer.id])
            if llm.target.caps.exact:
                plain = llm.generate(texts[answer.id], plain=True, max_tokens=16)
                assert answer.tokens.tolist() == list(plain.tokens)
    assert len(found.answers) == 8
