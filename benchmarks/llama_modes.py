"""Every way in which llama-server drafts, over the suites: the bar that our own drafters have to beat.

    python benchmarks/llama_modes.py --server PATH [-m TARGET -md DRAFT] [--rounds 2] [--items 14] [--md]

Modes: none (here: plain); a draft model at n-max 2, 3, 4, 8, 16 and p-min 0, 0.5, 0.75; ngram-simple,
ngram-mod, ngram-cache, ngram-map-k with their own defaults. All servers run side by side and take turns; each
round starts them anew, since some remember what they have said. Paceline's plain decoding is there too.
Without -m the embedded target inflated to 300M at Q8_0. Every output is compared with plain output. Run it on
an idle machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from paceline import zoo
from paceline.core.ports import Budget
from paceline.core.sampling import Sampling
from paceline.core.settings import Drafting
from paceline.lab import workload
from paceline.lab.bench.bench import unwatched
from paceline.lab.bench.entry import Entry
from paceline.lab.bench.method import Method
from paceline.lab.bench.models import Models
from paceline.lab.bench.prompts import Prompts
from paceline.lab.bench.summary import Group, Row, summarize
from paceline.lab.bench.turns import Turns
from paceline.lab.peers.llama_server import LlamaServer, find_server
from paceline.lab.provenance import provenance
from paceline.lab.system import Ask
from paceline.machine.threads import choose_threads
from paceline.report import bench as tables
from paceline.zoo.inflate import inflate

NGRAMS = ("ngram-simple", "ngram-mod", "ngram-cache", "ngram-map-k")
NONE = "plain"
LONGEST = 64  # tokens that an n-gram mode drafts at most
WARM_UP = "def greet(name):\n    return"


@dataclass(frozen=True)
class Mode:
    name: str
    method: str
    n_draft: int | None = None
    p_min: float | None = None


def modes() -> Iterator[Mode]:
    yield Mode(NONE, "plain")
    for n in (2, 3, 4, 8, 16):
        for p in (0.0, 0.5, 0.75):
            yield Mode(f"draft n={n} p={p:g}", "model", n, p)
    for name in NGRAMS:
        yield Mode(name, name)


def one_round(
    number: int, models: Models, items: list[workload.Item], draft: Path, arguments: argparse.Namespace
) -> tuple[list[Group], list[Row]]:
    plain = Method("paceline", Drafting(drafters=("none",)))
    prompts = Prompts(
        models.plain, items, n=arguments.n_predict, depth=0, ignore_eos=True, sampling=Sampling(), seed=0
    )
    turns = Turns(models, plain, prompts, unwatched)
    with ExitStack() as stack:
        stack.callback(turns.close)
        turns.ask_plainly(items, 1)
        for mode in modes():
            server = LlamaServer(
                find_server(arguments.server),
                models.plain.target.path,
                draft if mode.method == "model" else None,
                name=mode.name,
                method=mode.method,
                n_draft=mode.n_draft,
                p_min=mode.p_min,
                n_ctx=models.plain.target.caps.n_ctx,
                threads=choose_threads(arguments.threads),
            )
            if mode.method == "plain":
                turns.entries.append(Entry(server, reference=turns.plain, own_plain=True))
                turns.check(Sampling(), 0)  # its text is what the other modes have to repeat
                continue
            longest = mode.n_draft or LONGEST
            turns.entries.append(Entry(server, Budget(longest, longest), reference=turns.entries[1]))
        # Weights into memory, without a word of what is measured.
        ask = Ask(WARM_UP, tuple(models.plain.tokens(WARM_UP)), 8)
        for entry in turns.entries:
            entry.system.answer([ask])
        console = Console(file=sys.stderr)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
            task = bars.add_task(f"round {number + 1}", total=len(items))
            groups = []
            for group in turns.rounds(1, set(), first=number * len(items)):
                groups.append(replace(group, round=number))
                bars.advance(task)
        return groups, [entry.row for entry in turns.entries]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", required=True)
    parser.add_argument("-m", "--model", type=Path)
    parser.add_argument("-md", "--model-draft", type=Path)
    parser.add_argument("--suite", default="code,edit,json,agent,quote,prose")
    parser.add_argument("--items", type=int, default=14)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("-n", "--n-predict", type=int, default=96)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("--md", action="store_true", help="the tables as Markdown")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    items = workload.sampled(workload.of_size(workload.load(arguments.suite), "tiny"), arguments.items)
    with tempfile.TemporaryDirectory() as folder:
        target, draft = arguments.model, arguments.model_draft or zoo.draft_path()
        if target is None:
            target = Path(folder) / "300m-q8.gguf"
            inflate(zoo.target_path(), target, 300_000_000, "Q8_0")
        groups: list[Group] = []
        rows: dict[str, Row] = {}
        with Models({"target": target, "threads": arguments.threads}) as models:
            for number in range(arguments.rounds):
                some, told = one_round(number, models, items, draft, arguments)
                groups += some
                for row in told:  # what failed in one round has failed
                    if row.system not in rows or rows[row.system].lossless:
                        rows[row.system] = row
            known = provenance(models.plain, {"n": arguments.n_predict}) | {"suite": arguments.suite}
    record = {
        "provenance": known,
        "results": [asdict(result) for result in summarize({}, list(rows.values()), groups, NONE)],
    }
    if arguments.json:
        print(json.dumps(record))
    elif arguments.md:
        print(tables.markdown(record))
    else:
        tables.write(record, sys.stdout)


if __name__ == "__main__":
    main()
