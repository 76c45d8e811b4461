"""Options that several commands share, in groups: each is a function of its options, and a command that
`takes` a group is given what that function makes of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from copy import copy
from functools import wraps
from typing import Annotated, Any, get_args

from paceline.cli import options
from paceline.cli.options import DRAFTING, SAMPLING, flag, option
from paceline.cli.references import model_option
from paceline.core.errors import UsageError


def takes(*groups: Callable[..., Any]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Where the command has a parameter with a group's name, typer sees the group's options."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        parts = {group.__name__: (group, inspect.signature(group, eval_str=True)) for group in groups}
        shown: list[inspect.Parameter] = []
        for name, parameter in inspect.signature(command, eval_str=True).parameters.items():
            shown += parts[name][1].parameters.values() if name in parts else [parameter]

        @wraps(command)
        def wrapper(**given: Any) -> Any:
            made = {
                name: group(**{option: given.pop(option) for option in signature.parameters})
                for name, (group, signature) in parts.items()
            }
            return command(**given, **made)

        keyword = [p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in shown]
        wrapper.__signature__ = inspect.Signature(keyword)  # type: ignore[attr-defined]  # what typer reads
        wrapper.__annotations__ = {}
        return wrapper

    return decorate


def setting(panel: str, name: str, metavar: str, help: str) -> Any:  # noqa: A002
    """An option of one name."""
    return option(name, panel=panel, metavar=metavar, help=help)


def models(
    model: options.Model = None,
    model_draft: options.DraftModel = None,
    ctx_size: options.Context = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = 0,
    flash_attn: options.FlashAttention = "auto",
    cache_type: options.CacheType = "f16",
    kernels: options.Kernels = "auto",
    device: options.Device = "auto",
    dtype: options.Dtype = "auto",
    attention: options.Attention = "auto",
) -> dict[str, Any]:
    """What `load` takes to find and run the models."""
    return {
        "target": model,
        "draft": model_draft,
        "n_ctx": ctx_size or 0,
        "threads": threads,
        "gpu_layers": gpu_layers,
        "flash_attention": options.flash_attention(flash_attn),
        "cache_type": cache_type,
        "kernels": options.kernels(kernels),
        "device": device,
        "dtype": dtype,
        "attention": attention,
    }


def with_parameters(
    function: Callable[..., Any],
    group: Callable[..., Any],
    change: Callable[[inspect.Parameter], inspect.Parameter],
) -> Callable[..., Any]:
    """The function, with the group's options, each as `change` makes it."""
    parameters = inspect.signature(group, eval_str=True).parameters.values()
    function.__signature__ = inspect.Signature(list(map(change, parameters)))  # type: ignore[attr-defined]
    return function


def by_name(group: Callable[..., Any]) -> Callable[..., Any]:
    """The same group, which leaves names of models as they were given: for somebody else, or for later."""

    @wraps(group)
    def named(**given: Any) -> Any:
        return group(**given)

    def change(parameter: inspect.Parameter) -> inspect.Parameter:
        kind, info = get_args(parameter.annotation)
        if info.callback is model_option:
            info = copy(info)
            info.callback = None
        return parameter.replace(annotation=Annotated[kind, info])

    return with_parameters(named, group, change)


