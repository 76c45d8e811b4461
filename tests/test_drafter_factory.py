"""Drafters from settings, by the table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from paceline.backends.toy import ToyTarget
from paceline.drafter_factory import check_needs, make_drafter
from paceline.drafter_table import DATASTORE, DRAFT, DRAFTERS, HEADS, NGRAMS, DrafterEntry
from paceline.drafters.lookup import LookupDrafter
from paceline.settings import Drafting
from paceline.speculative.errors import UsageError


class EchoDrafter(LookupDrafter):
    name = "echo"


def test_a_drafter_is_one_file_and_one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it can be named, and `auto` has it."""
    file = SimpleNamespace(make=lambda parts: EchoDrafter(1, parts.drafting.ngram_max))
    monkeypatch.setitem(sys.modules, "paceline.drafters.echo", file)
    with pytest.raises(UsageError, match="unknown drafter 'echo'"):
        Drafting(("echo",))
    monkeypatch.setitem(DRAFTERS, "echo", DrafterEntry("echo", "what was said", in_auto=True))
    for drafters, names in ((("echo",), "echo"), (("auto",), "prediction,suffix,lookup,echo")):
        made, _ = make_drafter(Drafting(drafters), ToyTarget(6), None)
        assert made.name == names


@pytest.fixture
def package(tmp_path: Path) -> Path:
    """An installed package with the drafter `twins`, and one whose entry cannot be loaded."""
    (tmp_path / "twins_entry.py").write_text(
        "from paceline.drafter_table import DrafterEntry\n"
        "ENTRY = DrafterEntry('twins', 'repeats of a token', in_auto=True, module='twins')\n"
    )
    (tmp_path / "twins.py").write_text(
        "from paceline.drafters.lookup import LookupDrafter\n"
        "class Twins(LookupDrafter):\n    name = 'twins'\n"
        "def make(parts):\n    return Twins(1, 1)\n"
    )
    info = tmp_path / "twins-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: twins\nVersion: 1.0\n")
    points = "twins = twins_entry:ENTRY\nsuffix = twins_entry:ENTRY\nbroken = nowhere:ENTRY\n"
    (info / "entry_points.txt").write_text(f"[paceline.drafters]\n{points}")
    return tmp_path


def test_a_drafter_of_another_package_is_found_by_its_entry_point(package: Path) -> None:
    """A broken one and a second one of the same name are left out with a message."""
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(package), *sys.path])}
    args = ["run", "-m", "toy:", "--draft", "twins", "-n", "8", "--json", "a a a a"]
    command = [sys.executable, "-m", "paceline", *args]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["stats"]["by_source"]["twins"]["tried"] > 0
    left_out = [line for line in done.stderr.splitlines() if "is left out" in line]
    assert len(left_out) == 2
    assert any("nowhere" in line for line in left_out)


def test_what_a_drafter_cannot_do_without_must_be_there() -> None:
    check_needs(Drafting(("auto",)), ())
    check_needs(Drafting(("ngram", "model")), (DRAFT,))
    check_needs(Drafting(("cascade",)), (HEADS["exits"],))  # as good as a draft model
    with pytest.raises(UsageError, match="'cascade' needs a draft model: give one"):
        check_needs(Drafting(("suffix", "cascade")), (NGRAMS, DATASTORE))
    with pytest.raises(UsageError, match="'datastore' needs a corpus that has a datastore"):
        check_needs(Drafting(("datastore",)), (DRAFT, NGRAMS))
