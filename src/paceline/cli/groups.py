"""Options that several commands share, in groups: a table of options, and what is made of their values."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

from paceline.cli import options
from paceline.cli.options import DRAFTING, MODELS, OUTPUT, SAMPLING, flag, option
from paceline.cli.output import print_note
from paceline.speculative.errors import UsageError

if TYPE_CHECKING:
    from paceline.bench.replay.recording import Recorder


FLASH_ATTENTION = {"on": True, "off": False, "auto": None}


@dataclass(frozen=True)
class OptionGroup:
    """parameters: as typer reads them of a command. make: called with their values, by name."""

    parameters: Sequence[inspect.Parameter]
    make: Callable[..., Any] = dict


def with_option_groups(**groups: OptionGroup) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Decorate a command: a parameter with a group's name stands for all of the group's options, and gets
    what the group makes of them."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        shown: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
            shown += groups[name].parameters if name in groups else [parameter]

        @wraps(command)
        def wrapper(**given: Any) -> Any:
            made = {
                name: group.make(**{one.name: given.pop(one.name) for one in group.parameters})
                for name, group in groups.items()
            }
            return command(**given, **made)

        keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shown]
        wrapper.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]  # what typer reads
        wrapper.__annotations__ = {}
        return wrapper

    return decorate


def _table(panel: str, *rows: tuple[Any, ...]) -> list[inspect.Parameter]:
    """rows: the setting's name, its type, its default, the option, its value's name, its help; and the least
    value, where there is one."""
    return [
        inspect.Parameter(
            name,
            inspect.Parameter.KEYWORD_ONLY,
            default=default,
            annotation=Annotated[
                kind,
                flag(panel, names, text)
                if kind is bool
                else option(panel, names, metavar, text, minimum=least[0] if least else None),
            ],
        )
        for name, kind, default, names, metavar, text, *least in rows
    ]


def _models(*, model: str | None = None, **given: Any) -> dict[str, Any]:
    """Return what `load` takes to find and run the models, which are named as they were given."""
    if "model_draft" in given:
        given["draft"] = given.pop("model_draft")
    if "ctx_size" in given:
        given["n_ctx"] = given.pop("ctx_size") or 0
        given["flash_attention"] = FLASH_ATTENTION[given.pop("flash_attn")]
    return {"target": model, **given}


MODEL_OPTIONS = OptionGroup(
    _table(
        MODELS,
        ("model", str | None, None, "-m --model", "MODEL",
         "The target: a GGUF file, a folder of a transformers model, or a name such as ollama:llama3.2:3b or "
         "hf:USER/REPO. Default: the embedded one; in a chat zoo:smollm2."),
        ("model_draft", str | None, None, "-md --model-draft", "MODEL",
         "A draft model: smaller, with the same vocabulary (or see --cross-vocab)."),
        ("ctx_size", int | None, None, "-c --ctx-size", "N",
         "Tokens of context. Default: the model's, up to 4,096.", 1),
        ("threads", int | None, None, "-t --threads", "N",
         "Default: one thread a physical core, within a container's quota."),
        ("gpu_layers", int, 0, "-ngl --gpu-layers", "N", "Layers to keep on a GPU."),
        ("flash_attn", Literal["on", "off", "auto"], "auto", "-fa --flash-attn", "MODE",
         "Flash attention: on, off or auto (llama.cpp's choice; on a processor tried once)."),
        ("cache_type", str, "f16", "--cache-type", "TYPE", "KV cache: f32, f16, bf16 or q8_0."),
        ("kernels", Literal["auto", "off"], "auto", "--kernels", "MODE",
         "Kernels of our own for GGUF models: auto, compiled once where they can be, or off."),
        ("device", str, "auto", "--device", "NAME",
         "Of a transformers model: cpu, cuda, cuda:1, mps or auto."),
        ("dtype", str, "auto", "--dtype", "TYPE",
         "Of its weights: auto, as they are stored; float32, bfloat16 or float16."),
        ("attention", str, "auto", "--attention", "NAME",
         "Its implementation in transformers: sdpa, eager, ...; auto: as it chooses."),
    ),
    _models,
)  # fmt: skip


def _of_models(*names: str) -> OptionGroup:
    return OptionGroup([one for one in MODEL_OPTIONS.parameters if one.name in names], _models)


DEVICE_OPTIONS = _of_models("model", "threads", "device", "dtype", "attention")  # of transformers alone
LLAMA_OPTIONS = _of_models("ctx_size", "threads", "gpu_layers", "flash_attn", "cache_type", "kernels")


def _given(**given: Any) -> dict[str, Any]:
    return {name: value for name, value in given.items() if value is not None}


def _sampling(*, logit_bias: list[str] | None = None, **given: Any) -> Any:
    from paceline.speculative.sampling import Sampling

    return Sampling(logit_bias=parse_bias(logit_bias or []), **given)


SAMPLING_OPTIONS = OptionGroup(
    _table(
        SAMPLING,
        ("temperature", float, 0.0, "--temp", "X", "Temperature; 0: the likeliest token."),
        ("top_k", int, 0, "--top-k", "N", "Only the N likeliest; 0: off."),
        ("top_p", float, 1.0, "--top-p", "X", "The likeliest that sum to X; 1: off."),
        ("min_p", float, 0.0, "--min-p", "X", "Above X times the likeliest; 0: off."),
        ("typical_p", float, 1.0, "--typical", "X", "As surprising as the average, to X; 1: off."),
        ("xtc_probability", float, 0.0, "--xtc-probability", "X", "How often XTC drops the likeliest."),
        ("xtc_threshold", float, 0.1, "--xtc-threshold", "X", "It keeps one of those at least this likely."),
        ("repeat_penalty", float, 1.0, "--repeat-penalty", "X", "Divide recent logits by X; 1: off."),
        ("repeat_last_n", int, 64, "--repeat-last-n", "N", "Tokens the penalties look at; 0: none."),
        ("presence_penalty", float, 0.0, "--presence-penalty", "X", "Subtract X from recent tokens; 0: off."),
        ("frequency_penalty", float, 0.0, "--frequency-penalty", "X", "Subtract X an occurrence; 0: off."),
        ("logit_bias", list[str] | None, None, "--logit-bias", "ID=X",
         "Add X to a token's logit (13=-2.5, 13=-inf); may be repeated."),
    ),
    _sampling,
)  # fmt: skip
# Of a server and a chat: what is not given is OpenAI's, or what the model's file suggests.
SERVER_SAMPLING_OPTIONS = OptionGroup(
    [
        one.replace(default=None, annotation=Annotated[kind | None, info])
        for one in SAMPLING_OPTIONS.parameters[:4]
        for kind, info in [get_args(one.annotation)]
    ],
    _given,
)


def _chat_sampling(**given: Any) -> tuple[Any, dict[str, Any]]:
    """Return a `Sampling`, and those of its fields that were given and that a file may suggest."""
    chosen = _given(**given)
    suggested = {one.name: chosen.get(one.name) for one in SERVER_SAMPLING_OPTIONS.parameters}
    return _sampling(**{"temperature": 1.0} | chosen), _given(**suggested)


CHAT_SAMPLING_OPTIONS = OptionGroup(
    [*SERVER_SAMPLING_OPTIONS.parameters, *SAMPLING_OPTIONS.parameters[4:]], _chat_sampling
)


def _drafting(*, draft_temp: float, **given: Any) -> dict[str, Any]:
    """Return what `load` takes to draft, whoever drafts."""
    return _given(temperature=draft_temp, **given)


DRAFTING_OPTIONS = OptionGroup(
    _table(
        DRAFTING,
        ("policy", str | None, None, "--policy", "RULE",
         "How much is drafted: rate (what pays, as measured), p_min or fixed."),
        ("n_draft", int | None, None, "--n-draft", "N", "Most tokens to draft ahead; 7, by rate 31."),
        ("width", int | None, None, "--width", "N", "Most branches of a draft; 1, by rate 4."),
        ("p_min", float, 0.5, "--p-min", "X", "Draft on while the draft model is this sure."),
        ("p_split", float | None, None, "--p-split", "X",
         "Branch where an alternative is this likely; 0.1, by rate 0.3."),
        ("draft_temp", float, 0.0, "--draft-temp", "X", "Sample the draft model's tokens; 0: greedy."),
        ("exact_greedy", bool, False, "--exact-greedy", "",
         "Greedy output is plain output to the last bit, at a price where there are no kernels."),
        ("verify", str, "auto", "--verify", "RULE",
         "How sampled drafts are verified: token, block, recursive or traversal."),
        ("cross_vocab", str, "off", "--cross-vocab", "MODE",
         "A draft model of another vocabulary: off, tli (shared tokens), slem (text) or auto."),
        ("ngram_min", int, 3, "--ngram-min", "N", "Shortest text lookup matches, in tokens."),
        ("ngram_max", int, 5, "--ngram-max", "N", "Longest text lookup matches, in tokens."),
        ("least", int, 1, "--least", "N", "Call the next drafter only where there are fewer tokens."),
        ("window", int, 7, "--window", "N", "Columns of lookahead's window."),
        ("level", int, 5, "--level", "N", "Length of lookahead's n-grams."),
        ("guesses", int, 7, "--guesses", "N", "How many of them it tries."),
    ),
    _drafting,
)  # fmt: skip


def _memory(*, corpora: list[str] | None, remember: bool) -> dict[str, Any]:
    """Return what `load` takes to draft from texts that were there before."""
    return {"corpora": tuple(corpora or ()), "remember": remember}


MEMORY_OPTIONS = OptionGroup(
    [
        inspect.Parameter(
            "corpora", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=options.Corpora
        ),
        *_table(DRAFTING, ("remember", bool, False, "--remember", "", "Keep answers, and draft from them.")),
    ],
    _memory,
)


def _grammar(*, json_schema: str | None, json_schema_file: Path | None, regex: str | None) -> dict[str, Any]:
    """Return what a request takes of grammars. Raises UsageError."""
    from paceline.cli.texts import read_schema
    from paceline.text.grammar_check import parse_grammar

    schema = read_schema(json_schema, json_schema_file)
    parse_grammar(schema, regex)
    return {"json_schema": schema, "regex": regex}


GRAMMAR_OPTIONS = OptionGroup(
    _table(
        "Grammar",
        ("json_schema", str | None, None, "-j --json-schema", "SCHEMA", "JSON that this schema allows."),
        ("json_schema_file", Path | None, None, "-jf --json-schema-file", "FILE", "The same, from a file."),
        ("regex", str | None, None, "--regex", "PATTERN", "Text that matches this as a whole."),
    ),
    _grammar,
)


def _recorder(*, record: Path | None, record_top_k: int) -> Recorder | None:
    """Raises UsageError for a file that cannot be recorded to, before a model is loaded."""
    if record is None:
        if record_top_k:
            raise UsageError(f"--record-top-k {record_top_k}: name a file with --record, too")
        return None
    from paceline.bench.replay.recording import Recorder

    return Recorder(record, lambda value: print_note(f"paceline: {value}"), top_k=record_top_k)


RECORD_OPTIONS = OptionGroup(
    _table(
        OUTPUT,
        ("record", Path | None, None, "--record", "FILE", "Append what was asked and answered."),
        ("record_top_k", int, 0, "--record-top-k", "K", "With --record: the K likeliest, too."),
    ),
    _recorder,
)  # fmt: skip


def parse_bias(entries: list[str]) -> dict[int, float]:
    bias = {}
    for entry in entries:
        token, _, value = entry.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise UsageError(f"--logit-bias {entry}: write TOKEN=BIAS, e.g. 13=-2.5") from None
    return bias
