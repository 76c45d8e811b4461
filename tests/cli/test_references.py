"""Names of models for -m and its like: the file they stand for, and the line that says so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import pytest
import typer

from command_line import Done, command
from hub_server import COMMIT, own_cache
from paceline.cli.references import file_option, resolve_models, resolved
from paceline.models import zoo
from paceline.models.stores.hub_layout import repo_folder
from paceline.speculative.errors import UsageError
from paceline.storage.corpora import find_corpus
from paceline.system.identity import fingerprint

Capture = pytest.CaptureFixture[str]
DATA = b"GGUF weights"
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model in the hub's cache, as its programs lay it there."""
    own_cache(monkeypatch, tmp_path / "hub")
    folder = repo_folder("user/repo")
    snapshot = folder / "snapshots" / COMMIT
    for made in (folder / "blobs", snapshot):
        made.mkdir(parents=True)
    (folder / "blobs" / SHA).write_bytes(DATA)
    (snapshot / "m-Q8_0.gguf").symlink_to(f"../../blobs/{SHA}")
    return snapshot / "m-Q8_0.gguf"


def _model(given: str | None) -> str | None:
    model: str | None = resolve_models({"target": given})["target"]
    return model


def show(
    model: Annotated[str | None, typer.Option("-m", callback=_model, envvar="PACELINE_MODEL")] = None,
    file: Annotated[Path | None, typer.Option("-f", callback=file_option)] = None,
) -> None:
    typer.echo(f"{model} {file}")


Ask = Callable[..., Done]


@pytest.fixture
def asked(capsys: Capture, monkeypatch: pytest.MonkeyPatch) -> Ask:
    app = typer.Typer()
    app.command("show")(show)
    app.command("other")(lambda: None)
    monkeypatch.setattr("paceline.cli.app.app", app)

    def ask(*args: str, **env: str) -> Done:
        return command(capsys, "show", *args, stdin=b"", **env)

    return ask


def test_a_path_stays_as_it_is_and_nothing_is_said(capsys: Capture, tmp_path: Path) -> None:
    for text in ("missing.gguf", "./x", str(tmp_path), "../a b.gguf"):
        assert str(resolved(text)) == str(Path(text))
    assert file_option(None) is None
    assert capsys.readouterr() == ("", "")


def test_a_name_is_echoed_with_its_file_and_hash(asked: Ask, cached: Path) -> None:
    done = asked("-m", "user/repo", "-f", "https://huggingface.co/user/repo")
    assert (done.code, done.out) == (0, f"{cached} {cached}\n")
    # A Path has one slash where an address has two.
    assert done.err.splitlines() == [
        f"user/repo is {cached} (sha256 {SHA[:16]})",
        f"https:/huggingface.co/user/repo is {cached} (sha256 {SHA[:16]})",
    ]


def test_of_a_split_model_all_parts_are_told_of(asked: Ask, cached: Path) -> None:
    for i in (1, 2):
        (cached.parent / f"n-Q6_K-0000{i}-of-00002.gguf").write_bytes(DATA)
    done = asked("-m", "user/repo:Q6_K")
    assert done.out.startswith(str(cached.parent / "n-Q6_K-00001-of-00002.gguf"))
    assert done.err.endswith(", the first of 2 parts)\n")


def find_no_corpus(name: str) -> str:
    with pytest.raises(UsageError) as caught:
        find_corpus(name)
    return str(caught.value).partition(";")[0]


def test_the_environment_may_name_one_too(asked: Ask) -> None:
    done = asked(PACELINE_MODEL="zoo:target")
    path = zoo.target_path()
    assert done.out == f"{path} None\n"
    assert done.err == f"zoo:target is {path} (fingerprint {fingerprint(path)[:16]})\n"


def test_the_embedded_models_have_names() -> None:
    assert [resolved("zoo:target"), resolved("zoo:draft")] == [zoo.target_path(), zoo.draft_path()]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (
            "user/other:Q4_K_M",
            "hf.co/user/other:Q4_K_M is not on this machine: paceline pull hf.co/user/other:Q4_K_M",
        ),
        ("user/repo:Q4_K_M", "hf.co/user/repo:Q4_K_M is not on this machine: paceline pull"),
        ("models/target", "models/target: no such file, and hf.co/models/target is not on this machine"),
        ("ollama:none", "`ollama pull none:latest`"),
        ("nonsense", "nonsense: no such file, and no name of a model"),
        ("user/re;po", "user/re;po: no such file, and no name of a model"),
    ],
)
def test_what_is_not_here_is_refused_in_one_line(asked: Ask, cached: Path, name: str, words: str) -> None:
    asked("-m", name, OLLAMA_MODELS=str(cached.parent)).refused(2, words)
