"""The training text: what every Python machine has, generated records, and a few pinned packages.

Everything is deterministic for one Python version and one set of packages. Modules in `HELD_OUT` are left
out by file name, with their tests, and again by content: a document that shares `WINDOW` consecutive
non-blank lines with one of them is dropped, wherever it was found.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import inspect
import re
import sysconfig
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tools.embedded.records import Records

HELD_OUT = (
    "bisect", "calendar", "cmd", "colorsys", "configparser", "csv", "difflib", "fractions", "gettext",
    "graphlib", "heapq", "imaplib", "netrc", "pprint", "sched", "shelve", "statistics", "textwrap", "wave",
    "zipapp",
)  # fmt: skip
WINDOW = 8
END = "<|endoftext|>"
SEED = 20_26
SKIPPED = (
    "site-packages",
    "__pycache__",
    "encodings",
    "_sysconfigdata",
    "pydoc_data",
    "badsyntax",
    "bad_coding",
)


@dataclass(frozen=True)
class Package:
    """A package whose source is read if it is installed: import name, licence, most bytes to take."""

    name: str
    licence: str
    limit: int


PACKAGES = (
    Package("numpy", "BSD-3-Clause", 5_000_000),
    Package("networkx", "BSD-3-Clause", 4_000_000),
    Package("sympy", "BSD-3-Clause", 6_000_000),
    Package("torch", "BSD-3-Clause", 9_000_000),
    Package("jinja2", "BSD-3-Clause", 500_000),
    Package("mpmath", "BSD-3-Clause", 1_000_000),
)


def stdlib() -> Path:
    """The folder of the running interpreter's standard library."""
    return Path(sysconfig.get_path("stdlib"))


def held_out() -> dict[str, str]:
    """Module name -> source of the modules kept for evaluation."""
    return {name: (stdlib() / f"{name}.py").read_text("utf-8") for name in HELD_OUT}


def windows(text: str) -> Iterator[int]:
    """Hashes of every run of `WINDOW` consecutive non-blank lines, indentation ignored."""
    lines = [stripped for line in text.splitlines() if (stripped := line.strip())]
    for i in range(len(lines) - WINDOW + 1):
        digest = hashlib.blake2b("\n".join(lines[i : i + WINDOW]).encode("utf-8", "replace"), digest_size=8)
        yield int.from_bytes(digest.digest(), "big")


def is_held_out(path: Path) -> bool:
    """Whether a file is a held-out module, a test of one, or lies in a folder of that name."""
    names = [path.stem, *path.parts]
    bare = {
        name.removeprefix("test_").removesuffix(".py").removesuffix("_tests").strip("_") for name in names
    }
    return bool(bare & set(HELD_OUT))


def python_files(root: Path, limit: int = 400_000) -> Iterator[tuple[Path, str]]:
    """Python files below `root` in a fixed order, as (path relative to root, text), with copies left out."""
    seen: set[int] = set()
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root)
        if any(skip in str(relative) for skip in SKIPPED) or is_held_out(relative):
            continue
        try:
            text = path.read_text("utf-8")
        except UnicodeDecodeError:
            continue
        if 200 < len(text) < limit and hash(text) not in seen:
            seen.add(hash(text))
            yield relative, text


def docstrings(text: str, module: str) -> str:
    """The documentation strings of one file as prose, each under its qualified name."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return ""
    parts = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            doc = ast.get_docstring(node)
            if doc and len(doc) > 160:
                parts.append(f"{getattr(node, 'name', module)}\n\n{inspect.cleandoc(doc)}\n")
    return "\n\n".join(parts)


def topics() -> list[str]:
    """The language reference's topics, which ship with Python as text."""
    from pydoc_data.topics import topics as found

    return [found[name] for name in sorted(found)]


def frequent_words(texts: list[str], count: int = 6000) -> list[str]:
    """The most frequent lower-case words in identifiers: field names for the generated records."""
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(re.findall(r"(?<![A-Za-z])[a-z]{3,10}(?![A-Za-z])", text))
    return [
        word for word, _ in sorted(counts.items(), key=lambda item: (-item[1], item[0]))[200 : 200 + count]
    ]


def package_files(package: Package) -> Iterator[tuple[Path, str]]:
    """Files of an installed package, tests left out, in an order fixed by name, up to its limit."""
    spec = importlib.util.find_spec(package.name)
    if spec is None or not spec.submodule_search_locations:
        return
    found = [(path, text) for path, text in python_files(Path(spec.submodule_search_locations[0]), 120_000)
             if not {"tests", "testing", "benchmarks", "_vendor"} & set(path.parts)]  # fmt: skip
    found.sort(key=lambda item: hashlib.blake2b(str(item[0]).encode()).digest())
    taken = 0
    for path, text in found:
        if taken + len(text) <= package.limit:
            taken += len(text)
            yield path, text


def build(
    record_bytes: int = 14_000_000, packages: bool = True, library: Path | None = None
) -> dict[str, list[str]]:
    """Source name -> documents: `library`, `tests`, `prose`, `records`, `packages`.

    library: the folder of the standard library, the running interpreter's by default."""
    banned = {window for text in held_out().values() for window in windows(text)}
    out: dict[str, list[str]] = {"library": [], "tests": [], "prose": topics(), "records": [], "packages": []}
    for path, text in python_files(library or stdlib()):
        if banned.isdisjoint(windows(text)):
            is_test = bool({"test", "tests", "idle_test"} & set(path.parts))
            out["tests" if is_test else "library"].append(text)
            if not is_test:
                out["prose"].append(docstrings(text, path.stem))
    for package in PACKAGES if packages else ():
        for path, text in package_files(package):
            if banned.isdisjoint(windows(text)):
                out["packages"].append(text)
                out["prose"].append(docstrings(text, path.stem))
    out["prose"] = [text for text in out["prose"] if len(text) > 300 and banned.isdisjoint(windows(text))]
    generator, size = Records(SEED, frequent_words(out["library"])), 0
    while size < record_bytes:
        out["records"].append(generator.document())
        size += len(out["records"][-1])
    return out
