"""The settings of a server, and its application made of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

from fastapi import FastAPI
from pydantic import ConfigDict, Field, field_validator

from paceline.api import LLM
from paceline.doctor.draft_advice import CACHE_SCALE
from paceline.hardware.probe import free_memory
from paceline.models.headers.header import facts_or_note
from paceline.models.resolve import default_name, file_of
from paceline.server import app, listen
from paceline.server.keys import keys_of
from paceline.server.security import SecurityRules
from paceline.server.service import PREFILL_CHUNK_TOKENS, Positive, ServerLimits, ServingEngine
from paceline.settings import LoadOptions
from paceline.speculative.errors import UsageError

MIN_CONTEXT, MAX_CONTEXT = 4096, 32768  # tokens that are chosen for each slot; agents begin with 16,000
CACHE_SHARE = 0.5  # of the memory that is free beside the weights


class ServerSettings(ServerLimits):
    """The options of `paceline serve`, by the same names; `args` in a file for `serve deploy`.
    load: arguments of `paceline.load` (target, draft, drafters, n_ctx, ...); paths are those of the nodes.
    alias: names of the model that requests may use. replicas: "4", or "2..8" for autoscaling.
    num_cpus, num_gpus: resources that each replica reserves; by default it has a thread for each CPU.
    release: any text. A change of it replaces the replicas when the application is deployed again."""

    load: LoadOptions = LoadOptions()
    alias: list[str] = Field(default_factory=list)
    api_key: list[str] = Field(default_factory=list)
    api_key_file: Path | None = None
    hosts: list[str] = Field(default_factory=list)
    trusted_proxy: list[str] = Field(default_factory=list)
    cors: list[str] = Field(default_factory=list)
    sessions: Annotated[int, Field(ge=1)] = 4
    body_limit: Positive = 8.0
    shutdown_timeout: Positive = 30.0
    chunk: Annotated[int, Field(ge=1)] = PREFILL_CHUNK_TOKENS
    log_json: bool = False
    quiet: bool = False
    replicas: str = "1"
    num_cpus: Annotated[float, Field(ge=0)] = 1.0
    num_gpus: Annotated[float, Field(ge=0)] = 0.0
    release: str = ""

    model_config = ConfigDict(coerce_numbers_to_str=True)  # YAML reads 4 as a number

    @field_validator("load", mode="before")
    @classmethod
    def _read_load(cls, given: LoadOptions | Mapping[str, Any]) -> LoadOptions:
        if isinstance(given, LoadOptions):
            return given
        if "sessions" in given:
            raise UsageError("load: sessions: say it beside load: it is how many requests a replica takes")
        return LoadOptions.of(**given)

    @field_validator("replicas")
    @classmethod
    def _validate_replicas(cls, replicas: str) -> str:
        parse_replica_range(replicas)
        return replicas

    def rules(self) -> SecurityRules:
        keys, file = list(self.api_key), self.api_key_file
        if file is not None:
            keys += keys_of(file, file.read_text(encoding="utf-8"))
        limit = round(self.body_limit * 1e6)
        return SecurityRules(keys, self.hosts, self.trusted_proxy, limit, cors=self.cors)

    def server(self, llm: LLM, rules: SecurityRules) -> tuple[ServingEngine, FastAPI]:
        """Return the engine of a loaded model, and its ASGI application."""
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


def parse_replica_range(replicas: str) -> tuple[int, int]:
    """Return the bounds of "4" or "2..8". Raises ValueError, which pydantic expects, for anything else."""
    matched = re.fullmatch(r"(\d{1,5})(?:\.\.(\d{1,5}))?", replicas, re.ASCII)
    least, most = (int(matched[1]), int(matched[2] or matched[1])) if matched else (0, 0)
    if not 1 <= least <= most:
        raise ValueError(f"{replicas!r}: say how many, 4 or 2..8")
    return least, most
