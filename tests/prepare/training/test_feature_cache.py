"""The cache of hidden states: equal to what is computed, whatever ended its making."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from paceline.backends.toy import ToyTarget
from paceline.bench.replay.recording import append_line
from paceline.prepare.training.answer_folder import Answer
from paceline.prepare.training.feature_cache import (
    HEADER,
    INDEX,
    TYPES,
    CacheFiles,
    FeatureCache,
    build_cache,
)
from paceline.prepare.training.features import OnlineFeatures, Sequences, TrainingSequence
from paceline.speculative.errors import PacelineError, UsageError
from training_answers import answer

N = 9
LAYERS, TOP_K = (0, 2), 3
FILES = [f"{name}.npy" for name in TYPES]


class CountingFeatures(OnlineFeatures):
    """Counts the sequences that are computed."""

    computed = 0

    def __getitem__(self, number: int) -> TrainingSequence:
        self.computed += 1
        return super().__getitem__(number)


def source(n: int = N, seed: int = 3, layers: tuple[int, ...] = LAYERS) -> CountingFeatures:
    answers = [answer(1 + k % 4, 1 + 3 * k % 5, seed=k) for k in range(n)]
    return CountingFeatures(ToyTarget(seed=seed, layers=3), answers, layers, TOP_K)


def built(folder: Path, online: OnlineFeatures, model: str = "toy", **options: Any) -> FeatureCache:
    return build_cache(online, folder, model, **options)


def estimate_bytes(answers: Sequence[Answer], layers: int, width: int) -> int:
    return CacheFiles(Path(), answers, layers, width, TOP_K).bytes(len(answers))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def require_equal(cache: FeatureCache, online: OnlineFeatures) -> None:
    assert len(cache) == len(online)
    for stored, computed in zip(cache, online, strict=True):
        assert stored.first_answer == computed.first_answer
        hidden = computed.hidden.astype(np.float16)
        np.testing.assert_array_equal(stored.hidden, hidden, strict=True)
        for name in ("tokens", "ids", "logprobs"):
            np.testing.assert_array_equal(getattr(stored, name), getattr(computed, name), strict=True)


def stop_after(n: int) -> Callable[[int, int], None]:
    def report(done: int, total: int) -> None:
        if done >= n:
            raise KeyboardInterrupt

    return report


def interrupted(folder: Path, online: OnlineFeatures, n: int) -> None:
    with pytest.raises(KeyboardInterrupt):
        built(folder, online, report=stop_after(n))


def test_a_cache_is_what_is_computed_online_in_any_order(tmp_path: Path) -> None:
    online = source()
    cache = built(tmp_path, online)
    require_equal(cache, online)
    for number in (5, 0, N - 1, 5, -1):
        np.testing.assert_array_equal(cache[number].ids, online[number % N].ids)
    with pytest.raises(IndexError):
        cache[N]
    assert isinstance(cache[2].hidden, np.memmap)


def test_a_cache_of_more_layers_is_used_and_one_of_fewer_is_replaced(tmp_path: Path) -> None:
    most = source(4, layers=(0, 1, 2))
    built(tmp_path, most)
    before = contents(tmp_path)
    some = source(4, layers=(0, 2))
    cache = built(tmp_path, some)
    assert (cache.layers, some.computed, contents(tmp_path)) == ([0, 1, 2], 1, before)  # one for the width
    answers = Sequences(cache, False, (2, 0))
    for one, stored in zip(answers, cache, strict=True):
        np.testing.assert_array_equal(one.hidden, stored.hidden[:, [2, 0]], strict=True)
        assert one.ids is stored.ids or np.array_equal(one.ids, stored.ids)
    interrupted(tmp_path, source(4, layers=(0, 3)), 2)
    assert built(tmp_path, source(6, layers=(3,))).layers == [0, 3]  # the rest, too
    assert built(tmp_path, source(6, layers=(1,))).layers == [1]


def test_the_files_are_numpys_and_as_large_as_estimated(tmp_path: Path) -> None:
    online = source()
    built(tmp_path, online)
    hidden = np.load(tmp_path / "hidden.npy")
    expected = np.concatenate([one.hidden.astype(np.float16) for one in online])
    np.testing.assert_array_equal(hidden, expected, strict=True)
    assert np.load(tmp_path / "ids.npy").dtype == np.int32
    size = sum((tmp_path / name).stat().st_size for name in FILES)
    assert size == estimate_bytes(online.answers, len(LAYERS), online.target.width)  # type: ignore[attr-defined]


def test_the_size_is_told_first_and_progress_reaches_the_end(tmp_path: Path) -> None:
    told, online = list[Any](), source()
    built(tmp_path, online, note=told.append, report=lambda done, total: told.append((done, total)))
    note, *progress = told
    assert note.startswith(
        f"the hidden states of {N} answers take 0.00 GB in {tmp_path}, 0.00 GB of them new"
    )
    assert progress == [(done, N) for done in range(N + 1)]


def test_a_cache_that_does_not_fit_is_refused_with_the_figures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    online = source()
    size = estimate_bytes(online.answers, len(LAYERS), 8)
    empty = estimate_bytes([], len(LAYERS), 8)
    free = SimpleNamespace(free=size - empty - 1)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    with pytest.raises(UsageError, match=r"hidden states of 9 answers take .* GB, .* are free: make room"):
        built(tmp_path, online)
    assert online.computed == 1  # for the width
    free.free += 1
    built(tmp_path, online)


@pytest.mark.parametrize("n", [0, 1, 4, N])
def test_an_interrupted_build_goes_on_where_it_was(tmp_path: Path, n: int) -> None:
    built(tmp_path / "whole", source())
    interrupted(tmp_path / "out", source(), n)
    online = source()
    require_equal(built(tmp_path / "out", online), source())
    assert online.computed == 1 + N - n
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


@pytest.mark.parametrize("name", [*FILES, INDEX, HEADER])
def test_files_that_were_cut_short_are_repaired(tmp_path: Path, name: str) -> None:
    built(tmp_path / "whole", source())
    whole = contents(tmp_path / "whole")
    for size in {0, 1, 64, len(whole[name]) // 2, len(whole[name]) - 1}:
        out = tmp_path / f"out{size}"
        built(out, source())
        os.truncate(out / name, size)
        built(out, source())
        assert contents(out) == whole


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("name", FILES)
def test_a_changed_byte_is_noticed(tmp_path: Path, name: str) -> None:
    online = source()
    cache = built(tmp_path, online)
    flip(tmp_path / name, -1)  # of the last sequence
    cache[0]
    with pytest.raises(PacelineError, match="sequence 8 has another checksum"):
        cache[N - 1]
    require_equal(built(tmp_path, source()), online)  # a build checks the last one


def test_more_answers_are_added_behind_those_there(tmp_path: Path) -> None:
    built(tmp_path / "out", source(5))
    online = source()
    require_equal(built(tmp_path / "out", online), source())
    assert online.computed == 1 + N - 5
    built(tmp_path / "whole", source())
    assert contents(tmp_path / "out") == contents(tmp_path / "whole")


def test_other_answers_are_computed_from_the_first_that_differs_on(tmp_path: Path) -> None:
    built(tmp_path, source())
    online = source()
    answers: list[Answer] = list(online.answers)
    answers[3] = answer(2, 9, seed=99)
    online.answers = answers
    require_equal(built(tmp_path, online), online)
    assert json.loads((tmp_path / INDEX).read_text().splitlines()[3])["id"] == answers[3].id


@pytest.mark.parametrize("other", [{"seed": 4}, {"layers": (1, 3)}, {"layers": (3,)}])
def test_a_cache_of_another_target_or_other_layers_is_replaced(tmp_path: Path, other: dict[str, Any]) -> None:
    built(tmp_path, source(), "toy")
    online = source(**other)
    require_equal(built(tmp_path, online, "toy" if "layers" in other else "other"), online)


def test_a_full_disk_keeps_the_sequences_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(path: Path, line: bytes) -> None:
        if len(path.read_bytes().splitlines()) == 4:
            raise OSError(errno.ENOSPC, "No space left on device")
        append_line(path, line)

    with monkeypatch.context() as patch:
        patch.setattr("paceline.prepare.training.feature_cache.append_line", full)
        with pytest.raises(PacelineError, match=r"written \(No space left on device\); make room there"):
            built(tmp_path, source())
    online = source()
    require_equal(built(tmp_path, online), source())
    assert online.computed == 1 + N - 4


def test_hidden_states_beyond_float16_are_refused(tmp_path: Path) -> None:
    online = source()
    online.target._embed[:] *= 1e6  # type: ignore[attr-defined]
    with pytest.raises(PacelineError, match="beyond the range of float16: train without the cache"):
        built(tmp_path, online)
