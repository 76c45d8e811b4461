"""Options that several commands share, in groups: each is a function of its options, and a command that
`takes` a group is given what that function makes of them."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

from paceline.cli import options
from paceline.cli.options import DRAFTING, SAMPLING, flag, option
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


def models(
    model: options.Model = None,
    model_draft: options.DraftModel = None,
    ctx_size: options.Context = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = 0,
    flash_attn: options.FlashAttention = "auto",
    cache_type: options.CacheType = "f16",
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
    }


def sampling(
    temp: Annotated[
        float, option("--temp", panel=SAMPLING, metavar="X", help="Temperature; 0: the likeliest token.")
    ] = 0.0,
    top_k: Annotated[
        int, option("--top-k", panel=SAMPLING, metavar="N", help="Only the N likeliest; 0: off.")
    ] = 0,
    typical_p: Annotated[
        float,
        option("--typical", panel=SAMPLING, metavar="X", help="As surprising as the average, to X; 1: off."),
    ] = 1.0,
    top_p: Annotated[
        float,
        option("--top-p", panel=SAMPLING, metavar="X", help="The likeliest that sum to X; 1: off."),
    ] = 1.0,
    min_p: Annotated[
        float,
        option("--min-p", panel=SAMPLING, metavar="X", help="Above X times the likeliest; 0: off."),
    ] = 0.0,
    xtc_probability: Annotated[
        float,
        option(
            "--xtc-probability",
            panel=SAMPLING,
            metavar="X",
            help="How often XTC drops the likeliest; 0: off.",
        ),
    ] = 0.0,
    xtc_threshold: Annotated[
        float,
        option(
            "--xtc-threshold", panel=SAMPLING, metavar="X", help="It keeps one of those at least this likely."
        ),
    ] = 0.1,
    repeat_penalty: Annotated[
        float,
        option("--repeat-penalty", panel=SAMPLING, metavar="X", help="Divide recent logits by X; 1: off."),
    ] = 1.0,
    repeat_last_n: Annotated[
        int,
        option("--repeat-last-n", panel=SAMPLING, metavar="N", help="Tokens the penalties look at; 0: none."),
    ] = 64,
    presence_penalty: Annotated[
        float,
        option(
            "--presence-penalty", panel=SAMPLING, metavar="X", help="Subtract X from recent tokens; 0: off."
        ),
    ] = 0.0,
    frequency_penalty: Annotated[
        float,
        option(
            "--frequency-penalty", panel=SAMPLING, metavar="X", help="Subtract X for each occurrence; 0: off."
        ),
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None,
        option(
            "--logit-bias",
            panel=SAMPLING,
            metavar="ID=X",
            help="Add X to a token's logit (13=-2.5, 13=-inf); may be repeated.",
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


def drafting(
    policy: Annotated[
        str | None,
        option(
            "--policy",
            panel=DRAFTING,
            metavar="RULE",
            help="How much is drafted: rate (what pays, as measured), p_min or fixed.",
        ),
    ] = None,
    n_draft: Annotated[
        int | None,
        option("--n-draft", panel=DRAFTING, metavar="N", help="Most tokens to draft ahead; 7, by rate 31."),
    ] = None,
    width: Annotated[
        int | None,
        option("--width", panel=DRAFTING, metavar="N", help="Most branches of a draft; 1, by rate 4."),
    ] = None,
    p_min: Annotated[
        float,
        option("--p-min", panel=DRAFTING, metavar="X", help="Draft on while the draft model is this sure."),
    ] = 0.5,
    p_split: Annotated[
        float | None,
        option(
            "--p-split",
            panel=DRAFTING,
            metavar="X",
            help="Branch where an alternative is this likely; 0.1, by rate 0.3.",
        ),
    ] = None,
    draft_temp: Annotated[
        float,
        option(
            "--draft-temp", panel=DRAFTING, metavar="X", help="Sample the draft model's tokens; 0: greedy."
        ),
    ] = 0.0,
    exact_greedy: Annotated[
        bool,
        flag(
            "--exact-greedy",
            panel=DRAFTING,
            help="Passes of one shape: greedy output is plain output to the last bit, at a price.",
        ),
    ] = False,
    verify: Annotated[
        str,
        option(
            "--verify",
            panel=DRAFTING,
            metavar="RULE",
            help="How sampled drafts are verified: token, block, recursive, specinfer, kseq or traversal.",
        ),
    ] = "auto",
    cross_vocab: Annotated[
        str,
        option(
            "--cross-vocab",
            panel=DRAFTING,
            metavar="MODE",
            help="A draft model of another vocabulary: off, tli (shared tokens), slem (text) or auto.",
        ),
    ] = "off",
    ngram_min: Annotated[
        int,
        option("--ngram-min", panel=DRAFTING, metavar="N", help="Shortest text lookup matches, in tokens."),
    ] = 3,
    ngram_max: Annotated[
        int,
        option("--ngram-max", panel=DRAFTING, metavar="N", help="Longest text lookup matches, in tokens."),
    ] = 5,
    least: Annotated[
        int,
        option(
            "--least",
            panel=DRAFTING,
            metavar="N",
            help="Call the next drafter only where there are fewer tokens.",
        ),
    ] = 1,
    window: Annotated[
        int, option("--window", panel=DRAFTING, metavar="N", help="Columns of lookahead's window.")
    ] = 7,
    level: Annotated[
        int, option("--level", panel=DRAFTING, metavar="N", help="Length of lookahead's n-grams.")
    ] = 5,
    guesses: Annotated[
        int, option("--guesses", panel=DRAFTING, metavar="N", help="How many of them it tries.")
    ] = 7,
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
