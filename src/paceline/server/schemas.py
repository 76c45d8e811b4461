"""HTTP requests: OpenAI's fields, llama-server's and vLLM's samplers, and `speculative`.

Unknown fields are refused, and so are OpenAI's fields that this server does not implement: ignoring them
would be worse than an error. Messages may have further fields, for the chat template. Fields that change
nothing in an answer (`user`, `store`) are ignored, and null counts as left out.

Validation of a list ends at its first error: the errors of a million items would fill the memory."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from paceline.speculative.sampling_settings import Sampling
from paceline.speculative.validation import settings_of

MAX_FIELDS = 64  # of an object
MAX_ITEMS = 2048  # of a list
MAX_CHARACTERS = 1 << 22  # of one text; the whole body has another limit

Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Choices = Annotated[int, Field(ge=1, le=128)]
Seed = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
Count = Annotated[int, Field(ge=1, lt=1 << 31)]
Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(fail_fast=True, max_length=1 << 22)]
Bias = Annotated[list[Any], Field(min_length=2, max_length=2)]  # validated by text/token_texts.py
JsonObject = dict[str, Any]  # validated by text/messages.py, as for the Python API
Texts = Annotated[list[Text], Field(fail_fast=True, max_length=MAX_ITEMS)]


def limit_entries(given: Any, most: int = MAX_ITEMS) -> Any:
    """Refuse a mapping with too many entries before they are validated."""
    if isinstance(given, dict) and len(given) > most:
        raise PydanticCustomError("too_long", "there may be at most {most} entries", {"most": most})
    return given


def allow_null(schema: dict[str, Any]) -> None:
    """Let every optional field of a JSON schema be null."""
    for name, one in schema.get("properties", {}).items():
        if name not in schema.get("required", ()) and {"type": "null"} not in one.get("anyOf", ()):
            about = {key: one.pop(key) for key in ("title", "description", "default") if key in one}
            schema["properties"][name] = {"anyOf": [one, {"type": "null"}], **about}


class Strict(BaseModel):
    """An object without unknown fields, whose values are not converted."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=allow_null)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        known = {field.alias or name for name, field in cls.model_fields.items()}
        given = limit_entries(data, MAX_FIELDS).items()
        return {name: value for name, value in given if value is not None or name not in known}


def sampler(name: str, **changes: Any) -> Any:
    """Return a field with the default, range and help of Sampling's field, with changes."""
    about = settings_of(Sampling)[name]
    field = {"default": getattr(Sampling, name), "ge": about.low, "le": about.high, "description": about.help}
    return Field(**field | changes)


def also(*names: str) -> Any:
    """Return a field with llama-server's and vLLM's names."""
    return Field(validation_alias=AliasChoices(*names))


class Speculative(Strict):
    """The request's drafting, which never changes the answer."""

    enabled: bool = True
    drafters: Annotated[Texts | None, Field(max_length=32, description="Only these, by name.")] = None
    n_max: Annotated[int | None, Field(ge=0, le=4096, description="The longest draft.")] = None
    report: Annotated[bool, Field(description="Name the drafter of each part of the text.")] = False


class StreamOptions(Strict):
    include_usage: bool = False
    continuous_usage_stats: Annotated[bool, Field(description="vLLM's: usage so far in every chunk.")] = False
    include_obfuscation: bool = False


