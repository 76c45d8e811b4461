"""Which other programs join a bench, and as what: each in the bench's own methods, as far as it has them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from paceline.bench.entry import Contestant
from paceline.bench.method import Method
from paceline.bench.system import System
from paceline.config import Drafting
from paceline.hardware.threads import choose_threads
from paceline.speculative.errors import UsageError

if TYPE_CHECKING:
    from paceline.bench.baselines.llama_cli import LlamaProgram

DRAFTED_BY = ("lookup", "model")  # what other programs have too


@dataclass(frozen=True)
class BaselineSettings:
    """What a program is given. where: the text after `=` in --peer, "" without. label: what its rows are
    called."""

    where: str
    label: str
    target: Path
    draft: Path | None
    engine: Mapping[str, Any]

    @property
    def path(self) -> str | None:
        return self.where or None

    def named(self, method: Method) -> str:
        return self.label if method.plain else f"{self.label} {method.name}"

    def settings(self) -> dict[str, Any]:
        """What llama.cpp's programs take."""
        names = ("n_ctx", "flash_attention", "cache_type", "gpu_layers")
        return {name: self.engine[name] for name in names} | {
            "threads": choose_threads(self.engine["threads"])
        }


def llama_server(
    place: BaselineSettings, methods: Sequence[Method]
) -> Iterator[tuple[System, Drafting | None]]:
    from paceline.bench.baselines.llama_server import LlamaServer, find_server

    command = find_server(place.path)
    for method in methods:
        drafting = method.drafting
        if not method.plain and not set(drafting.drafters) <= set(DRAFTED_BY):
            continue
        yield (
            LlamaServer(
                command,
                place.target,
                place.draft if method.needs_draft else None,
                name=place.named(method),
                method="plain" if method.plain else ",".join(drafting.drafters),
                n_draft=None if method.plain else drafting.n_draft,
                p_min=drafting.p_min if method.needs_draft else None,
                **place.settings(),
            ),
            None if method.plain else drafting,
        )


def llama_speculative(
    place: BaselineSettings, methods: Sequence[Method]
) -> Iterator[tuple[System, Drafting | None]]:
    from paceline.bench.baselines.llama_cli import LlamaSpeculative

    return _programs(LlamaSpeculative, "model", place, methods)


def llama_speculative_simple(
    place: BaselineSettings, methods: Sequence[Method]
) -> Iterator[tuple[System, Drafting | None]]:
    from paceline.bench.baselines.llama_cli import LlamaSpeculativeSimple

    return _programs(LlamaSpeculativeSimple, "model", place, methods)


def llama_lookup(
    place: BaselineSettings, methods: Sequence[Method]
) -> Iterator[tuple[System, Drafting | None]]:
    from paceline.bench.baselines.llama_cli import LlamaLookup

    return _programs(LlamaLookup, "lookup", place, methods)


def _programs(
    kind: type[LlamaProgram], drafter: str, place: BaselineSettings, methods: Sequence[Method]
) -> Iterator[tuple[System, Drafting | None]]:
    """They draft in one way each."""
    for method in methods:
        if method.drafting.drafters == (drafter,):
            draft = place.draft if method.needs_draft else None
            name, n_draft = place.named(method), method.drafting.n_draft
            knows: dict[str, Any] = {"p_min": method.drafting.p_min} if kind.knows_p_min else {}
            system = kind(
                place.path, place.target, draft, name=name, n_draft=n_draft, **knows, **place.settings()
            )
            yield system, method.drafting


def transformers(
    place: BaselineSettings, methods: Sequence[Method]
) -> Iterator[tuple[System, Drafting | None]]:
    from paceline.bench.baselines.hf import Transformers

    threads = choose_threads(place.engine["threads"])
    for method in methods:
        drafting = method.drafting
        if not method.plain and drafting.drafters not in (("lookup",), ("model",)):
            continue
        yield (
            Transformers(
                place.target,
                place.draft if method.needs_draft else None,
                name=place.named(method),
                drafting=drafting.drafters[0],
                n_draft=drafting.n_draft,
                p_min=drafting.p_min if method.needs_draft else 0.0,
                threads=threads,
            ),
            None if method.plain else drafting,
        )


def openai(place: BaselineSettings, _: Sequence[Method]) -> Iterator[tuple[System, Drafting | None]]:
    from paceline.bench.baselines.openai import OpenAIServer

    yield OpenAIServer(place.where, name=place.label), None


KINDS: dict[str, Callable[[BaselineSettings, Sequence[Method]], Iterator[tuple[System, Drafting | None]]]] = {
    "llama-server": llama_server,
    "llama-speculative": llama_speculative,
    "llama-speculative-simple": llama_speculative_simple,
    "llama-lookup": llama_lookup,
    "transformers": transformers,
    "openai": openai,
}


def parse(texts: Sequence[str]) -> list[tuple[str, str]]:
    """KIND or KIND=WHERE, each as (kind, where). Raises UsageError."""
    out: list[tuple[str, str]] = []
    for text in texts:
        kind, _, where = text.partition("=")
        if kind not in KINDS:
            raise UsageError(f"--peer {text}: unknown; choose from {', '.join(KINDS)}")
        if (kind, where) in out:
            raise UsageError(f"--peer {text}: given twice")
        out.append((kind, where))
    return out


def require(given: Sequence[tuple[str, str]]) -> None:
    """Raises PeerError or UsageError where a program is nowhere to be found: all this may be asked before
    anything is loaded."""
    from paceline.bench.baselines.llama_cli import find
    from paceline.bench.baselines.llama_server import find_server

    for kind, where in given:
        if kind == "llama-server":
            find_server(where or None)
        elif kind.startswith("llama-"):
            find(where or kind)
        elif kind == "openai" and not where:
            raise UsageError("--peer openai: give its address, as in openai=http://127.0.0.1:8000")


def join(
    entries: list[Contestant],
    given: Sequence[tuple[str, str]],
    methods: Sequence[Method],
    place: Callable[[str, str], BaselineSettings],
) -> None:
    """Start the programs and add them to `entries` one by one, whose owner closes them. place: of `where` and
    the label. A program's drafted output has to repeat its own plain output where there is one; whether that
    is the target's is told too."""
    ours = entries[0]
    kinds = [kind for kind, _ in given]
    for kind, where in given:
        label = kind if kinds.count(kind) == 1 else f"{kind}={where}".rstrip("=")
        before, plain = len(entries), None
        for system, drafting in KINDS[kind](place(where, label), methods):
            budget = None if drafting is None else drafting.budget
            entry = Contestant(
                system,
                budget,
                reference=plain or ours,
                own_plain=plain is None and budget is None and kind != "openai",
            )
            entries.append(entry)
            plain = plain or (entry if budget is None else None)
        if len(entries) == before:
            raise UsageError(
                f"--peer {kind}: has none of the methods {', '.join(method.name for method in methods)}"
            )
