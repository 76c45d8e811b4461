"""Methods and model names of other engines."""

from __future__ import annotations

import re
from pathlib import Path

from paceline.drafter_table import DRAFT
from paceline.integrations.export.engine_request import EngineRequest
from paceline.speculative.errors import UsageError
from paceline.system.strict_json import parse_json

COPIES = "copies"  # any drafter that copies from texts
DRAFT_MODEL = "draft_model"
HUB = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+(/[\w./-]+\.gguf)?")
# vLLM takes the kind of a draft from its name, in this order (config/speculative.py).
NAMES = (("eagle-", "eagle"), ("eagle3", "eagle3"), ("dflash", "dflash"), ("dspark", "dspark"))


def method_for(engine: str, request: EngineRequest) -> str:
    """Return the method of the drafters: "" for plain decoding, COPIES, or the draft model's kind.
    Raises UsageError for drafters that the engine does not have or cannot combine."""
    if request.drafting.plain:
        return ""
    names = ",".join(request.drafters)
    if any(row.window for row in request.drafting.rows):
        raise UsageError(
            f"{engine} shows a drafter no rows of the target, which {names} needs: use --draft auto"
        )
    if not request.draft:
        if names != "auto" and any(DRAFT in row.uses for row in request.drafting.rows):
            raise UsageError(f"--draft {names} needs a draft model: give one (-md)")
        return COPIES
    if names not in ("auto", "model"):
        raise UsageError(
            f"{engine} drafts by one method at a time, and {names} with a draft model is another: use "
            "--draft model, or leave out -md"
        )
    return draft_kind(strip_prefix(request.draft))


def strip_prefix(text: str) -> str:
    """Return a model's folder, file or USER/REPO[:QUANT], without Paceline's prefixes.
    Raises UsageError for a name that only Paceline knows, and for a missing file."""
    name = text.removeprefix("hf:").removeprefix("hf.co/")
    path = Path(name).expanduser()
    if path.exists():
        return str(path)
    if HUB.fullmatch(name.partition(":")[0]):
        return name
    raise UsageError(
        f"{text}: other engines do not know this model: give its file, its folder, or USER/REPO of the hub"
    )


def is_gguf(name: str) -> bool:
    """Return True if a name from `strip_prefix` is a GGUF file."""
    path = Path(name)
    if path.is_file():
        with path.open("rb") as file:
            return file.read(4) == b"GGUF"
    # USER/REPO:QUANT, USER/REPO/FILE.gguf
    return not path.exists() and (":" in name or name.lower().endswith(".gguf"))


def draft_kind(draft: str) -> str:
    """Return draft_model, eagle, eagle3, dflash or dspark, by config.json or, as vLLM, by the name.
    Raises UsageError for a damaged config.json."""
    path = Path(draft) / "config.json"
    if path.is_file():
        try:
            config = parse_json(path.read_bytes())
            known = f"{config.get('speculators_model_type')} {config.get('architectures')}".lower()
        except (ValueError, AttributeError) as error:
            raise UsageError(f"{path}: is damaged: give the draft anew") from error
        for kind in ("eagle3", "dflash", "dspark", "eagle"):
            if kind in known:
                return kind
    return next((kind for word, kind in NAMES if word in draft.lower()), DRAFT_MODEL)
