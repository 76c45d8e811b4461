"""`paceline run`: complete a prompt."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from paceline.cli import groups, options
from paceline.cli.groups import OptionGroup, option_table, with_drafting, with_option_groups
from paceline.cli.interrupts import Interrupts
from paceline.cli.options import GENERATION, OUTPUT, PROMPT, argument, flag
from paceline.cli.output import print_note
from paceline.cli.references import resolve_models
from paceline.cli.texts import MessagesFile, SystemPrompt, first_messages, read_prompt
from paceline.speculative.errors import UsageError

PROMPT_OPTIONS = OptionGroup(option_table(
    PROMPT,
    ("option", str | None, None, "-p --prompt", "TEXT", "The same, as an option."),
    ("file", Path | None, None, "-f --file", "FILE", "Read the prompt from a text file."),
    env=False,
))  # fmt: skip
STOP = ("stop", list[str] | None, None, "--stop", "TEXT", "Stop before this text; may be repeated.")
GENERATION_OPTIONS = OptionGroup([
    *option_table(
        GENERATION,
        ("max_tokens", int, 256, "-n --n-predict", "N", "Most tokens to generate.", 1),
        ("ignore_eos", bool, False, "--ignore-eos", "", "Go on after an end-of-text token."),
    ),
    *option_table(GENERATION, STOP, env=False),
])  # fmt: skip
OUTPUT_OPTIONS = OptionGroup(option_table(
    OUTPUT,
    ("compare", bool, False, "--compare", "", "Compare with plain decoding, which runs first."),
    ("show_sources", bool, False, "--show-sources", "", "Colour each token by its drafter."),
    ("show_stats", bool, False, "--stats", "", "Print the time of each phase."),
    ("logprobs", int | None, None, "--logprobs", "N",
     "With --json: log-probabilities of each token and the N likeliest.", 0),
))  # fmt: skip


@with_option_groups(
    prompt_source=PROMPT_OPTIONS,
    models=groups.MODEL_OPTIONS,
    request=GENERATION_OPTIONS,
    sampling=groups.SAMPLING_OPTIONS,
    grammar=groups.GRAMMAR_OPTIONS,
    drafting=groups.DRAFTING_OPTIONS,
    memory=groups.MEMORY_OPTIONS,
    output=OUTPUT_OPTIONS,
    recorder=groups.RECORD_OPTIONS,
)
def run(
    *,
    prompt: Annotated[
        str | None, argument("PROMPT", "The text to complete; '-' or nothing reads stdin.", PROMPT)
    ] = None,
    prompt_source: Any,
    system: SystemPrompt = None,
    messages: MessagesFile = None,
    chat: Annotated[bool | None, flag(PROMPT, "--chat", "Use the chat template, if there is one.")] = None,
    models: Any,
    request: Any,
    sampling: Any,
    seed: options.Seed = None,
    grammar: Any,
    drafters: options.Drafters = None,
    drafting: Any,
    memory: Any,
    output: Any,
    recorder: Any,
    as_json: options.AsJson = False,
) -> int:
    """Complete a prompt with lossless drafting, and stream the text.

    The text goes to stdout, everything else to stderr."""
    compare, logprobs = output.pop("compare"), output.pop("logprobs")
    loading = with_drafting(models, drafters, drafting, **memory)
    if compare and loading.drafting.plain:
        raise UsageError("--compare with --draft none: nothing to compare with; name a drafter")
    if logprobs is not None and not as_json:
        raise UsageError("--logprobs: prints with --json only; add it")
    from paceline.speculative.request import GenerationRequest
    from paceline.text.grammar_source import parse_grammar

    request["stop"] = request["stop"] or []
    # Raises for what no model can do, before one is looked for and loaded.
    syntax = parse_grammar(**grammar)
    GenerationRequest(prompt=[0], grammar=syntax, **request)
    if syntax is not None:
        for note in syntax.notes:
            print_note(f"{syntax.name}: {note}")
    loading = resolve_models(loading)
    seed, seed_is_random = options.seed_for(seed, sampling)

    initial_messages = first_messages(system, messages)
    if chat is False and initial_messages:
        raise UsageError("--no-chat with --system or --messages, which are for a chat: leave out one of them")
    sources = (prompt, prompt_source["option"], prompt_source["file"])
    if messages is None or any(source is not None for source in sources):
        text = read_prompt(*sources)
        conversation = [*initial_messages, {"role": "user", "content": text}]
    else:
        text, conversation = "", initial_messages

    from paceline.cli.completion import Completion
    from paceline.loading import load_options

    wants_chat = chat is True or bool(initial_messages)
    with Interrupts() as interrupts, load_options(loading) as llm:
        request |= {"seed": seed, "logprobs": logprobs} | grammar
        use_chat = wants_chat or (chat is None and llm.has_chat_template)
        output |= {"as_json": as_json, "recorder": recorder, "chat": use_chat}
        completion = Completion(llm, request, sampling, interrupts, **output)
        tokens = completion.prompt(text, conversation, wants_chat=wants_chat)
        if seed_is_random and not as_json:
            print_note(options.format_random_seed(seed))
        return completion.compare(tokens) if compare else completion.single(tokens)
