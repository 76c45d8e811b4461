"""An average lies between what it is of, and only like can be averaged."""

from __future__ import annotations

import numpy as np
import pytest

from tools.embedded.average import between


def test_a_share_of_the_second_and_the_rest_of_the_first() -> None:
    first, second = {"w": np.array([[0.0, 4.0]])}, {"w": np.array([[8.0, 0.0]])}
    np.testing.assert_array_equal(between(first, second, 0.25)["w"], [[2.0, 3.0]])
    np.testing.assert_array_equal(between(first, second, 0.0)["w"], first["w"])
    np.testing.assert_array_equal(between(first, second, 1.0)["w"], second["w"])


@pytest.mark.parametrize("other", [{"w": np.zeros(2)}, {"v": np.zeros((1, 2))}, {}])
def test_models_of_different_shapes_have_no_average(other: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="different shapes"):
        between({"w": np.zeros((1, 2))}, other, 0.5)
