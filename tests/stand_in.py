"""A fake `paceline serve` for its page, which fails on demand."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from paceline.server.page import assets, headers

Part = tuple[str, str]  # text, source

LIVE: dict[str, Any] = {
    **{"model": "smollm2", "engine": "llama.cpp", "running": 2, "sessions": 8, "waiting": 3, "queue": 64},
    **{"tokens_per_second": 31.2, "plain_tokens_per_second": 22.0, "plain_tokens_per_second_each": 22.0},
    "acceptance": [0.81, 0.66, 0.52, 0.4],
    "drafted": {"lookup": 1230, "suffix": 410, "draft": 96},
    "accepted": {"lookup": 880, "suffix": 205, "draft": 71},
    "times": {"draft": 0.1, "forward": 0.8, "verify": 0.05, "commit": 0.01, "other": 0.04},
    "decision": "Drafts of up to 6 tokens from lookup: 2.4 tokens a pass, for 1.6 times its cost.",
    "uptime": 7384.5,
}
TIMINGS = {
    **{"prompt_n": 34, "prompt_ms": 212.0, "prompt_per_second": 160.4, "draft_n": 96, "draft_n_accepted": 71},
    **{"predicted_n": 128, "predicted_ms": 4096.0, "predicted_per_second": 31.25},
}


@dataclass
class Refusal:
    """An HTTP error instead of an answer."""

    status: int
    body: bytes
    headers: dict[str, str] = field(default_factory=dict)


def refusal(status: int, message: str, **headers: str) -> Refusal:
    body = {"error": {"message": message, "type": "error", "param": None, "code": None}}
    return Refusal(status, json.dumps(body).encode(), {k.replace("_", "-"): v for k, v in headers.items()})


@dataclass
class Answer:
    """parts: one chunk each, or one for each list of them. holds_after: chunks after which it waits for the
    server's `gate`. breaks: the connection is cut after the last part. error: ends the stream there.
    thoughts: before the parts. finish: why it ends."""

    parts: Sequence[Part | list[Part]]
    holds_after: int | None = None
    breaks: bool = False
    error: str = ""
    thoughts: str = ""
    finish: str = "stop"


@dataclass
class StandIn:
    """answers: to the next chat requests, in order. key: required of requests, if any. live: events of the
    live view. asked: bodies of the chat requests. left: set when a client disconnects during an answer."""

    answers: list[Answer | Refusal] = field(default_factory=list)
    key: str = ""
    live: dict[str, Any] = field(default_factory=lambda: dict(LIVE))
    models: Sequence[str] = ("smollm2",)
    asked: list[dict[str, Any]] = field(default_factory=list)
    gate: threading.Event = field(default_factory=threading.Event)
    left: threading.Event = field(default_factory=threading.Event)
    closing: threading.Event = field(default_factory=threading.Event)
    port: int = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"


@contextmanager
def serving(stand_in: StandIn) -> Iterator[StandIn]:
    """Run the server, on its earlier port if it had one."""
    server = ThreadingHTTPServer(("127.0.0.1", stand_in.port), handler_of(stand_in))
    stand_in.port = server.server_address[1]
    stand_in.closing.clear()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield stand_in
    finally:
        stand_in.closing.set()
        stand_in.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


def handler_of(stand_in: StandIn) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        timeout = 5  # of a connection on which nothing is asked

        def log_message(self, *_: object) -> None:
            """Log nothing."""

        def parse_request(self) -> bool:
            if stand_in.closing.is_set():  # a connection that was kept open does not outlive the server
                self.close_connection = True
                return False
            return super().parse_request()

        def do_GET(self) -> None:
            found = assets().get(self.path)
            if found:
                return self.reply(200, found[0], {"Content-Type": found[1], **headers(self.path)})
            if not self.allowed():
                return self.refuse(refusal(401, "Invalid API key"))
            if self.path == "/v1/models":
                about = {"root": "/model.gguf", "max_model_len": 4096, "meta": {}}
                data = [{"id": name, **about} for name in stand_in.models]
                return self.reply(200, json.dumps({"object": "list", "data": data}).encode(), {})
            if self.path == "/live":
                return self.streamed(self.tell_live)
            return self.refuse(refusal(404, f"There is no {self.path} here"))

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if not self.allowed():
                return self.refuse(refusal(401, "Invalid API key"))
            stand_in.asked.append(body)
            answer = stand_in.answers.pop(0)
            if isinstance(answer, Refusal):
                return self.refuse(answer)
            return self.streamed(lambda: self.tell_answer(answer))

        def allowed(self) -> bool:
            return self.headers.get("Authorization") == f"Bearer {stand_in.key}" if stand_in.key else True

        def refuse(self, refused: Refusal) -> None:
            self.reply(refused.status, refused.body, {"Content-Type": "application/json", **refused.headers})

        def reply(self, status: int, body: bytes, headers: dict[str, str]) -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(body)

        def streamed(self, tell: Any) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            try:
                if tell():
                    self.wfile.write(b"0\r\n\r\n")
                    return
            except OSError:
                stand_in.left.set()
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def send(self, data: str) -> None:
            event = f"data: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))

        def tell_live(self) -> bool:
            while True:
                self.send(json.dumps(stand_in.live))
                if stand_in.closing.wait(0.05):
                    return False

        def tell_answer(self, answer: Answer) -> bool:
            """Send the answer; false if the client disconnects."""
            if answer.holds_after == 0:
                self.send(json.dumps({"prompt_progress": {"total": 3000, "processed": 1200}}))
                self.hold()
            if answer.thoughts:
                self.send(self.chunk({"reasoning_content": answer.thoughts}))
            for n, chunk in enumerate(answer.parts, 1):
                if stand_in.closing.is_set():
                    return False
                parts = chunk if isinstance(chunk, list) else [chunk]
                self.send(self.chunk({"content": "".join(text for text, _ in parts)}, parts))
                if n == answer.holds_after:
                    self.hold()
            if answer.error:
                self.send(json.dumps({"error": {"message": answer.error}}))
                return True
            if answer.breaks:
                return False
            self.send(self.chunk({}, finish=answer.finish))
            usage = {"prompt_tokens": 34, "completion_tokens": 128, "total_tokens": 162}
            self.send(json.dumps({"object": "chat.completion.chunk", "choices": [], "usage": usage}))
            self.send("[DONE]")
            return True

        def hold(self) -> None:
            """Send comments until the gate opens; they fail if the client disconnects."""
            while not stand_in.gate.wait(0.02):
                self.wfile.write(b"3\r\n:\n\n\r\n")

        def chunk(self, delta: dict[str, str], parts: Sequence[Part] = (), finish: str | None = None) -> str:
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            chunk: dict[str, Any] = {"object": "chat.completion.chunk", "choices": [choice]}
            chunk |= {"timings": TIMINGS} if finish else {"speculative": {"parts": parts}}
            return json.dumps(chunk)

    return Handler
