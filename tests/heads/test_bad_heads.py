"""A head that is damaged, incomplete or another target's is refused, and the message says why."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import paceline
from head_layouts import load_reference, write_layout
from paceline.backends.toy import ToyTarget
from paceline.drafter_factory import make_drafter
from paceline.drafts import open_head
from paceline.heads.config import ExitFacts
from paceline.heads.files import CONFIG, read_head
from paceline.heads.target import HeadTarget
from paceline.settings import Drafting
from paceline.speculative.errors import ModelError, UsageError
from tiny_heads import tiny_config, tiny_files, toy, write_tiny_head

V = 6
TARGET = toy(V)


def written(folder: Path, kind: str = "eagle3", **settings: Any) -> Path:
    return write_tiny_head(folder, kind, TARGET, **settings)


def change_config(folder: Path, **values: Any) -> None:
    file = folder / CONFIG
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def test_a_head_that_was_written_is_read(tmp_path: Path) -> None:
    for kind in ("medusa", "eagle", "eagle3", "block", "exits", "kangaroo"):
        exits = (ExitFacts(2.0, 1.5, 1.25),) * {"exits": 2, "kangaroo": 1}.get(kind, 0)
        head = open_head(written(tmp_path / kind, kind, exits=exits), TARGET)
        assert head.config == tiny_config(kind, TARGET, V, exits=exits)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        (
            toy(V, width=4),
            "is a head for a toy, which has hidden states of width 8, not 4 as the toy model has",
        ),
        (toy(5), "which has 6 tokens, not 5 as the toy model has"),
        (toy(V, layers=2), "which has 3 layers, not 2 as the toy model has"),
        (toy(V, seed=9), "was trained for a toy, and the toy model is another model .*paceline train"),
        (toy(V, width=16), "was trained for a toy, and the toy model is another model"),
    ],
)
def test_another_target_is_refused(target: ToyTarget, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message):
        open_head(written(tmp_path), target)


def test_a_published_head_of_another_width_is_refused(tmp_path: Path) -> None:
    folder = write_layout(load_reference("eagle3"), tmp_path)
    with pytest.raises(ModelError, match="is for hidden states of width 32, and the toy model has 40"):
        open_head(folder, ToyTarget(96, width=40, layers=6))
    with pytest.raises(ModelError, match="reads the layers 2, 2, 7 of its target, which has only 3"):
        HeadTarget(tiny_files("eagle3", TARGET, layer_ids=(2, 2, 7)), TARGET)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda f: change_config(f, paceline={"version": 99}), "of a newer version .*: update"),
        (lambda f: change_config(f, transformer_layer_config={}), "vocab_size in .* is incomplete"),
        (
            lambda f: change_config(f, speculators_model_type="kelpie"),
            "speculators_model_type in config.json is 'kelpie'",
        ),
        (
            lambda f: change_config(f, speculators_model_type="dspark", markov_head_type="x"),
            "markov_head_type in config.json is 'x': only vanilla",
        ),
        (
            lambda f: change_config(f, eagle_aux_hidden_state_layer_ids=[0, 1]),
            "its weights do not fit its configuration",
        ),
        (lambda f: change_config(f, eagle_aux_hidden_state_layer_ids=[0, 1, 9]), "reads the layers 0, 1, 9"),
        (lambda f: change_config(f, fc_norm=True), "has no weights 'fc_norm.0.weight'|do not fit"),
    ],
)
def test_a_damaged_head_is_refused(damage: Callable[[Path], None], message: str, tmp_path: Path) -> None:
    damage(written(tmp_path))
    with pytest.raises(ModelError, match=message) as caught:
        open_head(tmp_path, TARGET)
    assert str(tmp_path) in str(caught.value)  # which of two models


def test_a_newer_head_of_our_own_layout_is_refused(tmp_path: Path) -> None:
    change_config(written(tmp_path, "medusa"), version=99)
    with pytest.raises(ModelError, match=r"newer version \(99, .*\): update"):
        open_head(tmp_path, TARGET)
    change_config(written(tmp_path, "medusa"), paceline_head="kelpie")
    with pytest.raises(ModelError, match=r"paceline_head in config.json is 'kelpie'"):
        open_head(tmp_path, TARGET)


def test_another_folder_is_no_head(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is no draft head"):
        read_head(tmp_path)
    (written(tmp_path) / CONFIG).unlink()
    with pytest.raises(UsageError, match="is no draft head"):
        read_head(tmp_path)


def test_tokens_that_the_target_lacks_are_refused() -> None:
    files = tiny_files("eagle3", TARGET, draft_ids=[0, 2, 5])
    for offsets in ([0, 1, 4], [-1, 1, 3], [0, 1]):
        weights = dict(files.weights) | {"d2t": np.array(offsets)}
        with pytest.raises(ModelError, match="its draft vocabulary is none of the target's tokens"):
            HeadTarget(replace(files, weights=weights), TARGET)
    weights = {name: value for name, value in files.weights.items() if name != "d2t"}
    with pytest.raises(ModelError, match=r"drafts 3 tokens, and does not say which \(d2t\)"):
        HeadTarget(replace(files, weights=weights), TARGET)


class Attack:
    """Runs a command when it is unpickled."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return (Path.touch, (self._file,))


def test_a_pickle_with_code_is_not_run(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    folder = write_layout(load_reference("eagle"), tmp_path / "head", container="torch")
    trace = tmp_path / "trace"
    (folder / "pytorch_model.bin").write_bytes(pickle.dumps({"fc.weight": Attack(trace)}))
    with pytest.raises(ModelError, match="holds more than tensors, and is not opened"):
        read_head(folder)
    assert not trace.exists()
    (folder / "pytorch_model.bin").write_bytes(b"")
    with pytest.raises(ModelError, match="is damaged, or holds more"):
        read_head(folder)


def test_a_drafter_needs_a_head_of_its_kind(tmp_path: Path) -> None:
    with pytest.raises(
        UsageError, match=r"the drafter 'eagle3' needs a head of that kind.*paceline train eagle3"
    ):
        paceline.load("toy:", drafters="eagle3")
    for draft, drafters, message in (
        ("toy:noise=0.3", "eagle3", "the drafter 'eagle3' needs a head of that kind"),
        (str(written(tmp_path / "m", "medusa")), "eagle3", "the drafter 'eagle3' needs a head of that kind"),
        (str(written(tmp_path / "e")), "model", "the drafter 'model' needs a draft model"),
    ):
        with pytest.raises(UsageError, match=message):
            paceline.load("toy:", draft=draft, drafters=drafters)
    head = open_head(tmp_path / "e", TARGET)
    with pytest.raises(UsageError, match="the drafter 'medusa' needs a head of that kind"):
        make_drafter(Drafting(("medusa",)), TARGET, head)
