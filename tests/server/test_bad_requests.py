"""Bad requests get errors in OpenAI's form with helpful messages, and the server goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from itertools import repeat
from pathlib import Path
from typing import Any

import httpx2
import pytest

import paceline
from paceline.server.security import SecurityRules
from paceline.server.settings import ServerLimits
from real_model import smollm2
from serving import LONG, Served, serving

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
BODY = 300_000  # bytes, at most
RULES = SecurityRules(hosts=("127.0.0.1", "localhost"), max_body_bytes=BODY, body_timeout=0.5)


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with (
        paceline.load(smollm2(), None, "lookup", sessions=2, n_ctx=256, threads=1) as llm,
        serving(llm, ServerLimits(strict=True), RULES) as up,
    ):
        yield up


@pytest.fixture(autouse=True)
def goes_on(served: Served) -> Iterator[None]:
    """Check after each test that the server still answers."""
    yield
    answer = served.post(CHAT, {"messages": HI, "max_tokens": 1, "temperature": 0})
    assert answer.status_code == 200
    served.rest()
    assert served.service.problem == ""


def problem(answer: httpx2.Response, status: int) -> dict[str, Any]:
    """Return the error, which must have OpenAI's form."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert {"message", "type", "param", "code"} <= set(error)
    kinds = ["server_error"] if status >= 500 else ["invalid_request_error", "exceed_context_size_error"]
    assert error["type"] in kinds
    assert error["message"].isprintable()
    assert 10 < len(error["message"]) < 600
    assert "Traceback" not in answer.text
    return error


def sent(served: Served, content: bytes | repeat[bytes], path: str = CHAT) -> httpx2.Response:
    headers = {"content-type": "application/json"}
    return httpx2.post(served.url + path, content=content, headers=headers, timeout=LONG)


def raw(served: Served, *pieces: bytes, timeout: float = LONG) -> bytes:
    """Send bytes, and return all that the server sends until it closes the connection."""
    with socket.create_connection(("127.0.0.1", served.port), timeout) as line:
        for piece in pieces:
            line.sendall(piece)
        got = b""
        with suppress(ConnectionError):
            while more := line.recv(65536):
                got += more
    return got


def answered(got: bytes) -> httpx2.Response:
    head, _, body = got.partition(b"\r\n\r\n")
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = [tuple(line.split(": ", 1)) for line in lines]
    return httpx2.Response(int(first.split()[1]), headers=headers, content=body)  # type: ignore[arg-type]


def nested(n: int, opening: bytes, closing: bytes) -> bytes:
    return b'{"messages":' + opening * n + b"0" + closing * n + b"}"


@pytest.mark.parametrize(
    "body",
    [
        b"", b'{"messages": [', b"hello", b'{"messages": [{"role": "user", "content": "\xc3"}]}', b"null",
        b"[1]", nested(100_000, b"[", b"]"), nested(40_000, b'{"a":', b"}"), b'{"seed": %s}' % (b"9" * 5000),
    ],
    ids=lambda body: repr(body[:40]),
)  # fmt: skip
def test_body_that_is_no_json_object_is_refused(body: bytes, served: Served) -> None:
    assert "body" in problem(sent(served, body), 400)["message"]


def chat(fields: str) -> str:
    return f'{{"messages": HI, {fields}}}'


def prompt(value: Any) -> str:
    return json.dumps({"prompt": value})


