"""Downloads from a local server that speaks the hub's protocol: whole, interrupted, refused."""

from __future__ import annotations

import errno
import hashlib
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub.utils import WeakFileLock, close_session

from hub_server import COMMIT, Hub, own_cache, serving
from paceline.models.resolve import file_of
from paceline.models.stores import download
from paceline.models.stores.download import pull
from paceline.models.stores.hub_cache import find_cached, repo_folder
from paceline.models.stores.reference import LocalFile, parse
from paceline.speculative.errors import ModelError, PacelineError, UsageError

Seen = list[tuple[str, int, int]]
Q4, Q8 = "m-Q4_K_M.gguf", "m-Q8_0.gguf"
DATA = random.Random(0).randbytes(300_000)
SHA = hashlib.sha256(DATA).hexdigest()


@pytest.fixture(scope="module", autouse=True)
def one_client() -> Iterator[None]:
    """To make one, with all its certificates, takes longer than a test."""
    yield
    close_session()


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    own_cache(monkeypatch, tmp_path / "hub")
    monkeypatch.setattr("huggingface_hub.file_download.time.sleep", lambda _: None)
    monkeypatch.setattr("huggingface_hub.constants.DOWNLOAD_CHUNK_SIZE", 10)
    return tmp_path / "hub"


@pytest.fixture
def hub(cache: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    files = {"README.md": b"# m", Q4: DATA, Q8: DATA[:1000], "mmproj-m-Q4_K_M.gguf": DATA[:500]}
    with serving(Hub({"user/repo": files})) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        yield hub


def pulled(text: str = "user/repo", seen: Seen | None = None, **options: Any) -> list[LocalFile]:
    seen = [] if seen is None else seen
    return pull(parse(text), lambda *told: seen.append(told), **options)


def refused(kind: type[PacelineError], *words: str, text: str = "user/repo", **options: Any) -> str:
    with pytest.raises(kind) as caught:
        pulled(text, **options)
    said = str(caught.value)
    assert "\n" not in said
    assert [word for word in words if word not in said] == []
    return said


def partials(cache: Path) -> dict[str, int]:
    return {path.name: path.stat().st_size for path in cache.rglob("*.incomplete")}


def test_a_download_lies_in_the_cache_as_other_programs_expect_it(hub: Hub, cache: Path) -> None:
    seen: Seen = []
    (one,) = pulled(seen=seen)
    path = cache / f"models--user--repo/snapshots/{COMMIT}/{Q4}"
    assert one == LocalFile(path, len(DATA), SHA, len(DATA), True)
    assert one.path.read_bytes() == DATA
    assert one.path.resolve() == (cache / "models--user--repo/blobs" / SHA).resolve()
    assert seen[-1] == (Q4, len(DATA), len(DATA))
    assert [done for _, done, _ in seen] == sorted(done for _, done, _ in seen)
    assert partials(cache) == {}
    found = huggingface_hub.hf_hub_download("user/repo", Q4, cache_dir=cache, local_files_only=True)
    assert Path(found) == one.path


def test_what_is_there_is_not_downloaded_again_and_the_storage_gets_no_token(hub: Hub) -> None:
    (first,) = pulled()
    tokens = {(one.path.startswith("/storage/"), one.token) for one in hub.asked}
    assert tokens == {(False, "Bearer hf_secret"), (True, "")}
    hub.asked.clear()
    assert pulled() == find_cached(parse("user/repo")) == [LocalFile(first.path, first.size, first.sha256)]
    assert hub.ranges_asked() == []


def test_the_next_call_goes_on_where_a_lost_connection_ended(hub: Hub, cache: Path) -> None:
    hub.breaks = [100_000, *[0] * 5]
    refused(PacelineError, "is lost", "100.00 kB of 300.00 kB", "the same command goes on")
    assert list(partials(cache).values()) == [100_000]
    with pytest.raises(UsageError, match="is not completely on this machine: paceline pull hf"):
        find_cached(parse("user/repo"))
    hub.asked.clear()
    seen: Seen = []
    (one,) = pulled(seen=seen)
    assert hub.ranges_asked() == ["bytes=100000-"]
    assert seen[0] == (Q4, 100_000, len(DATA))
    assert (one.downloaded_bytes, one.hash_verified, one.path.read_bytes() == DATA) == (200_000, True, True)
    assert partials(cache) == {}


def test_a_process_that_is_killed_leaves_what_came(hub: Hub, cache: Path) -> None:
    script = "from paceline.models.stores import download, reference;"
    script += "download.pull(reference.parse('user/repo'), lambda *_: None)"
    hub.breaks = [100_000]
    environ = os.environ | {"HF_HUB_DISABLE_TELEMETRY": "1"}
    with subprocess.Popen([sys.executable, "-c", script], env=environ) as child:
        hub.sent = child.kill
        child.wait(60)
    assert child.returncode == -signal.SIGKILL
    hub.sent = lambda: None
    (size,) = partials(cache).values()
    hub.asked.clear()
    (one,) = pulled()
    assert hub.ranges_asked() == [f"bytes={size}-" if size else ""]
    assert (one.downloaded_bytes, one.path.read_bytes() == DATA) == (len(DATA) - size, True)


def test_file_with_another_hash_is_thrown_away(hub: Hub, cache: Path) -> None:
    hub.wrong = {Q4: bytes(len(DATA))}
    refused(ModelError, Q4, SHA, hashlib.sha256(bytes(len(DATA))).hexdigest())
    assert partials(cache) == {}
    assert [path for path in cache.rglob("*") if path.is_file() and path.stat().st_size >= len(DATA)] == []


@pytest.mark.parametrize("left", [bytes(1000), bytes(len(DATA)), bytes(len(DATA) + 1)])
def test_a_damaged_remainder_is_not_built_on(hub: Hub, cache: Path, left: bytes) -> None:
    hub.breaks = [10, *[0] * 5]
    refused(PacelineError, "is lost")
    (remainder,) = cache.rglob("*.incomplete")
    remainder.write_bytes(left)
    (one,) = pulled()
    came = len(DATA) + max(0, len(DATA) - len(left))  # what was built on it, and all of it anew
    assert (one.downloaded_bytes, one.hash_verified, one.path.read_bytes() == DATA) == (came, True, True)


def test_more_than_was_promised_is_refused(hub: Hub) -> None:
    hub.wrong = {Q4: DATA + b"more"}
    refused(PacelineError, "more than the 300,000 bytes")


def test_all_parts_of_a_split_model_come(hub: Hub) -> None:
    parts = {f"Q8/m-Q8_0-0000{i}-of-00002.gguf": bytes([i]) * 1000 for i in (1, 2)}
    hub.repos["user/parts"] = parts
    held = pulled("user/parts")
    assert [one.path.read_bytes() for one in held] == list(parts.values())
    held[1].path.unlink()
    with pytest.raises(UsageError, match="not completely on this machine"):
        find_cached(parse("user/parts"))


def files_of(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if not path.is_dir())


HEADERS = ("ETag", "X-Linked-Etag", "X-Repo-Commit", "X-Linked-Size")


@pytest.mark.parametrize("word", ["{outside}/key", "../../../../outside/key", "f" * 64])
def test_no_header_names_a_file(hub: Hub, tmp_path: Path, cache: Path, word: str) -> None:
    (tmp_path / "outside").mkdir()
    hub.headers = dict.fromkeys(HEADERS, f'"{word.format(outside=tmp_path / "outside")}"')
    (one,) = pulled()
    there = [f"blobs/{SHA}", "refs/main", f"snapshots/{COMMIT}/{Q4}"]
    assert files_of(cache / "models--user--repo") == there
    assert files_of(tmp_path / "outside") == []
    assert (one.path.read_bytes() == DATA, one.hash_verified) == (True, True)


def lay_lie(kind: str, cache: Path) -> Path:
    """A name in a snapshot that does not lead to the file asked for; `private` is the user's own file."""
    folder, private = repo_folder("user/repo"), cache.parent / "private"
    pointer, blobs = folder / "snapshots" / COMMIT / Q4, folder / "blobs"
    pointer.parent.mkdir(parents=True)
    blobs.mkdir()
    private.write_bytes(bytes(len(DATA)))
    if kind == "short file":
        pointer.write_bytes(DATA[:-1])
        return pointer
    others = {"outside": private, "another blob": blobs / ("a" * 64), "nothing": blobs / "gone"}
    target = others.get(kind, blobs / SHA)
    if kind == "another blob":
        target.write_bytes(bytes(len(DATA)))
    elif kind == "short blob":
        target.write_bytes(DATA[:-1])
    elif kind == "blob outside":
        target.symlink_to(private)
    pointer.symlink_to(os.path.relpath(target, pointer.parent))
    return pointer


OUT = ["outside", "blob outside", "nothing"]


@pytest.mark.parametrize("lie", [*OUT, "another blob", "short blob", "short file"])
def test_false_cached_file_is_replaced(hub: Hub, cache: Path, lie: str) -> None:
    pointer = lay_lie(lie, cache)
    (one,) = pulled()
    assert (one.path, one.hash_verified, one.path.read_bytes() == DATA) == (pointer, True, True)
    assert one.path.resolve().name == SHA
    assert (cache.parent / "private").read_bytes() == bytes(len(DATA))


@pytest.mark.parametrize("lie", OUT)
def test_a_link_out_of_the_cache_is_no_cached_model(cache: Path, lie: str) -> None:
    lay_lie(lie, cache)
    with pytest.raises(UsageError, match="user/repo is not on this machine"):
        find_cached(parse("user/repo"))


def test_a_snapshot_that_leads_out_of_the_cache_gets_no_files(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "outside").mkdir()
    (repo_folder("user/repo") / "snapshots").mkdir(parents=True)
    (repo_folder("user/repo") / "snapshots" / COMMIT).symlink_to(tmp_path / "outside")
    refused(ModelError, "leads out of the cache; delete it")
    assert files_of(tmp_path / "outside") == []


def test_where_links_are_not_wanted_the_file_itself_gets_the_name(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_HUB_DISABLE_SYMLINKS", "1")
    (one,) = pulled()
    assert files_of(cache / "models--user--repo") == ["refs/main", f"snapshots/{COMMIT}/{Q4}"]
    assert (one.hash_verified, one.path.read_bytes() == DATA) == (True, True)
    hub.asked.clear()
    assert pulled() == [LocalFile(one.path, len(DATA))]
    assert hub.ranges_asked() == []


@pytest.mark.parametrize(
    ("status", "name", "kind", "words"),
    [
        (401, "GatedRepo", PacelineError, ["user/repo: is gated", "accept its terms at http", "HF_TOKEN"]),
        (404, "RepoNotFound", UsageError, ["user/repo", "or it is private"]),
        (403, "", PacelineError, ["does not let this token read it"]),
        (429, "", PacelineError, ["answers with the error 429; try again later"]),
        (500, "", PacelineError, ["answers with the error 500; try again later"]),
    ],
)
def test_a_refusal_is_said_in_one_line(
    hub: Hub, status: int, name: str, kind: type[PacelineError], words: list[str]
) -> None:
    hub.errors = {"/api/models/user/repo": (status, name)}
    refused(kind, *words)


@pytest.mark.parametrize("variable", ["", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"])
def test_offline_nobody_is_asked(hub: Hub, monkeypatch: pytest.MonkeyPatch, variable: str) -> None:
    (first,) = pulled()
    hub.asked.clear()
    if variable:
        monkeypatch.setenv(variable, "1")
    assert [one.path for one in pulled(offline=not variable)] == [first.path]
    words = "hf.co/user/repo:Q8_0 is not on this machine"
    refused(UsageError, words, text="user/repo:Q8_0", offline=not variable)
    assert hub.asked == []


def test_a_full_disk_is_noticed_before(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = SimpleNamespace(total=10**6, used=10**6 - 200_000, free=200_000)
    monkeypatch.setattr("paceline.models.stores.download.shutil.disk_usage", lambda _: usage)
    refused(PacelineError, "has 300.00 kB", "200.00 kB free", "HF_HUB_CACHE")
    assert hub.ranges_asked() == []
    pulled(f"user/repo:{Q8}")


def test_a_disk_that_fills_up_meanwhile_is_one_line(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    refused(PacelineError, "user/repo: cannot be written", "No space left on device", "HF_HUB_CACHE")


def test_a_download_that_another_process_makes_is_left_to_it(
    hub: Hub, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(download, "BUSY", 0.01)
    lock = cache / f".locks/models--user--repo/{SHA}.lock"
    lock.parent.mkdir(parents=True)
    with WeakFileLock(lock):
        refused(PacelineError, "is being downloaded by another process")


INFO = {"id": "user/repo", "sha": COMMIT, "siblings": []}
LFS = {"sha256": "0" * 64, "size": 1, "pointerSize": 1}
FILE = {"rfilename": Q4, "size": 1, "blobId": "0" * 40, "lfs": LFS}
WRONG, UNLIKE_A_HUB = ("../../../x", "0" * 40), "does not answer as a Hugging Face hub does"
NO_MODEL = "user/repo: has no model as a GGUF file"


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        ([], UNLIKE_A_HUB),
        (INFO | {"sha": "../../x"}, UNLIKE_A_HUB),
        *((INFO | {"siblings": [FILE | {"lfs": LFS | {"sha256": wrong}}]}, UNLIKE_A_HUB) for wrong in WRONG),
        (INFO | {"siblings": [FILE | {"size": "many"}]}, UNLIKE_A_HUB),
        (INFO | {"siblings": ["x.gguf"]}, UNLIKE_A_HUB),
        (INFO | {"siblings": [FILE | {"size": -1}]}, NO_MODEL),
        (INFO | {"siblings": [FILE | {"rfilename": "a/../../x.gguf"}]}, NO_MODEL),
    ],
)
def test_answer_unlike_a_hubs_is_refused_before_a_folder_is_made(
    hub: Hub, cache: Path, answer: Any, words: str
) -> None:
    hub.answer = answer
    refused(UsageError if "no model" in words else PacelineError, words)
    assert not cache.exists()


def lay(name: str, commit: str, *files: str, main: bool = False) -> None:
    folder = repo_folder(name)
    for file in files:
        path = folder / "snapshots" / commit / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file)
    if main:
        (folder / "refs").mkdir()
        (folder / "refs/main").write_text(commit)


def test_what_is_here_is_chosen_from_the_current_revision_first(cache: Path) -> None:
    lay("u/r", "old", "a-Q4_K_M.gguf", "a-Q8_0.gguf")
    lay("u/r", "new", "a-Q4_K_M.gguf", main=True)
    lay("u/r", "else", "a-Q6_K.gguf")
    os.utime(repo_folder("u/r") / "snapshots/old", (1, 1))

    def name(text: str) -> str:
        (one,) = find_cached(parse(text))
        return one.path.relative_to(repo_folder("u/r") / "snapshots").as_posix()

    assert name("u/r") == name("u/r:q4_k_m") == "new/a-Q4_K_M.gguf"
    assert name("u/r:Q8_0") == "old/a-Q8_0.gguf"
    assert name("u/r:Q6_K") == "else/a-Q6_K.gguf"


HEAD = {"config.json": b'{"draft_vocab_size": 3}', "model.safetensors": DATA, "card.json": b"{}"}
HEAD["README.md"] = b"#"


@pytest.mark.parametrize("small", [frozenset(), frozenset({"config.json", "card.json"})])
def test_a_draft_head_is_downloaded_into_one_folder(hub: Hub, cache: Path, small: frozenset[str]) -> None:
    hub.repos["user/head"], hub.small = HEAD, small
    folder = cache / f"models--user--head/snapshots/{COMMIT}"
    for name in ("user/head", "hf:user/head"):
        with pytest.raises(UsageError, match="on this machine"):
            file_of(name)
    files = pulled("hf.co/user/head")
    assert [file.path.name for file in files] == ["config.json", "model.safetensors", "card.json"]
    assert all(file.hash_verified and file.path.read_bytes() == HEAD[file.path.name] for file in files)
    assert file_of("hf.co/user/head") == file_of("user/head") == file_of("hf:user/head") == folder
    hub.asked.clear()
    assert [file.path for file in pulled("user/head")] == [file.path for file in files]
    assert [file.path for file in pulled("user/head", offline=True)] == [file.path for file in files]
    assert hub.ranges_asked() == []


def test_a_draft_head_beside_a_model_is_downloaded_by_its_name(hub: Hub, cache: Path) -> None:
    hub.repos["user/both"] = {"m-Q8_0.gguf": DATA, "eagle3-m-Q8_0.gguf": DATA[::-1]}
    name = "hf.co/user/both:eagle3"
    with pytest.raises(UsageError, match=f"is not on this machine: paceline pull {name}"):
        file_of(name)
    (file,) = pulled(name)
    assert (file.path.name, file.path.read_bytes()) == ("eagle3-m-Q8_0.gguf", DATA[::-1])
    assert file_of(name) == file_of("user/both:eagle3-m-Q8_0.gguf") == file.path
    assert file_of("user/both") == file.path  # nothing else is here
    (model,) = pulled("user/both")
    assert model.path.name == file_of("user/both").name == file_of("user/both:Q8_0").name == "m-Q8_0.gguf"
    assert file_of(name) == file.path


def test_an_interrupted_head_goes_on_and_a_wrong_small_file_is_thrown_away(hub: Hub, cache: Path) -> None:
    hub.repos["user/head"], hub.small = HEAD, frozenset({"config.json"})
    hub.wrong = {"config.json": HEAD["config.json"][::-1]}
    refused(ModelError, "config.json", "the hub states the hash", text="user/head")
    hub.wrong, hub.breaks = {}, [len(HEAD["config.json"]), 1000, *[0] * 5]
    refused(PacelineError, "is lost", text="user/head")
    with pytest.raises(UsageError, match="is not completely on this machine: paceline pull"):
        file_of("user/head")
    assert len(pulled("user/head")) == 3


def test_a_repository_of_something_else_is_told_from_a_head(hub: Hub) -> None:
    hub.repos["user/model"] = HEAD | {"tokenizer.json": b"{}"}
    hub.repos["user/data"] = {"config.json": b"{}", "data.csv": b"1"}
    for name in ("user/model", "user/data"):
        refused(UsageError, "has no model as a GGUF file", "a draft head's", text=name)


@pytest.mark.parametrize("endpoint", ["http://[::1", "http://127.0.0.1:99999"])
def test_an_endpoint_that_is_no_address_is_named(endpoint: str) -> None:
    words = [sys.executable, "-m", "paceline", "pull", "user/repo:Q8_0"]
    environ = os.environ | {"HF_ENDPOINT": endpoint}
    done = subprocess.run(words, env=environ, capture_output=True, check=False)
    assert b"see HF_ENDPOINT" in done.stderr
    assert b"Traceback" not in done.stderr
