"""`make demo`: a real model edits a class with plain and with speculative decoding; compare both.

The model is SmolLM2 (135M parameters), padded with zeros to the size of SmolLM2-360M in BF16: it generates
the same text at the cost of a model of that size. As shipped it is so fast that drafting gains little.
Without SmolLM2 the embedded toy model completes a piece of code.
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
INFLATE = (sys.executable, "-m", "tools.inflate")


@dataclass(frozen=True)
class Demo:
    """source: the model to inflate. params, ftype: of the inflated model. prompt: a file in examples.
    options: of `paceline run`."""

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
    """Return the demo with SmolLM2. Raises PacelineError if it is missing or damaged."""
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
        print("demo: continuing with the embedded model, a toy that writes Python-like text", file=sys.stderr)
        demo = embedded()
    model, prompt = demo.model, ROOT / "examples" / demo.prompt
    if not model.exists() or model.stat().st_mtime < demo.source.stat().st_mtime:
        print(f"demo: writing {BUILD.name}/{model.name} (once)", file=sys.stderr)
        BUILD.mkdir(exist_ok=True)
        size = ("--params", demo.params, "--type", demo.ftype)
        inflate = [*INFLATE, str(model), "--from", str(demo.source), *size, "--force"]
        if code := subprocess.run(inflate, stdout=subprocess.DEVNULL).returncode:
            return code
    print(f"--- prompt ---\n{prompt.read_text('utf-8').rstrip()}", flush=True)
    run = [*PACELINE, "run", "--compare", "-n", "256", "-f", str(prompt), "-m", str(model), *demo.options]
    return subprocess.run(run).returncode


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:  # the child process was interrupted, too
        sys.exit(130)
