"""Checks of a GGUF file before llama.cpp loads it, since a damaged file may crash the process.

The header is read first. A file that is new on this machine is then loaded once in a subprocess.
If llama.cpp does not load it, its reasons are put in words that say what to do.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from paceline.models.headers.facts import MTP_ARCHS
from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.header import read_parts, split_part_paths
from paceline.models.headers.plain_file import require_gguf_path as require_gguf_path
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.printable import printable
from paceline.system.home import record_path, to_stderr, write_atomic
from paceline.system.processes import IdleError, OverusedError, run_within

# Processor time of the subprocess, which computes with all weights twice: the base, and bytes per second.
BASE_CPU_SECONDS, MIN_BYTES_PER_CPU_SECOND = 60.0, 20e6
MAX_IDLE_SECONDS = 120.0  # without computing or reading: network file systems stall
NOTICE_SECONDS = 20.0  # between messages about a trial that takes long
# Printed by the subprocess: from here on a crash is due to the file, or to its MTP layers.
STARTED_WORD, DRAFTING_WORD = "begun", "drafting"
ABORTED = re.compile(r"llama\.cpp gave up \((?P<why>.*)\);|what\(\): +(?P<thrown>.*)")
PACKAGE_FOLDER = Path(__file__).parents[2]  # its models are trusted
NO_VOCABULARY = ("none", "no_vocab")

# A pattern of llama.cpp's messages, and the explanation with the pattern's groups. The first match counts.
FAILURES = {
    "not within the file bounds|corrupted or incomplete|exceeds remaining file size|failed to read": (
        "is cut short or damaged; download it again"
    ),
    r"expected (\d+), got (\d+)$": "holds {0} tensors, of which llama.cpp uses {1} for its architecture: "
    "fetch a model that nothing was added to, or update llama-cpp-python",
    "(?:missing )?tensor '(.*?)'(?: not found|$)": "holds no usable weights (no {0}: a vocabulary-only or "
    "incomplete file); give a whole model",
    "tensor '(.*?)' has wrong shape; expected (.*), got (.*)": "holds no usable weights ({0} is [{2}], and "
    "its header says [{1}]); fetch the model again",
    "unknown (model architecture|pre-tokenizer type|tokenizer): '(.*?)'": "has the {0} {1!r}, which this "
    "llama.cpp does not know: update llama-cpp-python, or give another model",
    "key not found in model: (.*)|key (.*) has wrong|cannot find (.*) in model": "has no usable {0} in its "
    "header: convert the model anew, or fetch another file of it",
    "(?:unable|failed) to allocate": "does not fit into memory: give a smaller model or quantisation, or "
    "fewer GPU layers (-ngl)",
    "(invalid .*)": "has a header that contradicts itself ({0}): convert the model anew, or fetch it again",
}

in_load_subprocess = False


def validate_gguf(path: Path, **way: Any) -> None:
    """Refuse a file that llama.cpp cannot load. way: settings of the load (vocab_only, gpu_layers).
    Raises UsageError for a later part of a model, and ModelError if it is no model or crashes llama.cpp."""
    record = _record_path(path, way)
    if record.exists():
        return
    parts = read_parts(path, tokens=False)
    if parts[0].path != path:
        raise UsageError(f"{path}: is one of {len(parts)} parts of a model: give the first, {parts[0].path}")
    if not way["vocab_only"] and parts[0].text("tokenizer.ggml.model") in NO_VOCABULARY:
        raise ModelError(f"{path}: has no vocabulary, so it writes no text; give another model")
    if not way["vocab_only"]:
        _check_mtp_layers(path, parts)
    is_trusted = in_load_subprocess or path.is_relative_to(PACKAGE_FOLDER)
    if is_trusted or not _load_in_subprocess(path, sum(part.size for part in parts), way):
        return
    if record == _record_path(path, way):  # unless the file changed meanwhile
        try:
            write_atomic(record, "{}\n")
        except OSError as error:
            to_stderr(f"{record}: cannot be written ({error.strerror}); {path.name} is tried again next time")


def _check_mtp_layers(path: Path, parts: Sequence[GGUFFile]) -> None:
    """Refuse MTP layers without their model, with which llama.cpp crashes, and a header that counts layers of
    the model as such, which llama.cpp would leave out."""
    arch = parts[0].text("general.architecture")
    if arch not in MTP_ARCHS or not parts[0].number(f"{arch}.nextn_predict_layers"):
        return
    last = parts[0].number(f"{arch}.block_count") - 1
    names = [name for part in parts for name in part.tensors]
    has_mtp = any(".nextn." in name for name in names)
    if has_mtp and "blk.0.attn_norm.weight" not in names:
        raise UsageError(
            f"{path}: holds only a model's layers for multi-token prediction (MTP): give a file of the model "
            "that has them, too (-m), and it drafts with them by itself"
        )
    if not has_mtp and any(name.startswith(f"blk.{last}.") for name in names):
        raise ModelError(
            f"{path}: its header counts layers for multi-token prediction (MTP) that it does not have: "
            "convert the model anew, or fetch another file of it"
        )


def _record_path(path: Path, way: dict[str, Any]) -> Path:
    """Return the path of the record that these files can be loaded."""
    from llama_cpp import __version__

    stats = [(part.absolute(), part.stat()) for part in split_part_paths(path) if part.is_file()]
    files = [(str(part), s.st_size, s.st_mtime_ns, s.st_ino) for part, s in stats]
    key = repr((files, path.name, sorted(way.items())))
    return record_path("admitted", {"files": key, "engine": __version__})


def _load_in_subprocess(path: Path, size: int, way: dict[str, Any]) -> bool:
    """Return whether a subprocess loaded the file. Raises ModelError if it crashed or did not end."""
    if not sys.executable:  # Python embedded in another program
        return False
    code = f"from paceline.backends.llama_cpp.trial import main; main({os.fspath(path)!r}, {way!r})"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "GGML_NO_BACKTRACE": "1"}
    try:
        done = run_within(
            [sys.executable, "-c", code],
            cpu_seconds=BASE_CPU_SECONDS + size / MIN_BYTES_PER_CPU_SECOND,
            idle_seconds=MAX_IDLE_SECONDS,
            tick=_progress_notice(path),
            env=env,
        )
    except (OverusedError, IdleError) as error:
        is_slow_disk = isinstance(error, IdleError)
        advice = "can its disk be read? try again" if is_slow_disk else "is the file damaged? fetch it again"
        raise ModelError(f"{path}: llama.cpp {error} when it was tried: {advice}") from None
    except OSError:
        return False
    if STARTED_WORD.encode() not in done.stdout:
        return False
    if done.returncode and DRAFTING_WORD.encode() in done.stdout:
        crash = f"its MTP layers crash llama.cpp{_last_words(done)}"
        raise ModelError(f"{path}: {crash}: update llama-cpp-python, or draft without them")
    if done.returncode:
        crash = f"llama.cpp crashes while loading it{_last_words(done)}"
        raise ModelError(f"{path}: {crash}: is the file damaged? fetch it again")
    return True


def _progress_notice(path: Path) -> Callable[[float, float], None]:
    """Return a function that reports a long trial, and whether the machine is busy, now and then."""
    due = NOTICE_SECONDS

    def tick(elapsed: float, cpu: float) -> None:
        nonlocal due
        if elapsed >= due:
            due += NOTICE_SECONDS
            busy = f", {cpu:.0f} s of them computing: the machine is busy" if cpu < elapsed / 2 else ""
            to_stderr(f"{path.name}: new here, and tried in a subprocess for {elapsed:.0f} s{busy}")

    return tick


def _last_words(done: subprocess.CompletedProcess[bytes]) -> str:
    """Return how the process ended, in parentheses, or nothing."""
    if output := ABORTED.search(done.stderr.decode(errors="replace")):
        return f" ({printable((output['why'] or output['thrown'])[:160])})"
    with contextlib.suppress(ValueError):
        return f" ({signal.Signals(-done.returncode).name})"
    return ""


def explain(log: list[str]) -> str:
    """Return what is wrong with a file, by llama.cpp's log of its load."""
    for line in log:
        for pattern, explanation in FAILURES.items():
            if match := re.search(pattern, line):
                groups = [printable(" ".join(group.split())[:80]) for group in match.groups() if group]
                return explanation.format(*groups)
    return f"llama.cpp cannot load it: {printable(log[0]) if log else 'the reason is not known'}"
