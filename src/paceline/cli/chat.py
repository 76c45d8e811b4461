"""`paceline chat`: a conversation with a model."""

from __future__ import annotations

import sys
from dataclasses import replace
from threading import Event
from typing import Annotated, Any

from paceline.cli import groups, options, texts
from paceline.cli.groups import with_option_groups
from paceline.cli.interrupts import Interrupts, on_interrupt
from paceline.cli.options import GENERATION, option
from paceline.cli.references import base_model, resolve_models


@with_option_groups(
    models=groups.MODEL_OPTIONS,
    sampling=groups.CHAT_SAMPLING_OPTIONS,
    drafting=groups.DRAFTING_OPTIONS,
    memory=groups.MEMORY_OPTIONS,
)
def chat(
    *,
    system: texts.SystemPrompt = None,
    messages: texts.MessagesFile = None,
    models: Any,
    n_predict: Annotated[
        int | None, option(GENERATION, "-n --n-predict", "N", "Longest answer. Default: no limit.", minimum=1)
    ] = None,
    sampling: Any,
    seed: options.Seed = None,
    drafters: options.Drafters = None,
    drafting: Any,
    memory: Any,
) -> int:
    """Talk with a model. Each turn continues from the KV cache of the previous turn.

    On a terminal lines can be edited, and /help lists the commands. From a pipe each line is a turn, and only
    answers go to stdout. Temperature, top-k, top-p and min-p come from the model's file, else they are 0.8,
    40, 0.95 and 0.05; --temp 0 is greedy."""
    initial_messages = texts.first_messages(system, messages)
    sampling, given = sampling
    models = replace(models, target=models.target or "zoo:smollm2")
    loading = resolve_models(groups.with_drafting(models, drafters, drafting, **memory))

    from paceline.cli.chatting import ChatLoop, note
    from paceline.loading import load_options
    from paceline.system.home import home
    from paceline.text.chat_template import chat_sampling

    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    with Interrupts():
        llm = load_options(loading)
    with llm:
        if not llm.has_chat_template:
            raise base_model(str(loading.target))
        sampling = replace(sampling, **chat_sampling(llm.target, given))
        seed, seed_is_random = options.seed_for(seed, sampling)
        conversation = texts.Conversation(llm, initial_messages)
        request = {"max_tokens": n_predict, "seed": seed}
        early = Event()
        loop = ChatLoop(llm, conversation, request, sampling, early, interactive=terminal)
        if seed_is_random:
            names = {"temp": "temperature", "top-k": "top_k", "top-p": "top_p", "min-p": "min_p"}
            shown = ", ".join(f"{name} {getattr(sampling, field):g}" for name, field in names.items())
            note(f"{shown}; {options.format_random_seed(seed)}")
        if not terminal:
            return loop.run(texts.read_piped_messages())
        note(f"{llm.target.name}, {llm.target.caps.n_ctx:,} tokens of context; /help lists the commands")
        with on_interrupt(lambda *_: early.set()):
            loop.run(texts.read_typed_messages(home() / "chat_history", note, early.clear))
    return 0
