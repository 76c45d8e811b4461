"""The reference values of draft heads can be read, and written in the layouts that are published."""

from __future__ import annotations

import numpy as np
import pytest

from head_layouts import (
    FILES,
    HEADS,
    load_reference,
    reference_names,
)

ALL = reference_names()


def test_every_kind_has_references() -> None:
    kinds = {load_reference(name).about["kind"] for name in ALL}
    assert kinds == {"dflash", "dspark", "eagle", "eagle3", "kangaroo", "medusa"}


@pytest.mark.parametrize("name", ALL)
def test_a_reference_is_complete_and_small(name: str) -> None:
    reference = load_reference(name)
    assert (HEADS / f"{name}.npz").stat().st_size < 150_000
    assert reference.about["layout"] in FILES
    assert reference.weights
    assert reference.values["features"].dtype == np.float32
    assert all(
        np.isfinite(value).all() for value in (*reference.values.values(), *reference.weights.values())
    )
    positions = reference.values["logits"].shape[:-1]
    assert np.prod(positions) >= 16
