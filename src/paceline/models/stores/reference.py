"""Model references of the command line, parsed without downloading.

    models/a.gguf           a path; an existing path wins over every other reading
    ollama:llama3.2:3b      Ollama's store; also ollama:user/name:tag
    hf.co/user/repo:Q4_K_M  the Hugging Face cache; also user/repo[:quant], hf:user/repo, a page's address
    zoo:smollm2             the zoo: models that come with Paceline or with a Python package

A file of a repository is selected as in llama.cpp (common/download.cpp). Without Q4_K_M or Q8_0, llama.cpp
takes the first file; Paceline requires a choice."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from paceline.models.headers.plain_file import similar_files
from paceline.speculative.errors import UsageError

PATH, OLLAMA, HUB, ZOO = "path", "ollama", "hub", "zoo"
FORMS = "a path, ollama:NAME[:TAG], hf.co/USER/REPO[:QUANT] or zoo:smollm2"
MAX_NAME_CHARACTERS = 512  # of a file name in a repository
MAX_PART_BYTES = 240  # of one part of a file name: file systems take 255
DEFAULT_QUANTISATIONS = ("Q4_K_M", "Q8_0")
# Files beside a model, by llama.cpp's names (common/download.cpp).
AUXILIARY_FILES = {
    "mmproj": "a projector for pictures or sound",
    "imatrix": "an importance matrix",
    "mtp-": "a file of MTP layers without their model",
}
DRAFT_HEADS = ("eagle3-", "dflash-", "dspark-", "mtp-gemma")  # in names of GGUF files

# Files of a draft head in a repository: its configuration, one of the weights, and what Paceline adds.
HEAD_CONFIG = "config.json"
HEAD_WEIGHTS = ("model.safetensors", "pytorch_model.bin", "medusa_lm_head.safetensors", "medusa_lm_head.pt")
HEAD_EXTRAS = ("card.json", "target_sample.safetensors")
# Entries of that configuration that no whole model's has.
HEAD_KEYS = frozenset(
    ("paceline_head", "speculators_model_type", "dflash_config", "medusa_num_heads", "draft_vocab_size")
)

_WORD = r"[A-Za-z0-9_]"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
_ADDRESS = re.compile(
    r"(?:hf:(?://)?|(?:https?:/{1,2})?(?:www\.)?(?:huggingface\.co|hf\.co)/)(.*)", re.IGNORECASE
)
# A browser's address of a file: user/repo/blob/main/file.gguf?download=true
_PAGE = re.compile(r"([^/]+/[^/]+)/(?:tree|blob|resolve)/main(?:/([^?]*))?(?:\?.*)?")
# Special names on Windows.
_ODD = re.compile(r'[<>:"\\|?*]')
_DEVICE = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³]) *(?:\..*)?", re.IGNORECASE)
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})")
_LABEL = re.compile(
    rf"(?<!{_WORD})((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|FP?16|FP?32|MXFP4\w*|NVFP4\w*))(?!{_WORD})",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Reference:
    """A parsed model reference.
    kind: PATH, OLLAMA, HUB or ZOO.
    name: the path; Ollama's host/namespace/name; USER/REPO; or a name of the zoo.
    tag: Ollama's tag; a repository's quantisation or file name, empty for the default."""

    kind: str
    name: str
    tag: str = ""

    def __str__(self) -> str:
        if self.kind == PATH:
            return self.name
        if self.kind == OLLAMA:
            return f"ollama:{self.ollama}"
        tag = f":{self.tag}" if self.tag else ""
        return f"hf.co/{self.name}{tag}" if self.kind == HUB else f"zoo:{self.name}"

    @property
    def ollama(self) -> str:
        """Return the name that Ollama uses."""
        return f"{self.name.removeprefix('registry.ollama.ai/').removeprefix('library/')}:{self.tag}"


@dataclass(frozen=True)
class LocalFile:
    """A model file on this machine.
    sha256: as its store states it; empty if unknown.
    downloaded_bytes: received by this call. hash_verified: True if this call verified sha256.
    note: what its user should know."""

    path: Path
    size: int
    sha256: str = ""
    downloaded_bytes: int = 0
    hash_verified: bool = False
    note: str = ""


@dataclass(frozen=True)
class Variant:
    """One model of a repository. label: quantisation, or else the file name. files: the parts in order.
    missing: the number of absent parts."""

    label: str
    stem: str
    files: tuple[str, ...]
    missing: int = 0


def parse(text: str, exists: Callable[[str], bool] = os.path.exists) -> Reference:
    """Parse a model reference. Raises UsageError for text that is neither a path nor a model name."""
    if text.strip() and exists(text):
        return Reference(PATH, text)
    if (reference := _parse_name(text)) is None:
        short, near = text if len(text) <= 100 else f"{text[:100]}...", similar_files(Path(text))
        raise UsageError(f"{short}: no such file{near}, and no name of a model: give {FORMS}")
    return reference


def _parse_name(text: str) -> Reference | None:
    head, _, rest = text.partition(":")
    if head.lower() == "ollama":
        return _ollama(rest)
    if head.lower() == "zoo":
        return Reference(ZOO, rest) if _are_names(rest) else None
    if address := _ADDRESS.fullmatch(text):
        return _hub(address[1])
    if text.strip() and _looks_like_path(text):
        return Reference(PATH, text)
    return _hub(text) if text.count("/") == 1 else None


def is_name_of(text: str, reference: Reference) -> bool:
    """Return whether `text` is parsed as this reference if no file has that name."""
    return _parse_name(text) == reference


def _looks_like_path(text: str) -> bool:
    # A Windows drive is not a URL scheme, on any system.
    if text[0] in "/.~" or re.match(r"[A-Za-z]:[\\/]", text):
        return True
    if re.match(r"[a-z]{2,}:/", text, re.IGNORECASE):  # the address of another site
        return False
    if os.name == "nt" and re.match(r"[A-Za-z]:|\\", text):
        return True
    # user/repo:file.gguf is a reference to the hub; text with more slashes is a path.
    hub_like = text.count("/") == 1 and ":" in text
    return (text.lower().endswith(".gguf") and not hub_like) or text.count("/") > 1


def _ollama(rest: str) -> Reference | None:
    name, _, tag = rest.rpartition(":") if ":" in rest.rpartition("/")[2] else (rest, "", "latest")
    parts = name.split("/")
    full = ["registry.ollama.ai", "library"][: 3 - len(parts)] + parts
    return Reference(OLLAMA, "/".join(full), tag) if len(full) == 3 and _are_names(*full, tag) else None


def _hub(rest: str) -> Reference | None:
    file = ""
    if (page := _PAGE.fullmatch(rest)) is not None:
        rest, file = page[1], page[2] or ""
    name, colon, tag = rest.removesuffix("/").partition(":")
    name, tag = name.removesuffix(".git"), tag or file  # .git: a clone address
    parts = name.split("/")
    if len(parts) != 2 or not _are_names(*parts, *(tag.split("/") if tag or colon else [])):
        return None
    if any("--" in part or part[-1] in ".-" for part in parts):  # no valid repository name
        return None
    return Reference(HUB, name, "" if tag.lower() == "latest" else tag)


def _are_names(*parts: str) -> bool:
    """Return whether all parts are safe in a path and in an address."""
    return all(".." not in part and _NAME.fullmatch(part) for part in parts)


def select_variant(names: Iterable[str], name: str, where: str) -> tuple[str, ...]:
    """Return the files of one model in a repository, in order; several if the model was split.
    name: a quantisation or file name; empty for Q4_K_M, else Q8_0, else the only model.
    Raises UsageError with the choices if no model or several match, or if a part is missing."""
    models = selectable(names, name)
    tried = (matching_variants(models, label) for label in ((name,) if name else DEFAULT_QUANTISATIONS))
    matching = next(filter(None, tried), [] if name else models)
    if len(matching) == 1 and not matching[0].missing:
        return matching[0].files
    if not models:
        problem = "has no model as a GGUF file; look for a repository whose name ends in -GGUF, or "
        problem += "a draft head's (config.json and weights, without a tokenizer)"
    elif not matching and (kind := auxiliary_kind(name)):
        problem = f"{name} is {kind}"
    elif len(matching) == 1:
        only = matching[0]
        problem = f"{only.missing} of the parts of {only.label} are missing; nothing can load it"
    else:
        labels = [model.label for model in matching or models]
        # Models of the same quantisation are distinguished by file name.
        ambiguous = len(set(labels)) < len(labels)
        choices = [m.files[0] for m in matching] if matching and ambiguous else list(dict.fromkeys(labels))
        listed = ", ".join(choices[:24]) + (f" and {len(choices) - 24} more" if len(choices) > 24 else "")
        problem = f"which one of {listed}?" if matching else f"has no {name}; there is {listed}."
        problem += f" Name it after a colon, as in hf.co/{where}:{choices[0]}"
    raise UsageError(f"{where}: {problem}")


def head_files(names: Iterable[str]) -> tuple[str, ...]:
    """Return the files of a draft head in a repository, which has weights and no tokenizer; else ()."""
    files = set(names)
    weights = [name for name in HEAD_WEIGHTS if name in files][:1]
    is_model = any(name.startswith("tokenizer") or name.lower().endswith(".gguf") for name in files)
    if is_model or not weights or HEAD_CONFIG not in files:
        return ()
    return (HEAD_CONFIG, *weights, *(name for name in HEAD_EXTRAS if name in files))


def selectable(names: Iterable[str], tag: str) -> list[Variant]:
    """Return the models of a repository; its draft heads if the tag names one or there is nothing else."""
    names = [*names]
    models = variants(names)
    wants_head = any(word[:-1] in tag.lower() for word in DRAFT_HEADS)
    return models if models and not wants_head else variants(names, heads=True) or models


def variants(names: Iterable[str], *, heads: bool = False) -> list[Variant]:
    """Return the models among a repository's files, or its draft heads, by name. Unsafe file names are left
    out. Heads are labelled by their files, since a quantisation is a model's."""
    found: dict[tuple[str, int], dict[int, str]] = {}
    for name in sorted(filter(_is_model, names)):
        if any(word in PurePosixPath(name).name.lower() for word in DRAFT_HEADS) != heads:
            continue
        stem = name[: -len(".gguf")]
        part = _SPLIT.fullmatch(stem)
        key, i = ((part[1], int(part[3])), int(part[2])) if part else ((stem, 1), 1)
        found.setdefault(key, {})[i] = name
    models = []
    for (stem, count), parts in found.items():
        files = tuple(parts[i] for i in sorted(parts) if 1 <= i <= count)
        if files:
            label = PurePosixPath(files[0]).name if heads else _label(stem)
            models.append(Variant(label, stem, files, count - len(files)))
    return models


