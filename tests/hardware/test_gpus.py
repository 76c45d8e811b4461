"""Graphics processors by NVIDIA's library and by the cards' folders."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import machine_trees as trees
from paceline.hardware.files import SystemFiles
from paceline.hardware.gpus import Gpu, read


class Nvml:
    """pynvml, with GPUs of so many bytes each: None for one that does not tell."""

    class NVMLError(Exception):
        pass

    def __init__(self, *memories: int | None, fails: str = "") -> None:
        self._memories, self._fails = memories, fails
        self.shut = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self._fails == "init":
            raise self.NVMLError("Driver Not Loaded")

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.shut += 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "570.1"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._memories)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        if self._fails == f"handle {index}":
            raise self.NVMLError("GPU is lost")
        return index

    def nvmlDeviceGetName(self, index: int) -> str:  # noqa: N802
        return f"NVIDIA Test {index}"

    def nvmlDeviceGetMemoryInfo(self, index: int) -> Any:  # noqa: N802
        memory = self._memories[index]
        if memory is None:
            raise self.NVMLError("Not Supported")
        return SimpleNamespace(total=memory, free=memory - 1)


def test_each_gpu_has_its_memory_and_one_without_shares_the_machines(tmp_path: Path) -> None:
    nvml = Nvml(100, None)
    assert read(SystemFiles(tmp_path), nvml, "Linux") == (
        Gpu("NVIDIA", "NVIDIA Test 0", 100, 99, driver="570.1"),
        Gpu("NVIDIA", "NVIDIA Test 1", shared=True, driver="570.1"),
    )
    assert nvml.shut == 1


def test_one_that_is_lost_is_told(tmp_path: Path) -> None:
    files = SystemFiles(tmp_path)
    assert read(files, Nvml(1, 2, fails="handle 0"), "Linux") == ()
    assert files.read_errors == ["NVIDIA GPU: GPU is lost"]


def test_an_amd_card_tells_its_memory(tmp_path: Path) -> None:
    known = {"vendor": "0x1002", "product_name": "Radeon Test"}
    known |= {"mem_info_vram_total": "1000", "mem_info_vram_used": "400"}
    root = trees.write(tmp_path, {f"sys/class/drm/card1/device/{name}": text for name, text in known.items()})
    assert read(SystemFiles(root), Nvml(), "Linux") == (Gpu("AMD", "Radeon Test", 1000, 600),)
