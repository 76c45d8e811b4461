"""`paceline chat`: a conversation with a model, drafted for and verified."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Annotated, Any

from paceline.cli import messages as conversations
from paceline.cli import options
from paceline.cli.groups import drafting, memory, models, sampling, takes, unless_given
from paceline.cli.interrupts import Early, Interrupts
from paceline.cli.options import GENERATION, OUTPUT, flag, option
from paceline.cli.references import is_base, model_option
from paceline.core.errors import ModelError, UsageError

MODEL = "zoo:smollm2"  # whom one talks with who names nobody
HISTORY = "chat_history"


@takes(models, unless_given(sampling, temp=1.0, top_k=0, top_p=1.0, min_p=0.0), drafting, memory)
def chat(
    *,
    system: conversations.System = None,
    messages: conversations.Messages = None,
    models: Any,
    n_predict: Annotated[
        int | None,
        option(
            "-n",
            "--n-predict",
            panel=GENERATION,
            metavar="N",
            help="Most tokens of an answer. Default: what the context has room for.",
        ),
    ] = None,
    sampling: Any,
    seed: options.Seed = None,
    draft: options.Drafters = None,
    drafting: Any,
    memory: Any,
    stats: Annotated[bool, flag("--stats", panel=OUTPUT, help="Figures after each answer.")] = False,
) -> int:
    """Talk with a model: each turn drafted for and verified, from the cache of the one before.

    On a terminal a line is edited, and /help lists the commands. From a pipe each line is a turn, and stdout
    gets the answers alone. Temperature, top-k, top-p and min-p are what the model's file suggests, else 0.8,
    40, 0.95 and 0.05; --temp 0 is greedy.
    """
    if n_predict is not None and n_predict < 1:
        raise UsageError(f"-n {n_predict}: generate at least 1 token")
    begun = conversations.begun(system, messages)
    options.require_seed(seed)
    sampling, given = sampling
    if "temp" in given:
        given["temperature"] = given.pop("temp")
    models["target"] = models["target"] or model_option(MODEL)

    from paceline.assemble import load
    from paceline.cli.chatting import Chat, say, shown
    from paceline.cli.conversation import Conversation
    from paceline.cli.lines import piped, typed_in
    from paceline.engines.suggested import chat_sampling
    from paceline.machine.home import home

    if is_base(models["target"]):
        raise base_model(models["target"])
    terminal = sys.stdin is not None and sys.stdin.isatty() and sys.stdout.isatty()
    with Interrupts():
        llm = load(**models, drafters=draft, **drafting, **memory)
    with llm:
        if not llm.chats:  # of a model without a file
            raise base_model(models["target"])
        sampling = replace(sampling, **chat_sampling(llm.target, given))
        first, by_chance = options.seed_for(seed, sampling)
        conversation = Conversation(llm, begun)
        request = {"max_tokens": n_predict, "seed": first}
        early = Early()
        talk = Chat(llm, conversation, request, sampling, early, interactive=terminal, show_stats=stats)
        if by_chance:
            say(f"{shown(sampling)}; {options.by_chance(first)}")
        if not terminal:
            return talk.go(piped())
        say(f"{llm.target.name}, {llm.target.caps.n_ctx:,} tokens of context")
        with early:
            talk.go(typed_in(home() / HISTORY, say, early.forget))
    return 0


def base_model(name: str) -> ModelError:
    return ModelError(
        f"{name}: is a base model, without a chat template: it goes on with texts (paceline run), and "
        "a chat needs an instruct model"
    )
