"""Groups of options: a table of declarations, and a function that combines their values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from paceline.cli.help import ALL, MAX_OPTIONS, HelpAll
from paceline.cli.options import DRAFTING, MODELS, OUTPUT, SAMPLING, Corpora, Profile, flag, option
from paceline.cli.output import print_note
from paceline.cli.texts import read_text
from paceline.drafter_table import HEADS
from paceline.fits import NAMED
from paceline.settings import AUTO, Drafting, EngineOptions, LoadOptions, Quality
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling_settings import DEFAULT_CHAT_SAMPLING, Sampling
from paceline.speculative.validation import read_number, settings_of

if TYPE_CHECKING:
    from paceline.bench.replay.recording import Recorder

BOUNDS = ("minimum", "maximum")
TYPES = {"int": int, "float": float, "str": str, "bool": bool}
# Of settings, where it is not --NAME, and what stands for their values in --help. As in llama.cpp.
OPTION_NAMES = {
    "n_ctx": "-c --ctx-size",
    "threads": "-t --threads",
    "gpu_layers": "-ngl --gpu-layers",
    "temperature": "--temp",
    "typical_p": "--typical",
}
METAVARS = {
    **{"int": "N", "float": "X", "str": "NAME", "bool": ""},
    **{"policy": "RULE", "verify": "RULE", "cross_vocab": "MODE", "kernels": "MODE"},
    **{"cache_type": "TYPE", "dtype": "TYPE", "lossy": "CHOICE", "role": "ROLE", "prompt_cache": "DIR"},
}
FLASH_ATTENTION = {"on": True, "off": False, "auto": None}


@dataclass(frozen=True)
class OptionGroup:
    """Options that a command takes as one value. parameters: the options, as typer reads them.
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


def setting_options(
    panel: str, kind: Any, *names: str, renamed: Mapping[str, str] = OPTION_NAMES, env: bool = True
) -> list[inspect.Parameter]:
    """Return options for the fields of a settings class: these names, by default all that have a help.
    renamed: names of options, where they are not --NAME. env: see option_table."""
    settings, types = settings_of(kind), {it.name: it for it in fields(kind)}
    rows = []
    for name in names or settings:
        default, type_name = types[name].default, str(types[name].type).removesuffix(" | None")
        hint: Any = TYPES[type_name] if default is not None else TYPES[type_name] | None
        option_names = renamed.get(name, f"--{name.replace('_', '-')}")
        metavar = METAVARS.get(name) or METAVARS[type_name]
        rows.append((name, hint, default, option_names, metavar, settings[name].help))
    return option_table(panel, *rows, env=env)


def _models(*, flash_attention: str | None = None, **given: Any) -> LoadOptions:
    """Return the options that choose and run the models."""
    if flash_attention is not None:
        given["flash_attention"] = FLASH_ATTENTION[flash_attention]
    return LoadOptions.of(**given)


MODEL_OPTIONS = OptionGroup(
    [
        *option_table(
            MODELS,
            ("target", str | None, None, "-m --model", "MODEL",
             "The target: a GGUF file, a folder or a name. Default: a toy model; in chat and serve "
             "zoo:smollm2."),
            ("draft", str | None, None, "-md --model-draft", "MODEL",
             f"A draft model, or a draft head. {', '.join([*NAMED.values(), *HEADS.values()])}; `paceline "
             "pairs TARGET` lists which fit."),
        ),
        *setting_options(MODELS, EngineOptions, "n_ctx", "threads", "gpu_layers"),
        *option_table(
            MODELS,
            ("flash_attention", Literal["on", "off", "auto"], "auto", "-fa --flash-attn", "MODE",
             settings_of(EngineOptions)["flash_attention"].help),
        ),
        *setting_options(MODELS, EngineOptions, "cache_type", "kernels", "placement", "prompt_cache"),
        *setting_options(MODELS, Quality),
        *setting_options(MODELS, EngineOptions, "device", "dtype", "attention"),
    ],
    _models,
)  # fmt: skip


def model_options(*names: str) -> OptionGroup:
    return OptionGroup([option for option in MODEL_OPTIONS.parameters if option.name in names], _models)


