"""What a user may call a model: a path, or a name in somebody's store. Nothing is downloaded here.

    models/a.gguf           a path; one that exists wins over every other reading
    ollama:llama3.2:3b      of Ollama's store; also ollama:user/name:tag
    hf.co/user/repo:Q4_K_M  of the Hugging Face cache; also user/repo[:quant], hf:user/repo, a page's address
    zoo:smollm2             a model of the zoo, of those that come with Paceline or with a package

Which file of a repository is meant is chosen as llama.cpp does it (common/download.cpp), except that it takes
the first one where neither Q4_K_M nor Q8_0 is there, and we ask.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from paceline.speculative.errors import UsageError

PATH, OLLAMA, HUB, ZOO = "path", "ollama", "hub", "zoo"
FORMS = "a path, ollama:NAME[:TAG], hf.co/USER/REPO[:QUANT] or zoo:smollm2"
MAX_NAME_CHARACTERS = 512  # characters of a file's name in a repository
MAX_PART_BYTES = 240  # bytes of one part of it: file systems take 255
DEFAULT_QUANTISATIONS = ("Q4_K_M", "Q8_0")
# Beside a model lie its image encoder, statistics of its activations, and heads that draft for it.
NO_MODEL = ("mmproj", "imatrix", "mtp-", "eagle3-", "dflash-", "dspark-")

_WORD = r"[A-Za-z0-9_]"
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,95}")
_ADDRESS = re.compile(
    r"(?:hf:(?://)?|(?:https?:/{1,2})?(?:www\.)?(?:huggingface\.co|hf\.co)/)(.*)", re.IGNORECASE
)
# What a browser shows for a file: user/repo/blob/main/file.gguf?download=true
_PAGE = re.compile(r"([^/]+/[^/]+)/(?:tree|blob|resolve)/main(?:/([^?]*))?(?:\?.*)?")
# What Windows takes for something else than a name.
_ODD = re.compile(r'[<>:"\\|?*]')
_DEVICE = re.compile(r"(?:con|prn|aux|nul|conin\$|conout\$|(?:com|lpt)[0-9¹²³]) *(?:\..*)?", re.IGNORECASE)
_SPLIT = re.compile(r"(.+)-(\d{5})-of-(\d{5})")
_LABEL = re.compile(
    rf"(?<!{_WORD})((?:UD-)?(?:I?Q\d\w*|TQ\d\w*|BF16|FP?16|FP?32|MXFP4\w*|NVFP4\w*))(?!{_WORD})",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Reference:
    """kind: PATH, OLLAMA, HUB or ZOO. name: the path; host/namespace/name of Ollama's; user/repo; of the zoo,
    which need not have it. tag: Ollama's tag; a quantisation or a file's name in a repository, empty where it
    is left open."""

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
        """As Ollama itself calls it."""
        return f"{self.name.removeprefix('registry.ollama.ai/').removeprefix('library/')}:{self.tag}"


@dataclass(frozen=True)
class LocalFile:
    """A file of a model on this machine. sha256: of all of it, as its store states it; empty where none does.
    got: bytes that were downloaded just now. checked: the file has been found to have that sha256."""

    path: Path
    size: int
    sha256: str = ""
    downloaded_bytes: int = 0
    hash_verified: bool = False


@dataclass(frozen=True)
class Variant:
    """One model of a repository: its files in order, all but those that are missing, and the word for its
    quantisation (or its file's name, where that has none)."""

    label: str
    stem: str
    files: tuple[str, ...]
    missing: int = 0

    def has(self, word: str) -> bool:
        """As a whole word of its name: Q4_K_M is no part of Q4_K_M_L."""
        pattern = rf"(?<!{_WORD}){re.escape(word)}(?!{_WORD})"
        return re.search(pattern, self.stem, re.IGNORECASE) is not None

    def named(self, name: str) -> bool:
        return name.lower() in (self.files[0].lower(), PurePosixPath(self.files[0]).name.lower())


def parse(text: str, exists: Callable[[str], bool] = os.path.exists) -> Reference:
    """Return what a user means. Raises UsageError for what is neither a path nor a name that any store could
    have."""
    if text.strip() and exists(text):
        return Reference(PATH, text)
    head, _, rest = text.partition(":")
    found: Reference | None = None
    if head.lower() == "ollama":
        found = _ollama(rest)
    elif head.lower() == "zoo":
        found = Reference(ZOO, rest) if _are_names(rest) else None
    elif (address := _ADDRESS.fullmatch(text)) is not None:
        found = _hub(address[1])
    elif text.strip() and _looks_like_path(text):
        found = Reference(PATH, text)
    elif text.count("/") == 1:
        found = _hub(text)
    if found is None:
        raise UsageError(f"{_short(text)}: no such file, and no name of a model: give {FORMS}")
    return found


def _looks_like_path(text: str) -> bool:
    # A drive of Windows is no scheme of an address, on any system.
    if text[0] in "/.~" or re.match(r"[A-Za-z]:[\\/]", text):
        return True
    if re.match(r"[a-z]{2,}:/", text, re.IGNORECASE):  # of another site than the hub's
        return False
    if os.name == "nt" and re.match(r"[A-Za-z]:|\\", text):
        return True
    # user/repo:file.gguf is of the hub; more slashes than it has names are a path.
    of_hub = text.count("/") == 1 and ":" in text
    return (text.lower().endswith(".gguf") and not of_hub) or text.count("/") > 1


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
    name, tag = name.removesuffix(".git"), tag or file  # .git: as git clones it
    parts = name.split("/")
    if len(parts) != 2 or not _are_names(*parts, *(tag.split("/") if tag or colon else [])):
        return None
    if any("--" in part or part[-1] in ".-" for part in parts):  # no repository can have such a name
        return None
    return Reference(HUB, name, "" if tag.lower() == "latest" else tag)


def _are_names(*parts: str) -> bool:
    """Return whether parts of a path or of an address are harmless in both."""
    return all(".." not in part and _NAME.fullmatch(part) for part in parts)


def _short(text: str) -> str:
    return text if len(text) <= 100 else f"{text[:100]}..."


def select_variant(names: Iterable[str], name: str, where: str) -> tuple[str, ...]:
    """Of a repository's files those of the one model that is meant, in their order: more than one where it
    was split. asked: a quantisation or a file's name; empty: Q4_K_M, else Q8_0, else the only one there is.
    Raises UsageError, with the choices, where none or several could be meant, or a part is missing."""
    names = list(names)
    models = variants(names)
    if not models:
        raise UsageError(
            f"{where}: has no model as a GGUF file; look for a repository whose name ends in -GGUF"
        )
    found = matching_variants(models, name) if name else _usual(models)
    if len(found) != 1:
        labels = [one.label for one in found or models]
        # Several of one quantisation are told apart by their files.
        several = len(set(labels)) < len(labels)
        lines = [one.files[0] for one in found] if found and several else list(dict.fromkeys(labels))
        what = f"which one of {_listed(lines)}?" if found else f"has no {name}; there is {_listed(lines)}."
        raise UsageError(f"{where}: {what} Name it after a colon, as in hf.co/{where}:{lines[0]}")
    if found[0].missing:
        raise UsageError(
            f"{where}: {found[0].missing} of the parts of {found[0].label} are missing; nothing can load it"
        )
    return found[0].files


def variants(names: Iterable[str]) -> list[Variant]:
    """The models among a repository's files, by name. What is no model is left out, and so is what could not
    be a file in a folder of ours."""
    found: dict[tuple[str, int], dict[int, str]] = {}
    for name in sorted(filter(_is_model, names)):
        stem = name[: -len(".gguf")]
        part = _SPLIT.fullmatch(stem)
        key, i = ((part[1], int(part[3])), int(part[2])) if part else ((stem, 1), 1)
        found.setdefault(key, {})[i] = name
    out = []
    for (stem, count), parts in found.items():
        files = tuple(parts[i] for i in sorted(parts) if 1 <= i <= count)
        if files:
            out.append(Variant(_label(stem), stem, files, count - len(files)))
    return out


def _is_model(name: str) -> bool:
    file = PurePosixPath(name).name.lower()
    return file.endswith(".gguf") and not any(word in file for word in NO_MODEL) and _is_usable(name)


def _is_usable(name: str) -> bool:
    """Whether a name that others chose can be that of a file in a folder of ours, on any system: on Windows
    `C:x` and `..\\x` lead out of the folder, and `nul.gguf` is a device."""
    return name.isprintable() and len(name) <= MAX_NAME_CHARACTERS and all(map(_is_part, name.split("/")))


def _is_part(part: str) -> bool:
    odd = not part or part[-1] in " ." or _ODD.search(part) or _DEVICE.fullmatch(part)
    return not odd and len(part.encode()) <= MAX_PART_BYTES


def _label(stem: str) -> str:
    for part in reversed(PurePosixPath(stem).parts):
        if found := _LABEL.findall(part):
            return str(found[-1]).upper()
    return f"{PurePosixPath(stem).name}.gguf"


def matching_variants(models: Sequence[Variant], name: str) -> list[Variant]:
    """By a file's name, else by its quantisation, else by any other word of its name."""
    named = [one for one in models if one.named(name)]
    labelled = [one for one in models if one.label.lower() == name.lower()]
    return named or labelled or [one for one in models if one.has(name)]


def _usual(models: Sequence[Variant]) -> list[Variant]:
    for label in DEFAULT_QUANTISATIONS:
        if found := matching_variants(models, label):
            return found
    return list(models)


def _listed(names: Sequence[str], most: int = 24) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
