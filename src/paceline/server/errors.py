"""HTTP errors, in the form of the API that was called, with messages that say what to do."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from paceline.server.schemas import Json
from paceline.server.service import QueueFullError
from paceline.speculative.errors import ClosingError, ContextError, ModelError, TooSlowError, UsageError
from paceline.speculative.printable import printable, truncated

MODEL_FAILED = "the model has failed at this request; the server's log says why"
# Exceptions, most special first, with their status, type, code and headers.
KINDS: list[tuple[type[Exception], int, str, str | None, dict[str, str]]] = [
    (QueueFullError, 429, "rate_limit_error", "rate_limit_exceeded", {"retry-after": "1"}),
    (ClosingError, 503, "server_error", "unavailable", {"retry-after": "5"}),
    # OpenAI's client retries otherwise.
    (TooSlowError, 408, "server_error", "timeout", {"x-should-retry": "false"}),
    # llama-server's type, OpenAI's code: clients that know it choose a model with a larger context.
    (ContextError, 400, "exceed_context_size_error", "context_length_exceeded", {}),
    (UsageError, 400, "invalid_request_error", None, {}),
    (ModelError, 400, "invalid_request_error", None, {}),
]
EXTRA = "extra_forbidden"  # pydantic's type of the error
ANTHROPIC_KINDS = {
    401: "authentication_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


@dataclass(frozen=True)
class ErrorInfo:
    """An error. code, param, kind: OpenAI's; the kind follows from the status. extra: further fields."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    kind: str = ""
    extra: Mapping[str, Any] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self, path: str) -> Json:
        """Return the body in the form of the API that has this path.
        Lone surrogates, which a message may quote, are replaced."""
        message = self.message.encode("utf-8", "replace").decode()
        is_ours, kind = self.status >= 500, ANTHROPIC_KINDS.get(self.status)
        if path.startswith("/api/"):
            return {"error": message}
        if path.startswith("/v1/messages"):
            kind = kind or ("api_error" if is_ours else "invalid_request_error")
            return {"type": "error", "error": {"type": kind, "message": message}}
        by_status = "server_error" if is_ours else "invalid_request_error"
        where = {"message": message, "param": self.param, "code": self.code}
        error: Json = {"type": self.kind or by_status, **where, **self.extra}
        if path.startswith(("/v1/responses", "/responses")):
            return {"type": "error", "error": error, **where}
        return {"error": error}


def describe(error: Exception) -> ErrorInfo:
    """Return the description of an exception. Those of the model tell nobody what is in it."""
    for kind, status, name, code, headers in KINDS:
        if isinstance(error, kind):
            extra = {}
            if isinstance(error, ContextError) and error.n_prompt:
                extra = {"n_prompt_tokens": error.n_prompt, "n_ctx": error.n_ctx}
            return ErrorInfo(status, truncated(str(error), 500), code, None, name, extra, headers)
    return ErrorInfo(500, MODEL_FAILED)


def validation_message(error: Mapping[str, Any]) -> str:
    """Return the message of one of pydantic's errors."""
    if error["type"] == "literal_error":
        given = truncated(repr(error["input"]), 60)
        return f"{given} is not supported here: use {error['ctx']['expected']}"
    return str(error["msg"]).replace("Input should be", "must be")


def install_handlers(app: FastAPI) -> None:
    """Answer every error in OpenAI's form."""

    def respond(request: Request, info: ErrorInfo) -> Response:
        return JSONResponse(info.body(request.url.path), info.status, dict(info.headers))

    async def own(request: Request, error: Exception) -> Response:
        info = describe(error)
        if isinstance(error, ContextError):
            is_chat = request.url.path.endswith("/chat/completions")
            info = replace(info, param="messages" if is_chat else "prompt")
        return respond(request, info)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status, message, allowed = error.status_code, str(error.detail), (error.headers or {}).get("Allow")
        code = {404: "not_found", 405: "method_not_allowed"}.get(status)
        if "parsing the body" in message:
            message = "the body is not JSON in UTF-8, or is nested too deeply"
        elif status == 404 and message == "Not Found":
            message = f"nothing is at {truncated(request.url.path, 200)}: GET /openapi.json lists what is; "
            message += "a client's base URL ends in /v1"
        elif allowed:
            message = f"{request.method} is not for this path: use {allowed}"
        return respond(request, ErrorInfo(status, message, code, headers=error.headers or {}))

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        # For a field with alternatives, report the one that matched furthest, without its name in the schema.
        first = max(error.errors(), key=lambda one: len(one["loc"]))
        *parts, last = [str(part) for part in first["loc"] if part != "body"] or [""]
        place = [part for part in (*parts, last) if part.isidentifier() or part.isdecimal()]
        if first["type"] == EXTRA and last not in place[-1:]:
            place.append(last)
        where = printable(".".join(place))[:200]
        message, code = f"{where or 'the body'}: {validation_message(first)}", None
        kind, no_body = request.headers.get("content-type", "none"), ("model_attributes_type", "missing")
        if first["type"] == "json_invalid":
            message, code, where = "the body is not JSON", "invalid_json", ""
        elif not place and first["type"] in no_body and "json" not in kind.partition(";")[0]:
            message = f"the body's Content-Type is {printable(kind)[:100]}: send application/json"
        return respond(request, ErrorInfo(400, message, code, where or None))

    for kind, *_ in KINDS:
        app.add_exception_handler(kind, own)
    app.add_exception_handler(Exception, own)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
