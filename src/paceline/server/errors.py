"""HTTP errors: OpenAI's form, with messages that say what to do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

from paceline.server.responses import Json, openai_error
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
    # Clients that know this code choose a model with a larger context.
    (ContextError, 400, "invalid_request_error", "context_length_exceeded", {}),
    (UsageError, 400, "invalid_request_error", None, {}),
    (ModelError, 400, "invalid_request_error", None, {}),
]
OWN_MESSAGES = {  # by pydantic's type of the error
    "extra_forbidden": "this server knows no such field; leave it out",
    "none_required": "this is not supported here; leave it out",
    "string_pattern_mismatch": "this is no token id; /tokenize tells the ids of a text",  # schemas.TokenId
}


def error_response(error: Exception) -> tuple[int, Json, dict[str, str]]:
    """Return the status, the body and the headers of an error."""
    for kind, status, name, code, headers in KINDS:
        if isinstance(error, kind):
            return status, openai_error(truncated(str(error), 500), name, code), headers
    return 500, openai_error(MODEL_FAILED, "server_error"), {}


def validation_message(error: Mapping[str, Any]) -> str:
    """Return the message of one of pydantic's errors."""
    if error["type"] == "literal_error":
        given = truncated(repr(error["input"]), 60)
        return f"{given} is not supported here: use {error['ctx']['expected']}"
    return OWN_MESSAGES.get(error["type"]) or str(error["msg"]).replace("Input should be", "must be")


def install_handlers(app: FastAPI) -> None:
    """Answer every error in OpenAI's form."""

    async def own(request: Request, error: Exception) -> Response:
        status, body, headers = error_response(error)
        if isinstance(error, ContextError):
            is_chat = request.url.path.endswith("/chat/completions")
            body["error"]["param"] = "messages" if is_chat else "prompt"
        return JSONResponse(body, status, headers)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        status, message, allowed = error.status_code, str(error.detail), (error.headers or {}).get("Allow")
        code = {404: "not_found", 405: "method_not_allowed"}.get(status)
        kind = "server_error" if status >= 500 else "invalid_request_error"
        if "parsing the body" in message:
            message = "the body is not JSON in UTF-8, or is nested too deeply"
        elif status == 404 and message == "Not Found":
            message = f"nothing is at {truncated(request.url.path, 200)}: GET /openapi.json lists what is; "
            message += "a client's base URL ends in /v1"
        elif allowed:
            message = f"{request.method} is not for this path: use {allowed}"
        return JSONResponse(openai_error(message, kind, code), status, error.headers)

    async def invalid(request: Request, error: Exception) -> Response:
        assert isinstance(error, RequestValidationError)
        # For a field with alternatives, report the one that matched furthest, without its name in the schema.
        first = max(error.errors(), key=lambda one: len(one["loc"]))
        unknown = first["type"] == "extra_forbidden"
        parts = [str(part) for part in first["loc"] if part != "body"]
        place = [part for part in parts[:-1] if part.isidentifier() or part.isdecimal()]
        place += [part for part in parts[-1:] if unknown or part.isidentifier() or part.isdecimal()]
        where = printable(".".join(place))[:200]
        message, code = f"{where or 'the body'}: {validation_message(first)}", None
        kind, no_body = request.headers.get("content-type", "none"), ("model_attributes_type", "missing")
        if first["type"] == "json_invalid":
            message, code, where = "the body is not JSON", "invalid_json", ""
        elif not place and first["type"] in no_body and "json" not in kind.partition(";")[0]:
            message = f"the body's Content-Type is {printable(kind)[:100]}: send application/json"
        return JSONResponse(openai_error(message, "invalid_request_error", code, where or None), 400)

    for kind, *_ in KINDS:
        app.add_exception_handler(kind, own)
    app.add_exception_handler(Exception, own)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(RequestValidationError, invalid)
