"""The routes of the server."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

import paceline
from paceline.backends.interface import Embeds
from paceline.server import info, page, schemas, streams
from paceline.server.apis import APIS, COUNTED, Api
from paceline.server.apis.answer import Answers, prompt_logprobs
from paceline.server.apis.embeddings import EMBEDDINGS, EmbeddingApi, EmbeddingsRequest, embed, input_tokens
from paceline.server.convert import ParsedRequest, chat_prompt, from_chat, from_completion
from paceline.server.errors import EXTRA, install_handlers
from paceline.server.schemas import Json
from paceline.server.security import SecurityMiddleware, SecurityRules
from paceline.server.service import ServingEngine
from paceline.speculative.errors import UsageError
from paceline.speculative.printable import printable, truncated
from paceline.speculative.stats import Logprob
from paceline.text.chat_template import chat_sampling

log = logging.getLogger("paceline.server")
NOTE_HEADER = "x-paceline-note"  # what was left out of a request or changed
LIVE_INTERVAL_SECONDS = 0.5  # between two events of /live
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorResponse} for status in (400, 401, 404, 408, 413, 421, 429, 500, 503)
}
EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
# If `stream` is true.
EVENTS: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": EVENT}}}}
LINES: dict[int | str, dict[str, Any]] = {200: {"content": {"application/x-ndjson": {}}}}


def create(service: ServingEngine, names: Sequence[str], rules: SecurityRules) -> FastAPI:
    """Return the ASGI application. names: the model's id, and other names that requests may use."""
    llm = service.llm
    listed = [name for name in names if "*" not in name] or [llm.target.path.stem]
    app = FastAPI(
        title="Paceline",
        version=paceline.__version__,
        description="An OpenAI-compatible API over speculative decoding.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=ERROR_RESPONSES,
    )

    def convert(api: Api, body: Any, client: str, notes: list[str]) -> ParsedRequest:
        """Return the engine's requests. It may take long."""
        limits = service.limits
        if api.own_sampling:
            limits = replace(limits, sampling=chat_sampling(llm.target, limits.sampling))
        request = read(api, body, notes)
        parse: Any = from_chat if isinstance(request, schemas.ChatRequest) else from_completion
        made: ParsedRequest = parse(llm, limits, request, client, notes)
        return made

    def read(api: Api, body: Any, notes: list[str]) -> schemas.OpenAiRequest:
        """Return the request in OpenAI's form."""
        request = api.to_openai(body, notes)
        check_extra([*body.extra_fields(), *request.extra_fields()], notes)
        return request

    def check_extra(fields: Iterable[tuple[tuple[str, ...], bool]], notes: list[str]) -> None:
        """Note fields that are ignored. Raises RequestValidationError for others, and with --strict."""
        extra = dict(fields)
        for path, ignored in extra.items():
            if service.limits.strict or not ignored:
                what = "this server knows no such field" if ignored else "this is not supported here"
                error = {"type": EXTRA, "loc": path, "msg": f"{what}; leave it out", "input": None}
                raise RequestValidationError([error])
        if extra:
            notes.append(f"unknown fields were ignored: {', '.join(map('.'.join, extra))}")

    async def answer(api: Api, request: Request, body: Any) -> Response:
        require_name(body.model)
        notes = list[str]()
        parsed = await asyncio.to_thread(convert, api, body, request.state.client, notes)
        headers, n_top, scores = note_headers(notes), parsed.prompt_logprobs, list[list[Logprob]]()
        for one in parsed.requests[:: parsed.n] if n_top is not None else ():
            score = partial(prompt_logprobs, llm.target, one.prompt, n_top or 0)
            scores.append(await streams.until_disconnect(request, service.run(score)))
        outputs = streams.CompletionOutputs(service, parsed, request.state.log_fields)
        answers = Answers(llm, parsed, outputs.handles, scores)
        writer = api.writer(answers, body.model or listed[0], body)
        try:
            # A stream waits until its requests are queued: an error before that sets the HTTP status.
            await streams.until_disconnect(request, outputs.queued() if body.stream else outputs.all(answers))
        except BaseException:
            outputs.cancel()
            raise
        if not body.stream:
            return JSONResponse(writer.full(), headers=headers)
        stream = streams.event_stream(outputs, answers, writer, request.url.path, as_lines=api.as_lines)
        media = "application/x-ndjson" if api.as_lines else "text/event-stream"
        return streams.EventStreamResponse(stream, outputs.cancel, media_type=media, headers=headers)

    async def embeddings(api: EmbeddingApi, request: Request, body: EmbeddingsRequest) -> Response:
        require_name(body.model)
        target, notes = llm.target, list[str]()
        if not isinstance(target, Embeds):
            raise HTTPException(501, "this model makes no embeddings: serve a GGUF or transformers model")
        check_extra(body.extra_fields(), notes)
        texts = await asyncio.to_thread(input_tokens, llm, body, truncates=api.truncates)
        vectors = await streams.until_disconnect(request, service.run(partial(embed, target, texts, body)))
        made = api.form(body.model or listed[0], vectors, sum(map(len, texts)))
        return JSONResponse(made, headers=note_headers(notes))

    async def count_tokens(api: Api, _request: Request, body: Any) -> Json:
        require_name(body.model)

        def counted() -> int:
            chat = read(api, body, [])
            assert isinstance(chat, schemas.ChatRequest)
            return len(chat_prompt(llm, chat, [])) if chat.messages else 0

        return {"input_tokens": await asyncio.to_thread(counted)}

    def require_name(model: str) -> None:
        if model and not is_named(model, (*names, *listed)):
            other = f"this server has {listed[0]!r} (GET /v1/models)"
            raise HTTPException(404, f"no model {printable(model)[:200]!r} here; {other}")

    def add_route(path: str, run: Any, api: Any, kind: type[schemas.Body], **options: Any) -> None:
        async def endpoint(request: Request, body: Any) -> Any:
            try:
                return await run(api, request, body)
            except RecursionError:
                raise UsageError("the request is nested too deeply: make it flatter") from None

        endpoint.__annotations__ |= {"request": Request, "body": kind, "return": Any}
        app.post(path, response_model=None, **options)(endpoint)

    for api in (*APIS, *EMBEDDINGS):
        for path in api.paths:
            about = {"summary": api.summary, "include_in_schema": path == api.paths[0]}
            if isinstance(api, EmbeddingApi):
                add_route(path, embeddings, api, EmbeddingsRequest, **about)
                continue
            add_route(path, answer, api, api.body, responses=LINES if api.as_lines else EVENTS, **about)
            if path in COUNTED:
                about["summary"] = "Count the tokens of a request"
                add_route(COUNTED[path], count_tokens, api, api.body, **about)
    info.add_routes(app, service, listed, require_name)

    @app.get("/v1/health", include_in_schema=False)
    @app.get("/health", summary="Whether it answers")
    async def health() -> Response:
        if service.unhealthy_reason:
            raise HTTPException(503, service.unhealthy_reason)
        return JSONResponse({"status": "ok", "pass_seconds": round(service.pass_seconds, 3)})

    @app.get("/metrics", summary="For Prometheus", response_class=PlainTextResponse)
    async def metrics() -> Response:
        text = service.metrics.text(service.running, service.waiting)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.get("/live", summary="What the page shows, twice a second", responses=EVENTS)
    async def live(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return streams.EventStreamResponse(live_stats_events(service, listed[0]), lambda: None)

    def add_asset(path: str, kind: str, content: bytes) -> None:
        @app.get(path, include_in_schema=False)
        async def serve() -> Response:
            return Response(content, media_type=kind, headers=page.headers(path))

    assets = page.assets()
    for path, (content, kind) in assets.items():
        add_asset(path, kind, content)
    for route in [route for route in app.routes if isinstance(route, APIRoute) and route.methods == {"GET"}]:
        app.add_api_route(route.path, route.endpoint, methods=["HEAD"], include_in_schema=False)
    install_handlers(app)
    open_to_all = ("/health", "/v1/health", *assets)
    app.add_middleware(SecurityMiddleware, rules=rules, metrics=service.metrics, open_to_all=open_to_all)
    if rules.cors:
        anything: Any = {"allow_methods": ["*"], "allow_headers": ["*"]}
        shown = [NOTE_HEADER, "x-request-id"]
        app.add_middleware(CORSMiddleware, allow_origins=list(rules.cors), expose_headers=shown, **anything)
    if rules.proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(rules.proxies))
    return app


def is_named(model: str, names: Sequence[str]) -> bool:
    """Return whether one of the names, in which * stands for anything, is the model's. Ollama adds a tag."""
    given = {model, model.removesuffix(":latest")}
    patterns = (re.escape(name.removesuffix(":latest")).replace(r"\*", ".*") for name in names)
    return any(re.fullmatch(pattern, one, re.DOTALL) for pattern in patterns for one in given)


def note_headers(notes: Sequence[str]) -> dict[str, str]:
    """Return the header of a request's notes, which are logged, too."""
    if not notes:
        return {}
    line = truncated("; ".join(dict.fromkeys(notes)), 500)
    log.info("request: %s", line)
    return {NOTE_HEADER: line.encode("ascii", "replace").decode()}


async def live_stats_events(service: ServingEngine, name: str) -> AsyncIterator[str]:
    engine = str(service.llm.target.identity().get("engine", ""))
    while not service.problem:
        counts = {"running": service.running, "sessions": service.sessions}
        counts |= {"waiting": service.waiting, "queue": service.limits.queue}
        yield streams.sse_event(
            ("", {"model": name, "engine": engine, **counts, **service.live_stats.state()})
        )
        await asyncio.sleep(LIVE_INTERVAL_SECONDS)