def auxiliary_kind(name: str) -> str:
    """Return what a file beside a model is, by its name; empty for a model or a draft head."""
    file = PurePosixPath(name).name.lower()
    if any(word in file for word in DRAFT_HEADS):
        return ""
    return next((kind for word, kind in AUXILIARY_FILES.items() if word in file), "")


def _is_model(name: str) -> bool:
    if not name.lower().endswith(".gguf") or auxiliary_kind(name):
        return False
    return name.isprintable() and len(name) <= MAX_NAME_CHARACTERS and all(map(_is_part, name.split("/")))


def _is_part(part: str) -> bool:
    """Return whether a part of a file name is safe on every system. On Windows `C:x` and `..\\x` leave the
    folder, and `nul.gguf` is a device."""
    odd = not part or part[-1] in " ." or _ODD.search(part) or _DEVICE.fullmatch(part)
    return not odd and len(part.encode()) <= MAX_PART_BYTES


def _label(stem: str) -> str:
    for part in reversed(PurePosixPath(stem).parts):
        if labels := _LABEL.findall(part):
            return str(labels[-1]).upper()
    return f"{PurePosixPath(stem).name}.gguf"


def matching_variants(models: Sequence[Variant], name: str) -> list[Variant]:
    """Return the models with this file name, else this quantisation, else this whole word in the name."""
    lower = name.lower()
    by_file = [m for m in models if lower in (m.files[0].lower(), PurePosixPath(m.files[0]).name.lower())]
    by_label = [model for model in models if model.label.lower() == lower]
    # Q4_K_M_L does not contain the word Q4_K_M.
    word = re.compile(rf"(?<!{_WORD}){re.escape(name)}(?!{_WORD})", re.IGNORECASE)
    return by_file or by_label or [model for model in models if word.search(model.stem)]
