"""The cache of hidden states: equal to what is computed, whatever ended its making."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.backends.toy import ToyTarget
from paceline.prepare.training.answers import Answer
from paceline.prepare.training.features import (
    HEADER,
    Sequences,
    TrainingFeatures,
    TrainingSequence,
)
from paceline.speculative.errors import PacelineError, UsageError
from training_answers import answer

N = 9
LAYERS, TOP_K = (0, 2), 3


class CountingFeatures(TrainingFeatures):
    """Counts the sequences that are computed."""

    computed = 0

    def compute(self, number: int) -> TrainingSequence:
        self.computed += 1
        return super().compute(number)


def source(n: int = N, seed: int = 3, layers: tuple[int, ...] = LAYERS) -> CountingFeatures:
    answers = [answer(1 + k % 4, 1 + 3 * k % 5, seed=k) for k in range(n)]
    return CountingFeatures(ToyTarget(seed=seed, layers=3), answers, layers, TOP_K)


def built(folder: Path, features: TrainingFeatures, model: str = "toy", **options: Any) -> TrainingFeatures:
    features.fill(folder, model, **options)
    return features


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def require_equal(cache: TrainingFeatures) -> None:
    for number, stored in enumerate(cache):
        computed = TrainingFeatures.compute(cache, number)
        assert stored.first_answer == computed.first_answer
        hidden = computed.hidden.astype(np.float16)
        np.testing.assert_array_equal(stored.hidden, hidden, strict=True)
        for name in ("tokens", "ids", "logprobs"):
            np.testing.assert_array_equal(getattr(stored, name), getattr(computed, name), strict=True)


def stop_after(n: int) -> Callable[[tuple[int, int]], None]:
    def report(progress: tuple[int, int]) -> None:
        if progress[0] >= n:
            raise KeyboardInterrupt

    return report


def interrupted(folder: Path, online: TrainingFeatures, n: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        built(folder, online, report=stop_after(n))


def test_a_cache_is_what_is_computed_online_in_any_order(tmp_path: Path) -> None:
    online = source()
    cache = built(tmp_path, online)
    require_equal(cache)
    for number in (5, 0, N - 1, 5, -1):
        np.testing.assert_array_equal(cache[number].ids, source()[number % N].ids)
    with pytest.raises(IndexError):
        cache[N]
    assert not cache[2].hidden.flags.writeable  # mapped, not read


def test_a_cache_of_more_layers_is_used_and_one_of_fewer_is_replaced(tmp_path: Path) -> None:
    most = source(4, layers=(0, 1, 2))
    built(tmp_path, most)
    before = contents(tmp_path)
    some = source(4, layers=(0, 2))
    cache = built(tmp_path, some)
    assert (cache.layers, some.computed, contents(tmp_path)) == ((0, 1, 2), 0, before)
    answers = Sequences(cache, False, (2, 0))
    for one, stored in zip(answers, cache, strict=True):
        np.testing.assert_array_equal(one.hidden, stored.hidden[:, [2, 0]], strict=True)
        assert one.ids is stored.ids or np.array_equal(one.ids, stored.ids)
    interrupted(tmp_path, source(4, layers=(0, 3)), 2)
    assert built(tmp_path, source(6, layers=(3,))).layers == (0, 3)  # the rest, too
    assert built(tmp_path, source(6, layers=(1,))).layers == (1,)


def test_the_size_is_told_first_and_progress_reaches_the_end(tmp_path: Path) -> None:
    told, online = list[Any](), source()
    built(tmp_path, online, note=told.append, report=told.append)
    note, *progress = told
    assert note.startswith(
        f"the hidden states of {N} answers take 0.00 GB in {tmp_path}, 0.00 GB of them new"
    )
    assert progress == [(done, N) for done in range(N + 1)]


def test_a_cache_that_does_not_fit_is_refused_with_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    online = source()
    built(tmp_path / "whole", source())
    size = sum(path.stat().st_size for path in (tmp_path / "whole").glob("*.features"))
    free = SimpleNamespace(free=size - 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    with pytest.raises(UsageError, match=r"hidden states of 9 answers take .* GB, .* are free: make room"):
        built(tmp_path, online)
    assert online.computed == 0
    free.free += 1
    built(tmp_path, online)


@pytest.mark.parametrize("n", [0, 1, 4, N])
def test_an_interrupted_build_goes_on_where_it_was(tmp_path: Path, n: int) -> None:
    built(tmp_path / "whole", source())
    interrupted(tmp_path / "out", source(), n)
    online = source()
    require_equal(built(tmp_path / "out", online))
    assert online.computed == N - n
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("at", [0, 30, -1])
def test_a_file_that_was_cut_short_or_changed_is_made_again(tmp_path: Path, at: int) -> None:
    files = [built(tmp_path, source()).path(number) for number in range(N)]
    whole = contents(tmp_path)
    os.truncate(files[2], 7)
    files[5].unlink()
    data = bytearray(files[8].read_bytes())
    data[at] ^= 1
    files[8].write_bytes(data)
    online = source()
    cache = built(tmp_path, online)
    assert online.computed == 2  # without reading the others
    require_equal(cache)
    assert online.computed == 3
    assert contents(tmp_path) == whole


def test_a_damaged_header_makes_a_new_cache(tmp_path: Path) -> None:
    built(tmp_path, source())
    whole = contents(tmp_path)
    os.truncate(tmp_path / HEADER, 20)
    (tmp_path / "hidden.npy").touch()  # of an earlier format
    built(tmp_path, source())
    assert contents(tmp_path) == whole


def test_more_answers_are_added_behind_those_there(tmp_path: Path) -> None:
    built(tmp_path / "out", source(5))
    online = source()
    require_equal(built(tmp_path / "out", online))
    assert online.computed == N - 5
    built(tmp_path / "whole", source())
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_another_answer_to_a_prompt_is_computed(tmp_path: Path) -> None:
    built(tmp_path, source())
    online = source()
    answers: list[Answer] = list(online.answers)
    answers[3] = replace(answer(*map(int, answers[3].id.split("-")[:2]), seed=99), id=answers[3].id)
    online.answers = answers
    require_equal(built(tmp_path, online))


@pytest.mark.parametrize("other", [{"seed": 4}, {"layers": (1, 3)}, {"layers": (3,)}])
def test_a_cache_of_another_target_or_other_layers_is_replaced(tmp_path: Path, other: dict[str, Any]) -> None:
    built(tmp_path, source(), "toy")
    online = source(**other)
    require_equal(built(tmp_path, online, "toy" if "layers" in other else "other"))


def test_a_full_disk_keeps_the_sequences_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write = Path.write_bytes

    def full(path: Path, data: Any) -> int:
        if len([*path.parent.glob("*.features")]) == 4:
            write(path, bytes(data)[:9])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, data)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_bytes", full)
        with pytest.raises(PacelineError, match=r"written \(No space left on device\); make room there"):
            built(tmp_path, source())
    online = source()
    require_equal(built(tmp_path, online))
    assert online.computed == N - 4


def test_hidden_states_beyond_float16_are_refused(tmp_path: Path) -> None:
    online = source()
    online.target._embed[:] *= 1e6  # type: ignore[attr-defined]
    with pytest.raises(PacelineError, match="beyond the range of float16: train without the cache"):
        built(tmp_path, online)
