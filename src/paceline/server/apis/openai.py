"""OpenAI's chats and completions, with llama-server's `timings` and vLLM's token ids."""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from paceline.request_handle import StepOutput
from paceline.server.apis.answer import Answers, Event, Writer, finite_logprob
from paceline.server.apis.parts import Notes
from paceline.server.convert import prompts_of
from paceline.server.schemas import ChatRequest, CompletionRequest, FimRequest, Json, StreamOptions
from paceline.speculative.errors import UsageError
from paceline.speculative.stats import Logprob


def chat(body: ChatRequest, _notes: Notes) -> ChatRequest:
    """Return the same request. Raises UsageError without messages: only others' clients send that to try."""
    if not body.messages:
        raise UsageError("messages: the list is empty; give at least one message")
    return body


class OpenAiWriter(Writer):
    """The response to one request."""

    trailer = "data: [DONE]\n\n"

    def __init__(self, answers: Answers, model: str, body: ChatRequest | CompletionRequest) -> None:
        super().__init__(answers, model, body)
        self._chat = isinstance(body, ChatRequest | FimRequest)
        self._options = body.stream_options or StreamOptions()
        self._report = body.speculative is not None and body.speculative.report
        self._prompts: list[Any] = []  # that answers begin with
        if isinstance(body, CompletionRequest) and body.echo:
            self._prompts = prompts_of(body.prompt)
        self._logprobs = body.logprobs is not None and body.logprobs is not False
        self._parts: list[list[tuple[str, str]]] = [[] for _ in answers.all]  # not yet in a chunk
        self._n_open = len(answers.all)
        name = f"{'chatcmpl' if self._chat else 'cmpl'}-{secrets.token_hex(12)}"
        self._base = {"id": name, "created": int(time.time()), "model": model, "system_fingerprint": "b0"}
        self._offsets: Counter[int] = Counter()

    def begin(self) -> Iterator[Event]:
        """Yield a chat's first chunks, which have the role, or those of prompts."""
        for at, _ in enumerate(self._answers.all if self._chat or self._prompts else ()):
            text, tokens, known = self._beginning(at)
            begin: Any = {"role": "assistant", "content": None} if self._chat else text
            yield self._chunk(at, begin, self._logprobs_json(at, tokens, known) if tokens else None)

    def step(self, index: int, update: StepOutput, deltas: Sequence[Json]) -> Iterator[Event]:
        """Yield the chunks of one output. The last one of all answers has the timings."""
        end, empty, more = update.finish, {} if self._chat else "", dict[str, Any]()
        if self._answers.only_prompts:
            update, deltas = StepOutput(finish=end), ()
        if self._body.return_progress:
            for progress in self._answers.progress(index, update):
                yield self._chunk(index, empty, prompt_progress=progress)
        self._parts[index] += update.parts
        logprobs = self._logprobs_json(index, update.tokens, update.logprobs)
        tokens = list(update.tokens) if self._body.return_token_ids else []
        if not deltas and (logprobs is not None or tokens) and update.tokens:
            deltas = [{"content": ""}]  # the text may be held back, log-probabilities are not
        for delta in deltas:
            if self._report:
                more["speculative"] = {"parts": self._parts[index]}
                self._parts[index] = []
            if self._body.timings_per_token:
                more["timings"] = self._answers.timings()
            new = delta if self._chat else delta["content"]
            yield self._chunk(index, new, logprobs, None, tokens, **more)
            logprobs, tokens = None, []  # only in the first chunk
        if end is not None:
            self._n_open -= 1
            last = {} if self._n_open else {"timings": self._answers.timings()}
            if self._report and not self._n_open:
                last["speculative"] = self._answers.draft_counts()
            yield self._chunk(index, empty, None, self._answers.all[index].finish_reason, **last)

    def end(self) -> Iterator[Event]:
        """Yield what follows the last chunk."""
        if self._options.include_usage:
            totals = {"usage": self._usage(), "timings": self._answers.timings()}
            yield "", {**self._base, "object": self._kind, "choices": [], **totals}

    @property
    def _kind(self) -> str:
        return "chat.completion.chunk" if self._chat else "text_completion"

    def full(self) -> Json:
        """Return the response without streaming."""
        answers = self._answers
        out = {
            **self._base,
            "object": self._kind.removesuffix(".chunk"),
            "choices": [self._finished(index) for index in range(len(answers.all))],
            "usage": self._usage(),
            "timings": answers.timings(),
        }
        if self._body.return_token_ids:
            out["prompt_token_ids"] = list(answers.all[0].handle.request.prompt)
        if self._body.verbose:
            out["__verbose"] = {"prompt": answers.prompt_text(), "content": answers.all[0].handle.text}
        if self._report:
            parts = [answer.handle.parts for answer in answers.all]
            out["speculative"] = {"parts": parts, **answers.draft_counts()}
        return out

    def _finished(self, index: int) -> Json:
        answer = self._answers.all[index]
        handle, (text, tokens, logprobs) = answer.handle, self._beginning(index)
        if not self._answers.only_prompts:
            text, tokens, logprobs = text + handle.text, tokens + handle.tokens, [*logprobs, *handle.logprobs]
        made: Json = {"message": {**answer.message, "refusal": None}} if self._chat else {"text": text}
        return {
            "index": index,
            "logprobs": self._logprobs_json(index, tokens, logprobs),
            "finish_reason": answer.finish_reason,
            **made,
            **({"token_ids": list(handle.tokens)} if self._body.return_token_ids else {}),
        }

    def _beginning(self, index: int) -> tuple[str, list[int], list[Logprob | None]]:
        """Return what an answer begins with: its prompt, with `echo`."""
        if not self._prompts:
            return "", [], []
        given = self._prompts[index // self._body.n]
        text = given if isinstance(given, str) else self._answers.prompt_text(index)
        return text, *self._answers.prompt(index)

    def _chunk(
        self, index: int, delta: Any, logprobs: Any = None, reason: str | None = None, tokens: Any = None,
        **more: Any,
    ) -> Event:  # fmt: skip
        field = "delta" if self._chat else "text"
        choice = {"index": index, field: delta, "logprobs": logprobs, "finish_reason": reason}
        if tokens is not None and self._body.return_token_ids:
            choice["token_ids"] = tokens
        if self._options.continuous_usage_stats:
            more["usage"] = usage_counts(self._answers)
        return "", {**self._base, "object": self._kind, "choices": [choice], **more}

    def _logprobs_json(
        self, index: int, tokens: Sequence[int], logprobs: Sequence[Logprob | None]
    ) -> Json | None:
        if not self._logprobs:
            return None
        text, token_json = self._answers.text, self._answers.token_json
        if self._chat:
            content = [
                {**token_json(token, one.logprob), "top_logprobs": [token_json(*top) for top in one.top]}
                for token, one in zip(tokens, logprobs, strict=True)
                if one is not None
            ]
            return {"content": content, "refusal": None}
        texts = [text(token, visible=bool(self._prompts)) for token in tokens]
        tops = [it and {text(token): finite_logprob(x) for token, x in it.top} for it in logprobs]
        offsets = list(accumulate(map(len, texts), initial=self._offsets[index]))
        self._offsets[index] = offsets.pop()
        return {
            "tokens": texts,
            "token_logprobs": [it and finite_logprob(it.logprob) for it in logprobs],
            "top_logprobs": tops,
            "text_offset": offsets,
        }

    def _usage(self) -> Json:
        details: Json = {"prompt_tokens_details": {"cached_tokens": self._answers.n_cached}}
        if any(answer.handle.request.prediction for answer in self._answers.all):
            counts = self._answers.draft_counts()
            drafted, accepted = (counts[name].get("prediction", 0) for name in ("drafted", "accepted"))
            details["completion_tokens_details"] = {
                "accepted_prediction_tokens": accepted,
                "rejected_prediction_tokens": drafted - accepted,
            }
        return {**usage_counts(self._answers), **details}


def usage_counts(answers: Answers) -> Json:
    prompt, written = answers.n_prompt, answers.n_tokens
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
