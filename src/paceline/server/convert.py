"""HTTP requests to the engine's: prompts are tokenised, samplers and grammars checked.

A long prompt or a large schema takes time: call these functions in a thread."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from paceline.api import LLM
from paceline.server import schemas
from paceline.server.chat_messages import one_system_message, readable_parts
from paceline.server.settings import ServerLimits
from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError
from paceline.speculative.interfaces import UNLIMITED
from paceline.speculative.request import GenerationRequest
from paceline.speculative.sampling import Sampling
from paceline.text.chat_template import control_texts
from paceline.text.grammar_source import GrammarSource, from_schema, parse_grammar
from paceline.text.messages import content_text, parse_tool_choice
from paceline.text.token_texts import infill_tokens
from paceline.text.tools.formats import THINK, force_call
from paceline.text.tools.parser import AnswerParser

SAMPLERS = [name for name in schemas.SamplingRequest.model_fields if hasattr(Sampling, name)]


@dataclass(frozen=True)
class ParsedRequest:
    """The engine's requests of one HTTP request, one for each answer.
    n: answers to each prompt.
    new_parser: makes the parser of an answer's thoughts and tool calls; None if there are neither.
    prompt_logprobs: how many of the likeliest tokens are reported in each place of the prompts, if any.
    only_prompts: the answers, of one token, are not part of the response."""

    requests: Sequence[GenerationRequest]
    n: int = 1
    new_parser: Callable[[], AnswerParser] | None = None
    prompt_logprobs: int | None = None
    only_prompts: bool = False


def from_completion(
    llm: LLM, limits: ServerLimits, request: schemas.CompletionRequest, client: str, notes: list[str]
) -> ParsedRequest:
    """Return `n` requests for each prompt, in the order of the prompts. Raises UsageError.
    notes: gets what is left out of the request or changed, one line each."""
    prompts = prompts_of(request.prompt)
    fills_in = bool(request.suffix) or isinstance(request, schemas.FimRequest)
    if request.echo and fills_in:
        raise UsageError("echo and suffix: set at most one of them")
    if len(prompts) * request.n > 128:
        raise UsageError(f"{len(prompts)} prompts with n = {request.n}: ask for at most 128 answers at once")
    grammar = request_grammar(request)
    fields: dict[str, Any] = {"grammar": grammar, "client": client, "logprobs": request.logprobs}
    if fills_in:
        infill = partial(infill_tokens, llm.target.text, llm.target.vocab)
        after, files = request.suffix or "", request.fim_files
        tokenised = [infill(typed.text("prompt", prompt), after, files) for prompt in prompts]
    else:
        tokenised = [prompt_tokens(llm, prompt) for prompt in prompts]
    only_prompts = request.echo and request.max_tokens == 0
    most = 1 if only_prompts else request.max_tokens
    requests = _requests(llm, limits, request, most, tokenised, notes, **fields)
    return ParsedRequest(requests, request.n, None, request.logprobs if request.echo else None, only_prompts)


def prompts_of(given: Any) -> list[Any]:
    """Return the prompts: a list with a token in it is one prompt."""
    if isinstance(given, str | Mapping):
        return [given]
    if not given:
        raise UsageError("prompt: the list is empty; give at least one prompt")
    return [given] if any(isinstance(part, int) for part in given) else list(given)


def prompt_tokens(llm: LLM, prompt: Any) -> list[int]:
    """Tokenise a prompt: text, {"prompt_string": text}, or a list of tokens and texts.
    Control tokens in a text are such: clients write the templates of models themselves."""
    if isinstance(prompt, Mapping):
        if prompt.get("multimodal_data"):
            raise UsageError("prompt: image input is not supported: this server reads text only")
        prompt = typed.text("prompt: its prompt_string", prompt.get("prompt_string"))
    if isinstance(prompt, str) or not any(isinstance(part, str) for part in typed.items("prompt", prompt)):
        return llm.tokens(prompt, special=True)
    tokens, more = list[int](), partial(llm.target.text.encode_continuation, special=True)
    for part in prompt:
        if tokens and isinstance(part, str):
            tokens += more(part)
        else:
            tokens += llm.tokens(part if isinstance(part, str) else [part], special=True)
    return tokens


def from_chat(
    llm: LLM, limits: ServerLimits, request: schemas.ChatRequest, client: str, notes: list[str]
) -> ParsedRequest:
    """Return `n` requests; none for a chat without messages, which clients send to try a server.
    Raises UsageError, and ModelError if the model's template cannot be used. notes: see from_completion."""
    if not request.messages:
        return ParsedRequest([])
    if request.top_logprobs is not None and not request.logprobs:
        raise UsageError("top_logprobs: needs logprobs: true")
    fields: dict[str, Any] = {"client": client}
    fields["logprobs"] = (request.top_logprobs or 0) if request.logprobs else None
    choice = parse_tool_choice(request.tools, request.tool_choice)
    grammar, prefix, form = request_grammar(request), "", llm.tool_support.format
    thought = llm.tool_support.thought
    tokens = chat_prompt(llm, request, notes)
    end = llm.prompt_end(tokens)
    given = request.messages[-1].get("content") if request.continue_final_message else None
    is_open = thought is not None and thought.is_open(end, content_text("content", given or ""))
    forced, thinks = force_call(form, choice), True
    if forced is not None and grammar is not None:
        raise UsageError("tool_choice and response_format both say what the answer is: leave out one")
    if forced is not None:
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
        tokens = chat_prompt(llm, request, notes, close + prefix)
    new_parser = None
    if choice.tools or thought is not None:
        parser = partial(AnswerParser, form, choice.tools, prefix=prefix)
        new_parser = partial(parser, thought=thought or THINK, thinking=is_open and thinks)
    fields["visible_control_tokens"] = {} if new_parser is None else llm.visible_control_tokens
    most = request.max_tokens if request.max_completion_tokens is None else request.max_completion_tokens
    requests = _requests(llm, limits, request, most, [tokens], notes, grammar=grammar, **fields)
    return ParsedRequest(requests, request.n, new_parser)


