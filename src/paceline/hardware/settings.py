"""System settings that decide how fast memory and cores are, and what to type to change them (Linux)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from paceline.hardware.cores import CPU, Cores
from paceline.hardware.files import Limits, SystemFiles
from paceline.hardware.threads import NODES

HUGE = "/sys/kernel/mm/transparent_hugepage/enabled"
GOVERNOR = f"{CPU}/cpufreq/policy0/scaling_governor"
BALANCED = 1.25  # the most memory of a node relative to the mean


@dataclass(frozen=True)
class SystemSetting:
    """A setting. value: as found, "" if it is not there. engine: what of it the engine uses.
    advice: what to type, "" if nothing has to change. ok: None if it does not matter here."""

    name: str
    value: str
    engine: str
    advice: str = ""
    ok: bool | None = None


def read_settings(files: SystemFiles, cores: Cores, limits: Limits, swap_used: int) -> list[SystemSetting]:
    """Read the settings of this machine, or of a recorded tree of files."""
    meminfo = files.text("/proc/meminfo") or ""
    explicit = re.search(r"HugePages_Total:\s*(\d+)", meminfo)
    enabled = re.search(r"\[(\w+)\]", files.text(HUGE) or "")
    huge, governor = enabled[1] if enabled else "", files.text(GOVERNOR) or ""
    few = limits.cpus is not None and limits.cpus < cores.physical
    quota = "none" if limits.cpus is None else f"{limits.cpus:g} processors"
    swappiness = files.text("/proc/sys/vm/swappiness") or ""
    return [
        _numa(files),
        SystemSetting(
            "transparent huge pages", huge, "KV cache and repacked weights; not mapped files",
            "echo always | sudo tee " + HUGE if huge == "never" else "", huge != "never" if huge else None,
        ),
        SystemSetting(
            "HugePages_Total", explicit[1] if explicit else "", "nothing: it asks for no explicit pages"
        ),
        SystemSetting(
            "SMT", f"{cores.logical} processors on {cores.physical} cores", "one thread a physical core",
            ok=None if not cores.smt else True,
        ),
        SystemSetting(
            "governor", governor, "the clock of all threads",
            "sudo cpupower frequency-set -g performance" if governor == "powersave" else "",
            governor != "powersave" if governor else None,
        ),
        SystemSetting(
            "quota of the container", quota, "threads beyond it stand still together",
            f"-t {max(1, int(limits.cpus or 0))}" if few else "", None if limits.cpus is None else not few,
        ),
        SystemSetting(
            "swap", f"{swap_used / 1e6:.0f} MB in use, swappiness {swappiness or 'unknown'}",
            "nothing, as long as the weights fit in memory", "sudo swapoff -a" if swap_used > 1 << 28 else "",
            swap_used <= 1 << 28,
        ),
    ]  # fmt: skip


def _numa(files: SystemFiles) -> SystemSetting:
    """Return this process's memory by node, as numastat shows it."""
    nodes = files.names(NODES, "node")
    pages = dict.fromkeys((int(name[4:]) for name in nodes), 0)
    for line in (files.text("/proc/self/numa_maps") or "").splitlines():
        unit = re.search(r"kernelpagesize_kB=(\d+)", line)
        for node, n in re.findall(r"\bN(\d+)=(\d+)", line):
            pages[int(node)] = pages.get(int(node), 0) + int(n) * (int(unit[1]) if unit else 4)
    total = sum(pages.values())
    by_node = ", ".join(f"N{node} {kb / 1e3:.0f} MB" for node, kb in pages.items())
    balanced = not total or max(pages.values()) * len(pages) <= BALANCED * total
    if len(nodes) < 2:
        return SystemSetting("NUMA", f"{max(1, len(nodes))} node", "nothing has to be balanced")
    advice = "" if balanced else "numactl --interleave=all paceline ..."
    return SystemSetting("NUMA", by_node, "memory where its threads run first", advice, balanced)
