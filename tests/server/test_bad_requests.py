"""What is wrong with a request is said in OpenAI's form and in words that help; and the server goes on."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx2
import pytest

import paceline
from paceline.server.schemas import LONG as LONG_TEXT
from paceline.server.security import SecurityRules
from real_model import smollm2
from schemas import ENDLESS, SLOW, chain
from serving import LONG, Served, serving

CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"
HI = [{"role": "user", "content": "hi"}]
BODY = 300_000  # bytes, at most


@pytest.fixture(scope="module")
def served() -> Iterator[Served]:
    with (
        paceline.load(smollm2(), None, "lookup", sessions=2, n_ctx=256, threads=1) as llm,
        serving(llm, rules=SecurityRules(hosts=("127.0.0.1", "localhost"), body=BODY, patience=0.5)) as up,
    ):
        yield up


@pytest.fixture(autouse=True)
def goes_on(served: Served) -> Iterator[None]:
    """After each of these."""
    yield
    answer = served.post(CHAT, {"messages": HI, "max_tokens": 1, "temperature": 0})
    assert answer.status_code == 200
    served.rest()
    assert served.service.problem == ""


def problem(answer: httpx2.Response, status: int) -> dict[str, Any]:
    """In OpenAI's form."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/json"
    body = answer.json()
    assert set(body) == {"error"}
    error: dict[str, Any] = body["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == ("server_error" if status >= 500 else "invalid_request_error")
    assert error["message"].isprintable()
    assert 10 < len(error["message"]) < 600
    assert "Traceback" not in answer.text
    return error


def sent(served: Served, content: bytes, path: str = CHAT, **headers: str) -> httpx2.Response:
    given = {"content-type": "application/json", **headers}
    return httpx2.post(served.url + path, content=content, headers=given, timeout=LONG)


def raw(served: Served, *pieces: bytes, timeout: float = LONG) -> bytes:
    """All that comes back, until the server hangs up."""
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


NO_JSON: dict[str, bytes] = {
    "nothing": b"",
    "half": b'{"messages": [',
    "no JSON": b"hello",
    "half a character": b'{"messages": [{"role": "user", "content": "\xc3"}]}',
    "Latin-1": '{"messages": [{"role": "user", "content": "é"}]}'.encode("latin-1"),
    "two values": b"{} {}",
    "a comment": b'{"messages": [] /* none */}',
    "lists within lists": nested(100_000, b"[", b"]"),
    "objects within objects": nested(40_000, b'{"a":', b"}"),
    "an open list": b"[" * 200_000,
    "a number of 5,000 digits": b'{"seed": ' + b"9" * 5000 + b"}",
    "nothing but NUL": b"\0" * 100,
}


@pytest.mark.parametrize("what", NO_JSON)
@pytest.mark.parametrize("path", [CHAT, "/tokenize"])
def test_a_body_that_is_not_json(what: str, path: str, served: Served) -> None:
    error = problem(sent(served, NO_JSON[what], path), 400)
    assert "body" in error["message"]


@pytest.mark.parametrize("body", ["null", "[]", "[1]", '"text"', "5", "true"])
def test_a_body_that_is_no_object(body: str, served: Served) -> None:
    assert "the body" in problem(sent(served, body.encode()), 400)["message"]


def chat(fields: str) -> str:
    return f'{{"messages": HI, {fields}}}'


def prompt(value: Any) -> str:
    return json.dumps({"prompt": value})


BAD: list[tuple[str, str, str, str]] = [
    # path, the body, the field that is at fault, and what the message says
    (CHAT, "{}", "messages", "required"),
    (CHAT, '{"messages": []}', "messages", "at least 1"),
    (CHAT, '{"messages": "hi"}', "messages", "list"),
    (CHAT, '{"messages": [{}]}', "messages.0.role", "required"),
    (CHAT, '{"messages": [{"role": "user", "content": 5}]}', "messages.0.content", "valid"),
    (CHAT, '{"messages": [{"role": "user", "content": "\\ud800"}]}', "messages.0.content", "valid"),
    (CHAT, '{"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}', "content.0", "text"),
    (CHAT, '{"messages": HI, "temperature": NaN}', "temperature", "finite"),
    (CHAT, '{"messages": HI, "temperature": Infinity}', "temperature", "finite"),
    (CHAT, '{"messages": HI, "temperature": -1}', "temperature", "greater"),
    (CHAT, '{"messages": HI, "temperature": "1"}', "temperature", "number"),
    (CHAT, '{"messages": HI, "temperature": 1e400}', "temperature", "finite"),
    (CHAT, '{"messages": HI, "top_p": NaN}', "top_p", "less"),
    (CHAT, '{"messages": HI, "top_p": 1.1}', "top_p", "less"),
    (CHAT, '{"messages": HI, "presence_penalty": -Infinity}', "presence_penalty", "finite"),
    (CHAT, '{"messages": HI, "repeat_penalty": 0}', "repeat_penalty", "greater"),
    (CHAT, '{"messages": HI, "max_tokens": 0}', "max_tokens", "greater"),
    (CHAT, '{"messages": HI, "max_tokens": 1.5}', "max_tokens", "integer"),
    (CHAT, '{"messages": HI, "max_tokens": "5"}', "max_tokens", "integer"),
    (CHAT, '{"messages": HI, "max_tokens": true}', "max_tokens", "integer"),
    (CHAT, '{"messages": HI, "max_tokens": 99999}', "", "at most"),
    (CHAT, chat('"max_completion_tokens": 1' + "0" * 4000), "max_completion_tokens", "less"),
    (CHAT, '{"messages": HI, "n": 0}', "n", "greater"),
    (CHAT, '{"messages": HI, "n": 129}', "n", "less"),
    (CHAT, '{"messages": HI, "n": 128}', "", "at once"),
    (CHAT, '{"messages": HI, "seed": 1.5}', "seed", "integer"),
    (CHAT, chat(f'"seed": {1 << 63}'), "seed", "less"),
    (CHAT, '{"messages": HI, "stop": ""}', "", "stop"),
    (CHAT, '{"messages": HI, "stop": [1]}', "stop.0", "string"),
    (CHAT, chat('"stop": ' + json.dumps(["x"] * 17)), "", "16"),
    (CHAT, '{"messages": HI, "stream": "yes"}', "stream", "boolean"),
    (CHAT, '{"messages": HI, "stream_options": {"warmth": 1}}', "stream_options.warmth", "no such field"),
    (CHAT, '{"messages": HI, "logit_bias": {"a": 1}}', "", "/tokenize"),
    (CHAT, '{"messages": HI, "logit_bias": {"-1": 1}}', "", "/tokenize"),
    (CHAT, '{"messages": HI, "logit_bias": {"999999": 1}}', "", "the model's tokens are 0 to"),
    (CHAT, '{"messages": HI, "logit_bias": {"1": NaN}}', "logit_bias.1", "finite"),
    (CHAT, '{"messages": HI, "logit_bias": {"1": 1e300}}', "", "between"),
    (CHAT, chat('"logit_bias": ' + json.dumps(dict.fromkeys(map(str, range(3000)), 1.0))),
     "logit_bias", "2048"),
    (CHAT, '{"messages": HI, "top_logprobs": 2}', "", "logprobs: true"),
    (CHAT, '{"messages": HI, "logprobs": true, "top_logprobs": 21}', "top_logprobs", "20"),
    (CHAT, '{"messages": HI, "warmth": 1}', "warmth", "leave it out"),
    (CHAT, '{"messages": HI, "a-b\\u001b[31m": 1}', "a-b", "leave it out"),
    (CHAT, chat('"' + "x" * 5000 + '": 1'), "xxx", "leave it out"),
    (CHAT, '{"messages": HI, "\\ud800": 1}', "", "the body"),
    (CHAT, chat(", ".join(f'"a{n}": 1' for n in range(9000))), "", "64"),
    (CHAT, '{"messages": HI, "speculative": {"drafters": ["magic"]}}', "", "choose from lookup"),
    (CHAT, '{"messages": HI, "speculative": {"n_max": -1}}', "speculative.n_max", "greater"),
    (CHAT, '{"messages": HI, "response_format": {"type": "xml"}}', "response_format.type", "json_schema"),
    (CHAT, '{"messages": HI, "response_format": {"type": "json_schema"}}', "", "needs json_schema"),
    (COMPLETION, "{}", "prompt", "required"),
    (COMPLETION, '{"prompt": []}', "", "at least one"),
    (COMPLETION, '{"prompt": [[]]}', "", "the prompt is empty"),
    (COMPLETION, '{"prompt": [-1]}', "prompt.0", "valid"),
    (COMPLETION, '{"prompt": [999999]}', "", "outside the vocabulary"),
    (COMPLETION, '{"prompt": [true]}', "prompt.0", "valid"),
    (COMPLETION, prompt([{}] * 50_000), "prompt.0", "valid"),
    (COMPLETION, prompt([["x"]] * 20_000), "prompt.0", "valid"),
    (COMPLETION, prompt(["x"] * 200), "", "at most 128"),
    (COMPLETION, '{"prompt": "x", "suffix": "y"}', "suffix", "not supported here; leave it out"),
    (COMPLETION, '{"prompt": "x", "echo": true}', "echo", "True is not supported here: use False"),
    (CHAT, chat('"tools": [{"type": "custom"}]'), "tools.0.type", "not supported here: use 'function'"),
    (CHAT, '{"messages": [{"role": "tool", "content": "x", "tool_calls": [{}]}]}',
     "messages.0.tool_calls.0.function", "required"),
    (CHAT, '{"messages": [{"role": "x", "tool_calls": [{"function": {"name": "", "arguments": ""}}]}]}',
     "", "messages[0]: tool_calls[0]: its name"),
    ("/detokenize", '{"tokens": [999999]}', "", "the model's tokens are 0 to"),
    ("/tokenize", '{"content": 5}', "content", "string"),
]  # fmt: skip


@pytest.mark.parametrize("bad", BAD, ids=lambda bad: f"{bad[0]} {bad[1][:70]}")
def test_a_field_that_is_wrong(bad: tuple[str, str, str, str], served: Served) -> None:
    path, body, field, words = bad
    error = problem(sent(served, body.replace("HI", json.dumps(HI)).encode(), path), 400)
    assert words in error["message"]
    assert field in (error["param"] or "")
    assert bool(field) == bool(error["param"])


@pytest.mark.parametrize("kind", ["image_url", "input_audio", "file", "video_url"])
def test_a_part_of_a_message_that_is_no_text(kind: str, served: Served) -> None:
    content = [{"type": "text", "text": "what is it?"}, {"type": kind, kind: {"url": "http://127.0.0.1/x"}}]
    error = problem(served.post(CHAT, {"messages": [{"role": "user", "content": content}]}), 400)
    assert f"'{kind}' is not supported here: use 'text'" in error["message"]
    assert error["param"] == "messages.0.content.1.type"


@pytest.mark.parametrize(
    ("body", "param", "words"),
    [
        ({"prompt": [1] * 300}, "prompt", "the context 256"),
        ({"prompt": "word " * 300}, "prompt", "the context 256"),
        ({"prompt": ["x", "word " * 300], "stream": True}, "prompt", "the context 256"),
        ({"prompt": "word " * 50_000}, "prompt", "at the very most"),
        ({"messages": [{"role": "user", "content": "word " * 300}]}, "messages", "the context 256"),
        ({"messages": [{"role": "user", "content": "word " * 50_000}]}, "messages", "at the very most"),
    ],
)
def test_a_prompt_that_does_not_fit_is_told_by_openai_s_code(
    body: dict[str, Any], param: str, words: str, served: Served
) -> None:
    error = problem(served.post(CHAT if param == "messages" else COMPLETION, body), 400)
    assert words in error["message"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", param)


DEEP: Any = {}
for _ in range(40):
    DEEP = {"type": "object", "properties": {"a": DEEP}}
SCHEMAS: dict[str, tuple[Any, str]] = {
    "that nothing satisfies": ({"type": "string", "minLength": 5, "maxLength": 2}, "no text can satisfy"),
    "that is its own definition": (
        {"$defs": {"a": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"}, "no text can satisfy"),
    "that lies elsewhere": ({"$ref": "http://127.0.0.1:1/x.json"}, "cannot be used"),
    "that is a file": ({"$ref": "file:///etc/hostname"}, "cannot be used"),
    "that is none": ({"type": 5}, "cannot be used"),
    "of everything at once": (
        {"allOf": [{"anyOf": [{"properties": {f"{n}": {"const": i}}} for i in range(4)]} for n in range(16)]},
        "cannot be used"),
    "with parentheses of 5,000 levels": (
        {"type": "string", "pattern": "(" * 5000 + "a" + ")" * 5000}, "cannot be used"),
    "that is a chain of references": (chain(950), "too complex"),
    "that takes no end of compiling": (ENDLESS, "to compile: simplify it"),
    "that nobody has thought of": ({"type": "array", "uniqueItems": True}, "cannot be used"),
}  # fmt: skip


@pytest.mark.parametrize("which", SCHEMAS)
def test_a_schema(which: str, served: Served) -> None:
    schema, words = SCHEMAS[which]
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    error = problem(served.post(CHAT, {"messages": HI, "max_tokens": 3, "response_format": form}), 400)
    assert words in error["message"]
    assert "hostname" not in error["message"].replace("/etc/hostname", "")


@pytest.mark.parametrize(
    ("schema", "words"),
    [({"properties": {"a": SLOW}, "required": ["a"]}, "simplify it")],
    ids=["slow"],
)
def test_a_schema_of_a_tool_s_parameters(schema: Any, words: str, served: Served) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}}]
    body = {"messages": HI, "max_tokens": 3, "tools": tools, "tool_choice": "required"}
    assert words in problem(served.post(CHAT, body), 400)["message"]


@pytest.mark.parametrize(
    "schema",
    [
        DEEP,
        {"$defs": {"a": {"type": "array", "items": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
        {"type": "string", "pattern": "^((a{1,1000}){1,1000}){1,1000}$"},
        {"type": "string", "minLength": 10_000_000},
    ],
    ids=["deep", "recursive", "a pattern of many repetitions", "a text of ten million letters"],
)
def test_a_strange_schema_that_can_be_followed_is(schema: Any, served: Served) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
    answer = served.post(CHAT, {"messages": HI, "max_tokens": 2, "response_format": form})
    assert answer.status_code == 200


@pytest.mark.parametrize("depth", [900, 300])
def test_what_is_nested_too_deeply_for_a_template(depth: int, served: Served) -> None:
    inner = '{"x":' * depth + "1" + "}" * depth
    for field in (f'"chat_template_kwargs": {{"a": {inner}}}', f'"metadata": {{"a": {inner}}}'):
        body = f'{{"messages": {json.dumps(HI)}, "max_tokens": 1, {field}}}'
        answer = sent(served, body.encode())
        if "kwargs" in field or answer.status_code != 200:
            problem(answer, 400)


def test_a_body_that_is_too_large_announced_or_not(served: Served) -> None:
    large = b" " * (BODY + 1)
    assert "300,000 bytes" in problem(sent(served, large), 413)["message"]

    def chunks() -> Iterator[bytes]:
        for _ in range(40):
            yield b" " * 10_000

    answer = httpx2.post(
        served.url + CHAT, content=chunks(), headers={"content-type": "application/json"}, timeout=LONG
    )
    assert "300,000 bytes" in problem(answer, 413)["message"]
    announced = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {10**18}\r\n\r\n".encode()
    problem(answered(raw(served, announced)), 413)
    fits = sent(served, json.dumps({"messages": HI, "max_tokens": 1}).encode().ljust(BODY))
    assert fits.status_code == 200


def test_a_body_whose_rest_does_not_come(served: Served) -> None:
    head = f"POST {CHAT} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 100\r\n\r\n".encode()
    for pieces in ((head,), (head, b'{"mess')):
        assert "did not come" in problem(answered(raw(served, *pieces)), 408)["message"]


@pytest.mark.parametrize(
    "head",
    [
        b"Content-Length: 5\r\nContent-Length: 6",
        b"Content-Length: -5",
        b"Content-Length: 5, 6",
        b"Content-Length: five",
        b"Content-Length: 5_0",
        b"Content-Length: " + b"9" * 30,
        b"Content-Length: \xb2",
        b"Transfer-Encoding: gzip",
        b"A header without a colon",
        b"Name with spaces: x",
        b"X: a\0b",
        b"X: " + b"y" * 100_000,
        b"\r\n".join(b"X-%d: y" % n for n in range(7000)),
    ],
    ids=lambda head: repr(head[:40]),
)
def test_headers_that_are_none(head: bytes, served: Served) -> None:
    got = raw(served, b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\n", head, b"\r\n\r\n")
    answer = answered(got)
    assert answer.status_code in (400, 413, 501)
    problem(answer, answer.status_code)


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


@pytest.mark.parametrize("path", ["/", "/health", "/v1/models", "/metrics", "/live", "/openapi.json"])
def test_head_is_get_without_a_body(path: str, served: Served) -> None:
    got = raw(served, f"HEAD {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = answered(got)
    assert (answer.status_code, answer.content) == (200, b"")
    with httpx2.stream("GET", served.url + path, timeout=LONG) as full:
        assert answer.headers["content-type"] == full.headers["content-type"]


@pytest.mark.parametrize(("path", "status"), [(CHAT, 405), ("/nowhere", 404)])
def test_head_where_get_is_nothing(path: str, status: int, served: Served) -> None:
    answer = httpx2.head(served.url + path, timeout=LONG)
    assert (answer.status_code, answer.content) == (status, b"")


@pytest.mark.parametrize(
    "line",
    [b"\x16\x03\x01\x02\0\x01\0", b"hello\r\n\r\n", b"GET /\r\n\r\n", b"GET / HTTP/x.1\r\n\r\n",
     b"\0" * 70_000, b"GET /\xff HTTP/1.1\r\nHost: x\r\n\r\n", b"PRI * HTTP/2.0\r\n \r\nSM\r\n\r\n"],
    ids=lambda line: repr(line[:20]),
)  # fmt: skip
def test_what_is_no_request_at_all(line: bytes, served: Served) -> None:
    answer = answered(raw(served, line))
    assert "no request" in problem(answer, 400)["message"]


def test_nonsense_after_an_answer_ends_the_connection(served: Served) -> None:
    got = raw(served, b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n\0\0\0 nonsense \r\n\r\n")
    assert got.startswith(b"HTTP/1.1 200")
    chunked = b"POST /nowhere HTTP/1.1\r\nHost: evil\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"
    assert raw(served, chunked).startswith(b"HTTP/1.1 4")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "evil:8080", "[::2]:80", "", "*"])
def test_a_host_that_is_another(host: str, served: Served) -> None:
    """A web page whose name was made to lead here."""
    error = problem(httpx2.get(f"{served.url}/v1/models", headers={"host": host}, timeout=LONG), 421)
    assert "127.0.0.1" in error["message"]


@pytest.mark.parametrize("host", ["127.0.0.1", "LocalHost:1234", "localhost:80"])
def test_a_host_that_is_this_one(host: str, served: Served) -> None:
    assert served.get("/v1/models", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("name", "kept"),
    [("mine-1", True), ("a:b.c_d", True), ("x" * 129, False), ("a b", False), ("\u00e9", False), ("", False)],
)
def test_the_name_of_a_request_is_kept_where_it_is_one(name: str, kept: bool, served: Served) -> None:
    answer = served.get("/health", headers={"x-request-id": name.encode("latin-1")})
    assert (answer.headers["x-request-id"] == name) == kept


def test_a_name_with_line_breaks_starts_no_header_of_its_own(served: Served) -> None:
    for name in (b"a\r\nSet-Cookie: b", b"a\nSet-Cookie: b", b"a\rb"):
        got = raw(
            served, b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-Request-Id: ", name,
            b"\r\n\r\n",
        )  # fmt: skip
        assert b"cookie" not in got.lower()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", CHAT, 405), ("PUT", CHAT, 405), ("DELETE", "/v1/models", 405), ("OPTIONS", CHAT, 405),
        ("PATCH", "/health", 405), ("BREW", "/tokenize", 405), ("TRACE", "/health", 405),
        ("POST", "/v1/embeddings", 404), ("GET", "/v1", 404), ("GET", "/v1/models/", 404),
        ("POST", CHAT + "/", 404), ("GET", "/../../etc/passwd", 404), ("GET", "/page.js/../../app.py", 404),
        ("GET", "/v1/models/..%2f..%2fetc%2fpasswd", 404), ("GET", "/%00%0a%1b", 404),
        ("GET", "//evil.example/", 404), ("GET", "/docs", 404), ("GET", "/" + "x" * 5000, 404),
    ],
)  # fmt: skip
def test_a_path_or_method_that_is_not_there(method: str, path: str, status: int, served: Served) -> None:
    got = raw(served, f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    answer = answered(got)
    error = problem(answer, status)
    assert ("use " if status == 405 else "GET /") in error["message"]
    if status == 405:
        allowed = answer.headers["allow"].split(", ")
        assert ("GET" in allowed) == ("HEAD" in allowed)
        assert allowed


@pytest.mark.parametrize("kind", ["", "text/plain", "application/x-www-form-urlencoded", "text/plain; json"])
def test_a_body_of_another_kind(kind: str, served: Served) -> None:
    """What any web page may send without asking is not taken."""
    headers = {"content-type": kind} if kind else {}
    body = json.dumps({"messages": HI}).encode()
    answer = httpx2.post(served.url + CHAT, content=body, headers=headers, timeout=LONG)
    assert "send application/json" in problem(answer, 400)["message"]


def test_what_is_sent_too_early_is_answered_in_turn(served: Served) -> None:
    one = b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n"
    last = b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    got = raw(served, one * 20 + last)
    assert got.count(b"HTTP/1.1 200 OK") == 21


def test_a_text_has_at_most_so_many_letters(served: Served) -> None:
    with serving(served.service.llm, rules=SecurityRules()) as up:
        problem(up.post("/tokenize", {"content": "x" * (LONG_TEXT + 1)}), 400)
