"""`paceline run`: complete a prompt, drafted for and verified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from paceline.cli import options
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import DRAFTING, GENERATION, OUTPUT, PROMPT, SAMPLING, flag, option
from paceline.core.errors import UsageError


def run(
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="The text to complete; '-' or nothing reads stdin.",
            metavar="PROMPT",
            show_default=False,
            rich_help_panel=PROMPT,
        ),
    ] = None,
    prompt_option: Annotated[
        str | None,
        option(
            "-p",
            "--prompt",
            panel=PROMPT,
            metavar="TEXT",
            from_environment=False,
            help="The same, as an option.",
        ),
    ] = None,
    file: Annotated[
        Path | None,
        option(
            "-f",
            "--file",
            panel=PROMPT,
            metavar="FILE",
            from_environment=False,
            help="Read the prompt from a text file.",
        ),
    ] = None,
    chat: Annotated[
        bool, flag("--chat", panel=PROMPT, help="Put the prompt through the model's chat template.")
    ] = False,
    model: options.Model = None,
    model_draft: options.DraftModel = None,
    ctx_size: options.Context = None,
    threads: options.Threads = None,
    gpu_layers: options.GpuLayers = 0,
    flash_attn: options.FlashAttention = "auto",
    cache_type: options.CacheType = "f16",
    n_predict: Annotated[
        int, option("-n", "--n-predict", panel=GENERATION, metavar="N", help="Most tokens to generate.")
    ] = 256,
    stop: Annotated[
        list[str] | None,
        option(
            "--stop",
            panel=GENERATION,
            metavar="TEXT",
            from_environment=False,
            help="Stop before this text; may be repeated.",
        ),
    ] = None,
    ignore_eos: Annotated[
        bool, flag("--ignore-eos", panel=GENERATION, help="Go on after an end-of-text token.")
    ] = False,
    temp: Annotated[
        float, option("--temp", panel=SAMPLING, metavar="X", help="Temperature; 0: the likeliest token.")
    ] = 0.0,
    top_k: Annotated[
        int, option("--top-k", panel=SAMPLING, metavar="N", help="Only the N likeliest; 0: off.")
    ] = 0,
    top_p: Annotated[
        float,
        option("--top-p", panel=SAMPLING, metavar="X", help="The likeliest that sum to X; 1: off."),
    ] = 1.0,
    min_p: Annotated[
        float,
        option("--min-p", panel=SAMPLING, metavar="X", help="Above X times the likeliest; 0: off."),
    ] = 0.0,
    seed: Annotated[
        int, option("--seed", panel=SAMPLING, metavar="N", help="The same seed draws the same text.")
    ] = 0,
    repeat_penalty: Annotated[
        float,
        option("--repeat-penalty", panel=SAMPLING, metavar="X", help="Divide recent logits by X; 1: off."),
    ] = 1.0,
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
    draft: options.Drafters = None,
    n_draft: Annotated[
        int, option("--n-draft", panel=DRAFTING, metavar="N", help="Most tokens to draft ahead.")
    ] = 7,
    width: Annotated[
        int, option("--width", panel=DRAFTING, metavar="N", help="Most branches of the draft model's tree.")
    ] = 1,
    p_min: Annotated[
        float,
        option("--p-min", panel=DRAFTING, metavar="X", help="Draft on while the draft model is this sure."),
    ] = 0.5,
    p_split: Annotated[
        float,
        option("--p-split", panel=DRAFTING, metavar="X", help="Branch where an alternative is this likely."),
    ] = 0.1,
    draft_temp: Annotated[
        float,
        option(
            "--draft-temp", panel=DRAFTING, metavar="X", help="Sample the draft model's tokens; 0: greedy."
        ),
    ] = 0.0,
    draft_top_k: Annotated[
        int, option("--draft-top-k", panel=DRAFTING, metavar="N", help="Sample them from the N likeliest.")
    ] = 10,
    verify: Annotated[
        str,
        option(
            "--verify",
            panel=DRAFTING,
            metavar="RULE",
            help="How sampled drafts are verified: token, block, recursive, specinfer, kseq or traversal.",
        ),
    ] = "auto",
    ngram_min: Annotated[
        int,
        option("--ngram-min", panel=DRAFTING, metavar="N", help="Shortest text lookup matches, in tokens."),
    ] = 3,
    ngram_max: Annotated[
        int,
        option("--ngram-max", panel=DRAFTING, metavar="N", help="Longest text lookup matches, in tokens."),
    ] = 5,
    compare: Annotated[
        bool, flag("--compare", panel=OUTPUT, help="Decode plainly first, then drafted, and compare them.")
    ] = False,
    show_sources: Annotated[
        bool, flag("--show-sources", panel=OUTPUT, help="Colour each token by where it came from.")
    ] = False,
    as_json: Annotated[
        bool, flag("--json", panel=OUTPUT, help="One JSON object on stdout instead of the text.")
    ] = False,
) -> int:
    """Complete a prompt: drafted for, verified, and streamed as it is decoded.

    The text goes to stdout, everything else to stderr.
    """
    if n_predict < 1:
        raise UsageError(f"-n {n_predict}: generate at least 1 token")
    if compare and draft is not None and draft.strip() == "none":
        raise UsageError(
            "--compare with --draft none: nothing to compare plain decoding with; name a drafter"
        )
    stops = options.stop_texts(stop)
    if seed < 0:
        raise UsageError(f"--seed {seed}: must be at least 0")
    bias = parse_bias(logit_bias or [])

    from paceline.core.sampling import Sampling

    # Bad values are refused before a prompt is read or a model loaded.
    sampling = Sampling(
        temperature=temp,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        repeat_penalty=repeat_penalty,
        presence_penalty=presence_penalty,
        frequency_penalty=frequency_penalty,
        logit_bias=bias,
    )
    text = options.read_prompt(prompt, prompt_option, file)

    from paceline.assemble import load
    from paceline.cli.completion import Completion

    with (
        Interrupts() as interrupts,
        load(
            model,
            model_draft,
            draft,
            n_ctx=ctx_size or 0,
            threads=threads,
            gpu_layers=gpu_layers,
            flash_attention=options.flash_attention(flash_attn),
            cache_type=cache_type,
            n_draft=n_draft,
            width=width,
            p_min=p_min,
            p_split=p_split,
            temperature=draft_temp,
            top_k=draft_top_k,
            verify=verify,
            ngram_min=ngram_min,
            ngram_max=ngram_max,
        ) as llm,
    ):
        request = {"max_tokens": n_predict, "seed": seed, "stop": stops, "ignore_eos": ignore_eos}
        completion = Completion(
            llm, request, sampling, interrupts, as_json=as_json, show_sources=show_sources
        )
        tokens = llm.chat_tokens(text) if chat else llm.tokens(text)
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
