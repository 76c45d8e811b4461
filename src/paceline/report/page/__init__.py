"""A page of records: one file with all that it needs, without a network. page.js chooses and draws the plots.

Texts of records are data there: they cannot run or load anything, as the page's policy names its scripts."""

from __future__ import annotations

import html
import json
import re
import subprocess
from base64 import b64decode, b64encode
from collections.abc import Iterator, Mapping, Sequence
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from shutil import which
from string import Template
from tempfile import TemporaryDirectory
from typing import Any

from paceline import __version__
from paceline.report import bench, certificate, doctor, variants
from paceline.report.table import Block, details, summary
from paceline.speculative.errors import PacelineError, UsageError

LIBRARIES = {"d3": "vendor/d3-7.9.2.js", "plot": "vendor/plot-0.6.17.js"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER_SECONDS = 120
PICTURE = re.compile(r'<figure id="([\w-]+)"[^>]* data-png="data:image/png;base64,([^"]+)"')
View = dict[str, Any]


def view(kind: str, record: Mapping[str, Any], tables: Sequence[Block] = ()) -> View:
    """Return what is known of a record in words: title, lead, facts, tables and lines of a fixed width.
    tables: of a replay."""
    known = record.get("provenance") or {}
    models = [known[role]["name"] for role in ("target", "draft") if known.get(role)]
    made: View = {"title": " with ".join(models) or "This machine", "lead": "", "lines": [], "record": record}
    facts = bench.header(record if kind == "bench" else {"provenance": known, "results": ()})
    if kind == "bench" and record["results"]:
        tables, made["lead"] = bench.blocks(record), bench.conclusion(record)
    elif kind == "tune":
        stages = [(stage["stage"], block) for stage in record["stages"] for block in bench.blocks(stage)]
        tables = [Block(f"{name} {it.title}".strip(), it.columns, it.rows, it.n_left) for name, it in stages]
    elif kind == "replay":
        made["title"] = ", ".join(file["file"] for file in record["files"])
        facts = [(name, str(record[name])) for name in ("status", "tokenizer", "cost_curve") if record[name]]
    elif kind == "certify":
        made["lines"] = certificate.lines(record)
        made["lead"] = made["lines"][-1]
    elif kind == "doctor":
        facts += doctor.lines(record["hardware"])
        if known:
            names = ("severity", "name", "evidence", "remedy")
            causes = [tuple(cause[name] for name in names) for cause in record["diagnosis"]["causes"]]
            tables = [*doctor.blocks(record), Block("", names, tuple(causes), 4)]
    elif kind in ("experts", "prefill"):
        made["title"] = Path(record["model"]).name
        tables = [(variants.experts_table if kind == "experts" else variants.prefill_table)(record)]
    elif kind == "train":
        made["title"] = f"{record['kind']} {record.get('target', {}).get('name', '')}"
        numbers = {name: value for name, value in record["acceptance"].items() if name != "by_position"}
        rows = tuple((name, _numbers(value)) for name, value in numbers.items())
        tables = [Block("", ("", "held-out"), rows, 1)]
    elif kind == "run":
        drafted = record.get("drafted", record)
        made["lead"] = f"{summary(drafted)}; {details(drafted)}"
        facts += [("identical", record["verdict"])] if "verdict" in record else []
    return made | {"kind": kind, "facts": facts, "tables": [vars(table) for table in tables if table.rows]}


def _numbers(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_numbers(one)}" for name, one in value.items() if name != "reliability")
    return f"{value:.3g}"


def render(views: Sequence[View]) -> str:
    """Return the page. Raises ValueError for a number that JSON lacks."""
    data = json.dumps(views, allow_nan=False).replace("<", "\\u003c")
    folder = files(__name__)
    texts = {
        name: (folder / name).read_text("utf-8") for name in ("page.html", "page.css", "plots.js", "page.js")
    }
    scripts = [
        f"/* {(folder / 'vendor' / f'LICENSE-{name}').read_text('utf-8')}*/\n{(folder / file).read_text('utf-8')}"
        for name, file in LIBRARIES.items()
    ] + [texts["plots.js"], texts["page.js"]]
    hashes = [f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts]
    return Template(texts["page.html"]).substitute(
        title=html.escape(f"{views[0]['title']} - paceline {views[0]['kind']}"), version=__version__, data=data,
        style=texts["page.css"], hashes=" ".join(hashes), scripts="\n".join(f"<script>{it}</script>" for it in scripts),
    )  # fmt: skip


def pictures(page: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the PNG of each plot, as Chromium draws it. Raises UsageError without a browser."""
    if (browser := next(filter(None, map(which, BROWSERS)), None)) is None:
        why = "--png needs Chromium or Chrome, and none is on PATH"
        raise UsageError(f"{why}: install one, or save the plots with the PNG buttons of the page")
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, "utf-8")
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder}",
            "--window-size=1000,800",
        ]
        options += ["--virtual-time-budget=20000", "--dump-dom", f"{file.as_uri()}#png"]
        try:
            done = subprocess.run(
                [browser, *options], capture_output=True, timeout=BROWSER_SECONDS, check=False
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PacelineError(
                f"{browser}: {error}; save the plots with the PNG buttons of the page"
            ) from error
    dom = done.stdout.decode(errors="replace")
    if not (drawn := PICTURE.findall(dom)) and "data-pictures" not in dom:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
        raise PacelineError(
            f"{browser}: drew no plot ({lines[-1]}); save them with the PNG buttons of the page"
        )
    yield from ((f"{name}.png", b64decode(data)) for name, data in drawn)


def markdown(views: Sequence[View]) -> str:
    """Return the words and tables of records in Markdown, for an issue or a README."""
    return "\n\n".join(block for one in views for block in _blocks(one)) + "\n"


def _blocks(it: View) -> Iterator[str]:
    yield f"## paceline {it['kind']}: {_cell(it['title'])}"
    if it["lead"]:
        yield f"**{_cell(it['lead'])}**"
    if it["facts"]:
        yield _table(("", ""), it["facts"], 2)
    for table in it["tables"]:
        yield (f"{_cell(table['title'])}:\n\n" if table["title"] else "") + _table(
            table["columns"], table["rows"], table["n_left"]
        )
    if it["lines"]:
        yield "\n".join(("```", *it["lines"], "```"))


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]], n_left: int) -> str:
    marks = ["---" if i < n_left else "---:" for i in range(len(columns))]
    lines = [map(_cell, columns), marks, *(map(_cell, row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(text: str) -> str:
    return re.sub(r"([\\|<`*])", r"\\\1", " ".join(text.split()))
