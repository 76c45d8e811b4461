"""The public names of the package."""

from __future__ import annotations

from pathlib import Path

import pytest

import paceline

ROOT = Path(__file__).parents[1]


def test_the_public_names_are_exactly_these() -> None:
    assert sorted(paceline.__all__) == [
        "BatchError",
        "DraftTree",
        "Generation",
        "LLM",
        "PacelineError",
        "Sampling",
        "ToyTarget",
        "__version__",
        "hf_generate",
        "load",
    ]


@pytest.mark.parametrize("name", paceline.__all__)
def test_each_public_name_can_be_imported(name: str) -> None:
    namespace: dict[str, object] = {}
    exec(f"from paceline import {name}", namespace)
    assert namespace[name] is getattr(paceline, name)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'paceline' has no attribute 'faster'"):
        _ = paceline.faster
