"""A local server that speaks as much of the Hugging Face hub's protocol as a download needs.

/api/models/USER/REPO and its tree; HEAD and GET of /USER/REPO/resolve/REVISION/FILE, which, as on the hub,
sends large files' readers to another host: /storage/SHA256, under the name of localhost.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"


@dataclass(frozen=True)
class Asked:
    """A request: its method, path, Range and Authorization."""

    method: str
    path: str
    range: str = ""
    token: str = ""


@dataclass
class Hub:
    """repos: the contents of files by repository and name. small: names of files that are not in LFS.
    breaks: the bytes that come before the connection is closed, of each of the storage's next answers.
    wrong: contents in place of a file's.
    errors: status, and the hub's code or message, by a word in the path.
    answer: in place of the facts of a repository.
    headers: of answers about a file, in place of the true ones.
    sent: called after each answer of the storage."""

    repos: dict[str, dict[str, bytes]] = field(default_factory=dict)
    breaks: list[int] = field(default_factory=list)
    wrong: dict[str, bytes] = field(default_factory=dict)
    errors: dict[str, tuple[int, str]] = field(default_factory=dict)
    answer: Any = None
    headers: dict[str, str] = field(default_factory=dict)
    sent: Callable[[], None] = lambda: None
    asked: list[Asked] = field(default_factory=list)
    url: str = ""
    small: frozenset[str] = frozenset()

    def ranges_asked(self) -> list[str]:
        """Return the Range of each GET request for file contents."""
        return [one.range for one in self.asked if one.path.startswith("/storage/") and one.method == "GET"]

    def stored(self, sha256: str) -> bytes | None:
        for files in self.repos.values():
            for name, data in files.items():
                if hashlib.sha256(data).hexdigest() == sha256:
                    return self.wrong.get(name, data)
        return None

    def info(self, name: str) -> dict[str, Any]:
        siblings = []
        for file, data in self.repos[name].items():
            lfs = {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data), "pointerSize": 130}
            git = hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()
            small = file in self.small
            siblings.append(
                {"rfilename": file, "size": len(data), "blobId": git, "lfs": None if small else lfs}
            )
        return {"id": name, "sha": COMMIT, "private": False, "tags": [], "siblings": siblings}


def own_cache(patch: pytest.MonkeyPatch, cache: Path) -> None:
    """A cache and a token of the test's own; nothing of the user's is read or written."""
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_ENDPOINT", "HUGGINGFACE_HUB_CACHE"):
        patch.delenv(name, raising=False)
    patch.setenv("HF_HUB_CACHE", str(cache))
    patch.setenv("HF_TOKEN", "hf_secret")
    patch.setenv("NO_PROXY", "127.0.0.1,localhost")
    # It asks the real hub what kinds of programs there are.
    patch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_TELEMETRY", True)


@contextmanager
def serving(hub: Hub) -> Iterator[Hub]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(hub))
    hub.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def handler_of(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Nothing."""

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            said = self.headers.get
            hub.asked.append(Asked(self.command, self.path, said("Range", ""), said("Authorization", "")))
            path = self.path.partition("?")[0]
            for word, (status, name) in hub.errors.items():
                if word in path:
                    return self.refuse(status, name)
            if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/[^/]+)?", path):
                return self.tell(found[1])
            if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                return self.resolve(found[1], found[3])
            if found := re.fullmatch(r"/storage/([0-9a-f]{64})", path):
                return self.store(found[1])
            return self.refuse(404, "")

        def reply(self, status: int, headers: Mapping[str, str], body: bytes = b"") -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def refuse(self, status: int, name: str) -> None:
            named = {"X-Error-Message" if " " in name else "X-Error-Code": name} if name else {}
            self.reply(status, {"Content-Length": "0", **named})

        def tell(self, name: str) -> None:
            if name not in hub.repos:
                return self.refuse(404, "RepoNotFound")
            body = json.dumps(hub.answer if hub.answer is not None else hub.info(name)).encode()
            return self.reply(
                200, {"Content-Type": "application/json", "Content-Length": str(len(body))}, body
            )

        def resolve(self, name: str, file: str) -> None:
            data = hub.repos.get(name, {}).get(file)
            if data is None:
                return self.refuse(404, "EntryNotFound")
            digest = hashlib.sha256(data).hexdigest()
            headers = {
                "X-Repo-Commit": COMMIT,
                "ETag": f'"{"0" * 40}"',
                "X-Linked-Etag": f'"{digest}"',
                "X-Linked-Size": str(len(data)),
                "Location": f"{hub.url.replace('127.0.0.1', 'localhost')}/storage/{digest}",
                "Content-Length": "0",
            }
            return self.reply(302, headers | hub.headers)

        def store(self, digest: str) -> None:
            data = hub.stored(digest)
            if data is None:
                return self.refuse(404, "")
            begin = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
            start = int(begin[1]) if begin else 0
            part = {"Content-Range": f"bytes {start}-{len(data) - 1}/{len(data)}"} if begin else {}
            end = start + hub.breaks.pop(0) if hub.breaks else len(data)
            length = {"Content-Length": str(len(data) - start)}
            self.reply(206 if begin else 200, part | length, data[start:end])
            hub.sent()
            return None

    return Handler
