"""HTTP requests: OpenAI's fields, llama-server's and vLLM's samplers, and `speculative`.

Unknown fields are ignored, and named in a header and in the log; `--strict` refuses them. Fields that would
change the answer and that this server does not implement are refused, unless they have the value that changes
nothing. Messages may have further fields, for the chat template. null counts as left out.

Validation of a list ends at its first error: the errors of a million items would fill the memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Literal

import pydantic
from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from paceline.speculative.sampling_settings import Sampling
from paceline.speculative.validation import settings_of

MAX_FIELDS = 64  # of an object
MAX_ITEMS = 2048  # of a list
MAX_CHARACTERS = 1 << 22  # of one text; the whole body has another limit


def whole_number(given: Any) -> Any:
    """Return 1.0 as 1: some clients write all numbers like that."""
    return int(given) if isinstance(given, float) and given.is_integer() else given


# Fields that change no answer here.
NO_EFFECT = frozenset({
    "cache_control", "cache_prompt", "client_metadata", "context", "context_management", "id_slot", "include",
    "keep_alive", "metadata", "n_keep", "parallel_tool_calls", "priority", "prompt_cache_key",
    "prompt_cache_retention", "reasoning_format", "request_id", "safety_identifier", "service_tier", "store",
    "stream_tools", "truncate", "truncation", "user", "verbosity",
    "mirostat_tau", "mirostat_eta",
})  # fmt: skip
# Fields that would change the answer, with the values that do not.
NEUTRAL: dict[str, tuple[Any, ...]] = {
    "adaptive_target": (-1,),
    "audio": (),
    "best_of": (1,),
    "function_call": ("none", "auto"),
    "functions": ([],),
    "length_penalty": (1,),
    "lora": ([],),
    "modalities": (["text"],),
    "multimodal_data": ([],),
    "post_sampling_probs": (False,),
    "prompt_logprobs": (0,),
    "stop_token_ids": ([],),
    "use_beam_search": (False,),
    "web_search_options": (),
}

Text = Annotated[str, Field(max_length=MAX_CHARACTERS)]
Number = Annotated[float, Field(allow_inf_nan=False)]
Choices = Annotated[int, Field(ge=1, le=128)]
Seed = Annotated[int, BeforeValidator(whole_number), Field(ge=-(1 << 63), lt=1 << 63)]
Limit = Annotated[int, BeforeValidator(whole_number), Field(ge=-2, lt=1 << 31)]  # below 1: none
Tokens = Annotated[list[Annotated[int, Field(ge=0, lt=1 << 31)]], Field(fail_fast=True, max_length=1 << 22)]
Bias = Annotated[list[Any], Field(min_length=2, max_length=2)]  # validated by text/token_texts.py
Json = dict[str, Any]  # validated by text/messages.py, as for the Python API
Objects = Annotated[list[Json], Field(max_length=MAX_ITEMS)]
Name = Annotated[str, Field(max_length=4096)]  # of a model
Texts = Annotated[list[Text], Field(fail_fast=True, max_length=MAX_ITEMS)]
Prompts = Annotated[
    Text | Json | Tokens | Annotated[list[Any], Field(max_length=1 << 22)],
    Field(description="A text, tokens, or both in one list; or a list of prompts."),
]


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


class Body(BaseModel):
    """An object whose values are not converted."""

    model_config = ConfigDict(extra="allow", strict=True, json_schema_extra=allow_null)

    @model_validator(mode="before")
    @classmethod
    def _drop_nulls(cls, data: Any) -> Any:
        given = limit_entries(data, MAX_FIELDS)
        return {k: v for k, v in given.items() if v is not None} if isinstance(given, dict) else given

    def extra_fields(self, *where: str) -> Iterator[tuple[tuple[str, ...], bool]]:
        """Yield the path of each further field, and whether it is ignored: others would change the answer."""
        for name, value in (self.model_extra or {}).items():
            if name not in NEUTRAL:
                if name not in NO_EFFECT:
                    yield (*where, name), True
            elif value not in NEUTRAL[name]:
                yield (*where, name), False
        for name in self.model_fields_set:
            if isinstance(value := getattr(self, name, None), Body):
                yield from value.extra_fields(*where, name)


NUMBERS: dict[str, Any] = {"int": int, "float": float}
OTHER_SAMPLING: dict[str, Any] = {"temperature": {"default": 1.0}, "top_k": {"ge": -1}}  # OpenAI's, vLLM's
if TYPE_CHECKING:
    SamplingFields = Body
else:  # the fields of Sampling, with its ranges and help
    SamplingFields = pydantic.create_model("SamplingFields", __base__=Body, **{
        name: (NUMBERS[Sampling.__annotations__[name]], Field(**{
            "default": getattr(Sampling, name), "ge": it.low, "le": it.high, "description": it.help,
            **OTHER_SAMPLING.get(name, {}),
        }))
        for name, it in settings_of(Sampling).items()
    })  # fmt: skip


def also(*names: str) -> Any:
    """Return a field with llama-server's and vLLM's names."""
    return Field(validation_alias=AliasChoices(*names))


class Speculative(Body):
    """The request's drafting, which never changes the answer."""

    enabled: bool = True
    drafters: Annotated[Texts | None, Field(max_length=32, description="Only these, by name.")] = None
    n_max: Annotated[int | None, Field(ge=0, le=4096, description="The longest draft.")] = None
    report: Annotated[bool, Field(description="Name the drafter of each part of the text.")] = False


