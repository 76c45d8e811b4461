"""Requests as the service has them: prompts in tokens, samplers and grammars checked. It may take a while (a
long prompt, a large schema), and belongs into a thread."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from paceline.api import LLM
from paceline.config import validate_drafting
from paceline.server.schemas import ChatRequest, CompletionRequest, NamedTool, ResponseFormat, SamplingRequest
from paceline.server.service import ServerLimits
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import UNLIMITED
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.text.grammar_source import GrammarSource, from_schema
from paceline.text.messages import Tool, parse_tool_choice
from paceline.text.tools.formats import ToolFormat, force_call

MAX_STOPS = 16


@dataclass(frozen=True)
class ToolCallParsing:
    """How an answer is read for tool calls.

    begun: with what the answer begins, in its prompt already.
    spelled: control tokens that are a part of the format, and text to whoever reads it."""

    format: ToolFormat
    tools: Sequence[Tool]
    answer_prefix: str
    visible_control_tokens: Mapping[int, bytes]


@dataclass(frozen=True)
class ParsedRequest:
    """An HTTP request as the engine takes it: one GenerationRequest an answer."""

    requests: Sequence[GenerationRequest]
    calls: ToolCallParsing | None = None


def from_completion(
    llm: LLM, limits: ServerLimits, request: CompletionRequest, client: str = ""
) -> ParsedRequest:
    """Of every prompt `n` answers, in this order. Raises UsageError."""
    prompts: list[Any] = [request.prompt]
    if isinstance(request.prompt, list):
        if not request.prompt:
            raise UsageError("prompt: the list is empty; give at least one prompt")
        if not isinstance(request.prompt[0], int):
            prompts = list(request.prompt)
    if len(prompts) * request.n > 128:
        raise UsageError(f"{len(prompts)} prompts with n = {request.n}: ask for at most 128 answers at once")
    syntax = response_grammar(request.response_format)
    most, logprobs = request.max_tokens, request.logprobs
    each = [
        _requests(llm, limits, request, llm.tokens(prompt), most, syntax, logprobs, client)
        for prompt in prompts
    ]
    return ParsedRequest([one for requests in each for one in requests])


def from_chat(llm: LLM, limits: ServerLimits, request: ChatRequest, client: str = "") -> ParsedRequest:
    """`n` answers. Raises UsageError, and ModelError where the model's template cannot be used."""
    if request.top_logprobs is not None and not request.logprobs:
        raise UsageError("top_logprobs: needs logprobs: true")
    if not llm.has_chat_template:
        raise UsageError(
            "this model has no chat template, so it cannot chat: use /v1/completions, or serve an instruct "
            "model"
        )
    tools = [tool.model_dump(exclude_none=True) for tool in request.tools or ()]
    wanted = request.tool_choice
    named = wanted.model_dump() if isinstance(wanted, NamedTool) else wanted
    choice = parse_tool_choice(tools, named)
    calls, syntax = None, response_grammar(request.response_format)
    if choice.tools:
        support = llm.tool_support
        must = force_call(support.format, choice)
        if must is not None and syntax is not None:
            raise UsageError("tool_choice and response_format both say what the answer is: leave out one")
        if must is not None:
            syntax = from_schema(must.json_schema)
        calls = ToolCallParsing(
            support.format if must is None else must.format,
            choice.tools,
            "" if must is None else must.prefix,
            llm.visible_control_tokens,
        )
    messages = [message.model_dump(exclude_none=True) for message in request.messages]
    started = calls.answer_prefix if calls is not None else ""
    tokens = llm.chat_tokens(messages, choice.tools or None, request.chat_template_kwargs, answer=started)
    most = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    logprobs = (request.top_logprobs or 0) if request.logprobs else None
    return ParsedRequest(
        _requests(llm, limits, request, tokens, most, syntax, logprobs, client, calls), calls
    )


def response_grammar(form: ResponseFormat | None) -> GrammarSource | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return from_schema({"type": "object"})
    if form.json_schema is None or form.json_schema.schema_ is None:
        raise UsageError("response_format: type json_schema needs json_schema: {name, schema}")
    return from_schema(form.json_schema.schema_)


