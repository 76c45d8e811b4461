"""Graphics processors, as their drivers describe them."""

from __future__ import annotations

import importlib
import platform
from dataclasses import dataclass
from typing import Any

from paceline.hardware.files import SystemFiles

CARDS = "/sys/class/drm"
VENDORS = {"0x1002": "AMD", "0x8086": "Intel", "0x10de": "NVIDIA"}


@dataclass(frozen=True)
class Gpu:
    """A graphics processor. memory, free: bytes, or None. shared: True if it uses the machine's memory."""

    vendor: str
    name: str
    memory: int | None = None
    free: int | None = None
    shared: bool = False
    driver: str = ""


def read(
    files: SystemFiles, nvml: Any = None, system: str = "", memory: int | None = None
) -> tuple[Gpu, ...]:
    """Read the GPUs. nvml: the module pynvml. memory: bytes of the machine, for Apple GPUs."""
    if (system or platform.system()) == "Darwin":
        return (Gpu("Apple", "Apple GPU", memory, shared=True),) if platform.machine() == "arm64" else ()
    found = _nvidia(files, nvml)
    return (*found, *_drm(files, {gpu.vendor for gpu in found}))


def _nvidia(files: SystemFiles, nvml: Any) -> tuple[Gpu, ...]:
    nvml = nvml or importlib.import_module("pynvml")
    try:
        nvml.nvmlInit()
    except nvml.NVMLError:  # no driver, so no usable GPU
        return ()
    try:
        driver = str(nvml.nvmlSystemGetDriverVersion())
        return tuple(_device(nvml, index, driver) for index in range(nvml.nvmlDeviceGetCount()))
    except nvml.NVMLError as error:
        files.read_errors.append(f"NVIDIA GPU: {error}")
        return ()
    finally:
        nvml.nvmlShutdown()


def _device(nvml: Any, index: int, driver: str) -> Gpu:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    name = str(nvml.nvmlDeviceGetName(handle))
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    except nvml.NVMLError:  # shared memory (GB10, Jetson)
        return Gpu("NVIDIA", name, shared=True, driver=driver)
    return Gpu("NVIDIA", name, int(memory.total), int(memory.free), driver=driver)


def _drm(files: SystemFiles, known: set[str]) -> list[Gpu]:
    """Read the cards of known vendors, without the display adapters of virtual machines."""
    out = []
    for card in files.names(CARDS, "card"):
        device = f"{CARDS}/{card}/device"
        vendor = VENDORS.get(files.text(f"{device}/vendor") or "")
        if vendor is None or vendor in known or vendor == "NVIDIA":
            continue
        total = files.number(f"{device}/mem_info_vram_total")
        used = files.number(f"{device}/mem_info_vram_used")
        generic = f"{vendor} GPU {files.text(f'{device}/device') or ''}".strip()
        name = files.text(f"{device}/product_name") or generic
        free = None if total is None or used is None else max(0, total - used)
        out.append(Gpu(vendor, name, total, free, shared=vendor == "Intel" and total is None))
    return out