BAD: list[tuple[str, str, str, str]] = [
    # path, the body, the field that is at fault, and what the message says
    (CHAT, "{}", "messages", "required"),
    (CHAT, '{"messages": [{"role": "user", "content": 5}]}', "", "messages[0]: its content"),
    (CHAT, '{"messages": [{"role": "user", "content": "\\ud800"}]}', "", "is not UTF-8 text"),
    (CHAT, '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "", "text only"),
    (CHAT, '{"messages": HI, "temperature": NaN}', "temperature", "must be"),
    (CHAT, chat('"max_completion_tokens": 1' + "0" * 4000), "max_completion_tokens", "less"),
    (CHAT, '{"messages": HI, "n": 128}', "", "at once"),
    (CHAT, '{"messages": HI, "stream_options": {"warmth": 1}}', "stream_options.warmth", "no such field"),
    (CHAT, '{"messages": HI, "logit_bias": {"a": "b"}}', "logit_bias", "number"),
    (CHAT, '{"messages": HI, "logit_bias": [["a", true]]}', "", "logit_bias of 'a' True: must be a number"),
    (CHAT, '{"messages": HI, "mirostat": 2}', "", "it adjusts itself after each token"),
    (CHAT, chat('"structured_outputs": {"regex": "a"}, "grammar": "root ::= [a]"'), "", "only one"),
    (CHAT, chat('"prediction": {"type": "content", "content": [{"type": "x"}]}'), "", "prediction"),
    (CHAT, chat('"logit_bias": ' + json.dumps(dict.fromkeys(map(str, range(3000)), 1.0))),
     "logit_bias", "2048"),
    (CHAT, '{"messages": HI, "top_logprobs": 2}', "", "logprobs: true"),
    (CHAT, '{"messages": HI, "a-b\\u001b[31m": 1}', "a-b", "leave it out"),
    (CHAT, chat('"' + "x" * 5000 + '": 1'), "xxx", "leave it out"),
    (CHAT, '{"messages": HI, "\\ud800": 1}', "", "the body"),
    (CHAT, json.dumps({"messages": [{"role": "user", "content": "", "\n" * 5000: 1e400}]}), "", "JSON has"),
    (CHAT, chat(", ".join(f'"a{n}": 1' for n in range(9000))), "", "64"),
    (CHAT, '{"messages": HI, "speculative": {"drafters": ["magic"]}}', "", "choose from lookup"),
    (COMPLETION, prompt([{}] * 50_000), "", "at most 128"),
    (COMPLETION, '{"prompt": "x", "suffix": "y"}', "", "no control tokens"),
    (f"{CHAT}/input_tokens", '{"messages": HI, "flavour": 1}', "flavour", "leave it out"),
    (COMPLETION, '{"prompt": "x", "echo": true, "suffix": "y"}', "", "echo and suffix"),
    ("/detokenize", '{"tokens": [999999]}', "", "the model's tokens are 0 to"),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad[0]} {bad[1][:70]}")
def test_a_field_that_is_wrong(bad: tuple[str, str, str, str], served: Served) -> None:
    path, body, field, words = bad
    error = problem(sent(served, body.replace("HI", json.dumps(HI)).encode(), path), 400)
    assert words in error["message"]
    assert field in (error["param"] or "")
    assert bool(field) == bool(error["param"])


@pytest.mark.parametrize("place", ["http://127.0.0.1:1/x.json", "file"])
def test_a_schema_that_refers_to_another_place_is_not_read(
    place: str, served: Served, tmp_path: Path
) -> None:
    (tmp_path / "x.json").write_text('{"const": "secret"}')
    schema = {"$ref": place.replace("file", (tmp_path / "x.json").as_uri())}
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    error = problem(served.post(CHAT, {"messages": HI, "max_tokens": 3, "response_format": form}), 400)
    assert "cannot be used" in error["message"]
    assert "secret" not in error["message"]


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": [1] * 300}, "prompt", "the context 256"),
        ({"prompt": ["x", "word " * 300], "stream": True}, "prompt", "the context 256"),
        ({"messages": [{"role": "user", "content": "word " * 50_000}]}, "messages", "at most"),
    ],
)
def test_a_prompt_that_does_not_fit_is_told_by_openai_s_code(
    body: dict[str, Any], param: str, words: str, served: Served
) -> None:
    error = problem(served.post(CHAT if param == "messages" else COMPLETION, body), 400)
    assert words in error["message"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)


