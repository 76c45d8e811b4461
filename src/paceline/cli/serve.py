"""`paceline serve`: an OpenAI-compatible server that drafts, with a page to watch it."""

from __future__ import annotations

import inspect
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args

from paceline.cli import groups, options
from paceline.cli.groups import OptionGroup, option_table, setting_options, with_option_groups
from paceline.cli.options import argument
from paceline.cli.output import print_note
from paceline.cli.references import resolve_models
from paceline.cli.texts import read_text
from paceline.server.settings import ServerSettings, keys_of, with_context
from paceline.settings import AUTO
from paceline.speculative.errors import MissingExtraError, UsageError

SERVER = "Server"
LIMITS = "Limits"
REPLICAS = "Replicas"
# Options that the servers of other engines have, too.
SHARED = {
    "rest",
    "drafters",
    "corpora",
    "profile",
    "engine",
    "host",
    "port",
    "api_key",
    "api_key_file",
    "alias",
}
ADDRESS_OPTIONS = OptionGroup([
    *option_table(
        SERVER,
        ("engine", str | None, None, "--engine", "NAME", "Start vllm, sglang, llama-server. -- goes to it."),
        ("host", str, "127.0.0.1", "--host", "ADDRESS", "Address; 0.0.0.0: all."),
        ("port", int, 8080, "--port", "N", "Port. 0: any that is free.", 0, 65535),
        ("api_key_file", Path | None, None, "--api-key-file", "FILE", "Keys, one a line."),
    ),
    *option_table(
        SERVER,
        ("api_key", list[str] | None, None, "--api-key", "KEY", "Required of requests. Others see it in ps."),
        ("trusted_proxy", list[str] | None, None, "--trusted-proxy", "ADDRESS",
         "Its X-Forwarded-For names the client; may be repeated."),
        ("cors", list[str] | None, None, "--cors", "ORIGIN", "Let its web pages in; '*': any. Repeatable."),
        ("alias", list[str] | None, None, "--alias", "NAME", "Name of the model; may have *. Repeatable."),
        env=False,
    ),
])  # fmt: skip
RENAMED = {"n_predict": "-n --n-predict", "num_cpus": "--replica-cpus", "num_gpus": "--replica-gpus"}
SETTINGS_OPTIONS = OptionGroup([
    *setting_options(SERVER, ServerSettings, "log_json", "quiet", "strict", "ping_seconds"),
    *setting_options(LIMITS, ServerSettings, "sessions", "queue", "per_client", "isolate_clients",
                     "n_predict", "timeout", "body_limit", "shutdown_timeout", "chunk", renamed=RENAMED),
    *option_table(
        REPLICAS,
        ("replicas", str | None, None, "--replicas", "N[..M]", "Servers under Ray Serve. N..M: by load."),
    ),
    *setting_options(REPLICAS, ServerSettings, "num_cpus", "num_gpus", renamed=RENAMED),
])  # fmt: skip


