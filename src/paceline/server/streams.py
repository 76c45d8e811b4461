"""The outputs of one HTTP request as they come, and their stream."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from time import monotonic
from typing import Any, TypeVar

from fastapi import Request
from fastapi.responses import StreamingResponse
from starlette.exceptions import HTTPException

from paceline.request_handle import StepOutput
from paceline.server.apis.answer import Answers, Event, Writer, log_fields
from paceline.server.convert import ParsedRequest
from paceline.server.errors import MODEL_FAILED, describe
from paceline.server.service import ServingEngine
from paceline.speculative.errors import ClosingError, PacelineError, TooSlowError, UsageError

log = logging.getLogger("paceline.server")
T = TypeVar("T")


class CompletionOutputs:
    """The outputs of one HTTP request's answers, as they come. Cancel it in the end.
    log: fields of the request's line in the log, which this fills in."""

    def __init__(self, service: ServingEngine, request: ParsedRequest, log: dict[str, Any]) -> None:
        self._service, self._log_fields, self.ping_seconds = service, log, service.limits.ping_seconds
        loop, self._queue = asyncio.get_running_loop(), asyncio.Queue[tuple[int, StepOutput]]()

        def deliver(index: int, output: StepOutput) -> None:
            loop.call_soon_threadsafe(self._queue.put_nowait, (index, output))

        self.handles = service.submit(request.requests, deliver)
        self.n_open = len(self.handles)

    async def next(self) -> tuple[int, StepOutput] | None:
        """Return the next output and its answer's index; None if a stream needs a sign of life.
        Raises the error that ended an answer: UsageError, ClosingError, TooSlowError or HTTPException."""
        try:
            # asyncio.wait_for may lose a cancellation before Python 3.12.
            async with asyncio.timeout(self.ping_seconds or None):
                index, update = await self._queue.get()
        except TimeoutError:
            return None
        if update.finish is not None:
            self.n_open -= 1
            self._log_fields.update(log_fields(update.finish))
            error = update.finish.error
            if isinstance(error, UsageError | ClosingError | TooSlowError):
                raise error
            if error is not None:
                raise HTTPException(500, MODEL_FAILED) from error
        return index, update

    async def queued(self) -> None:
        """Wait until the grammars are compiled and the requests queued. Raises what `next` raises."""
        for handle in self.handles:
            if not await asyncio.wrap_future(handle.queued):
                await self.next()

    async def all(self, answers: Answers) -> None:
        """Wait for all outputs and add them to the answers."""
        while self.n_open:
            if (output := await self.next()) is not None:
                answers.all[output[0]].deltas(output[1])

    def cancel(self) -> None:
        """Cancel the answers that have not ended."""
        if self.n_open == len(self.handles):
            self._log_fields.setdefault("reason", "cancelled")
        for handle in self.handles:
            self._service.cancel(handle)


class EventStreamResponse(StreamingResponse):
    """A stream of events, or lines. `after` is called when it ends or its client disconnects."""

    def __init__(self, content: AsyncIterator[str], after: Callable[[], None], **options: Any) -> None:
        super().__init__(content, **{"media_type": "text/event-stream", **options})
        # nginx would hold the events back otherwise.
        self.headers.update({"cache-control": "no-cache", "x-accel-buffering": "no"})
        self._after = after

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._after()


async def event_stream(
    outputs: CompletionOutputs, answers: Answers, writer: Writer, path: str, *, as_lines: bool
) -> AsyncIterator[str]:
    """Yield the events of a request. path: the route, whose form an error has.
    as_lines: as JSON objects, one a line, among which no sign of life has a place."""
    encode = json_line if as_lines else sse_event
    # With the first step: programs that measure take the first event for the end of the prompt's pass.
    first, last = list(writer.begin()), monotonic()
    try:
        while outputs.n_open:
            if (output := await outputs.next()) is not None:
                index, update = output
                for event in writer.step(index, update, answers.all[index].deltas(update)):
                    last = monotonic()
                    for due in (*first, event):
                        yield encode(due)
                    first = []
            if not as_lines and 0 < outputs.ping_seconds <= monotonic() - last:
                last = monotonic()
                yield ": keep-alive\n\n"
        for event in (*first, *writer.end()):
            yield encode(event)
    except Exception as error:
        if not isinstance(error, PacelineError | HTTPException):
            log.exception("a stream has failed")
        for event in (*first, writer.failed(describe(error).body(path))):
            yield encode(event)
    if writer.trailer:
        yield writer.trailer


def json_line(event: Event) -> str:
    return json.dumps(event[1], ensure_ascii=False, separators=(",", ":")) + "\n"


def sse_event(event: Event) -> str:
    return (f"event: {event[0]}\n" if event[0] else "") + f"data: {json_line(event)}\n"


async def until_disconnect(request: Request, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of what a request waits for. It is cancelled if the client disconnects."""

    async def disconnect() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    working, leaving = tasks = asyncio.ensure_future(work), asyncio.ensure_future(disconnect())
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise HTTPException(499, "the client has disconnected")
        return working.result()
    finally:
        working.cancel()
        leaving.cancel()
