"""`paceline chat`: a conversation with a model, drafted for and verified."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated, Any

from paceline.cli import options
from paceline.cli.conversation import Conversation, MessagesFile, SystemPrompt, first_messages
from paceline.cli.groups import (
    CHAT_SAMPLING_OPTIONS,
    DRAFTING_OPTIONS,
    MEMORY_OPTIONS,
    MODEL_OPTIONS,
    with_option_groups,
)
from paceline.cli.interrupts import Interrupts, PendingInterrupt
from paceline.cli.options import GENERATION, OUTPUT, flag, option
from paceline.cli.references import base_model, require_template, resolve_models

MODEL = "zoo:smollm2"  # whom one talks with who names nobody


@with_option_groups(
    models=MODEL_OPTIONS,
    sampling=CHAT_SAMPLING_OPTIONS,
    drafting=DRAFTING_OPTIONS,
    memory=MEMORY_OPTIONS,
)
def chat(
    *,
    system: SystemPrompt = None,
    messages: MessagesFile = None,
    models: Any,
    n_predict: Annotated[
        int | None,
        option(
            GENERATION,
            "-n --n-predict",
            "N",
            "Most tokens of an answer. Default: what the context has room for.",
            minimum=1,
        ),
    ] = None,
    sampling: Any,
    seed: options.Seed = None,
    draft: options.Drafters = None,
    drafting: Any,
    memory: Any,
    stats: Annotated[bool, flag(OUTPUT, "--stats", "Figures after each answer.")] = False,
) -> int:
    """Talk with a model: each turn drafted for and verified, from the cache of the one before.

    On a terminal a line is edited, and /help lists the commands. From a pipe each line is a turn, and stdout
    gets the answers alone. Temperature, top-k, top-p and min-p are what the model's file suggests, else 0.8,
    40, 0.95 and 0.05; --temp 0 is greedy.
    """
    first = first_messages(system, messages)
    sampling, given = sampling
    models = resolve_models(models | {"target": models["target"] or MODEL})

    from paceline.cli.chatting import ChatLoop, format_sampling, note
    from paceline.cli.lines import read_piped_messages, read_typed_messages
    from paceline.loading import load
    from paceline.system.home import home
    from paceline.text.default_sampling import chat_sampling

    require_template(models["target"])
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    with Interrupts():
        llm = load(**models, drafters=draft, **drafting, **memory)
    with llm:
        if not llm.has_chat_template:  # of a model without a file
            raise base_model(models["target"])
        sampling = replace(sampling, **chat_sampling(llm.target, given))
        drawn, by_chance = options.seed_for(seed, sampling)
        conversation = Conversation(llm, first)
        request = {"max_tokens": n_predict, "seed": drawn}
        early = PendingInterrupt()
        talk = ChatLoop(llm, conversation, request, sampling, early, interactive=terminal, show_stats=stats)
        if by_chance:
            note(f"{format_sampling(sampling)}; {options.format_random_seed(drawn)}")
        if not terminal:
            return talk.run(read_piped_messages())
        note(f"{llm.target.name}, {llm.target.caps.n_ctx:,} tokens of context; /help lists the commands")
        with early:
            talk.run(read_typed_messages(home() / "chat_history", note, early.forget))
    return 0