def _requests(
    llm: LLM,
    limits: ServerLimits,
    request: SamplingRequest,
    tokens: Sequence[int],
    most: int | None,
    syntax: GrammarSource | None,
    logprobs: int | None,
    client: str,
    calls: ToolCallParsing | None = None,
) -> list[GenerationRequest]:
    sampling = to_sampling(request, limits.sampling)
    stops = (request.stop,) if isinstance(request.stop, str) else tuple(request.stop or ())
    if "" in stops or len(stops) > MAX_STOPS:
        raise UsageError(f"stop: up to {MAX_STOPS} texts, none of them empty")
    if syntax is not None:
        llm.target.token_trie  # noqa: B018  # UsageError for a model that cannot end a text; it takes a second
    seed = request.seed
    if seed is None:
        seed = 0 if sampling.greedy else secrets.randbits(62)
    n_draft, drafters = draft_limits(llm, request)
    first = GenerationRequest(
        prompt=tokens,
        max_tokens=most or 1,
        sampling=sampling,
        stop=stops,
        ignore_eos=request.ignore_eos,
        grammar=syntax,
        logprobs=logprobs,
        n_draft=n_draft,
        drafters=drafters,
        client=client,
        scope=client if limits.isolate_clients else "",
        timeout=limits.request_timeout,
        visible_control_tokens={} if calls is None else calls.visible_control_tokens,
    )
    first.require_fits(llm.target)
    length = max_new_tokens(llm, limits, len(tokens), most)
    return [replace(first, max_tokens=length, seed=(seed + at) % (1 << 63)) for at in range(request.n)]


def to_sampling(request: SamplingRequest, defaults: Mapping[str, float]) -> Sampling:
    left = {name: value for name, value in defaults.items() if name not in request.model_fields_set}
    request = request.model_copy(update=left)
    bias = {}
    for token, value in (request.logit_bias or {}).items():
        if not (token.isascii() and token.isdecimal() and len(token) < 10):
            raise UsageError(f"logit_bias: {token!r} is no token id; /tokenize tells the ids of a text")
        bias[int(token)] = value
    return validate_drafting(
        Sampling,
        {
            "temperature": request.temperature,
            "top_k": max(0, request.top_k),
            "typical_p": request.typical_p if request.temperature else 1.0,
            "top_p": request.top_p,
            "min_p": request.min_p,
            "repeat_penalty": request.repeat_penalty,
            "presence_penalty": request.presence_penalty,
            "frequency_penalty": request.frequency_penalty,
            "repeat_last_n": request.repeat_last_n,
            "logit_bias": bias,
        },
    )


def max_new_tokens(llm: LLM, limits: ServerLimits, n_prompt: int, most: int | None) -> int:
    """Tokens of the answer, at most."""
    n_ctx = llm.target.caps.n_ctx
    room = n_ctx - n_prompt + 1
    allowed = min(room, limits.n_predict or room)
    if most is None:
        return allowed
    if most > n_ctx:
        raise UsageError(
            f"max_tokens {most:,}: the context has {n_ctx:,} tokens, {n_prompt:,} of them the prompt's; "
            f"ask for at most {allowed:,}"
        )
    if limits.n_predict and most > limits.n_predict:
        raise UsageError(f"max_tokens {most:,}: this server gives answers of at most {limits.n_predict:,}")
    return min(most, allowed)


def draft_limits(llm: LLM, request: SamplingRequest) -> tuple[int, frozenset[str] | None]:
    """The longest draft, and the drafters that may be called."""
    wish = request.speculative
    if wish is None:
        return UNLIMITED, None
    if not wish.enabled:
        return 0, None
    n_draft = UNLIMITED if wish.n_max is None else wish.n_max
    if wish.drafters is None:
        return n_draft, None
    there = [] if llm.drafting.plain else llm.drafter.name.split(",")
    unknown = [name for name in wish.drafters if name not in there]
    if unknown:
        raise UsageError(
            f"speculative.drafters: {unknown[0]!r} does not draft here; "
            + (f"choose from {', '.join(there)}" if there else "this server was started with --draft none")
        )
    return n_draft, frozenset(wish.drafters)