def chat_prompt(llm: LLM, request: schemas.ChatRequest, notes: list[str], answer: str = "") -> list[int]:
    """Return the tokens of a chat. Raises what `from_chat` raises."""
    tools = parse_tool_choice(request.tools, request.tool_choice).tools
    if not llm.has_chat_template:
        use = "use /v1/completions, or serve an instruct model"
        raise UsageError(f"this model has no chat template, so it cannot chat: {use}")
    variables, going_on = dict(request.chat_template_kwargs or {}), request.continue_final_message
    if request.reasoning_effort is not None:
        variables.setdefault("reasoning_effort", request.reasoning_effort)
    if request.reasoning_effort == "none":
        variables.setdefault("enable_thinking", False)
    if request.add_generation_prompt is not None:
        variables["add_generation_prompt"] = request.add_generation_prompt
    if going_on and request.add_generation_prompt:
        raise UsageError("continue_final_message and add_generation_prompt: set at most one of them")
    messages = one_system_message(llm, readable_parts(request.messages, notes), notes)
    return llm.chat_tokens(messages, tools or None, variables, answer=answer, continue_final=going_on)


def request_grammar(request: schemas.SamplingRequest) -> GrammarSource | None:
    """Return the grammar of OpenAI's `response_format`, or of llama-server's or vLLM's fields."""
    named = {name: getattr(request, name) or None for name in ("regex", "choice", "grammar")}
    newer = {"json_schema" if k == "json" else k: v for k, v in (request.structured_outputs or {}).items()}
    given = [named | {"json_schema": request.json_schema}, newer]
    made = [response_grammar(request.response_format)]
    made += [parse_grammar(**options, check=False) for options in given]
    found = [grammar for grammar in made if grammar is not None]
    if len(found) > 1:
        raise UsageError("response_format, structured_outputs and the like: give only one of them")
    return found[0] if found else None


