"""Groups of options: a table of declarations, and a function that combines their values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_type_hints

from paceline.cli import options
from paceline.cli.help import ALL, MAX_OPTIONS, HelpAll
from paceline.cli.options import DRAFTING, MODELS, OUTPUT, SAMPLING, flag, option
from paceline.cli.output import print_note
from paceline.cli.texts import read_text
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling_settings import DEFAULT_CHAT_SAMPLING, Sampling
from paceline.speculative.validation import read_number, settings_of

if TYPE_CHECKING:
    from paceline.bench.replay.recording import Recorder


BOUNDS = ("minimum", "maximum")
METAVARS = {int: "N", float: "X"}
NO_NAMES: Mapping[str, str] = {}
FLASH_ATTENTION = {"on": True, "off": False, "auto": None}


@dataclass(frozen=True)
class OptionGroup:
    """Options that a command takes as one value.

    parameters: the options, as typer reads them.
    make: combines their values, which it gets by name."""

    parameters: Sequence[inspect.Parameter]
    make: Callable[..., Any] = dict


def with_option_groups(**groups: OptionGroup) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a command: a parameter with a group's name receives the combined value of its options."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        parameters: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
            parameters += groups[name].parameters if name in groups else [parameter]
        if len(parameters) > MAX_OPTIONS:
            parameters.append(keyword_option(ALL, False, HelpAll))

        @wraps(command)
        def wrapper(**values: Any) -> Any:
            values.pop(ALL, None)
            combined = {
                name: group.make(**{option.name: values.pop(option.name) for option in group.parameters})
                for name, group in groups.items()
            }
            return command(**values, **combined)

        keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters]
        wrapper.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]  # what typer reads
        wrapper.__annotations__ = {}
        return wrapper

    return decorate


def keyword_option(name: str, default: Any, annotation: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def option_table(panel: str, *rows: tuple[Any, ...], env: bool = True) -> list[inspect.Parameter]:
    """Return the parameters of a table of options.

    rows: name, type, default, option names, metavar, help and, for some, the minimum and the maximum.
    env: True if the environment can set the options; flags can always be set."""
    return [
        keyword_option(
            name,
            default,
            Annotated[
                kind,
                flag(panel, names, text)
                if kind in (bool, bool | None)
                else option(panel, names, metavar, text, env=env, **dict(zip(BOUNDS, bounds, strict=False))),
            ],
        )
        for name, kind, default, names, metavar, text, *bounds in rows
    ]


def _models(*, model: str | None = None, **given: Any) -> dict[str, Any]:
    """Return the arguments of `load` that choose and run the models."""
    if "model_draft" in given:
        given["draft"] = given.pop("model_draft")
    if "ctx_size" in given:
        given["n_ctx"] = given.pop("ctx_size") or 0
    if "flash_attn" in given:
        given["flash_attention"] = FLASH_ATTENTION[given.pop("flash_attn")]
    return {"target": model, **given}


MODEL_OPTIONS = OptionGroup(
    option_table(
        MODELS,
        ("model", str | None, None, "-m --model", "MODEL",
         "The target: a GGUF file, a folder or a name. Default: a toy model; in chat and serve zoo:smollm2."),
        ("model_draft", str | None, None, "-md --model-draft", "MODEL", "A draft model, or a draft head."),
        ("ctx_size", int | None, None, "-c --ctx-size", "N", "Tokens of context. Default: up to 4,096.", 1),
        ("threads", int | None, None, "-t --threads", "N", "Threads. Default: one per physical core."),
        ("gpu_layers", int, 0, "-ngl --gpu-layers", "N", "Layers of each model on a GPU."),
        ("flash_attn", Literal["on", "off", "auto"], "auto", "-fa --flash-attn", "MODE", "Flash attention."),
        ("cache_type", Literal["f32", "f16", "bf16", "q8_0"], "f16", "--cache-type", "TYPE", "KV cache."),
        ("kernels", Literal["auto", "off"], "auto", "--kernels", "MODE", "Paceline's kernels: auto or off."),
        ("lossy", str, "", "--lossy", "CHOICE",
         "Change the target's text for speed. experts=N: experts a token; prefill=0.2: part of a prompt."),
        ("role", Literal["", "quality", "speed"], "", "--role", "ROLE",
         "quality refuses --lossy; speed uses what `paceline experts` and `paceline prefill` recommended."),
        ("device", str, "auto", "--device", "NAME", "For a transformers model: cpu, cuda, mps or auto."),
        ("dtype", str, "auto", "--dtype", "TYPE", "Of its weights: auto, float32, bfloat16 or float16."),
        ("attention", str, "auto", "--attention", "NAME", "Its attention: sdpa, eager, ..., or auto."),
    ),
    _models,
)  # fmt: skip


def model_options(*names: str) -> OptionGroup:
    return OptionGroup([option for option in MODEL_OPTIONS.parameters if option.name in names], _models)


LOSSLESS_OPTIONS = model_options(*{p.name for p in MODEL_OPTIONS.parameters} - {"lossy", "role"})
DEVICE_OPTIONS = model_options("model", "threads", "device", "dtype", "attention")  # for transformers only
LLAMA_OPTIONS = model_options("ctx_size", "threads", "gpu_layers", "flash_attn", "cache_type", "kernels")


def _drop_unset(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _sampling(*, logit_bias: list[str] | None = None, **given: Any) -> Sampling:
    return Sampling(logit_bias=parse_bias(logit_bias or []), **given)


def setting_rows(kind: Any, names: Mapping[str, str] = NO_NAMES) -> Iterator[tuple[Any, ...]]:
    """Yield the rows of a dataclass's settings for `option_table`.

    kind: its `setting` fields have the types, defaults and help. names: option names, where they are not the
    field's."""
    types = get_type_hints(kind)
    for name, about in settings_of(kind).items():
        option_names = names.get(name) or f"--{name.replace('_', '-')}"
        metavar = METAVARS.get(types[name], "NAME")
        yield name, types[name], getattr(kind, name), option_names, metavar, about.help


