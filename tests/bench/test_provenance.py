"""The provenance of a record: models, engine, machine and settings."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import paceline
from paceline.backends.registry import kernel_status
from paceline.bench.provenance import provenance
from paceline.hardware.threads import logical_cores, physical_cores
from paceline.settings import Drafting
from paceline.system.home import file_fingerprint


def test_a_record_can_be_written_and_names_all_that_matters(models: Path) -> None:
    with paceline.load(models / "target.gguf", "".join([str(models), "/draft.gguf"]), threads=1) as llm:
        record = json.loads(json.dumps(provenance(llm, {"seed": 7})))
    assert record["paceline"] == paceline.__version__
    assert record["engine"].startswith("llama-cpp-python ")
    assert record["target"]["fingerprint"] == file_fingerprint(models / "target.gguf")
    assert record["target"]["size"] == (models / "target.gguf").stat().st_size
    assert record["draft"]["file"] == "draft.gguf"
    assert record["machine"]["physical_cores"] == physical_cores()
    assert record["machine"]["logical_cores"] == logical_cores()
    assert record["kernels"] == (kernel_status(models / "target.gguf").path or "off")
    assert (record["threads"], record["n_ctx"], record["request"]) == (1, 512, {"seed": 7})
    assert record["drafting"] == json.loads(json.dumps(asdict(Drafting(("auto",)))))