class SamplingRequest(Strict):
    """The common fields of chat and text completions."""

    model: Annotated[str, Field(max_length=4096)] = ""
    max_tokens: Count | None = None
    temperature: float = sampler("temperature", default=1.0)
    top_p: float = sampler("top_p")
    top_k: int = sampler("top_k", ge=-1, description="Top-k sampling; 0 and -1: off.")
    min_p: float = sampler("min_p")
    typical_p: float = sampler("typical_p")
    top_n_sigma: float = sampler("top_n_sigma")
    xtc_probability: float = sampler("xtc_probability")
    xtc_threshold: float = sampler("xtc_threshold")
    dynatemp_range: float = sampler("dynatemp_range")
    dynatemp_exponent: float = sampler("dynatemp_exponent")
    presence_penalty: float = sampler("presence_penalty")
    frequency_penalty: float = sampler("frequency_penalty")
    repeat_penalty: float = sampler("repeat_penalty")
    repeat_last_n: int = sampler("repeat_last_n")
    dry_multiplier: float = sampler("dry_multiplier")
    dry_base: float = sampler("dry_base")
    dry_allowed_length: int = sampler("dry_allowed_length")
    dry_penalty_last_n: int = sampler("dry_penalty_last_n")
    dry_sequence_breakers: Annotated[Texts | None, Field(max_length=32)] = None
    mirostat: Annotated[int, Field(ge=0, le=2, description="0: off. Others are refused.")] = 0
    mirostat_tau: Annotated[Number | None, Field(description="Ignored.")] = None
    mirostat_eta: Annotated[Number | None, Field(description="Ignored.")] = None
    logit_bias: Annotated[
        dict[Text, Number | Literal[False]] | list[Bias] | None,
        BeforeValidator(limit_entries),
        Field(max_length=MAX_ITEMS, description="Tokens or texts; false forbids them."),
    ] = None
    n: Choices = 1
    seed: Seed | None = None
    stop: Annotated[Text | Texts | None, Field(description="Up to 16 texts.")] = None
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0, lt=1 << 31, description="No end and no stop before.")] = 0
    json_schema: Annotated[JsonObject | bool | Text | None, also("json_schema", "guided_json")] = None
    grammar: Annotated[Text | None, also("grammar", "guided_grammar")] = None  # GBNF
    regex: Annotated[Text | None, also("regex", "guided_regex")] = None
    choice: Annotated[Texts | None, also("choice", "guided_choice")] = None
    structured_outputs: dict[Literal["json", "regex", "choice", "grammar"], Any] | None = None
    prediction: JsonObject | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    speculative: Speculative | None = None
    user: Annotated[str | None, Field(description="Ignored.")] = None


class CompletionRequest(SamplingRequest):
    """POST /v1/completions"""

    prompt: Text | Texts | Tokens | Annotated[list[Tokens], Field(fail_fast=True, max_length=MAX_ITEMS)]
    logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    echo: Literal[False] = False
    best_of: Literal[1] | None = None
    suffix: None = None
    response_format: ResponseFormat | None = None


class JsonSchema(Strict):
    name: Text = ""
    description: Text | None = None
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Strict):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema")] = None  # llama-server's


class ChatRequest(SamplingRequest):
    """POST /v1/chat/completions"""

    messages: Annotated[list[JsonObject], Field(min_length=1, max_length=MAX_ITEMS)]
    max_completion_tokens: Count | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=20)] = None
    response_format: ResponseFormat | None = None
    tools: Annotated[list[JsonObject] | None, Field(max_length=128)] = None
    tool_choice: Literal["none", "auto", "required"] | JsonObject | None = None
    parallel_tool_calls: Annotated[bool | None, Field(description="Ignored.")] = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Field(max_length=64)] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False
    metadata: Annotated[dict[str, Any] | None, Field(description="Ignored.")] = None
    store: Annotated[bool | None, Field(description="Ignored.")] = None
    service_tier: Annotated[str | None, Field(description="Ignored.")] = None
    safety_identifier: Annotated[str | None, Field(description="Ignored.")] = None
    prompt_cache_key: Annotated[str | None, Field(description="Ignored: every prefix is looked up.")] = None


class TokenizeRequest(Strict):
    """POST /tokenize, llama-server's"""

    content: Text
    add_special: bool = False
    parse_special: bool = False


class DetokenizeRequest(Strict):
    """POST /detokenize"""

    tokens: Tokens


class ErrorDetail(BaseModel):
    """OpenAI's error."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    error: ErrorDetail


CompletionRequest.model_rebuild()
