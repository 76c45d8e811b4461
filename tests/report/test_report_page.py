"""The page of records in a real browser: every plot draws, texts cannot run, and nothing is loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser

from bench_records import drafted, plain, record
from command_line import command
from page_browser import PHONE

HOSTILE = '</script><script>document.title="run"</script><img src=x onerror="document.title=1">'
DATA = Path(__file__).parents[1] / "data"  # its records are hand-made
STAGE = record([plain(), *(drafted(f"model:p_min={p}", (1 + p, 1.1, 1.6)) for p in (0.3, 0.6))])
# Plots of each record.
PLOTS = {
    "train": 3, "bench": 7, "tune": 3, "doctor": 3, "replay": 1, "certify": 0, "run": 2, "compare": 2,
    "experts": 2, "prefill": 2, "confidence": 1,
}  # fmt: skip


@pytest.fixture
def records(
    capsys: pytest.CaptureFixture[str], models: Path, tmp_path: Path, however_busy: None
) -> list[Path]:
    """A record of every kind, those of tiny models by the commands themselves."""
    pair = ("-m", models / "target.gguf", "-md", models / "target.gguf", "-t", "1")
    item = {"prompt": "ab ab ab", "max_tokens": 16}
    items = [item | {"id": f"{x}{i}", "category": x} for x in "xy" for i in range(3)]
    suite = tmp_path / "suite.jsonl"
    suite.write_text("".join(json.dumps(item) + "\n" for item in items))
    methods = "lookup,model:n_draft=2:p_min=0,model:n_draft=4:p_min=0"
    bench = tmp_path / "bench.json"
    plan = ("--suite", suite, "--methods", methods, "--full", "-r", "1")
    done = command(capsys, "bench", *pair, *plan, "-o", bench)
    assert (done.code, done.err) == (0, f"as a page: paceline report {bench} -o report.html\n")
    quick = ("--seconds", "0.2", "--context-lengths", "16", "--rows", "1,2,4")
    small = ("--samples", "100", "--contexts", "1", "--sequences", "1", "-n", "8")
    sampled = ("-n", "64", "--p-min", "0", "--ignore-eos", "--draft", "model", "--show-sources", "ab ab ab")
    for name, args in {
        "doctor": ("doctor", *pair, *quick), "certify": ("certify", *pair, *small),
        "run": ("run", *pair, *sampled), "compare": ("run", *pair, *sampled, "--compare"),
        "replay": ("replay", DATA / "traces" / "tokens.jsonl", "--methods", "lookup,suffix"),
    }.items():  # fmt: skip
        (tmp_path / f"{name}.json").write_text(json.dumps(command(capsys, *args, "--json").json))
    head = {"format": 1, "kind": "tune", "plan": {}, "folder": "", "provenance": {}}
    stages = [head, STAGE | {"stage": HOSTILE}]
    (tmp_path / "tune.json").write_text("".join(json.dumps(line) + "\n" for line in stages))
    files = [tmp_path / f"{name}.json" for name in PLOTS]
    return [file if file.exists() else DATA / "records" / file.name for file in files]


@pytest.mark.parametrize("phone", [False, True], ids=["desk", "phone"])
def test_every_plot_of_every_record_draws_without_a_network(
    phone: bool, browser: Browser, records: list[Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    out, problems = tmp_path / "page.html", list[str]()
    assert command(capsys, "report", *records, "-o", out).code == 0
    size, scheme = (PHONE, "dark") if phone else ({"width": 1280, "height": 800}, "light")
    page = browser.new_page(viewport=size, color_scheme=scheme)  # type: ignore[arg-type]
    page.on("console", lambda message: problems.append(message.text))
    page.on("pageerror", lambda error: problems.append(str(error)))
    page.on("request", lambda request: problems.append(request.url) if request.url != out.as_uri() else None)
    page.goto(out.as_uri())
    page.wait_for_function("document.querySelectorAll('figure:not(:has(svg))').length === 0")
    articles = page.locator("article").all()
    shown = {name: article.locator("figure").count() for name, article in zip(PLOTS, articles, strict=True)}
    assert shown == PLOTS
    for svg in page.locator("figure svg").all():
        box = svg.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 100
        assert svg.locator("circle, rect, path[d]").count() >= 2
    assert page.locator(".mark").count() > 0
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    assert page.get_by_text(HOSTILE).count() >= 2  # as text
    assert page.title() == f"eagle {HOSTILE} - paceline train"
    with page.expect_download() as download:
        page.get_by_role("button", name="PNG").first.click()
    assert Path(download.value.path()).read_bytes().startswith(b"\x89PNG")
    assert problems == [] or all(problem.startswith("blob:") for problem in problems)
    page.close()
