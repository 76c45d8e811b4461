"""Does a broken model file ever end the process? `python benchmarks/mutated_models.py [MODEL ...]`

Every mutant (tests/mutations.py) of every model (by default the embedded draft, and tiny random ones of some
architectures) is loaded, its tokens are spelled, a text is read, and a few rows are evaluated, each in a
forked process of its own. What ends that process is counted, and named. Not on Windows."""

from __future__ import annotations

import argparse
import collections
import contextlib
import os
import re
import signal
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from gguf_files import write_llama
from mutations import Model, mutants
from paceline import zoo
from paceline.core.errors import PacelineError
from paceline.core.ports import Want
from paceline.core.tree import EMPTY, DraftTree
from paceline.engines.llama import LlamaTarget, binding

SECONDS = 240.0  # until a mutant counts as stuck; a trial has a limit of its own
LOADED, REFUSED, TRACEBACK = 0, 10, 11
TREE = DraftTree((1, 2, 3), (-1, 0, 0), (0.5,) * 3, ("mutant",) * 3)
# Those that take the tensors of write_llama's.
ARCHITECTURES = ("llama", "qwen2", "xverse", "internlm2", "mistral3", "minicpm", "smollm3", "exaone", "deci")


def exercise(path: Path) -> None:
    target = LlamaTarget(path, n_ctx=128)
    try:
        for token in range(target.vocab.size):
            target.vocab.piece(token)
        prompt = target.text.encode("def f(x):\n    return {'é': 12345, \"語\": x}\x00", special=True)[
            :40
        ] or [0]
        for flash in (None, False):
            target.use_flash_attention(flash)
            session = target.open()
            session.extend(prompt)
            target.forward([(session, EMPTY)], Want())
            if target.caps.branch > 1:
                target.forward([(session, TREE)], Want(top_k=2))
            session.close()
        with contextlib.suppress(PacelineError):
            target.text.render([{"role": "user", "content": "hi"}])
    finally:
        target.close()


def outcome(path: Path) -> tuple[str, str]:
    """Of one mutant, in a process of its own: what happened, and what was said."""
    said = path.with_suffix(".said")
    child = os.fork()
    if not child:
        code = TRACEBACK
        try:
            os.setpgid(0, 0)
            handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(handle, 1)
            os.dup2(handle, 2)
            exercise(path)
            code = LOADED
        except PacelineError as error:
            code = REFUSED
            print(error, flush=True)
        except BaseException as error:
            print(repr(error), flush=True)
        finally:
            os._exit(code)
    ends = time.monotonic() + SECONDS
    while time.monotonic() < ends:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            names = {LOADED: "loaded", REFUSED: "refused", TRACEBACK: "traceback"}
            words = said.read_text(errors="replace").strip()
            return names.get(code, f"ended by {code}"), words
        time.sleep(0.002)
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "stuck", ""


def models(folder: Path) -> Iterator[Path]:
    yield zoo.draft_path()
    for arch in ARCHITECTURES:
        yield write_llama(folder / f"{arch}.gguf", arch=arch, layers=2, heads=4, kv_heads=2)
    yield write_llama(folder / "experts.gguf", experts=4)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("models", nargs="*", type=Path)
    parser.add_argument("--only", default="", help="mutants whose name this finds")
    parser.add_argument("--every", type=int, default=1, help="one of so many")
    parser.add_argument("--words", action="store_true", help="show what refusals say")
    args = parser.parse_args()
    os.environ["GGML_NO_BACKTRACE"] = "1"
    binding.llama_cpp()
    counts: collections.Counter[str] = collections.Counter()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        os.environ["PACELINE_HOME"] = str(folder / "home")
        for model in args.models or models(folder):
            mine: collections.Counter[str] = collections.Counter()
            for i, (label, content) in enumerate(mutants(Model.read(model))):
                if i % args.every or not re.search(args.only, label):
                    continue
                path = folder / "mutant.gguf"
                path.write_bytes(content)
                what, said = outcome(path)
                mine[what] += 1
                if what not in ("loaded", "refused") or (args.words and said):
                    last = said.splitlines()[-1] if said else ""
                    print(f"{model.stem}: {label}: {what}: {last[:200]}", flush=True)
            print(f"{model.stem}: {dict(mine)}", flush=True)
            counts += mine
    print(f"all: {dict(counts)}")


if __name__ == "__main__":
    main()
