"""The most memory that a process has had. To be run in a process of its own."""

from __future__ import annotations

import sys
from pathlib import Path


def peak_megabytes() -> int:
    """Linux's `ru_maxrss` will not do: it begins with what the process had that started this one."""
    if sys.platform == "linux":
        status = Path("/proc/self/status").read_text()
        (line,) = [line for line in status.splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) >> 10
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss >> 20
