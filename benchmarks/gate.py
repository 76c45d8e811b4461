"""Whether `auto` is ever slower than plain decoding: processor time of one thread, in pairs.

    python benchmarks/gate.py [--targets smollm2,target,1B] [--kinds real-code,...] [--lengths 32,64,128]
        [--rounds 3] [--json FILE]

For each target (SmolLM2 as shipped, about 10 ms a pass; the toy target, about 1 ms; SmolLM2 inflated to 1B,
about 40 ms), each draft (none, its draft model, a draft model with shuffled weights), each kind of prompt and
each length of the answer, plain decoding and `auto` answer in turns. Every answer of `auto` is the first of a
policy and drafters that have learned nothing, with an empty cache. Other programs take no processor time of
this one, so that a busy machine changes little. A cell is the ratio of the sums, plain over auto; the last
line has the lowest.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean
from time import process_time
from typing import Any

import gguf
import numpy as np

from paceline.api import LLM
from paceline.bench.prompts import RequestBuilder
from paceline.bench.suites import workload
from paceline.loading import load
from paceline.models import zoo
from paceline.models.headers.gguf_file import GGUFFile
from paceline.models.headers.gguf_writer import copy_part, write_gguf
from paceline.speculative.interfaces import LearningDrafter
from paceline.speculative.sampling import Sampling

sys.path.append(str(Path(__file__).parents[1]))  # for tools

from tools.inflate import inflate, parse_count

WANTED = 0.98
KINDS = ",".join(f"real-{kind}" for kind in ("code", "edit", "json", "agent", "grounded", "chat", "maths"))
DRAFTS = ("none", "draft", "shuffled")


def shuffled(draft: Path, folder: Path) -> Path:
    """Write a copy of a draft model with the rows of its matrices in another order."""
    out, rng = folder / f"shuffled-{draft.name}", np.random.default_rng(0)
    if not out.exists():
        file = GGUFFile(draft)
        parts = {name: copy_part(file, tensor) for name, tensor in file.tensors.items()}
        write_gguf(out, [*file.fields.values()], [*parts.values()], file.alignment)
        writable = gguf.GGUFReader(out, "r+")
        for tensor in writable.tensors:
            tensor.data[:] = rng.permutation(tensor.data)
        writable.data.flush()
    return out


def target_file(name: str, folder: Path) -> Path:
    if name in ("smollm2", "target"):
        return zoo.path(name)
    out = folder / f"{name}.gguf"
    if not out.exists():
        inflate(zoo.path("smollm2"), out, parse_count(name), "Q4_0")
    return out


def forget(llm: LLM) -> None:
    llm.target.forget()
    llm.policy.forget()
    if llm.draft is not None:
        llm.draft.forget()
    if isinstance(llm.drafter, LearningDrafter):
        llm.drafter.forget()


def cells(llm: LLM, kinds: list[str], lengths: list[int], rounds: int) -> Iterator[dict[str, Any]]:
    for kind in kinds:
        items = workload.load(kind)
        item = (workload.filter_size(items, "tiny") or items)[0]
        prompts = RequestBuilder(llm, n=None, sampling=Sampling(), seed=0)
        tokens = prompts.request(item, {}).tokens
        for length in lengths:
            seconds = {True: 0.0, False: 0.0}
            for number in range(rounds + 1):  # the first is a warm-up
                for plain in (True, False) if number % 2 else (False, True):
                    forget(llm)
                    began = process_time()
                    llm.generate(tokens, max_tokens=length, ignore_eos=True, plain=plain, remember=False)
                    seconds[plain] += (process_time() - began) * (number > 0)
            yield {"kind": kind, "length": length, "ratio": seconds[True] / seconds[False]}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--targets", default="smollm2,target,1B")
    parser.add_argument("--drafts", default=",".join(DRAFTS))
    parser.add_argument("--kinds", default=KINDS)
    parser.add_argument("--lengths", default="32,64,128")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--models", help="a folder for the made models, to be kept")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    lengths, kinds = [int(n) for n in given.lengths.split(",")], given.kinds.split(",")
    found = []
    print(f"{'target':8} {'draft':9} {'kind':14}" + "".join(f"{n:>8}" for n in lengths), flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(given.models or temporary)
        for name in given.targets.split(","):
            target = target_file(name, folder)
            model = zoo.path("draft" if name == "target" else "smollm2-draft")
            for draft in given.drafts.split(","):
                path = None if draft == "none" else shuffled(model, folder) if draft == "shuffled" else model
                with load(target, path, "auto", threads=1, n_ctx=4096 if name != "target" else 0) as llm:
                    for kind in kinds:
                        row = list(cells(llm, [kind], lengths, given.rounds))
                        found += [{"target": name, "draft": draft, **cell} for cell in row]
                        figures = "".join(f"{cell['ratio']:8.2f}" for cell in row)
                        print(f"{name:8} {draft:9} {kind:14}{figures}", flush=True)
    lowest = min(found, key=lambda cell: cell["ratio"])
    below = sum(cell["ratio"] < WANTED for cell in found)
    mean = geometric_mean(cell["ratio"] for cell in found)
    print(f"lowest {lowest}; {below} of {len(found)} cells below {WANTED}; geometric mean {mean:.2f}")
    if given.json is not None:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
