"""`paceline serve`: an OpenAI-compatible server that drafts, with a page to watch it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Annotated, Any, get_args

from paceline.cli import options
from paceline.cli.groups import DRAFTING_OPTIONS, MODEL_OPTIONS, SERVER_SAMPLING_OPTIONS, with_option_groups
from paceline.cli.options import argument, flag, option
from paceline.cli.output import print_note
from paceline.cli.references import resolve_models
from paceline.cli.texts import read_text
from paceline.speculative.errors import MissingExtraError, UsageError

SERVER = "Server"
LIMITS = "Limits"
REPLICAS = "Replicas"
# Options that another engine's server has, too.
SHARED = frozenset({"rest", "draft", "corpora", "engine", "host", "port", "api_key", "api_key_file", "alias"})
LOOPBACK = ("127.0.0.1", "localhost", "::1")


@with_option_groups(models=MODEL_OPTIONS, drafting=DRAFTING_OPTIONS, sampling=SERVER_SAMPLING_OPTIONS)
def serve(
    *,
    rest: Annotated[
        list[str] | None,
        argument("[-- ARGUMENT...]", "Of another engine."),
    ] = None,
    models: Any,
    draft: options.Drafters = None,
    drafting: Any,
    corpora: options.Corpora = None,
    engine: Annotated[
        str | None,
        option(
            SERVER,
            "--engine",
            "NAME",
            "vllm or sglang: start that server instead, with drafts set up as asked here; what follows "
            "-- goes to it.",
        ),
    ] = None,
    host: Annotated[str, option(SERVER, "--host", "ADDRESS", "0.0.0.0: every interface.")] = "127.0.0.1",
    port: Annotated[
        int, option(SERVER, "--port", "N", "0 takes any that is free, and prints it.", minimum=0)
    ] = 8080,
    trusted_proxy: Annotated[
        list[str] | None,
        option(
            SERVER,
            "--trusted-proxy",
            "ADDRESS",
            "Whose X-Forwarded-For names the client; may be repeated.",
            env=False,
        ),
    ] = None,
    api_key: Annotated[
        list[str] | None,
        option(
            SERVER,
            "--api-key",
            "KEY",
            "What requests must send; may be repeated. (Others can see it in ps.)",
            env=False,
        ),
    ] = None,
    api_key_file: Annotated[
        Path | None, option(SERVER, "--api-key-file", "FILE", "Keys, one a line.")
    ] = None,
    alias: Annotated[
        list[str] | None,
        option(
            SERVER,
            "--alias",
            "NAME",
            "What requests may call the model; may be repeated. Default: its name here.",
            env=False,
        ),
    ] = None,
    log_json: Annotated[bool, flag(SERVER, "--log-json", "Logs as JSON, a line a request.")] = False,
    quiet: Annotated[bool, flag(SERVER, "--quiet", "No line a request.")] = False,
    sessions: Annotated[
        int,
        option(
            LIMITS, "--sessions", "N", "Requests decoded at once, each with -c tokens of context.", minimum=1
        ),
    ] = 4,
    queue: Annotated[
        int, option(LIMITS, "--queue", "N", "Requests that may wait; more get a 429.", minimum=0)
    ] = 64,
    per_client: Annotated[
        int, option(LIMITS, "--per-client", "N", "Open requests of a key or address; 0: any.", minimum=0)
    ] = 0,
    apart: Annotated[
        bool, flag(LIMITS, "--apart", "Past answers draft for the client (key or address) they were for.")
    ] = False,
    n_predict: Annotated[
        int, option(LIMITS, "-n --n-predict", "N", "Longest answer; 0: as there is room.", minimum=0)
    ] = 0,
    sampling: Any,
    timeout: Annotated[
        float, option(LIMITS, "--timeout", "SECONDS", "For one answer, waiting included.")
    ] = 600.0,
    body_limit: Annotated[float, option(LIMITS, "--body-limit", "MB", "Largest request.")] = 8.0,
    grace: Annotated[float, option(LIMITS, "--grace", "SECONDS", "For streams to end at Ctrl-C.")] = 30.0,
    chunk: Annotated[
        int,
        option(
            LIMITS,
            "--chunk",
            "N",
            "Tokens of prompts read in one pass, beside those that are decoding.",
            minimum=1,
        ),
    ] = 512,
    replicas: Annotated[
        str | None,
        option(
            REPLICAS,
            "--replicas",
            "N[..M]",
            "So many servers under Ray Serve; N..M: as many as there is work for.",
        ),
    ] = None,
    replica_cpus: Annotated[
        float, option(REPLICAS, "--replica-cpus", "X", "CPUs each reserves, and threads.")
    ] = 1.0,
    replica_gpus: Annotated[float, option(REPLICAS, "--replica-gpus", "X", "GPUs each reserves.")] = 0.0,
) -> int:
    """Serve a model over HTTP, as OpenAI's API has it: chats, completions, tools, JSON; drafted for, and the
    same text as without.

    http://127.0.0.1:8080/ shows a page to chat and to watch. Ctrl-C lets streams end.
    """
    given = dict(locals()) | sampling

    from paceline.models.resolve import default_name

    models["target"] = models["target"] or "zoo:smollm2"
    names = alias or [default_name(models["target"])]
    loading = {**models, "drafters": draft, "corpora": corpora or (), **drafting}
    if engine is not None or rest:
        from paceline.config import Drafting
        from paceline.integrations.export import EngineRequest, command, launch

        if engine is None:
            raise UsageError(
                f"{(rest or [''])[0]}: arguments after -- are for another engine; name it (--engine)"
            )
        require_unset(engine, given)
        keys = read_keys(api_key, api_key_file)
        if len(keys) > 1:
            raise UsageError(f"{engine} takes one API key")
        plain = {field.name: field.default for field in fields(Drafting)}
        tuned = {name: value for name, value in drafting.items() if name in plain and plain[name] != value}
        requested = EngineRequest(
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
            drafting_settings=tuned,
            extra_args=tuple(rest or ()),
        )
        return launch(command(engine, requested))
    models = resolve_models(models)
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(
            f"serving needs {error.name}: pip install 'paceline[serve]' (fastapi, uvicorn, prometheus-client)"
        ) from error

    from pydantic import ValidationError

    from paceline.server import cluster, listen
    from paceline.server.replicas import ReplicaSettings
    from paceline.server.security import LOCAL

    keys, local = read_keys(api_key, api_key_file), host in LOOPBACK
    if not local and not keys:
        print_note("no --api-key: whoever reaches this machine can use it")
    try:
        settings = ReplicaSettings(
            load=loading,
            alias=names,
            trusted_proxy=trusted_proxy or [],
            api_key=keys,
            hosts=[*LOCAL, host] if local and not keys else [],
            sessions=sessions,
            queue=queue,
            per_client=per_client,
            apart=apart,
            n_predict=n_predict,
            sampling=sampling,
            timeout=timeout,
            body_limit=body_limit,
            grace=grace,
            chunk=chunk,
            log_json=log_json,
            quiet=quiet,
            replicas=replicas or "1",
            num_cpus=replica_cpus,
            num_gpus=replica_gpus,
        )
    except ValidationError as error:
        wrong = error.errors()[0]
        name = str(wrong["loc"][0]).replace("_", "-").replace("num-", "replica-")
        raise UsageError(f"--{name}: {wrong['msg'].removeprefix('Value error, ')}") from error
    settings.rules(), settings.limits()  # what cannot be is told before a model is loaded
    if replicas is not None:
        if port == 0:
            raise UsageError("--port 0: Ray listens on every node, and needs to be told where: name a port")
        for name in ("target", "draft"):
            settings.load[name] = absolute_path(settings.load[name])
        settings.load["corpora"] = [absolute_path(one) for one in settings.load["corpora"]]
        return cluster.run(settings, host, port)

    from paceline.loading import load

    listening = listen.bind(host, port)  # a port in use is told before a model is loaded
    try:
        with load(**(loading | models), sessions=sessions) as llm:
            service, made = settings.server(llm)
            at = listening.getsockname()[1]
            shown = f"[{host}]" if ":" in host else host
            print_note(f"{names[0]} at http://{shown}:{at}/v1, a page at http://{shown}:{at}/")
            listen.run(made, service, listening, grace)
    finally:
        listening.close()
    return 0


def require_unset(engine: str, given: Mapping[str, Any]) -> None:
    """Raises UsageError for an option of our own server that was given for another engine's."""
    for name, parameter in inspect.signature(serve).parameters.items():
        if name in given and name not in SHARED and given[name] not in (parameter.default, None, []):
            names: str = get_args(parameter.annotation)[1].default  # where typer has the first of its names
            option = names.partition("/")[0]
            raise UsageError(f"{option} is for Paceline's own server: {engine}'s arguments go after --")


def absolute_path(name: str | None) -> str | None:
    """A path from the root, for processes that are elsewhere; a name is what each node has by it."""
    return name if name is None or not Path(name).exists() else str(Path(name).absolute())


def read_keys(given: list[str] | None, file: Path | None) -> list[str]:
    """API keys of options, a file or the environment. Raises UsageError for a file without any."""
    found = list(given or [])
    if file is not None:
        found += [line.strip() for line in read_text(file).splitlines() if line.strip()]
        if not found:
            raise UsageError(f"{file}: holds no key; write one a line")
    elif not found and (variable := os.environ.get(options.variable("--api-key"))):
        found = [variable]
    return found
