"""`paceline pull`: what it prints, where it stops, and what it leaves."""

from __future__ import annotations

import hashlib
import random
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub.utils import close_session

from command_line import Done, command
from hub_server import COMMIT, Hub, own_cache, serving
from paceline.models import zoo
from paceline.system.home import file_fingerprint

Capture = pytest.CaptureFixture[str]
NAME = "m-Q4_K_M.gguf"
DATA = random.Random(0).randbytes(300_000)
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(scope="module", autouse=True)
def one_client() -> Iterator[None]:
    """To make one, with all its certificates, takes longer than a test."""
    yield
    close_session()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    own_cache(monkeypatch, tmp_path / "hub")
    with serving(Hub({"user/repo": {NAME: DATA, "m-Q8_0.gguf": b"other", "m-F16.gguf": b"third"}})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def at(tmp_path: Path, name: str = NAME) -> Path:
    return tmp_path / "hub/models--user--repo/snapshots" / COMMIT / name


def facts(done: Done) -> dict[str, str]:
    return dict(line.split(maxsplit=1) for line in done.out.splitlines())


def test_it_prints_the_file_its_size_and_its_hash(capsys: Capture, hub: Hub, tmp_path: Path) -> None:
    done = command(capsys, "pull", "user/repo")
    assert facts(done) == {"file": str(at(tmp_path)), "size": "300.00 kB", "sha256": SHA}
    host = hub.url.removeprefix("http://")
    assert (done.code, done.err.splitlines()) == (
        0,
        [f"downloading {NAME}, 300.00 kB", f"downloaded; the SHA-256 is as {host} states it"],
    )
    again = command(capsys, "pull", "hf.co/user/repo:q4_k_m")
    assert (again.code, again.out) == (0, done.out)
    assert again.err == "it is on this machine already; its hash was not computed again\n"


def test_a_terminal_gets_a_bar_and_stdout_stays_clean(capsys: Capture, hub: Hub) -> None:
    done = command(capsys, "pull", "user/repo", "--json", TTY_COMPATIBLE="1", COLUMNS="100", TERM="xterm")
    (file,) = done.json["files"]
    assert (file["sha256"], file["downloaded"], file["checked"]) == (SHA, len(DATA), True)
    assert NAME in done.err
    assert "\x1b[?25h" in done.err  # the cursor is back
    assert "downloading" not in done.err


def test_ctrl_c_says_how_to_go_on(capsys: Capture, hub: Hub, tmp_path: Path) -> None:
    main = threading.main_thread().ident
    assert main is not None
    hub.breaks = [100_000]
    hub.sent = lambda: signal.pthread_kill(main, signal.SIGINT)
    done = command(capsys, "pull", "user/repo")
    assert (done.code, done.out) == (130, "")
    assert done.err.splitlines()[-1] == "interrupted; `paceline pull hf.co/user/repo` goes on from there"
    (partial,) = (tmp_path / "hub").rglob("*.incomplete")
    size = partial.stat().st_size
    hub.sent = lambda: None
    hub.asked.clear()
    assert command(capsys, "pull", "user/repo").code == 0
    assert hub.ranges_asked() == [f"bytes={size}-" if size else ""]
    assert at(tmp_path).read_bytes() == DATA


def test_what_cannot_be_had_is_one_line(capsys: Capture, hub: Hub) -> None:
    command(capsys, "pull", "user/none").refused(2, "user/none: ", "has none, or it is private")
    words = "hf.co/user/repo is not on this machine: paceline pull hf.co/user/repo"
    command(capsys, "pull", "user/repo", "--offline").refused(2, words)


def test_what_is_here_already_is_printed_whatever_it_is_called(capsys: Capture, tmp_path: Path) -> None:
    done = command(capsys, "pull", "zoo:target")
    target = zoo.target_path()
    assert facts(done)["file"] == str(target)
    assert facts(done)["fingerprint"] == file_fingerprint(target)
    assert command(capsys, "pull", target).out == done.out