@with_option_groups(
    models=groups.MODEL_OPTIONS,
    drafting=groups.DRAFTING_OPTIONS,
    address=ADDRESS_OPTIONS,
    settings=SETTINGS_OPTIONS,
    sampling=groups.SERVER_SAMPLING_OPTIONS,
)
def serve(
    *,
    rest: Annotated[list[str] | None, argument("[-- ARGUMENT...]", "Of another engine.")] = None,
    models: Any,
    drafters: options.Drafters = None,
    drafting: Any,
    corpora: options.Corpora = None,
    profile: options.Profile = AUTO,
    address: Any,
    settings: Any,
    sampling: Any,
) -> int:
    """Serve a model over HTTP with OpenAI's API: chats, completions, tools and JSON, with lossless drafting.

    http://127.0.0.1:8080/ shows a page to chat and to watch. Ctrl-C lets streams end."""
    given = {"rest": rest, "drafters": drafters, "corpora": corpora, **address, **settings, **sampling}
    engine, host, port = (address[name] for name in ("engine", "host", "port"))

    from paceline.models.resolve import default_name

    models = replace(models, target=models.target or "zoo:smollm2")
    names = address["alias"] or [default_name(str(models.target))]
    loading = groups.with_drafting(models, drafters, drafting, corpora=corpora, profile=profile)
    keys = read_keys(address["api_key"], address["api_key_file"])
    if rest and engine is None:
        raise UsageError(f"{rest[0]}: arguments after -- are for another engine; name it (--engine)")
    if engine is not None:
        from paceline.integrations.export import command, launch, request_of

        require_unset(engine, given)
        if len(keys) > 1:
            raise UsageError(f"{engine} takes one API key")
        served = {"host": host, "port": port, "name": names[0], "api_key": keys[0] if keys else ""}
        request = request_of(loading, **served, extra_args=tuple(rest or ()))
        return launch(command(engine, request))
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        install = "pip install 'paceline[serve]' (fastapi, uvicorn, prometheus-client)"
        raise MissingExtraError(f"serving needs {error.name}: {install}") from error

    from paceline.server import listen, replicas
    from paceline.server.security import LOCAL

    local = host in LOCAL
    if not local and not keys:
        print_note("no --api-key: whoever reaches this machine can use it")
    n_replicas = settings.pop("replicas")
    config = ServerSettings(
        load=loading,
        alias=tuple(names),
        trusted_proxy=address["trusted_proxy"] or (),
        cors=address["cors"] or (),
        api_key=tuple(keys),
        hosts=(*LOCAL, host) if local and not keys else (),
        sampling=sampling,
        replicas="1" if n_replicas is None else n_replicas,
        **settings,
    )
    rules = config.rules()
    if n_replicas is not None:
        if port == 0:
            raise UsageError("--port 0: Ray listens on every node, and needs to be told where: name a port")
        resolve_models(models)  # raises for a name that is none
        target, draft = (absolute_path(name) for name in (models.target, models.draft))
        paths = tuple(absolute_path(name) or "" for name in loading.corpora)
        deployed = replace(loading, target=target, draft=draft, corpora=paths)
        return replicas.run(replace(config, load=deployed), host, port)

    from paceline.loading import load_options

    listening = listen.bind(host, port)  # a port in use is an error before a model is looked for and loaded
    try:
        engine = replace(loading.engine, sessions=config.sessions)
        with load_options(with_context(resolve_models(replace(loading, engine=engine)))) as llm:
            service, app = config.server(llm, rules)
            url = f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}"
            context = f"{llm.target.caps.n_ctx:,} tokens of context"
            print_note(f"{names[0]} at {url}/v1, a page at {url}/, {context}")
            listen.run(app, service, listening, config.shutdown_timeout)
    finally:
        listening.close()
    return 0


def require_unset(engine: str, given: Mapping[str, Any]) -> None:
    """Raise UsageError for an option of Paceline's server that was given for another engine's."""
    for name, parameter in inspect.signature(serve).parameters.items():
        if name in given and name not in SHARED and given[name] not in (parameter.default, None, []):
            option = str(get_args(parameter.annotation)[1].default)  # the first of its names, for typer
            own = f"{option.partition('/')[0]} is for Paceline's own server"
            raise UsageError(f"{own}: {engine}'s arguments go after --")


def absolute_path(name: str | Path | None) -> str | Path | None:
    """Return the absolute path of an existing file, for use in other folders; any other name as it is."""
    return name if name is None or not Path(name).exists() else str(Path(name).absolute())


def read_keys(given: list[str] | None, file: Path | None) -> list[str]:
    """Return the API keys of options, a file or the environment. Raises UsageError for a file without any."""
    if file is not None:
        return [*(given or ()), *keys_of(file, read_text(file))]
    variable = os.environ.get(options.variable("--api-key"))
    return given or ([variable] if variable else [])
