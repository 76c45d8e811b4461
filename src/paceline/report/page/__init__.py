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
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from shutil import which
from string import Template
from tempfile import TemporaryDirectory
from typing import Any

from paceline.report import bench, certificate, doctor, tune, variants
from paceline.report.table import Block, details, summary
from paceline.speculative.errors import PacelineError, UsageError

LIBRARIES = {"d3": "vendor/d3-7.9.2.js", "plot": "vendor/plot-0.6.17.js"}
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
BROWSER_SECONDS = 120
BROWSER_OPTIONS = ("--window-size=1000,800", "--virtual-time-budget=20000", "--dump-dom")
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
        notes = [f"{stage['stage']}: {stage['note']}" for stage in record["stages"] if stage.get("note")]
        made["lead"] = ". ".join([*notes, *tune.conclusion(record)])
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
        groups = {name: it for name, it in record["acceptance"].items() if isinstance(it, dict)}
        rows = [(f"{name} {it}", value) for name, group in groups.items() for it, value in group.items()]
        rows = [row for row in rows or record["acceptance"].items() if isinstance(row[1], (int, float))]
        tables = [Block("", ("", "held-out"), tuple((name, f"{value:.3g}") for name, value in rows), 1)]
    elif kind == "run":
        drafted = record.get("drafted", record)
        made["lead"] = f"{summary(drafted)}; {details(drafted)}"
        facts += [("identical", record["verdict"])] if "verdict" in record else []
    return made | {"kind": kind, "facts": facts, "tables": [vars(table) for table in tables if table.rows]}


def render(views: Sequence[View]) -> str:
    """Return the page. Raises ValueError for a number that JSON lacks."""
    data = json.dumps(views, allow_nan=False).replace("<", "\\u003c")

    def text(name: str) -> str:
        return (files(__name__) / name).read_text("utf-8")

    scripts = [f"/* {text(f'vendor/LICENSE-{name}')}*/\n{text(file)}" for name, file in LIBRARIES.items()]
    scripts += map(text, ("plots.js", "page.js"))
    hashes = [f"'sha256-{b64encode(sha256(script.encode()).digest()).decode()}'" for script in scripts]
    inline = "\n".join(f"<script>{script}</script>" for script in scripts)
    title = html.escape(f"{views[0]['title']} - paceline {views[0]['kind']}")
    known = {
        "title": title,
        "version": version("paceline"),
        "style": text("page.css"),
        "hashes": " ".join(hashes),
    }
    return Template(text("page.html")).substitute(known, data=data, scripts=inline, hashes=" ".join(hashes))


def pictures(page: str) -> Iterator[tuple[str, bytes]]:
    """Yield the name and the PNG of each plot, as Chromium draws it. Raises UsageError without a browser."""
    instead = "save the plots with the PNG buttons of the page"
    if (browser := next(filter(None, map(which, BROWSERS)), None)) is None:
        raise UsageError(f"--png needs Chromium or Chrome, and none is on PATH: install one, or {instead}")
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        file = Path(folder) / "page.html"
        file.write_text(page, "utf-8")
        # Containers and root have no sandbox; only the scripts that the page's policy names can run.
        options = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            f"--user-data-dir={folder}",
            *BROWSER_OPTIONS,
        ]
        command = [browser, *options, f"{file.as_uri()}#png"]
        try:
            done = subprocess.run(command, capture_output=True, timeout=BROWSER_SECONDS, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            raise PacelineError(f"{browser}: {error}; {instead}") from error
    dom = done.stdout.decode(errors="replace")
    if not (drawn := PICTURE.findall(dom)) and "data-pictures" not in dom:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no output"]
        raise PacelineError(f"{browser}: drew no plot ({lines[-1]}); {instead}")
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