def sampling(
    temp: Annotated[float, setting(SAMPLING, "--temp", "X", "Temperature; 0: the likeliest token.")] = 0.0,
    top_k: Annotated[int, setting(SAMPLING, "--top-k", "N", "Only the N likeliest; 0: off.")] = 0,
    typical_p: Annotated[
        float, setting(SAMPLING, "--typical", "X", "As surprising as the average, to X; 1: off.")
    ] = 1.0,
    top_p: Annotated[float, setting(SAMPLING, "--top-p", "X", "The likeliest that sum to X; 1: off.")] = 1.0,
    min_p: Annotated[float, setting(SAMPLING, "--min-p", "X", "Above X times the likeliest; 0: off.")] = 0.0,
    xtc_probability: Annotated[
        float, setting(SAMPLING, "--xtc-probability", "X", "How often XTC drops the likeliest; 0: off.")
    ] = 0.0,
    xtc_threshold: Annotated[
        float, setting(SAMPLING, "--xtc-threshold", "X", "It keeps one of those at least this likely.")
    ] = 0.1,
    repeat_penalty: Annotated[
        float, setting(SAMPLING, "--repeat-penalty", "X", "Divide recent logits by X; 1: off.")
    ] = 1.0,
    repeat_last_n: Annotated[
        int, setting(SAMPLING, "--repeat-last-n", "N", "Tokens the penalties look at; 0: none.")
    ] = 64,
    presence_penalty: Annotated[
        float, setting(SAMPLING, "--presence-penalty", "X", "Subtract X from recent tokens; 0: off.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, setting(SAMPLING, "--frequency-penalty", "X", "Subtract X for each occurrence; 0: off.")
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None,
        setting(
            SAMPLING, "--logit-bias", "ID=X", "Add X to a token's logit (13=-2.5, 13=-inf); may be repeated."
        ),
    ] = None,
) -> Any:
    """The request's `Sampling`."""
    from paceline.core.sampling import Sampling

    return Sampling(
        temperature=temp,
        top_k=top_k,
        typical_p=typical_p,
        top_p=top_p,
        min_p=min_p,
        xtc_probability=xtc_probability,
        xtc_threshold=xtc_threshold,
        repeat_penalty=repeat_penalty,
        repeat_last_n=repeat_last_n,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=parse_bias(logit_bias or []),
    )


def unless_given(group: Callable[..., Any], **fallback: Any) -> Callable[..., Any]:
    """The same group, but the options named in `fallback` have no default: the model knows a better one.
    It makes two things: what the group makes with `fallback`, and the options that were given."""

    @wraps(group)
    def pending(**given: Any) -> tuple[Any, dict[str, Any]]:
        named = {name: given.pop(name) for name in fallback}
        named = {name: value for name, value in named.items() if value is not None}
        return group(**given, **{**fallback, **named}), named

    def change(parameter: inspect.Parameter) -> inspect.Parameter:
        if parameter.name not in fallback:
            return parameter
        kind, info = get_args(parameter.annotation)
        return parameter.replace(annotation=Annotated[kind | None, info], default=None)

    return with_parameters(pending, group, change)


def drafting(
    policy: Annotated[
        str | None,
        setting(
            DRAFTING,
            "--policy",
            "RULE",
            "How much is drafted: rate (what pays, as measured), p_min or fixed.",
        ),
    ] = None,
    n_draft: Annotated[
        int | None, setting(DRAFTING, "--n-draft", "N", "Most tokens to draft ahead; 7, by rate 31.")
    ] = None,
    width: Annotated[
        int | None, setting(DRAFTING, "--width", "N", "Most branches of a draft; 1, by rate 4.")
    ] = None,
    p_min: Annotated[
        float, setting(DRAFTING, "--p-min", "X", "Draft on while the draft model is this sure.")
    ] = 0.5,
    p_split: Annotated[
        float | None,
        setting(DRAFTING, "--p-split", "X", "Branch where an alternative is this likely; 0.1, by rate 0.3."),
    ] = None,
    draft_temp: Annotated[
        float, setting(DRAFTING, "--draft-temp", "X", "Sample the draft model's tokens; 0: greedy.")
    ] = 0.0,
    exact_greedy: Annotated[
        bool,
        flag(
            "--exact-greedy",
            panel=DRAFTING,
            help="Greedy output is plain output to the last bit, at a price where there are no kernels.",
        ),
    ] = False,
    verify: Annotated[
        str,
        setting(
            DRAFTING,
            "--verify",
            "RULE",
            "How sampled drafts are verified: token, block, recursive or traversal.",
        ),
    ] = "auto",
    cross_vocab: Annotated[
        str,
        setting(
            DRAFTING,
            "--cross-vocab",
            "MODE",
            "A draft model of another vocabulary: off, tli (shared tokens), slem (text) or auto.",
        ),
    ] = "off",
    ngram_min: Annotated[
        int, setting(DRAFTING, "--ngram-min", "N", "Shortest text lookup matches, in tokens.")
    ] = 3,
    ngram_max: Annotated[
        int, setting(DRAFTING, "--ngram-max", "N", "Longest text lookup matches, in tokens.")
    ] = 5,
    least: Annotated[
        int, setting(DRAFTING, "--least", "N", "Call the next drafter only where there are fewer tokens.")
    ] = 1,
    window: Annotated[int, setting(DRAFTING, "--window", "N", "Columns of lookahead's window.")] = 7,
    level: Annotated[int, setting(DRAFTING, "--level", "N", "Length of lookahead's n-grams.")] = 5,
    guesses: Annotated[int, setting(DRAFTING, "--guesses", "N", "How many of them it tries.")] = 7,
) -> dict[str, Any]:
    """What `load` takes to draft, whoever drafts."""
    given = dict(locals())  # the options are named as the settings, but for one
    given["temperature"] = given.pop("draft_temp")
    return {name: value for name, value in given.items() if value is not None}


def memory(
    corpus: options.Corpora = None,
    remember: Annotated[
        bool,
        flag("--remember", panel=DRAFTING, help="Keep answers on disk, and draft from those kept before."),
    ] = False,
) -> dict[str, Any]:
    """What `load` takes to draft from texts that were there before."""
    return {"corpora": tuple(corpus or ()), "remember": remember}


def parse_bias(entries: list[str]) -> dict[int, float]:
    bias = {}
    for entry in entries:
        token, _, value = entry.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise UsageError(f"--logit-bias {entry}: write TOKEN=BIAS, e.g. 13=-2.5") from None
    return bias
