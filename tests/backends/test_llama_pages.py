"""Weights in memory: mapped or read as asked, and where they are read, on large pages."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

MB = 1 << 20
OFFERED = Path("/sys/kernel/mm/transparent_hugepage/enabled")  # "always [madvise] never"

linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
offered = pytest.mark.skipif(
    not OFFERED.exists() or "[never]" in OFFERED.read_text(), reason="this kernel gives no large pages"
)


def asked_and_large(smaps: str) -> tuple[int, int]:
    """Bytes of a process's mappings for which large pages are asked, and bytes that lie on such. A machine
    whose memory is in pieces has fewer than are asked for."""
    asked = large = size = 0
    for line in smaps.splitlines():
        name, _, value = line.partition(":")
        if name == "Size":
            size = int(value.split()[0]) * 1024
        elif name == "AnonHugePages":
            large += int(value.split()[0]) * 1024
        elif name == "VmFlags" and "hg" in value.split():
            asked += size
    return asked, large


LOADING = """
import sys
from pathlib import Path
from paceline.backends.llama_cpp import LlamaTarget
target = LlamaTarget(Path(sys.argv[1]), n_ctx=64)
print(Path("/proc/self/smaps").read_text())
"""


@pytest.mark.slow
@linux
@offered
def test_weights_that_are_read_lie_on_large_pages(unrounded: Path) -> None:
    size = unrounded.stat().st_size
    assert size >= 32 * MB, "too small to tell"
    # In a process of its own: this one's allocator may have memory left that was filled long ago.
    command = [sys.executable, "-c", LOADING, str(unrounded)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    asked, large = asked_and_large(done.stdout)
    assert asked >= 0.8 * size
    assert large >= 0.2 * size
