"""What a model is called elsewhere, and what kind of draft it is."""

from __future__ import annotations

import json
import re
from pathlib import Path

from paceline.speculative.errors import UsageError

HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(/[\w./-]+\.gguf)?")
OURS = ("ollama:", "zoo:", "toy:", "view:")
# By which vLLM tells a draft's kind from its name, in this order (config/speculative.py).
NAMES = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))
DRAFT_MODEL = "draft_model"


def plain(text: str, what: str = "model") -> str:
    """The folder, file or USER/REPO[:QUANT] without Paceline's prefixes. Raises UsageError for what only
    Paceline knows, and for a path that leads nowhere."""
    name = text.removeprefix("hf:").removeprefix("hf.co/")
    if name.startswith(OURS):
        raise UsageError(
            f"the {what} {text}: other engines do not know this name: give its file, its folder, or USER/REPO"
        )
    path = Path(name).expanduser()
    if path.exists():
        return str(path)
    if HUB.fullmatch(name.partition(":")[0]):
        return name
    raise UsageError(f"the {what} {text}: no such file or folder, and no USER/REPO of the hub")


def is_gguf(name: str) -> bool:
    """Of a name as `plain` has it."""
    path = Path(name)
    if path.is_file():
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    return not path.exists() and (
        ":" in name or name.lower().endswith(".gguf")
    )  # USER/REPO:QUANT, USER/REPO/FILE.gguf


def kind_of(draft: str) -> str:
    """draft_model, eagle, eagle3, dflash or dspark: by the draft's config.json where it is on this machine,
    and by its name, as vLLM tells it. Raises UsageError."""
    path = Path(draft) / "config.json"
    if path.is_file():
        try:
            config = json.loads(path.read_bytes())
            said = [config.get("speculators_model_type") or "", *(config.get("architectures") or ())]
            known = " ".join(said).lower()
        except (ValueError, AttributeError, TypeError) as error:
            raise UsageError(f"{path}: is damaged: give the draft anew, or name the method") from error
        for kind in ("eagle3", "dflash", "dspark", "eagle"):
            if kind in known:
                return kind
    name = draft.lower()
    return next((kind for word, kind in NAMES if word in name), DRAFT_MODEL)