def response_grammar(form: schemas.ResponseFormat | None) -> GrammarSource | None:
    if form is None or form.type == "text":
        return None
    if form.type == "json_object":
        return from_schema({"type": "object"} if form.schema_ is None else form.schema_)
    if form.json_schema is None or form.json_schema.schema_ is None:
        raise UsageError("response_format: type json_schema needs json_schema: {name, schema}")
    return from_schema(form.json_schema.schema_, strict=form.json_schema.strict is not False)


def _requests(
    llm: LLM,
    limits: ServerLimits,
    request: schemas.SamplingRequest,
    max_tokens: int | None,
    prompts: Sequence[Sequence[int]],
    notes: list[str],
    **fields: Any,
) -> list[GenerationRequest]:
    """Return `n` requests for each prompt. fields: others of GenerationRequest."""
    sampling = to_sampling(llm, request, limits.sampling)
    predicted = content_text("prediction: its content", (request.prediction or {}).get("content") or "")
    if fields["grammar"] is not None:
        notes += fields["grammar"].notes
        llm.target.token_trie  # noqa: B018  # takes a second; UsageError for a model without an end of text
    random = 0 if sampling.greedy else secrets.randbits(62)
    seed = random if request.seed is None else request.seed
    n_draft, drafters = draft_limits(llm, request)
    first = GenerationRequest(
        prompt=prompts[0],
        sampling=sampling,
        stop=typed.text_list("stop", request.stop or ()),
        ignore_eos=request.ignore_eos,
        n_draft=n_draft,
        drafters=drafters,
        scope=fields["client"] if limits.isolate_clients else "",
        timeout=limits.timeout,
        prediction=llm.prediction_tokens(predicted),
        **fields,
    )
    requests = list[GenerationRequest]()
    for prompt in prompts:
        one = replace(first, prompt=prompt)
        one.require_fits(llm.target)
        most = max_new_tokens(llm, limits, len(prompt), max_tokens, notes)
        least = request.min_tokens if max_tokens == most else min(request.min_tokens, most)
        one = replace(one, max_tokens=most, min_tokens=least)
        requests += [replace(one, seed=(seed + at) % (1 << 63)) for at in range(request.n)]
    return requests


def to_sampling(llm: LLM, request: schemas.SamplingRequest, defaults: Mapping[str, float]) -> Sampling:
    values = {name: value for name in SAMPLERS if (value := getattr(request, name)) is not None}
    values |= {name: value for name, value in defaults.items() if name not in request.model_fields_set}
    values["top_k"] = max(0, values["top_k"])
    if not values["temperature"] and not values.get("dynatemp_range"):
        values |= {"typical_p": 1.0, "xtc_probability": 0.0}
    return llm.sampling(**values, logit_bias=request.logit_bias or {}, mirostat=request.mirostat)


def max_new_tokens(llm: LLM, limits: ServerLimits, n_prompt: int, most: int | None, notes: list[str]) -> int:
    """Return the most tokens of the answer; a larger limit than there is room is cut, and noted."""
    room = llm.target.caps.n_ctx - n_prompt + 1
    allowed = min(room, limits.n_predict or room)
    if most is None or most < 1:
        return allowed
    if most > allowed:
        notes.append(f"max_tokens {most} was cut to {allowed}")
    return min(most, allowed)


def draft_limits(llm: LLM, request: schemas.SamplingRequest) -> tuple[int, frozenset[str] | None]:
    """Return the longest draft and the names of the allowed drafters. Raises UsageError for unknown names."""
    speculative = request.speculative or schemas.Speculative()
    longest = UNLIMITED if speculative.n_max is None else speculative.n_max
    n_draft = longest if speculative.enabled else 0
    if speculative.drafters is None or not speculative.enabled:
        return n_draft, None
    known = [] if llm.drafting.plain else llm.drafter.name.split(",")
    if unknown := [name for name in speculative.drafters if name not in known]:
        advice = f"choose from {', '.join(known)}" if known else "this server was started with --draft none"
        raise UsageError(f"speculative.drafters: {unknown[0]!r} does not draft here; {advice}")
    return n_draft, frozenset(speculative.drafters)
