"""Where a number came from: models, engine, machine, settings. Stored with every record."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Any

import paceline
from paceline.llm import LLM
from paceline.machine.hardware.threads import logical_cores, physical_cores
from paceline.machine.identity import cpu_name, fingerprint
from paceline.machine.stores.hub_layout import stated_sha256


def provenance(llm: LLM, request: dict[str, Any]) -> dict[str, Any]:
    from importlib.metadata import version

    def model(engine: Any) -> dict[str, Any]:
        return {
            "name": engine.name,
            "file": engine.path.name,
            "size": engine.path.stat().st_size,
            "fingerprint": fingerprint(engine.path),
            "sha256": stated_sha256(engine.path) or None,
            "description": engine.description,
        }

    return {
        "paceline": paceline.__version__,
        "engine": f"llama-cpp-python {version('llama-cpp-python')}",
        "target": model(llm.target),
        "draft": model(llm.draft) if llm.draft is not None else None,
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": cpu_name(),
            "physical_cores": physical_cores(),
            "logical_cores": logical_cores(),
            "python": platform.python_version(),
        },
        "threads": llm.target.threads,
        "flash_attention": llm.target.flash_attention,
        "n_ctx": llm.target.caps.n_ctx,
        "exact_rows": llm.target.exact_rows,
        "drafting": asdict(llm.drafting),
        "request": request,
    }
