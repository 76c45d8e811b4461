"""`paceline serve`: an OpenAI-compatible server that drafts, with a page to watch it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any

import typer

from paceline.cli import options
from paceline.cli.groups import by_name, drafting, models, takes
from paceline.cli.options import flag, option
from paceline.cli.references import model_option
from paceline.cli.texts import read_text
from paceline.core.errors import MissingExtraError, UsageError

SERVER = "Server"
LIMITS = "Limits"
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@takes(by_name(models), drafting)
def serve(
    *,
    rest: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- ARGUMENT...]", help="Of another engine.", show_default=False),
    ] = None,
    models: Any,
    draft: options.Drafters = None,
    drafting: Any,
    corpora: options.Corpora = None,
    engine: Annotated[
        str | None,
        option(
            "--engine",
            panel=SERVER,
            metavar="NAME",
            help="vllm or sglang: start that server instead, with drafts set up as asked here; what follows "
            "-- goes to it.",
        ),
    ] = None,
    host: Annotated[
        str,
        option("--host", panel=SERVER, metavar="ADDRESS", help="0.0.0.0: every interface."),
    ] = "127.0.0.1",
    port: Annotated[
        int, option("--port", panel=SERVER, metavar="N", help="0 takes any that is free, and prints it.")
    ] = 8080,
    api_key: Annotated[
        list[str] | None,
        option(
            "--api-key",
            panel=SERVER,
            metavar="KEY",
            from_environment=False,
            help="What requests must send; may be repeated. (Others can see it in ps.)",
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, option("--api-key-file", panel=SERVER, metavar="FILE", help="Keys, one a line.")
    ] = None,
    alias: Annotated[
        list[str] | None,
        option(
            "--alias",
            panel=SERVER,
            metavar="NAME",
            from_environment=False,
            help="What requests may call the model; may be repeated. Default: its name here.",
        ),
    ] = None,
    log_json: Annotated[
        bool, flag("--log-json", panel=SERVER, help="Logs as JSON, a line a request.")
    ] = False,
    quiet: Annotated[bool, flag("--quiet", panel=SERVER, help="No line a request.")] = False,
    sessions: Annotated[
        int,
        option(
            "--sessions",
            panel=LIMITS,
            metavar="N",
            help="Requests decoded at once, each with -c tokens of context.",
        ),
    ] = 4,
    queue: Annotated[
        int, option("--queue", panel=LIMITS, metavar="N", help="Requests that may wait; more get a 429.")
    ] = 64,
    per_client: Annotated[
        int,
        option(
            "--per-client",
            panel=LIMITS,
            metavar="N",
            help="Open requests of a key or address; 0: any.",
        ),
    ] = 0,
    apart: Annotated[
        bool,
        flag(
            "--apart", panel=LIMITS, help="Past answers draft for the client (key or address) they were for."
        ),
    ] = False,
    n_predict: Annotated[
        int,
        option("-n", "--n-predict", panel=LIMITS, metavar="N", help="Longest answer; 0: as there is room."),
    ] = 0,
    timeout: Annotated[
        float, option("--timeout", panel=LIMITS, metavar="SECONDS", help="For one answer, waiting included.")
    ] = 600.0,
    body_limit: Annotated[
        float, option("--body-limit", panel=LIMITS, metavar="MB", help="Largest request.")
    ] = 8.0,
    grace: Annotated[
        float,
        option("--grace", panel=LIMITS, metavar="SECONDS", help="For streams to end at Ctrl-C."),
    ] = 30.0,
    chunk: Annotated[
        int,
        option(
            "--chunk",
            panel=LIMITS,
            metavar="N",
            help="Tokens of prompts read in one pass, beside those that are decoding.",
        ),
    ] = 256,
) -> int:
    """Serve a model over HTTP, as OpenAI's API has it: chats, completions, tools, JSON; drafted for, and the
    same text as without.

    http://127.0.0.1:8080/ shows a page to chat and to watch. Ctrl-C lets streams end.
    """
    least = {"--sessions": (sessions, 1), "--queue": (queue, 0), "--per-client": (per_client, 0)}
    least |= {"-n": (n_predict, 0), "--chunk": (chunk, 1), "--port": (port, 0)}
    for name, (value, low) in least.items():
        if value < low:
            raise UsageError(f"{name} {value}: must be at least {low}")
    for name, seconds in (("--timeout", timeout), ("--body-limit", body_limit), ("--grace", grace)):
        if not 0 < seconds < 1e6:
            raise UsageError(f"{name} {seconds:g}: must be above 0")
    if port > 65535:
        raise UsageError(f"--port {port}: must be at most 65535")
    keys = read_keys(api_key, api_key_file)
    models["target"] = models["target"] or "zoo:smollm2"
    names = alias or [default_name(models["target"])]
    if engine is not None or rest:
        return other_engine(engine, rest or [], names, host, port, keys, models, draft, corpora, drafting)
    models |= {name: model_option(models[name]) for name in ("target", "draft")}
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"serving needs {error.name}: pip install 'paceline[serve]' (fastapi, uvicorn, prometheus-client)"
        ) from error

    from paceline.assemble import load
    from paceline.serve import app, listen
    from paceline.serve.asking import Limits
    from paceline.serve.guard import LOCAL, Rules
    from paceline.serve.service import Service

    listening = listen.bind(host, port)  # a port in use is told before a model is loaded
    try:
        with load(**models, drafters=draft, sessions=sessions, corpora=corpora or (), **drafting) as llm:
            listen.logs(log_json, quiet)
            limits = Limits(apart=apart, queue=queue, each=per_client, seconds=timeout, n_predict=n_predict)
            local = host in LOOPBACK
            rules = Rules(keys, (*LOCAL, host) if local and not keys else (), round(body_limit * 1e6))
            service = Service(llm, limits, chunk=chunk)
            made = app.create(service, names, rules)
            at = listening.getsockname()[1]
            shown = f"[{host}]" if ":" in host else host
            if not local and not keys:
                print("no --api-key: whoever reaches this machine can use it", file=sys.stderr)
            print(f"{names[0]} at http://{shown}:{at}/v1, a page at http://{shown}:{at}/", file=sys.stderr)
            listen.run(made, service, listening, grace)
    finally:
        listening.close()
    return 0


def other_engine(
    engine: str | None,
    rest: list[str],
    names: list[str],
    host: str,
    port: int,
    keys: list[str],
    models: Mapping[str, Any],
    draft: str | None,
    corpora: list[str] | None,
    drafting: Mapping[str, Any],
) -> int:
    """Become another engine's server. Raises UsageError for what it cannot do, or would change the output."""
    from paceline.core.settings import Drafting
    from paceline.export import Asked, command, launch

    if engine is None:
        raise UsageError(f"{rest[0]}: arguments after -- are for another engine; name it (--engine)")
    if len(keys) > 1:
        raise UsageError(f"{engine} takes one API key")
    plain = {field.name: field.default for field in fields(Drafting)}
    tuned = {name: value for name, value in drafting.items() if name in plain and plain[name] != value}
    return launch(
        command(
            engine,
            Asked(
                models["target"],
                draft=models["draft"] or "",
                drafters=tuple(draft.split(",")) if draft else ("auto",),
                n_draft=tuned.pop("n_draft", 0),
                n_ctx=models["n_ctx"],
                host=host,
                port=port,
                name=names[0],
                api_key=keys[0] if keys else "",
                corpora=tuple(corpora or ()),
                settings=tuned,
                extra=tuple(rest),
            ),
        )
    )


def read_keys(given: list[str] | None, file: Path | None) -> list[str]:
    """Raises UsageError for keys that HTTP cannot carry."""
    keys = list(given or [])
    if file is not None:
        keys += [line.strip() for line in read_text(file).splitlines() if line.strip()]
        if not keys:
            raise UsageError(f"{file}: holds no key; write one a line")
    elif not keys and (variable := os.environ.get(options.variable("--api-key"))):
        keys = [variable]
    for key in keys:
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise UsageError("an API key must be printable ASCII without spaces, and not empty")
    return keys


def default_name(target: str) -> str:
    """smollm2 for zoo:smollm2, the file's stem for a path."""
    if target.startswith("zoo:"):
        return target.removeprefix("zoo:")
    path = Path(target)
    return path.stem if path.suffix == ".gguf" else target