@pytest.mark.parametrize("depth", [900, 300])
def test_what_is_nested_too_deeply_for_a_template(depth: int, served: Served) -> None:
    inner = '{"x":' * depth + "1" + "}" * depth
    body = f'{{"messages": {json.dumps(HI)}, "max_tokens": 1, "chat_template_kwargs": {{"a": {inner}}}}}'
    problem(sent(served, body.encode()), 400)


def test_a_body_that_is_too_large_announced_or_not(served: Served) -> None:
    large = b" " * (BODY + 1)
    assert "300,000 bytes" in problem(sent(served, large), 413)["message"]

    assert "300,000 bytes" in problem(sent(served, repeat(b" " * 10_000, 40)), 413)["message"]
    announced = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {10**18}\r\n\r\n".encode()
    problem(answered(raw(served, announced)), 413)
    fits = sent(served, json.dumps({"messages": HI, "max_tokens": 1}).encode().ljust(BODY))
    assert fits.status_code == 200


def test_a_body_whose_rest_does_not_come(served: Served) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n".encode()
    for pieces in ((head,), (head, b'{"mess')):
        assert "did not come" in problem(answered(raw(served, *pieces)), 408)["message"]


@pytest.mark.parametrize("first", ["Content-Length: 60", "Transfer-Encoding: chunked"])
def test_a_body_whose_end_could_be_told_in_two_ways(first: str, served: Served) -> None:
    both = ["Content-Length: 60", "Transfer-Encoding: chunked"]
    both.sort(key=lambda one: one != first)
    head = "\r\n".join([f"POST {COMPLETION} HTTP/1.1", "Host: localhost", *both]).encode()
    got = raw(served, head, b"\r\n\r\n0\r\n\r\n", b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
    answer = answered(got)
    assert "send one of them" in problem(answer, 400)["message"]
    assert answer.headers["connection"] == "close"
    assert got.count(b"HTTP/1.1") == 1


START = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n"


@pytest.mark.parametrize(
    "line",
    [b"\x16\x03\x01\x02\0\x01\0", b"hello\r\n\r\n", b"\0" * 70_000, b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n",
     START + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n", START + b"Content-Length: -5\r\n\r\n",
     START + b"Content-Length: " + b"9" * 30 + b"\r\n\r\n", START + b"X: " + b"y" * 100_000 + b"\r\n\r\n"],
    ids=lambda line: repr(line[-30:]),
)  # fmt: skip
def test_what_is_no_request_at_all(line: bytes, served: Served) -> None:
    assert answered(raw(served, line)).status_code == 400


EVIL_HOSTS = [
    "evil.example", "127.0.0.1.evil.example", "[::2]:80", "", "[::1].evil.com:80", "[::1]evil", "[::1%25x]",
    "::1:80", "127.0.0.1:80:80", "127.0.0.1:x", "127.0.0.1@evil.com", "x:y@127.0.0.1", "localhost#evil.com",
    "127.0.0.1/evil", "[127.0.0.1]", "127.0.0.1:\u0661", "localhost.", "127.0.0.1, evil.com",
]  # fmt: skip


@pytest.mark.parametrize("host", EVIL_HOSTS)
def test_a_host_that_is_another(host: str, served: Served) -> None:
    """A web page whose name resolves to this machine sends such a host (DNS rebinding)."""
    headers = {b"host": host.encode()}
    answer = httpx2.get(f"{served.url}/v1/models", headers=headers, timeout=LONG)
    if answer.status_code != 400:  # no host by h11's rules
        assert "127.0.0.1" in problem(answer, 421)["message"]
    assert served.get("/v1/models", headers={"host": "LocalHost:1234"}).status_code == 200


def request(served: Served, target: str, *headers: str, method: str = "GET") -> httpx2.Response:
    lines = [f"{method} {target} HTTP/1.1", *(headers or ["Host: localhost"]), "Connection: close", "", ""]
    return answered(raw(served, "\r\n".join(lines).encode()))


def test_absolute_request_target_is_read_as_its_path(served: Served) -> None:
    for target in ("http://127.0.0.1:8080/v1/models?a=b", "HTTP://LOCALHOST/v1/models"):
        assert request(served, target).json()["object"] == "list"
    assert "chat" in request(served, "http://127.0.0.1").text
    assert request(served, "http://evil.example/v1/models").status_code == 421
    assert request(served, "http://localhost/v1/models", "Host: evil.example").status_code == 421
    assert request(served, "/health", "Host: localhost", "Host: evil.example").status_code == 400


def test_absolute_request_target_needs_a_key_as_its_path_does(served: Served) -> None:
    with serving(served.service.llm, rules=SecurityRules(keys=("secret",))) as guarded:
        assert request(guarded, "http://x/v1/models").status_code == 401
        assert request(guarded, "http://x/health").status_code == 200


@pytest.mark.parametrize(
    "path", ["/", "/page.js", "/health", "/v1/models", "/metrics", "/openapi.json", "/live"]
)
def test_head_has_the_headers_of_get_and_no_body(path: str, served: Served) -> None:
    answer = httpx2.head(served.url + path, timeout=LONG)
    assert (answer.status_code, answer.content) == (200, b"")
    if path in ("/", "/page.js"):
        assert answer.headers["content-length"] == str(len(served.get(path).content))


def test_http_2_preface_gets_one_error(served: Served) -> None:
    got = raw(served, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(9))
    assert got.count(b"HTTP/1.1 ") == 1
    assert "HTTP/1.1" in problem(answered(got), 505)["message"]


def test_message_with_all_private_characters_and_a_control_token_is_refused(served: Served) -> None:
    content = "".join(map(chr, range(0xE000, 0xF900))) + "<|im_end|>"
    answer = served.post(CHAT, {"messages": [{"role": "user", "content": content}], "max_tokens": 1})
    assert "private use" in problem(answer, 400)["message"]


@pytest.mark.parametrize(
    ("name", "kept"),
    [("a:b.c_d", True), ("x" * 128, True), ("x" * 129, False), ("a b", False), ("", False)],
)
def test_only_a_valid_request_id_is_echoed(name: str, kept: bool, served: Served) -> None:
    answer = served.get("/health", headers={"x-request-id": name.encode("latin-1")})
    assert (answer.headers["x-request-id"] == name) == kept


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405), ("OPTIONS", CHAT, 405), ("BREW", "/tokenize", 405),
        ("POST", "/v1/audio/speech", 404), ("GET", "/v1/models/", 404), ("GET", "/page.js/../../app.py", 404),
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 404), ("GET", "/%00%0a%1b", 404),
        ("GET", "//evil.example/", 404), ("GET", "/" + "x" * 5000, 404),
    ],
)  # fmt: skip
def test_a_path_or_method_that_is_not_there(method: str, path: str, status: int, served: Served) -> None:
    answer = request(served, path, method=method)
    error = problem(answer, status)
    assert ("use " if status == 405 else "GET /") in error["message"]
    if status == 405:
        assert answer.headers["allow"]


@pytest.mark.parametrize("kind", ["", "text/plain; json"])
def test_a_body_of_another_kind(kind: str, served: Served) -> None:
    """Content types that web pages may send without a preflight request are refused."""
    body = json.dumps({"messages": HI}).encode()
    headers = {"content-type": kind} if kind else {}
    page = {"origin": "http://elsewhere"}
    answer = httpx2.post(served.url + CHAT, content=body, headers=headers | page, timeout=LONG)
    assert "send application/json" in problem(answer, 400)["message"]
    other = httpx2.post(served.url + COMPLETION, content=b'{"prompt": "x", "max_tokens": 1}', headers=headers)
    assert other.status_code == 200  # curl, of which Ollama's users have examples
