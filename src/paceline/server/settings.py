"""The settings of a server, and its application made of them. --help reads them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.settings import LoadOptions, make_settings
from paceline.speculative.errors import UsageError
from paceline.speculative.sampling_settings import Sampling
from paceline.speculative.validation import setting, validate_fields

if TYPE_CHECKING:
    from fastapi import FastAPI

    from paceline.api import LLM
    from paceline.server.security import SecurityRules
    from paceline.server.service import ServingEngine

PREFILL_CHUNK_TOKENS = 512  # prompt tokens in a pass; it bounds the inter-token latency of other requests
MIN_CONTEXT, MAX_CONTEXT = 4096, 32768  # tokens that are chosen for each slot; agents begin with 16,000
CACHE_SHARE = 0.5  # of the memory that is free beside the weights
SHORT, LONG = 0.001, 1e6  # seconds, or megabytes


@dataclass(frozen=True)
class ServerLimits:
    """Limits of one server. Raises UsageError.
    timeout: from a request's arrival to its last token. sampling: defaults for fields of `Sampling`; the
    other fields have OpenAI's defaults."""

    isolate_clients: bool = setting(False, "A client's answers draft for it only.")
    queue: int = setting(64, "Requests that may wait. More get a 429.", 0)
    per_client: int = setting(0, "Open requests of a key or address; 0: any.", 0)
    timeout: float = setting(600.0, "Seconds for an answer. Waiting counts.", SHORT, LONG)
    n_predict: int = setting(0, "Longest answer; 0: no limit.", 0)
    ping_seconds: float = setting(10.0, "A comment in silent streams; 0: never.", 0, LONG)
    strict: bool = setting(False, "Refuse unknown fields of requests.")
    sampling: Mapping[str, float] = field(default_factory=dict)

    def __post_init__(self) -> None:
        validate_fields(self)
        make_settings(Sampling, self.sampling)


@dataclass(frozen=True)
class ServerSettings(ServerLimits):
    """The options of `paceline serve`, by the same names; `args` in a file for `serve deploy`.
    load: arguments of `paceline.load` (target, draft, drafters, n_ctx, ...); paths are those of the nodes.
    alias: names of the model that requests may use. replicas: "4", or "2..8" for autoscaling.
    num_cpus, num_gpus: resources that each replica reserves; by default it has a thread for each CPU.
    release: any text. A change of it replaces the replicas when the application is deployed again."""

    load: LoadOptions = field(default_factory=LoadOptions)
    alias: tuple[str, ...] = ()
    api_key: tuple[str, ...] = ()
    api_key_file: Path | None = None
    hosts: tuple[str, ...] = ()
    trusted_proxy: tuple[str, ...] = ()
    cors: tuple[str, ...] = ()
    sessions: int = setting(4, "Requests decoded at once. Each has -c tokens.", 1)
    body_limit: float = setting(8.0, "Megabytes of the largest request.", SHORT, LONG)
    shutdown_timeout: float = setting(30.0, "Seconds for streams to end at Ctrl-C.", SHORT, LONG)
    chunk: int = setting(PREFILL_CHUNK_TOKENS, "Prompt tokens of a pass, beside requests that decode.", 1)
    log_json: bool = setting(False, "Logs as JSON, a line a request.")
    quiet: bool = setting(False, "No line a request.")
    replicas: str = "1"
    num_cpus: float = setting(1.0, "CPUs each replica reserves, and threads.", 0)
    num_gpus: float = setting(0.0, "GPUs each replica reserves.", 0)
    release: str = ""

    def __post_init__(self) -> None:
        given: Any = self.load
        if isinstance(given, Mapping):
            if "sessions" in given:
                raise UsageError("load: sessions: say it beside load: how many requests each replica takes")
            object.__setattr__(self, "load", LoadOptions.of(**given))
        for name in ("replicas", "release"):  # YAML reads 4 as a number
            object.__setattr__(self, name, str(getattr(self, name)))
        super().__post_init__()
        parse_replica_range(self.replicas)

    def rules(self) -> SecurityRules:
        from paceline.server.security import SecurityRules

        file, limit = self.api_key_file, round(self.body_limit * 1e6)
        more = [] if file is None else keys_of(Path(file), Path(file).read_text(encoding="utf-8"))
        return SecurityRules([*self.api_key, *more], self.hosts, self.trusted_proxy, limit, cors=self.cors)

    def server(self, llm: LLM, rules: SecurityRules) -> tuple[ServingEngine, FastAPI]:
        """Return the engine of a loaded model, and its ASGI application."""
        from paceline.models.resolve import default_name
        from paceline.server import app, listen
        from paceline.server.service import ServingEngine

        listen.configure_logging(self.log_json, self.quiet)
        service = ServingEngine(llm, self, chunk=self.chunk)
        names = self.alias or [default_name(str(self.loading().target))]
        return service, app.create(service, names, rules)

    def loading(self) -> LoadOptions:
        """Return a replica's options of `load`."""
        engine = replace(self.load.engine, sessions=self.sessions)
        if engine.threads is None and self.num_cpus >= 1:
            engine = replace(engine, threads=int(self.num_cpus))
        return replace(self.load, target=self.load.target or "zoo:smollm2", engine=engine)


def with_context(options: LoadOptions) -> LoadOptions:
    """Return options with a context for each slot, if none is given: as long as the model was trained for,
    and as there is memory for. Models on a GPU, or whose file does not say, have the loader's default."""
    from paceline.doctor.drafts import CACHE_SCALE
    from paceline.hardware.probe import free_memory
    from paceline.models.headers.header import facts_or_note
    from paceline.models.resolve import file_of

    engine, target = options.engine, options.target
    if engine.n_ctx or engine.gpu_layers or target is None:
        return options
    facts = facts_or_note(file_of(target), lambda _: None)
    if facts is None or not facts.n_ctx:
        return options
    each = engine.sessions * facts.kv_bytes * CACHE_SCALE.get(engine.cache_type, 1.0)
    room = CACHE_SHARE * max(0, free_memory() - facts.size)
    fits = min(MAX_CONTEXT, int(room / each) // 256 * 256) if each else MAX_CONTEXT
    return replace(options, engine=replace(engine, n_ctx=min(facts.n_ctx, max(MIN_CONTEXT, fits))))


def keys_of(file: Path, text: str) -> list[str]:
    """Return the keys in a file's text, one per line. Raises UsageError without any: a server without keys
    would answer everybody."""
    keys = [line.strip() for line in text.splitlines() if line.strip()]
    if not keys:
        raise UsageError(f"{file}: holds no key; write one a line")
    return keys


def parse_replica_range(replicas: str) -> tuple[int, int]:
    """Return the bounds of "4" or "2..8". Raises UsageError for anything else."""
    matched = re.fullmatch(r"(\d{1,5})(?:\.\.(\d{1,5}))?", replicas, re.ASCII)
    least, most = (int(matched[1]), int(matched[2] or matched[1])) if matched else (0, 0)
    if not 1 <= least <= most:
        raise UsageError(f"replicas {replicas!r}: say how many, 4 or 2..8")
    return least, most
