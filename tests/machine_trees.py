"""Trees of /sys and /proc as on real machines, cut down to what is read. Each function writes a tree below
a folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

CPU = "sys/devices/system/cpu"
V2 = "30 23 0:26 {root} /sys/fs/cgroup rw,nosuid - cgroup2 cgroup rw,nsdelegate\n"
X86 = "fpu sse sse2 ssse3 fma sse4_1 sse4_2 avx f16c avx2 bmi2"


def write(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def epyc(root: Path) -> Path:
    """Write a tree with two sockets of 8 cores and two threads a core (Linux 6.8)."""
    files = {f"{CPU}/online": "0-31", "proc/self/cgroup": "0::/user.slice"}
    for n in range(32):
        files[f"{CPU}/cpu{n}/topology/thread_siblings_list"] = f"{n % 16},{n % 16 + 16}"
        files[f"{CPU}/cpu{n}/topology/physical_package_id"] = f"{n % 16 // 8}"
    files["proc/cpuinfo"] = "\n\n".join(f"processor\t: {n}\nflags\t\t: {X86}" for n in range(32))
    files["proc/self/mountinfo"] = V2.format(root="/")
    return write(root, files)


def laptop(root: Path) -> Path:
    """4 performance cores of two threads and 8 efficiency cores of one; Linux 6.5."""
    files = {
        f"{CPU}/online": "0-15",
        "sys/devices/cpu_core/cpus": "0-7",
        "sys/devices/cpu_atom/cpus": "8-15",
        "proc/cpuinfo": f"flags : {X86} avx_vnni",
        "proc/self/cgroup": "0::/user.slice/user-1000.slice/session-2.scope",
        "proc/self/mountinfo": V2.format(root="/"),
        "sys/fs/cgroup/user.slice/cpu.max": "max 100000",
        "sys/class/drm/card0/device/vendor": "0x8086",
        "sys/class/drm/card0/device/device": "0x46a6",
        "sys/class/drm/card0-HDMI-A-1/status": "disconnected",
    }
    for n in range(16):
        siblings = f"{n // 2 * 2}-{n // 2 * 2 + 1}" if n < 8 else f"{n}"
        files[f"{CPU}/cpu{n}/topology/thread_siblings_list"] = siblings
        files[f"{CPU}/cpu{n}/topology/physical_package_id"] = "0"
    return write(root, files)


def board(root: Path) -> Path:
    """Write a tree of an Arm board with eight cores; Linux 6.1."""
    features = "fp asimd evtstrm aes fphp asimdhp asimddp"
    cpus = "\n".join(f"processor : {n}\nFeatures : {features}" for n in range(8))
    files = {f"{CPU}/online": "0-7", "proc/cpuinfo": cpus}
    for n in range(8):
        files[f"{CPU}/cpu{n}/topology/thread_siblings_list"] = f"{n}"
        files[f"{CPU}/cpu{n}/topology/physical_package_id"] = "-1"
    return write(root, files)


def container(root: Path) -> Path:
    """A pod on a machine of eight cores, seen with the host's groups: the pod has a quota of 1.5 processors,
    the container in it none of its own."""
    pod = "kubepods.slice/pod7"
    files = {
        f"{CPU}/online": "0-7",
        "proc/self/cgroup": f"0::/{pod}/cri-1",
        "proc/self/mountinfo": V2.format(root="/"),
        f"sys/fs/cgroup/{pod}/cpu.max": "150000 100000",
        f"sys/fs/cgroup/{pod}/memory.max": "2147483648",
        f"sys/fs/cgroup/{pod}/cri-1/cpu.max": "max 100000",
        f"sys/fs/cgroup/{pod}/cri-1/memory.max": "4294967296",
        f"sys/fs/cgroup/{pod}/cri-1/cpuset.cpus.effective": "0-7",
    }
    files |= {f"{CPU}/cpu{n}/topology/thread_siblings_list": f"{n}" for n in range(8)}
    return write(root, files)


def docker(root: Path) -> Path:
    """The container's own group mounted as the whole; two of four processors."""
    files = {
        f"{CPU}/online": "0-3",
        "proc/self/cgroup": "0::/docker/ab",
        "proc/self/mountinfo": "31 30 0:27 /docker/ab /sys/fs/cgroup ro,nosuid - cgroup2 cgroup rw\n",
        "sys/fs/cgroup/cpu.max": "250000 100000",
        "sys/fs/cgroup/cpuset.cpus.effective": "1-2",
        "sys/fs/cgroup/memory.max": "max",
    }
    files |= {f"{CPU}/cpu{n}/topology/thread_siblings_list": f"{n}" for n in range(4)}
    return write(root, files)


def broken(root: Path) -> Path:
    """Every file that is read, and none that says what it should."""
    files = {
        f"{CPU}/online": "no list",
        f"{CPU}/cpu0/topology/thread_siblings_list": "0-99999999999",
        f"{CPU}/cpu1/topology/thread_siblings_list": "",
        "proc/self/cgroup": "0::/../outside\n1:cpu:/x",
        "proc/self/mountinfo": "30 23 0:26 / /sys/fs/cgroup rw - cgroup2\nnonsense - \n",
        "proc/cpuinfo": "\0\0",
        "sys/class/drm/card0/device/vendor": "0x1002",
        "sys/class/drm/card0/device/mem_info_vram_total": "-",
    }
    return write(root, files)
