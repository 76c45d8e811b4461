"""The settings of another engine's command, and the checks that all engines share."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from paceline.settings import Drafting, make_settings
from paceline.speculative.errors import UsageError

# Settings that other engines have anyway.
ENGINE_DEFAULTS: dict[str, tuple[Any, ...]] = {
    "width": (1,),
    "draft_temp": (0.0,),
    "verify": ("auto", "token"),
    "policy": ("fixed", "p_min"),
    "cross_vocab": ("off",),
    "corpora": ("",),
}


@dataclass(frozen=True)
class EngineRequest:
    """The settings of a command for another engine. "" and 0 leave a setting to the engine.
    model, draft: a folder, a GGUF file, or USER/REPO on the hub.
    drafters: Paceline's names.
    n_draft: the longest draft.
    n_ctx: the context length.
    name: the model's name in requests.
    corpora: names or folders of Paceline's corpora.
    drafting_settings: other fields of Drafting.
    extra_args: further arguments of the engine ("--tensor-parallel-size", "2")."""

    model: str
    draft: str = ""
    drafters: tuple[str, ...] = ("auto",)
    n_draft: int = 0
    n_ctx: int = 0
    host: str = ""
    port: int = 0
    name: str = ""
    api_key: str = ""
    corpora: tuple[str, ...] = ()
    drafting_settings: Mapping[str, Any] = field(default_factory=dict)
    extra_args: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.drafting.plain and (self.drafting_settings or self.draft or self.corpora):
            raise UsageError("nothing is drafted (none): leave out draft model, corpora and draft settings")

    @cached_property
    def drafting(self) -> Drafting:
        """The settings as Drafting. Raises UsageError."""
        n_draft = {"n_draft": self.n_draft} if self.n_draft else {}
        return make_settings(Drafting, {**self.drafting_settings, **n_draft, "drafters": self.drafters})

    def require_supported_settings(self, engine: str, translated: Collection[str]) -> None:
        """Raise UsageError for a setting that is neither translated nor the engine's default."""
        given = {name: getattr(self.drafting, name) for name in self.drafting_settings}
        for name, value in {**given, "corpora": ",".join(self.corpora)}.items():
            if name not in translated and value not in ENGINE_DEFAULTS.get(name, ()):
                raise UsageError(f"{engine} has no counterpart of {name} {value}: leave it out")

    def server_args(self, context: str, taken: Collection[str]) -> list[str]:
        """Return the arguments that engines have in common, and the extra arguments.

        Raises UsageError for an extra argument that Paceline sets.

        context: the engine's flag for the context length.
        taken: prefixes of further flags that Paceline sets."""
        flags = {
            "--model": "",  # set elsewhere in the command
            "--model-path": "",
            context: self.n_ctx,
            "--host": self.host,
            "--port": self.port,
            "--served-model-name": self.name,
            "--api-key": self.api_key,
        }
        for argument in self.extra_args:
            flag = argument.partition("=")[0].replace("_", "-")
            if flag in flags or flag.startswith(tuple(taken)):
                raise UsageError(
                    f"{flag} is made by Paceline, which checks it, and not passed on: use its option"
                )
        return [
            *(word for flag, value in flags.items() if value for word in (flag, str(value))),
            *self.extra_args,
        ]
