"""`paceline run`: complete a prompt, drafted for and verified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options
from paceline.cli.options import option
from paceline.core.errors import UsageError


def run(
    prompt: Annotated[
        str | None, typer.Argument(help="The prompt; '-' reads stdin.", show_default=False)
    ] = None,
    model: options.Model = None,
    model_draft: options.DraftModel = None,
    draft: options.Drafters = None,
    n_predict: Annotated[
        int, option("-n", "--n-predict", env="N_PREDICT", help="Most tokens to generate.")
    ] = 256,
    temp: Annotated[float, option("--temp", env="TEMP", help="Temperature; 0 is greedy.")] = 0.0,
    top_k: Annotated[int, option("--top-k", env="TOP_K", help="Sample from the k likeliest; 0: off.")] = 0,
    top_p: Annotated[float, option("--top-p", env="TOP_P", help="Nucleus sampling; 1: off.")] = 1.0,
    min_p: Annotated[
        float, option("--min-p", env="MIN_P", help="Least share of the likeliest; 0: off.")
    ] = 0.0,
    repeat_penalty: Annotated[float, option("--repeat-penalty", env="REPEAT_PENALTY", help="1: off.")] = 1.0,
    presence_penalty: Annotated[
        float, option("--presence-penalty", env="PRESENCE_PENALTY", help="0: off.")
    ] = 0.0,
    frequency_penalty: Annotated[
        float, option("--frequency-penalty", env="FREQUENCY_PENALTY", help="0: off.")
    ] = 0.0,
    logit_bias: Annotated[
        list[str] | None,
        option("--logit-bias", env="LOGIT_BIAS", help="TOKEN=BIAS, e.g. 13=-2.5; repeatable."),
    ] = None,
    seed: Annotated[int, option("--seed", env="SEED", help="Seed of sampling.")] = 0,
    ctx_size: options.Context = 0,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = 0,
    prompt_option: Annotated[str | None, option("-p", "--prompt", env="PROMPT", help="The prompt.")] = None,
    file: Annotated[
        Path | None, option("-f", "--file", env="FILE", help="Read the prompt from a file.")
    ] = None,
    chat: Annotated[
        bool, option("--chat", env="CHAT", help="Put the prompt through the model's chat template.")
    ] = False,
    stop: Annotated[
        list[str] | None, option("--stop", env="STOP", help="Stop at this text; repeatable.")
    ] = None,
    ignore_eos: Annotated[
        bool, option("--ignore-eos", env="IGNORE_EOS", help="Go on at end of text.")
    ] = False,
    n_draft: Annotated[int, option("--n-draft", env="N_DRAFT", help="Longest draft.")] = 8,
    width: Annotated[int, option("--width", env="WIDTH", help="Most branches of a model's draft tree.")] = 1,
    p_min: Annotated[
        float, option("--p-min", env="P_MIN", help="Draft on while the draft model is this sure.")
    ] = 0.0,
    p_split: Annotated[float, option("--p-split", env="P_SPLIT", help="Branch where this likely.")] = 0.1,
    draft_temp: Annotated[
        float, option("--draft-temp", env="DRAFT_TEMP", help="Temperature of the draft; 0: greedy drafts.")
    ] = 0.0,
    draft_top_k: Annotated[
        int, option("--draft-top-k", env="DRAFT_TOP_K", help="Sampled drafts: from so many.")
    ] = 10,
    compare: Annotated[
        bool, option("--compare", env="COMPARE", help="Decode plainly first, then compare.")
    ] = False,
    as_json: Annotated[bool, option("--json", env="JSON", help="One JSON object on stdout.")] = False,
    show_sources: Annotated[
        bool, option("--show-sources", env="SHOW_SOURCES", help="Colour tokens by where they came from.")
    ] = False,
) -> int:
    """Complete a prompt: drafted for, verified, and streamed as it is decoded."""
    from paceline.assemble import load
    from paceline.cli.completion import Completion

    sampling = {
        "temperature": temp,
        "top_k": top_k,
        "top_p": top_p,
        "min_p": min_p,
        "repeat_penalty": repeat_penalty,
        "presence_penalty": presence_penalty,
        "frequency_penalty": frequency_penalty,
        "logit_bias": parse_bias(logit_bias or []),
    }
    if n_predict < 1:
        raise UsageError(f"-n {n_predict}: generate at least 1 token")
    text = options.read_prompt(prompt, prompt_option, file)
    from paceline.core.sampling import Sampling

    Sampling(**sampling)  # type: ignore[arg-type]  # refuse bad values before a model is loaded
    with load(
        model,
        model_draft,
        draft,
        n_ctx=ctx_size,
        threads=threads,
        gpu_layers=gpu_layers,
        n_draft=n_draft,
        width=width,
        p_min=p_min,
        p_split=p_split,
        temperature=draft_temp,
        top_k=draft_top_k,
    ) as llm:
        request = {
            "max_tokens": n_predict,
            "seed": seed,
            "stop": stop or [],
            "ignore_eos": ignore_eos,
            **sampling,
        }
        completion = Completion(llm, request, as_json=as_json, show_sources=show_sources)
        tokens = completion.prompt_tokens(text, chat=chat)
        return completion.compare(tokens) if compare else completion.single(tokens)


def parse_bias(entries: list[str]) -> dict[int, float]:
    bias = {}
    for entry in entries:
        token, _, value = entry.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            raise UsageError(f"--logit-bias {entry}: write TOKEN=BIAS, e.g. 13=-2.5") from None
    return bias