LOSSLESS_OPTIONS = model_options(*{p.name for p in MODEL_OPTIONS.parameters} - {"lossy", "role"})
DEVICE_OPTIONS = model_options("target", "threads", "device", "dtype", "attention")  # for transformers only
LLAMA_OPTIONS = model_options("n_ctx", "threads", "gpu_layers", "flash_attention", "cache_type", "kernels")


def _drop_unset(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _sampling(*, logit_bias: list[str] | None = None, **given: Any) -> Sampling:
    return Sampling(logit_bias=parse_bias(logit_bias or []), **given)


BIAS = ("logit_bias", list[str] | None, None, "--logit-bias", "ID=X", "Add X to a token's logit (13=-2.5).")
SAMPLING_OPTIONS = OptionGroup(
    [*setting_options(SAMPLING, Sampling), *option_table(SAMPLING, BIAS)], _sampling
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
    named = {name: value for name, value in explicit.items() if name in DEFAULT_CHAT_SAMPLING}
    return _sampling(**{"temperature": 1.0} | explicit), named


OTHERS = [option for option in SAMPLING_OPTIONS.parameters if option.name not in DEFAULT_CHAT_SAMPLING]
CHAT_SAMPLING_OPTIONS = OptionGroup([*SERVER_SAMPLING_OPTIONS.parameters, *OTHERS], _chat_sampling)
EXACT_GREEDY = setting_options(DRAFTING, EngineOptions, "exact_greedy")
DRAFTING_OPTIONS = OptionGroup([*setting_options(DRAFTING, Drafting), *EXACT_GREEDY], _drop_unset)


def with_drafting(
    models: LoadOptions,
    drafters: str | None,
    drafting: dict[str, Any],
    *,
    corpora: Sequence[str] | None = None,
    remember: bool = False,
    profile: str = "",
) -> LoadOptions:
    """Return all options of `load`. drafters: as typed. drafting: of DRAFTING_OPTIONS. profile: "auto" is
    "" if a draft, drafters, their settings or sources are given."""
    settings = dict(drafting)
    exact_greedy = settings.pop("exact_greedy", False)
    chosen = LoadOptions.of(None, None, drafters, **settings).drafting
    is_given = bool(models.draft or drafters or corpora or remember or models.quality.lossy or exact_greedy)
    is_given |= bool(chosen.explicit_settings)
    return replace(
        models,
        drafting=chosen,
        engine=replace(models.engine, exact_greedy=exact_greedy),
        corpora=tuple(corpora or ()),
        remember=remember,
        profile="" if profile == AUTO and is_given else profile,
    )


REMEMBER = ("remember", bool, False, "--remember", "", "Store answers, and draft from them.")
MEMORY_OPTIONS = OptionGroup([
    keyword_option("corpora", None, Corpora), *option_table(DRAFTING, REMEMBER),
    keyword_option("profile", AUTO, Profile),
])  # fmt: skip


def _grammar(
    *, json_schema: str | None, json_schema_file: Path | None, regex: str | None, grammar_file: Path | None
) -> dict[str, Any]:
    """Return the options of a grammar for a request. Raises UsageError for an unusable file."""
    if json_schema_file is not None:
        if json_schema is not None:
            raise UsageError("more than one JSON schema: give it as text (-j) or as a file (-jf)")
        json_schema = read_text(json_schema_file)
    grammar = None if grammar_file is None else read_text(grammar_file)
    return {"json_schema": json_schema, "regex": regex, "grammar": grammar}


GRAMMAR_OPTIONS = OptionGroup(
    option_table(
        "Grammar",
        ("json_schema", str | None, None, "-j --json-schema", "SCHEMA", "A schema for the output."),
        ("json_schema_file", Path | None, None, "-jf --json-schema-file", "FILE", "The same, from a file."),
        ("regex", str | None, None, "--regex", "PATTERN", "A pattern for the whole output."),
        ("grammar_file", Path | None, None, "--grammar-file", "FILE", "A grammar in llama.cpp's GBNF."),
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