SAMPLING_OPTIONS = OptionGroup(
    option_table(
        SAMPLING,
        *setting_rows(Sampling, {"temperature": "--temp", "typical_p": "--typical"}),
        ("logit_bias", list[str] | None, None, "--logit-bias", "ID=X", "Add X to a token's logit (13=-2.5)."),
    ),
    _sampling,
)
# For a server and a chat. An option that is not given is OpenAI's default, or the model file's suggestion.
SERVER_SAMPLING_OPTIONS = OptionGroup(
    [
        option.replace(default=None, annotation=Annotated[kind | None, info])
        for option in SAMPLING_OPTIONS.parameters
        if option.name in DEFAULT_CHAT_SAMPLING
        for kind, info in [get_args(option.annotation)]
    ],
    _drop_unset,
)


def _chat_sampling(**given: Any) -> tuple[Sampling, dict[str, Any]]:
    """Return a `Sampling`, and the given values of the fields for which a model file may have defaults."""
    explicit = _drop_unset(**given)
    return (
        _sampling(**{"temperature": 1.0} | explicit),
        {name: value for name, value in explicit.items() if name in DEFAULT_CHAT_SAMPLING},
    )


CHAT_SAMPLING_OPTIONS = OptionGroup(
    [
        *SERVER_SAMPLING_OPTIONS.parameters,
        *(option for option in SAMPLING_OPTIONS.parameters if option.name not in DEFAULT_CHAT_SAMPLING),
    ],
    _chat_sampling,
)


