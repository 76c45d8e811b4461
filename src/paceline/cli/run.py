"""`paceline run`: complete a prompt, drafted for and verified."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import messages as conversations
from paceline.cli import options
from paceline.cli.groups import drafting, memory, models, sampling, takes
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import GENERATION, OUTPUT, PROMPT, flag, option
from paceline.cli.recording import Record, RecordTopK, recorder
from paceline.cli.references import is_base
from paceline.core.errors import UsageError


@takes(models, sampling, drafting, memory)
def run(
    *,
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
    system: conversations.System = None,
    messages: conversations.Messages = None,
    chat: Annotated[
        bool | None,
        flag(
            "--chat",
            panel=PROMPT,
            help="Put the prompt through the model's chat template: the default where it has one. "
            "--no-chat: complete it as it stands.",
        ),
    ] = None,
    models: Any,
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
    sampling: Any,
    seed: options.Seed = None,
    json_schema: options.JsonSchema = None,
    json_schema_file: options.JsonSchemaFile = None,
    regex: options.Regex = None,
    draft: options.Drafters = None,
    drafting: Any,
    memory: Any,
    compare: Annotated[
        bool, flag("--compare", panel=OUTPUT, help="Decode plainly first, then drafted, and compare them.")
    ] = False,
    show_sources: Annotated[
        bool, flag("--show-sources", panel=OUTPUT, help="Colour each token by where it came from.")
    ] = False,
    stats: Annotated[
        bool,
        flag("--stats", panel=OUTPUT, help="Where the time went, and how far what was expected came true."),
    ] = False,
    logprobs: Annotated[
        int | None,
        option(
            "--logprobs", panel=OUTPUT, metavar="N", help="With --json: of each token, and the N likeliest."
        ),
    ] = None,
    record: Record = None,
    record_top_k: RecordTopK = 0,
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
    drawn, by_chance = options.seed_for(seed, sampling)
    if logprobs is not None and not as_json:
        raise UsageError(f"--logprobs {logprobs}: told in JSON only; add --json")

    from paceline import zoo
    from paceline.engines.syntax import chosen

    # Bad values are refused before a prompt is read or a model loaded.
    schema = options.read_schema(json_schema, json_schema_file)
    chosen(schema, regex)
    recording = recorder(record, record_top_k)
    if chat is False and (system is not None or messages is not None):
        raise UsageError("--no-chat with --system or --messages, which are for a chat: leave out one of them")
    begun = conversations.begun(system, messages)
    if messages is None or any(given is not None for given in (prompt, prompt_option, file)):
        text = options.read_prompt(prompt, prompt_option, file)
        asked = [*begun, {"role": "user", "content": text}]
    else:
        text, asked = "", begun

    from paceline.assemble import load
    from paceline.cli.completion import Completion, no_template

    said = chat is True or bool(begun)
    if said and is_base(models["target"] or str(zoo.target_path())):
        raise no_template(models["target"] or "the embedded model")
    with (
        Interrupts() as interrupts,
        load(**models, drafters=draft, **drafting, **memory) as llm,
    ):
        request = {
            "max_tokens": n_predict,
            "seed": drawn,
            "stop": stops,
            "ignore_eos": ignore_eos,
            "json_schema": schema,
            "regex": regex,
            "logprobs": logprobs,
        }
        completion = Completion(
            llm,
            request,
            sampling,
            interrupts,
            as_json=as_json,
            show_sources=show_sources,
            show_stats=stats,
            recorder=recording,
            chat=said or (chat is None and llm.chats),
        )
        tokens = completion.prompt(text, asked, said=said)
        if by_chance and not as_json:
            print(options.by_chance(drawn), file=sys.stderr)
        return completion.compare(tokens) if compare else completion.single(tokens)
