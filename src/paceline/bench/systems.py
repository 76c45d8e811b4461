"""Other programs in a bench, each with those of the bench's methods that it supports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from paceline.bench.gate import Contestant
from paceline.bench.method import Method
from paceline.bench.system import System
from paceline.hardware.threads import choose_threads
from paceline.settings import Drafting
from paceline.speculative.errors import UsageError

PLAIN, LOOKUP, MODEL, MTP, EAGLE = ("none",), ("lookup",), ("model",), ("mtp",), ("eagle3",)
# Drafters of each kind of program.
BASELINES: dict[str, tuple[tuple[str, ...], ...]] = {
    "llama-server": (PLAIN, LOOKUP, MODEL, LOOKUP + MODEL, MODEL + LOOKUP, MTP, LOOKUP + MTP, MTP + LOOKUP),
    "llama-speculative": (MODEL,),
    "llama-speculative-simple": (MODEL,),
    "llama-lookup": (LOOKUP,),
    "transformers": (PLAIN, LOOKUP, MODEL),
    "openvino-genai": (PLAIN, LOOKUP, MODEL, EAGLE),
    "openai": (PLAIN,),
}


def parse(texts: Sequence[str]) -> list[tuple[str, str]]:
    """Parse KIND or KIND=WHERE, each as (kind, where). Raises BaselineError for a missing program."""
    from paceline.bench.baselines.llama_server import find_program

    out: list[tuple[str, str]] = []
    for text in texts:
        kind, _, where = text.partition("=")
        why = "given twice" if (kind, where) in out else ""
        if kind not in BASELINES:
            why = f"unknown; choose from {', '.join(BASELINES)}"
        elif (kind, where) == ("openai", ""):
            why = "give its address, as in openai=http://127.0.0.1:8000"
        if why:
            raise UsageError(f"--baseline {text}: {why}")
        if kind.startswith("llama-"):
            find_program(where or kind)
        out.append((kind, where))
    return out


def join(
    entries: list[Contestant], given: Sequence[tuple[str, str]], methods: Sequence[Method], target: Path,
    draft: Path | None, engine: Mapping[str, Any], *, samples: bool = False,
) -> None:  # fmt: skip
    """Start the programs and append them to `entries`, whose owner closes them.
    engine: settings of the target. samples: requests have a temperature. A program's drafted output
    must repeat its own plain output, if it has one; whether that equals the target's is reported."""
    kinds = [kind for kind, _ in given]
    for kind, where in given:
        label = kind if kinds.count(kind) == 1 else f"{kind}={where}".rstrip("=")
        reference = entries[0]
        supported = [method for method in methods if method.drafting.drafters in BASELINES[kind]]
        if not supported:
            names = ", ".join(method.name for method in methods)
            raise UsageError(f"--baseline {kind}: has none of the methods {names}")
        for method in supported:  # plain decoding comes first
            name = label if method.plain else f"{label} {method.name}"
            used = draft if method.needs_draft else None
            system = start(kind, where, name, method.drafting, target, used, engine, samples=samples)
            budget = None if method.plain else method.drafting.budget
            entries.append(Contestant(system, budget, reference, method.plain and kind != "openai"))
            if method.plain:
                reference = entries[-1]


def start(
    kind: str, where: str, name: str, drafting: Drafting, target: Path, draft: Path | None,
    engine: Mapping[str, Any], *, samples: bool,
) -> System:  # fmt: skip
    """Start a program for one method. where: the text after `=`."""
    if kind == "openai":
        from paceline.bench.baselines.openai import OpenAIServer

        return OpenAIServer(where, name=name)
    settings: dict[str, Any] = {"name": name, "threads": choose_threads(engine["threads"])}
    settings["n_draft"] = drafting.n_draft
    if kind == "openvino-genai":
        from paceline.bench.baselines.openvino import OpenVino

        return OpenVino(where, target, draft, drafting=drafting.drafters[0], **settings)
    settings["p_min"] = 0.0 if draft is None else drafting.p_min
    if kind == "transformers":
        from paceline.bench.baselines.hf import Transformers

        return Transformers(target, draft, drafting=drafting.drafters[0], **settings)
    settings |= {name: engine[name] for name in ("n_ctx", "flash_attention", "cache_type", "gpu_layers")}
    if kind == "llama-server":
        from paceline.bench.baselines.llama_server import LlamaServer, find_program

        method, command = ",".join(drafting.drafters), find_program(where)
        return LlamaServer(command, target, draft, method=method, samples=samples, **settings)
    from paceline.bench.baselines.llama_cli import LlamaProgram

    return LlamaProgram(kind, where or None, target, draft, **settings)