class StreamOptions(Body):
    include_usage: bool = False
    continuous_usage_stats: Annotated[bool, Field(description="vLLM's: usage so far in every chunk.")] = False
    include_obfuscation: bool = False


class JsonSchema(Body):
    name: Text = ""
    description: Text | None = None
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema")] = None
    strict: bool | None = None


class ResponseFormat(Body):
    type: Literal["text", "json_object", "json_schema"]
    json_schema: JsonSchema | None = None
    schema_: Annotated[dict[str, Any] | bool | None, Field(alias="schema")] = None  # llama-server's


class SamplingRequest(SamplingFields):
    """The common fields of chat and text completions."""

    model: Name = ""
    max_tokens: Limit | None = None
    dry_sequence_breakers: Annotated[Texts | None, Field(max_length=32)] = None
    mirostat: Annotated[int, Field(ge=0, le=2, description="0: off. Others are refused.")] = 0
    logit_bias: Annotated[
        dict[Text, Number | Literal[False]] | list[Bias] | None,
        BeforeValidator(limit_entries),
        Field(max_length=MAX_ITEMS, description="Tokens or texts; false forbids them."),
    ] = None
    n: Choices = 1
    seed: Seed | None = None
    stop: Text | Texts | None = None
    ignore_eos: bool = False
    min_tokens: Annotated[int, Field(ge=0, lt=1 << 31, description="No end and no stop before.")] = 0
    json_schema: Annotated[Json | bool | Text | None, also("json_schema", "guided_json")] = None
    grammar: Annotated[Text | None, also("grammar", "guided_grammar")] = None  # GBNF
    regex: Annotated[Text | None, also("regex", "guided_regex")] = None
    choice: Annotated[Texts | None, also("choice", "guided_choice")] = None
    structured_outputs: dict[Literal["json", "regex", "choice", "grammar"], Any] | None = None
    prediction: Json | None = None
    stream: bool = False
    stream_options: StreamOptions | None = None
    speculative: Speculative | None = None
    timings_per_token: bool = False
    return_progress: bool = False
    return_token_ids: bool = False
    verbose: Annotated[bool, Field(description="Return the prompt's text.")] = False
    response_format: ResponseFormat | None = None


class CompletionRequest(SamplingRequest):
    """POST /v1/completions"""

    prompt: Prompts
    logprobs: Annotated[int | None, Field(ge=0, le=1024)] = None
    echo: Annotated[bool, Field(description="Begin with the prompt; max_tokens 0: it alone.")] = False
    suffix: Annotated[Text | None, Field(description="What follows; for models that fill in.")] = None
    fim_files: Objects = Field(default_factory=list)


class FimRequest(CompletionRequest):
    """POST /v1/fim/completions, which answers in the form of chats"""


class ChatRequest(SamplingRequest):
    """POST /v1/chat/completions"""

    messages: Objects
    max_completion_tokens: Limit | None = None
    logprobs: bool = False
    top_logprobs: Annotated[int | None, Field(ge=0, le=1024)] = None
    tools: Annotated[list[Json] | None, Field(max_length=1024)] = None
    tool_choice: Literal["none", "auto", "required"] | Json | None = None
    chat_template_kwargs: Annotated[dict[str, Any] | None, Field(max_length=64)] = None
    reasoning_effort: Annotated[str | None, Field(max_length=64, description="For the template.")] = None
    add_generation_prompt: bool | None = None
    continue_final_message: bool = False


OpenAiRequest = ChatRequest | CompletionRequest


class TokenizeRequest(Body):
    """POST /tokenize, llama-server's"""

    content: Text | Annotated[list[int | Text], Field(max_length=1 << 22)]
    add_special: bool = False
    parse_special: bool = True
    with_pieces: bool = False


class DetokenizeRequest(Body):
    """POST /detokenize"""

    tokens: Tokens


class ShowRequest(Body):
    """POST /api/show, Ollama's"""

    model: Name = ""
    name: Name = ""


class ErrorDetail(BaseModel):
    """OpenAI's error."""

    message: str
    type: str
    param: str | None = None
    code: str | None = None


class ErrorResponse(BaseModel):
    error: ErrorDetail | str  # text in the routes of Ollama
