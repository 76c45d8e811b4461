"""Models that many tests share, written once a run."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

import paceline
from foreign import write_foreign
from gguf_files import convert, write_llama
from hf_models import DEVICE
from paceline.api import LLM
from paceline.backends.llama_cpp import kernels
from paceline.backends.llama_cpp.kernels.build import library, recipe_for
from paceline.backends.llama_cpp.model import LlamaSettings
from paceline.bench import provenance  # noqa: F401  # first: it tells the machine's own cores, patched or not
from paceline.models import zoo
from paceline.speculative.errors import KernelError
from paceline.storage.costs import MeasurementEffort

if TYPE_CHECKING:
    from playwright.sync_api import Browser

# llama.cpp's threads wait for each other without spinning: on a busy machine, spinning makes a pass of a tiny
# model take ten times as long. OpenMP reads it when it is loaded.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

settings.register_profile("paceline", deadline=None)  # a busy machine is no fault
settings.load_profile("paceline")

UNTRACED = "test_goodput_exact.py"  # repeats the same lines millions of times
TRACED_TOO = ("test_api.py", "test_fits.py", "test_loading.py")  # cover settings, fits and validation


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Measure coverage of `speculative` and `vocab` in their own tests only: tracing is slow."""
    for item in items:
        name, own = item.path.name, not {"speculative", "vocab"}.isdisjoint(item.path.parts)
        if not (own and name != UNTRACED) and name not in TRACED_TOO:
            item.add_marker("no_cover")


@pytest.fixture(scope="session", autouse=True)
def one_thread_a_worker() -> Iterator[None]:
    """On a busy machine llama.cpp's threads, which wait for each other by spinning, crawl: a pass of a tiny
    model takes 0.4 s. Tests that run side by side make it busy themselves."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.hardware.threads.physical_cores", lambda: 1)
        patch.setenv("PACELINE_THREADS", "1")  # commands that tests start
        patch.setattr("paceline.cli.progress.LINE_SECONDS", 3600.0)  # no more lines where a test took longer
        yield


@pytest.fixture(scope="session", autouse=True)
def files_are_let_in() -> Iterator[None]:
    """Load files written for llama.cpp without a trial process, which takes seconds each time."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("paceline.backends.llama_cpp.gate.in_load_subprocess", True)
        yield


@pytest.fixture(scope="session", autouse=True)
def layers_on_the_device() -> Iterator[None]:
    """With PACELINE_TEST_DEVICE=cuda the layers of all GGUF models are on the GPU."""
    check = LlamaSettings.__post_init__

    def on_gpu(settings: LlamaSettings) -> None:
        check(settings)
        object.__setattr__(settings, "gpu_layers", 99)

    with pytest.MonkeyPatch.context() as patch:
        if DEVICE != "cpu":
            patch.setattr(LlamaSettings, "__post_init__", on_gpu)
        yield


@pytest.fixture
def however_busy(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Accept and store every measured pass cost, however busy the machine is. They are stored apart: other
    tests would be warned of them."""
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path_factory.mktemp("busy")))
    for limit in (
        "profiling.pass_costs.MAX_TIMING_JITTER",
        "speculative.policy.costs.MAX_SINGLE_TOKEN_INVERSION",
        "speculative.policy.costs.MAX_SINGLE_TOKEN_FACTOR",
        "speculative.policy.costs.MAX_INVERSION_FACTOR",
    ):
        monkeypatch.setattr(f"paceline.{limit}", float("inf"))
    monkeypatch.setattr("paceline.profiling.pass_costs.never_pays", lambda cost: False)


@pytest.fixture(scope="session", autouse=True)
def compiled_kernels() -> None:
    """Kernels are in the user's cache before a test starts: no program that a test starts compiles any. They
    are entered before any test loads a model without them: llama.cpp asks once what there is."""
    with pytest.MonkeyPatch.context() as patch, suppress(KernelError):
        patch.delenv("PACELINE_HOME", raising=False)
        library(recipe_for())
        kernels.load_kernels()


@pytest.fixture(scope="session", autouse=True)
def costs_of_their_own(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Costs of passes are measured once per run and model, in moments, and stored apart from the user's."""
    base = tmp_path_factory.getbasetemp()
    home = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "home"
    quick = {
        "target": MeasurementEffort(0.1, (16,), (1, 2, 4, 8)),
        "draft": MeasurementEffort(0.05, (16,), (1, 2)),
    }
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PACELINE_HOME", str(home))
        patch.setattr("paceline.profiling.pass_costs.QUICK_EFFORT", quick)
        # Tests that run side by side make the machine busy. tests/profiling judges measurements.
        patch.setattr("paceline.hardware.cores._busy_seconds", lambda: 0.0)
        patch.setattr("paceline.profiling.pass_costs.doubt_about", lambda cost: "")
        patch.setattr("paceline.profiling.slow_passes.MIN_SECONDS", float("inf"))
        patch.setattr("paceline.loading.restore", lambda *_: lambda: None)  # each test begins anew
        patch.setattr("paceline.storage.costs.implausibility", lambda table: "")
        yield


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of tiny random Llama files: target.gguf, and draft.gguf, which is one block of it."""
    folder = tmp_path_factory.mktemp("models")
    write_llama(folder / "target.gguf", layers=2)
    write_llama(folder / "draft.gguf", layers=1)
    return folder


@pytest.fixture(scope="session")
def target(models: Path) -> Path:
    return models / "target.gguf"


@pytest.fixture(scope="session")
def unrounded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded target in F32, where several rows at once differ from one by 1e-5 only."""
    out = tmp_path_factory.mktemp("f32") / "target.gguf"
    return convert(zoo.target_path(), out, "F32")


@pytest.fixture(scope="session")
def foreign_draft(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The embedded draft with another tokenizer."""
    return write_foreign(tmp_path_factory.mktemp("foreign") / "foreign.gguf")


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder whose outputs are remembered in a home of the test's own."""
    monkeypatch.setenv("PACELINE_HOME", str(tmp_path / "home"))
    (tmp_path / "project").mkdir()
    return tmp_path / "project"


@pytest.fixture
def toy() -> Iterator[LLM]:
    """A model of eight tokens that can end a text, and a draft that is often right."""
    with paceline.load("toy:seed=3,eos=7", "toy:seed=3,eos=7,noise=0.2", "lookup,model", sessions=2) as llm:
        yield llm


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Provide a browser for the server's page."""
    from page_browser import chromium

    yield from chromium()
