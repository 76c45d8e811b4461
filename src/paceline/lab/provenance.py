"""Where a number came from: models, engine, machine, settings. Stored with every record."""

from __future__ import annotations

import hashlib
import platform
from dataclasses import asdict
from functools import cache
from pathlib import Path
from typing import Any

import paceline
from paceline.llm import LLM
from paceline.machine.threads import logical_cores, physical_cores

BLOCK = 1 << 20


@cache
def fingerprint(path: Path) -> str:
    """sha256 over a file's size, first and last MiB (the end is weights): not a hash of the whole file, which
    would take seconds on a 20 GB model."""
    size = path.stat().st_size
    digest = hashlib.sha256(str(size).encode())
    with path.open("rb") as file:
        digest.update(file.read(BLOCK))
        file.seek(max(0, size - BLOCK))
        digest.update(file.read(BLOCK))
    return digest.hexdigest()


def provenance(llm: LLM, request: dict[str, Any]) -> dict[str, Any]:
    from importlib.metadata import version

    def model(engine: Any) -> dict[str, Any]:
        return {
            "name": engine.name,
            "file": engine.path.name,
            "size": engine.path.stat().st_size,
            "fingerprint": fingerprint(engine.path),
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
        "n_ctx": llm.target.caps.n_ctx,
        "exact_rows": llm.target.exact_rows,
        "drafting": asdict(llm.drafting),
        "request": request,
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor()
