"""`make demo`: a real model edits a class, plainly and then drafted, and both answers are compared.

The model is SmolLM2 (135M parameters), padded with zeros to the size of SmolLM2-360M in BF16: it says the
same, at the cost of a model of that size. As it ships it is so fast that little is left to gain. Where it is
not on this machine the embedded model, a toy, goes on with a piece of code.
"""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from paceline.models import zoo
from paceline.models.resolve import file_of
from paceline.speculative.errors import PacelineError

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
PACELINE = (sys.executable, "-m", "paceline")


@dataclass(frozen=True)
class Demo:
    """source: the model as it is. params, ftype: what it is inflated to. prompt: a file in examples. options:
    of `paceline run`."""

    source: Path
    name: str
    params: str
    ftype: str
    prompt: str
    options: tuple[str, ...]

    @property
    def model(self) -> Path:
        return BUILD / f"demo-{self.name}-{self.params}-{self.ftype}.gguf"


def real() -> Demo:
    """Raises PacelineError, which says what to do, where SmolLM2 is not on this machine, or damaged."""
    source = file_of("zoo:smollm2")
    return Demo(source, "smollm2", "360M", "BF16", "rename.txt", ("--chat",))


def embedded() -> Demo:
    options = ("-md", str(zoo.draft_path()))
    return Demo(zoo.target_path(), "embedded", "200M", "BF16", "stack.txt", options)


def main() -> int:
    try:
        demo = real()
    except PacelineError as error:
        print(f"demo: {error}", file=sys.stderr)
        print("demo: going on with the embedded model, a toy that writes Python-like text", file=sys.stderr)
        demo = embedded()
    model, prompt = demo.model, ROOT / "examples" / demo.prompt
    if not model.exists() or model.stat().st_mtime < demo.source.stat().st_mtime:
        print(f"demo: making {BUILD.name}/{model.name}, once", file=sys.stderr)
        BUILD.mkdir(exist_ok=True)
        size = ("--params", demo.params, "--type", demo.ftype)
        made = [*PACELINE, "zoo", "inflate", str(model), "--from", str(demo.source), *size, "--force"]
        if code := subprocess.run(made, stdout=subprocess.DEVNULL).returncode:
            return code
    print(f"--- prompt ---\n{prompt.read_text('utf-8').rstrip()}", flush=True)
    run = [*PACELINE, "run", "--compare", "-n", "256", "-f", str(prompt), "-m", str(model), *demo.options]
    return subprocess.run(run).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # what was started has been told too
        sys.exit(130)
