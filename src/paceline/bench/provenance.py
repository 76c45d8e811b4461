"""The provenance of a measurement: models, engine, machine and settings. Stored with every record."""

from __future__ import annotations

import platform
from dataclasses import asdict
from typing import Any

import paceline
from paceline.api import LLM
from paceline.backends.interface import Backend
from paceline.hardware.threads import logical_cores, physical_cores
from paceline.models.stores.hub_cache import stated_sha256
from paceline.system.home import cpu_name


def provenance(llm: LLM, request: dict[str, Any]) -> dict[str, Any]:
    settings, identity = llm.target.settings, llm.target.identity()
    return {
        "paceline": paceline.__version__,
        "engine": identity["engine"],
        "target": model(llm.target),
        "draft": model(llm.draft) if llm.draft is not None else None,
        "machine": {
            "system": f"{platform.system()} {platform.machine()}",
            "processor": cpu_name(),
            "physical_cores": physical_cores(),
            "logical_cores": logical_cores(),
            "python": platform.python_version(),
        },
        "role": llm.role,
        "threads": settings["threads"],
        "flash_attention": settings.get("flash_attention"),
        "kernels": identity.get("kernels") or "off",
        "n_ctx": llm.target.caps.n_ctx,
        "exact_rows": settings.get("exact_rows", 0),
        "drafting": asdict(llm.drafting),
        "request": request,
    }


def model(engine: Backend) -> dict[str, Any]:
    """Describe a model. alters: present only if it differs from its file."""
    is_file = engine.path.is_file()
    described = {
        "name": engine.name,
        "file": engine.path.name,
        "size": engine.path.stat().st_size if is_file else engine.weight_bytes,
        "fingerprint": engine.identity()["model"],
        "sha256": (stated_sha256(engine.path) or None) if is_file else None,
        "description": engine.description,
    }
    return described | ({"alters": engine.modification} if engine.modification else {})