DRAFTING_OPTIONS = OptionGroup(
    option_table(
        DRAFTING,
        ("policy", str | None, None, "--policy", "RULE",
         "When to stop drafting: rate, p_min or fixed. rate: where more would not pay (default of auto); "
         "p_min: where the drafter is unsure (default of others); fixed: after --n-draft tokens."),
        ("n_draft", int | None, None, "--n-draft", "N",
         "Most tokens of a draft. The policies rate and p_min stop earlier, --policy fixed drafts N each "
         "time. Default: 7 (rate: 31)."),
        ("width", int | None, None, "--width", "N", "Leaves of a draft tree. Default: 1 (rate: 4)."),
        ("p_min", float, 0.5, "--p-min", "X", "End a draft below this probability (policy p_min)."),
        ("p_split", float | None, None, "--p-split", "X", "Branch from this probability: 0.1 (rate: 0.3)."),
        ("draft_temp", float, 0.0, "--draft-temp", "X", "Draft temperature; 0: deterministic drafts."),
        ("draft_top_k", int, 10, "--draft-top-k", "N", "Top-k of drafts with a temperature."),
        ("exact_greedy", bool, False, "--exact-greedy", "", "Greedy output equal to the last bit; slower."),
        ("verify", str, "auto", "--verify", "RULE", "Of drafts: auto, token, block, recursive or traversal."),
        ("cross_vocab", str, "off", "--cross-vocab", "MODE",
         "For another vocabulary: auto. tli drafts in shared tokens, slem in text; auto chooses."),
        ("ngram_min", int, 3, "--ngram-min", "N", "Minimum tokens of a match in lookup."),
        ("ngram_max", int, 5, "--ngram-max", "N", "Maximum tokens of a match in lookup."),
        ("min_draft_tokens", int, 1, "--min-draft-tokens", "N", "A shorter draft calls the next drafter."),
        ("lookahead_window", int, 7, "--lookahead-window", "N", "Columns of the lookahead window."),
        ("lookahead_ngram", int, 5, "--lookahead-ngram", "N", "Length of lookahead's n-grams."),
        ("lookahead_guesses", int, 7, "--lookahead-guesses", "N", "Most n-grams that lookahead verifies."),
    ),
    _drop_unset,
)  # fmt: skip


def _history_settings(*, corpora: list[str] | None, remember: bool) -> dict[str, Any]:
    return {"corpora": tuple(corpora or ()), "remember": remember}


REMEMBER = ("remember", bool, False, "--remember", "", "Store answers, and draft from them.")
MEMORY_OPTIONS = OptionGroup(
    [keyword_option("corpora", None, options.Corpora), *option_table(DRAFTING, REMEMBER)], _history_settings
)


def _grammar(*, json_schema: str | None, json_schema_file: Path | None, regex: str | None) -> dict[str, Any]:
    """Return the options of a grammar for a request. Raises UsageError for an unusable file."""
    if json_schema_file is not None:
        if json_schema is not None:
            raise UsageError("more than one JSON schema: give it as text (-j) or as a file (-jf)")
        json_schema = read_text(json_schema_file)
    return {"json_schema": json_schema, "regex": regex}


GRAMMAR_OPTIONS = OptionGroup(
    option_table(
        "Grammar",
        ("json_schema", str | None, None, "-j --json-schema", "SCHEMA", "A schema for the output."),
        ("json_schema_file", Path | None, None, "-jf --json-schema-file", "FILE", "The same, from a file."),
        ("regex", str | None, None, "--regex", "PATTERN", "A pattern for the whole output."),
    ),
    _grammar,
)  # fmt: skip


def _recorder(*, record: Path | None) -> Recorder | None:
    """Return a recorder. Raises UsageError for an unusable file, before a model is loaded."""
    if record is None:
        return None
    from paceline.bench.replay.recording import Recorder

    return Recorder(record, lambda value: print_note(f"paceline: {value}"))


RECORD = ("record", Path | None, None, "--record", "FILE", "Append requests and answers to a file.")
RECORD_OPTIONS = OptionGroup(option_table(OUTPUT, RECORD), _recorder)


def parse_bias(entries: list[str]) -> dict[int, float]:
    """Return the bias of each token of "TOKEN=BIAS" entries. Raises UsageError."""
    bias = {}
    for entry in entries:
        token, _, value = entry.partition("=")
        try:
            infinite = value in ("inf", "-inf")
            bias[read_number(int, token)] = float(value) if infinite else read_number(float, value)
        except ValueError:
            raise UsageError(f"--logit-bias {entry}: write TOKEN=BIAS, e.g. 13=-2.5") from None
    return bias
