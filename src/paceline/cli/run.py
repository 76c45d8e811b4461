"""`paceline run`: complete a prompt, drafted for and verified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from paceline.cli import options
from paceline.cli.conversation import MessagesFile, SystemPrompt, first_messages
from paceline.cli.groups import (
    DRAFTING_OPTIONS,
    GRAMMAR_OPTIONS,
    MEMORY_OPTIONS,
    MODEL_OPTIONS,
    RECORD_OPTIONS,
    SAMPLING_OPTIONS,
    with_option_groups,
)
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import GENERATION, OUTPUT, PROMPT, argument, flag, option
from paceline.cli.output import print_note
from paceline.cli.references import require_template, resolve_models
from paceline.cli.texts import read_prompt
from paceline.speculative.errors import UsageError


@with_option_groups(
    models=MODEL_OPTIONS,
    sampling=SAMPLING_OPTIONS,
    grammar=GRAMMAR_OPTIONS,
    drafting=DRAFTING_OPTIONS,
    memory=MEMORY_OPTIONS,
    recorder=RECORD_OPTIONS,
)
def run(
    *,
    prompt: Annotated[
        str | None, argument("PROMPT", "The text to complete; '-' or nothing reads stdin.", PROMPT)
    ] = None,
    prompt_option: Annotated[
        str | None, option(PROMPT, "-p --prompt", "TEXT", "The same, as an option.", env=False)
    ] = None,
    file: Annotated[
        Path | None, option(PROMPT, "-f --file", "FILE", "Read the prompt from a text file.", env=False)
    ] = None,
    system: SystemPrompt = None,
    messages: MessagesFile = None,
    chat: Annotated[
        bool | None,
        flag(
            PROMPT,
            "--chat",
            "Use the model's chat template: the default where it has one. --no-chat: do not.",
        ),
    ] = None,
    models: Any,
    n_predict: Annotated[
        int, option(GENERATION, "-n --n-predict", "N", "Most tokens to generate.", minimum=1)
    ] = 256,
    stop: Annotated[
        list[str] | None,
        option(GENERATION, "--stop", "TEXT", "Stop before this text; may be repeated.", env=False),
    ] = None,
    ignore_eos: Annotated[
        bool, flag(GENERATION, "--ignore-eos", "Go on after an end-of-text token.")
    ] = False,
    sampling: Any,
    seed: options.Seed = None,
    grammar: Any,
    draft: options.Drafters = None,
    drafting: Any,
    memory: Any,
    compare: Annotated[
        bool, flag(OUTPUT, "--compare", "Decode plainly first, then drafted, and compare them.")
    ] = False,
    show_sources: Annotated[
        bool, flag(OUTPUT, "--show-sources", "Colour each token by where it came from.")
    ] = False,
    stats: Annotated[
        bool, flag(OUTPUT, "--stats", "Where the time went, and how far what was expected came true.")
    ] = False,
    logprobs: Annotated[
        int | None,
        option(OUTPUT, "--logprobs", "N", "With --json: of each token, and the N likeliest.", minimum=0),
    ] = None,
    recorder: Any,
    as_json: options.AsJson = False,
) -> int:
    """Complete a prompt: drafted for, verified, and streamed as it is decoded.

    The text goes to stdout, everything else to stderr.
    """
    if compare and draft is not None and draft.strip() == "none":
        raise UsageError("--compare with --draft none: nothing to compare with; name a drafter")
    if logprobs is not None and not as_json:
        raise UsageError("--logprobs: prints with --json only; add it")
    models = resolve_models(models)
    drawn, by_chance = options.seed_for(seed, sampling)

    from paceline.models import zoo

    started = first_messages(system, messages)
    if chat is False and started:
        raise UsageError("--no-chat with --system or --messages, which are for a chat: leave out one of them")
    if messages is None or any(given is not None for given in (prompt, prompt_option, file)):
        text = read_prompt(prompt, prompt_option, file)
        conversation = [*started, {"role": "user", "content": text}]
    else:
        text, conversation = "", started

    from paceline.cli.completion import Completion
    from paceline.loading import load

    wants_chat = chat is True or bool(started)
    if wants_chat:
        require_template(models["target"] or str(zoo.target_path()))
    with (
        Interrupts() as interrupts,
        load(**models, drafters=draft, **drafting, **memory) as llm,
    ):
        request = {
            "max_tokens": n_predict,
            "seed": drawn,
            "stop": stop or [],
            "ignore_eos": ignore_eos,
            "logprobs": logprobs,
        } | grammar
        completion = Completion(
            llm,
            request,
            sampling,
            interrupts,
            as_json=as_json,
            show_sources=show_sources,
            show_stats=stats,
            recorder=recorder,
            chat=wants_chat or (chat is None and llm.has_chat_template),
        )
        tokens = completion.prompt(text, conversation, wants_chat=wants_chat)
        if by_chance and not as_json:
            print_note(options.format_random_seed(drawn))
        return completion.compare(tokens) if compare else completion.single(tokens)
