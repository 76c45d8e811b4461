"""The routes of the server."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from uvicorn.middleware.proxy_headers import ProxyHeadersMiddleware

import paceline
from paceline.request_handle import StepOutput
from paceline.server import page, schemas
from paceline.server.convert import ParsedRequest, from_chat, from_completion
from paceline.server.errors import MODEL_FAILED, error_response, install_handlers
from paceline.server.responses import Json, ResponseBuilder, log_fields
from paceline.server.security import SecurityMiddleware, SecurityRules
from paceline.server.service import ServingEngine
from paceline.speculative import validation as typed
from paceline.speculative.errors import ClosingError, TooSlowError, UsageError
from paceline.speculative.printable import printable
from paceline.text.chat_template import chat_sampling

PING_SECONDS = 10.0  # without output, after which a stream gets a comment so that it stays open
LIVE_INTERVAL_SECONDS = 0.5  # between two events of /live
ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorResponse} for status in (400, 401, 404, 408, 413, 421, 429, 500, 503)
}
EVENT = {"type": "object", "properties": {"data": {"type": "string"}}, "required": ["data"]}
EVENTS: dict[int | str, dict[str, Any]] = {
    200: {"content": {"text/event-stream": {"schema": EVENT}}}  # of each event, if `stream` is true
}


def create(service: ServingEngine, names: Sequence[str], rules: SecurityRules) -> FastAPI:
    """Return the ASGI application. names: the model's id, and other names that requests may use."""
    llm = service.llm
    app = FastAPI(
        title="Paceline",
        version=paceline.__version__,
        description="An OpenAI-compatible API over speculative decoding.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=ERROR_RESPONSES,
    )
    created = int(time.time())

    async def answer(
        request: Request,
        body: schemas.ChatRequest | schemas.CompletionRequest,
        convert: Callable[..., ParsedRequest],
    ) -> Response:
        require_name(body.model)
        try:
            parsed = await asyncio.to_thread(convert, llm, service.limits, body, request.state.client)
        except RecursionError:
            raise UsageError("the request is nested too deeply: make it flatter") from None
        outputs = CompletionOutputs(service, parsed, request.state.log_fields)
        builder = ResponseBuilder(llm, body.model or names[0], body, parsed, outputs.handles)
        disconnect = asyncio.ensure_future(wait_for_disconnect(request))
        # A stream waits until its requests are queued: an error before that sets the HTTP status.
        ready = asyncio.ensure_future(outputs.queued() if body.stream else outputs.all())
        streams = False
        try:
            await asyncio.wait((disconnect, ready), return_when=asyncio.FIRST_COMPLETED)
            if not ready.done():
                return Response(status_code=499)
            ready.result()
            if not body.stream:
                return JSONResponse(builder.full_response())
            streams = True
            options = body.stream_options or schemas.StreamOptions()
            return EventStreamResponse(events(outputs, builder, options), outputs.cancel)
        finally:
            disconnect.cancel()
            ready.cancel()
            if not streams:
                outputs.cancel()

    def require_name(model: str) -> None:
        if model and model not in names:
            name = printable(model)[:200]
            raise HTTPException(404, f"no model {name!r} here; this server has {names[0]!r} (GET /v1/models)")

    @app.post("/v1/chat/completions", responses=EVENTS, summary="Chat")
    async def chat(request: Request, body: schemas.ChatRequest) -> Response:
        return await answer(request, body, from_chat)

    @app.post("/v1/completions", responses=EVENTS, summary="Complete a text")
    async def complete(request: Request, body: schemas.CompletionRequest) -> Response:
        return await answer(request, body, from_completion)

    @app.get("/v1/models", summary="The model that is served")
    async def models() -> Json:
        return {"object": "list", "data": [model_json(name) for name in names]}

    @app.get("/v1/models/{name:path}", summary="One name of it")
    async def model(name: str) -> Json:
        require_name(name or "?")
        return model_json(name)

    def model_json(name: str) -> Json:
        target = llm.target
        return {
            "id": name,
            "object": "model",
            "created": created,
            "owned_by": "paceline",
            "root": target.path.name,
            "max_model_len": target.caps.n_ctx,
            "meta": {
                "description": target.description,
                "n_vocab": target.vocab.size,
                "sampling": chat_sampling(llm.target, service.limits.sampling),
                "drafters": [] if llm.drafting.plain else llm.drafter.name.split(","),
            },
        }

    @app.get("/health", summary="Whether it answers")
    async def health() -> Response:
        if service.unhealthy_reason:
            raise HTTPException(503, service.unhealthy_reason)
        return JSONResponse({"status": "ok", "pass_seconds": round(service.pass_seconds, 3)})

    @app.get("/metrics", summary="For Prometheus", response_class=PlainTextResponse)
    async def metrics() -> Response:
        text = service.metrics.text(service.running, service.waiting)
        return Response(text, media_type="text/plain; version=0.0.4; charset=utf-8")

    @app.post("/tokenize", summary="Text to tokens")
    def tokenize(body: schemas.TokenizeRequest) -> Json:
        if not (content := typed.text("content", body.content)):
            return {"tokens": []}
        encode = llm.target.text.encode
        return {"tokens": encode(content, special=body.parse_special, add_bos=body.add_special)}

    @app.post("/detokenize", summary="Tokens to text")
    def detokenize(body: schemas.DetokenizeRequest) -> Json:
        size, piece = llm.target.vocab.size, llm.target.text.piece
        if (last := max(body.tokens, default=0)) >= size:
            raise UsageError(f"tokens: {last}: the model's tokens are 0 to {size - 1}")
        return {"content": b"".join(map(piece, body.tokens)).decode(errors="replace")}

    @app.get("/live", summary="What the page shows, twice a second", responses=EVENTS)
    async def live(request: Request) -> Response:
        if request.method == "HEAD":
            return Response(media_type="text/event-stream")
        return EventStreamResponse(live_stats_events(service, names[0]), lambda: None)

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
    open_to_all = ("/health", *assets)
    app.add_middleware(SecurityMiddleware, rules=rules, metrics=service.metrics, open_to_all=open_to_all)
    if rules.proxies:
        app.add_middleware(ProxyHeadersMiddleware, trusted_hosts=list(rules.proxies))
    return app


