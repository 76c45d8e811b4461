"""HTTP requests to the engine's: prompts are tokenised, samplers and grammars checked.

A long prompt or a large schema takes time: call these functions in a thread."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain
from typing import Any

from paceline.api import LLM
from paceline.server.schemas import ChatRequest, CompletionRequest, ResponseFormat, SamplingRequest
from paceline.server.service import ServerLimits
from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import UNLIMITED
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.text.chat_template import control_texts
from paceline.text.grammar_source import GrammarSource, from_schema
from paceline.text.messages import parse_tool_choice
from paceline.text.tools.formats import THINK, force_call
from paceline.text.tools.parser import AnswerParser

MAX_STOPS = 16
SAMPLERS = [name for name in SamplingRequest.model_fields if hasattr(Sampling, name)]


@dataclass(frozen=True)
class ParsedRequest:
    """The engine's requests of one HTTP request, one for each answer.
    new_parser: makes the parser of an answer's thoughts and tool calls; None if there are neither."""

    requests: Sequence[GenerationRequest]
    new_parser: Callable[[], AnswerParser] | None = None


def from_completion(llm: LLM, limits: ServerLimits, request: CompletionRequest, client: str) -> ParsedRequest:
    """Return `n` requests for each prompt, in the order of the prompts. Raises UsageError."""
    given: Any = request.prompt
    if given == []:
        raise UsageError("prompt: the list is empty; give at least one prompt")
    prompts = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    if len(prompts) * request.n > 128:
        raise UsageError(f"{len(prompts)} prompts with n = {request.n}: ask for at most 128 answers at once")
    most, grammar = request.max_tokens, response_grammar(request.response_format)
    fields: dict[str, Any] = {"grammar": grammar, "logprobs": request.logprobs, "client": client}
    groups = (_requests(llm, limits, request, most, llm.tokens(prompt), **fields) for prompt in prompts)
    return ParsedRequest(list(chain.from_iterable(groups)))


def from_chat(llm: LLM, limits: ServerLimits, request: ChatRequest, client: str = "") -> ParsedRequest:
    """Return `n` requests. Raises UsageError, and ModelError if the model's template cannot be used."""
    if request.top_logprobs is not None and not request.logprobs:
        raise UsageError("top_logprobs: needs logprobs: true")
    if not llm.has_chat_template:
        use = "use /v1/completions, or serve an instruct model"
        raise UsageError(f"this model has no chat template, so it cannot chat: {use}")
    choice = parse_tool_choice(request.tools, request.tool_choice)
    grammar, prefix = response_grammar(request.response_format), ""
    form, thought = llm.tool_support.format, llm.tool_support.thought
    chat = request.messages, choice.tools or None, request.chat_template_kwargs
    tokens = llm.chat_tokens(*chat)
    end = llm.prompt_end(tokens)
    is_open = thought is not None and thought.is_open(end)
    forced, thinks = force_call(form, choice), True
    if forced is not None:
        if grammar is not None:
            raise UsageError("tool_choice and response_format both say what the answer is: leave out one")
        form, prefix, thinks = forced.format, forced.prefix, False
        grammar = from_schema(forced.json_schema, forced.name)
    elif grammar is not None and thought is not None and not thought.is_closed(end):
        # A grammar has no control tokens.
        thinks = not control_texts(llm.target.text, llm.target.vocab, thought.open + thought.close)
        if thinks:
            grammar = grammar.after_thought(thought.open, thought.close, is_open=is_open)
        else:
            prefix = thought.content
    close = f"{thought.close}\n\n" if thought is not None and is_open and not thinks else ""
    if close or prefix:
        tokens = llm.chat_tokens(*chat, answer=close + prefix)
    new_parser = None
    if choice.tools or thought is not None:
        parser = partial(AnswerParser, form, choice.tools, prefix=prefix)
        new_parser = partial(parser, thought=thought or THINK, thinking=is_open and thinks)
    most = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    fields: dict[str, Any] = {"grammar": grammar, "client": client}
    fields["logprobs"] = (request.top_logprobs or 0) if request.logprobs else None
    fields["visible_control_tokens"] = {} if new_parser is None else llm.visible_control_tokens
    return ParsedRequest(_requests(llm, limits, request, most, tokens, **fields), new_parser)


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
    max_tokens: int | None,
    prompt: Sequence[int],
    **fields: Any,
) -> list[GenerationRequest]:
    """Return `n` requests. fields: others of GenerationRequest."""
    sampling = to_sampling(request, limits.sampling)
    stops = typed.text_list("stop", request.stop or ())
    if len(stops) > MAX_STOPS:
        raise UsageError(f"stop: up to {MAX_STOPS} texts")
    if fields["grammar"] is not None:
        llm.target.token_trie  # noqa: B018  # takes a second; UsageError for a model without an end of text
    seed = request.seed
    if seed is None:
        seed = 0 if sampling.greedy else secrets.randbits(62)
    n_draft, drafters = draft_limits(llm, request)
    first = GenerationRequest(
        prompt=prompt,
        sampling=sampling,
        stop=stops,
        ignore_eos=request.ignore_eos,
        n_draft=n_draft,
        drafters=drafters,
        scope=fields["client"] if limits.isolate_clients else "",
        timeout=limits.timeout,
        **fields,
    )
    first.require_fits(llm.target)
    length = max_new_tokens(llm, limits, len(prompt), max_tokens)
    return [replace(first, max_tokens=length, seed=(seed + at) % (1 << 63)) for at in range(request.n)]


def to_sampling(request: SamplingRequest, defaults: Mapping[str, float]) -> Sampling:
    values: dict[str, Any] = {name: getattr(request, name) for name in SAMPLERS}
    values |= {name: value for name, value in defaults.items() if name not in request.model_fields_set}
    values["top_k"] = max(0, values["top_k"])
    if not values["temperature"]:
        values["typical_p"] = 1.0
    values["logit_bias"] = {int(token): bias for token, bias in (request.logit_bias or {}).items()}
    return Sampling(**values)


def max_new_tokens(llm: LLM, limits: ServerLimits, n_prompt: int, most: int | None) -> int:
    """Return the most tokens of the answer. Raises UsageError for a limit that this server does not allow."""
    n_ctx = llm.target.caps.n_ctx
    room = n_ctx - n_prompt + 1
    allowed = min(room, limits.n_predict or room)
    if most is None or most <= min(n_ctx, limits.n_predict or n_ctx):
        return allowed if most is None else min(most, allowed)
    why = f"this server gives answers of at most {limits.n_predict:,}"
    if most > n_ctx:
        prompt = f"{n_prompt:,} of them the prompt's"
        why = f"the context has {n_ctx:,} tokens, {prompt}; ask for at most {allowed:,}"
    raise UsageError(f"max_tokens {most:,}: {why}")


def draft_limits(llm: LLM, request: SamplingRequest) -> tuple[int, frozenset[str] | None]:
    """Return the longest draft and the names of the allowed drafters. Raises UsageError for unknown names."""
    speculative = request.speculative
    if speculative is None or not speculative.enabled:
        return UNLIMITED if speculative is None else 0, None
    n_draft = UNLIMITED if speculative.n_max is None else speculative.n_max
    if speculative.drafters is None:
        return n_draft, None
    known = [] if llm.drafting.plain else llm.drafter.name.split(",")
    if unknown := [name for name in speculative.drafters if name not in known]:
        advice = f"choose from {', '.join(known)}" if known else "this server was started with --draft none"
        raise UsageError(f"speculative.drafters: {unknown[0]!r} does not draft here; {advice}")
    return n_draft, frozenset(speculative.drafters)