class CompletionOutputs:
    """The outputs of one HTTP request's answers, as they come. Cancel it in the end.
    log: fields of the request's line in the log, which this fills in."""

    def __init__(self, service: ServingEngine, request: ParsedRequest, log: dict[str, Any]) -> None:
        self._service, self._log_fields = service, log
        self.handles, self._queue = service.submit_async(request.requests)
        self._n_open = len(self.handles)

    async def next(self) -> tuple[int, StepOutput] | None:
        """Return the next output and its answer's index; None after PING_SECONDS without one.
        Raises the error that ended an answer: UsageError, ClosingError, TooSlowError or HTTPException."""
        try:
            # asyncio.wait_for may lose a cancellation before Python 3.12.
            async with asyncio.timeout(PING_SECONDS):
                index, update = await self._queue.get()
        except TimeoutError:
            return None
        if update.finish is not None:
            self._n_open -= 1
            self._log_fields.update(log_fields(update.finish))
            error = update.finish.error
            if isinstance(error, UsageError | ClosingError | TooSlowError):
                raise error
            if error is not None:
                raise HTTPException(500, MODEL_FAILED) from error
        return index, update

    @property
    def over(self) -> bool:
        return not self._n_open

    async def queued(self) -> None:
        """Wait until the grammars are compiled and the requests queued. Raises what `next` raises."""
        for handle in self.handles:
            if not await asyncio.wrap_future(handle.queued):
                await self.next()

    async def all(self) -> None:
        while not self.over:
            await self.next()

    def cancel(self) -> None:
        """Cancel the answers that have not ended."""
        if self._n_open == len(self.handles):
            self._log_fields.setdefault("reason", "cancelled")
        for handle in self.handles:
            self._service.cancel(handle)


class EventStreamResponse(StreamingResponse):
    """A stream of events. `after` is called when it ends or its client disconnects."""

    def __init__(self, content: AsyncIterator[str], after: Callable[[], None]) -> None:
        super().__init__(content, media_type="text/event-stream", headers={"cache-control": "no-cache"})
        self._after = after

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._after()


async def events(
    outputs: CompletionOutputs, builder: ResponseBuilder, options: schemas.StreamOptions
) -> AsyncIterator[str]:
    def chunk_event(chunk: Json) -> str:
        if options.continuous_usage_stats:
            chunk["usage"] = builder.usage_so_far()
        return sse_event(chunk)

    for chunk in builder.role_chunks():
        yield chunk_event(chunk)
    try:
        while not outputs.over:
            output = await outputs.next()
            if output is None:
                yield ": keep-alive\n\n"
                continue
            for chunk in builder.chunks(*output):
                yield chunk_event(chunk)
        if options.include_usage:
            yield sse_event(builder.usage())
    except Exception as error:
        _, body, _ = error_response(error)
        yield sse_event(body)
    yield "data: [DONE]\n\n"


async def live_stats_events(service: ServingEngine, name: str) -> AsyncIterator[str]:
    engine = str(service.llm.target.identity().get("engine", ""))
    while not service.problem:
        counts = {"running": service.running, "sessions": service.sessions}
        counts |= {"waiting": service.waiting, "queue": service.limits.queue}
        yield sse_event({"model": name, "engine": engine, **counts, **service.live_stats.state()})
        await asyncio.sleep(LIVE_INTERVAL_SECONDS)


def sse_event(data: Mapping[str, Any]) -> str:
    return f"data: {json.dumps(data, ensure_ascii=False, separators=(',', ':'))}\n\n"


async def wait_for_disconnect(request: Request) -> None:
    """Return when the client has disconnected."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
