"""Every way in which llama-server drafts, over the suites: the bar that our own drafters have to beat.

    python benchmarks/llama_modes.py --server PATH [-m TARGET -md DRAFT] [--rounds 2] [--items 14] [--md]
    python benchmarks/llama_modes.py --server PATH --ours auto --size 1B --type Q4_0

Modes: none (here: plain); a draft model at n-max 2, 3, 4, 8, 16 and p-min 0, 0.5, 0.75; ngram-simple,
ngram-mod, ngram-cache, ngram-map-k with their own defaults. All servers run side by side and take turns; each
round starts them anew, since some remember what they have said. Paceline's plain decoding is there too.
Without -m the embedded target inflated to --size at --type. Every output is compared with plain output.
--ours: methods of Paceline that take part, as `paceline bench --methods` has them; the last of them is
compared with the best of all modes, chosen for each category in hindsight. Targets: 0.97 of that best in
each, 1.10 in the geometric mean.
--finals 3: one round of all modes with half of the items (or --heat of them), and then --rounds of each
category's best three alone with all of them, of which the comparison is made: of twenty noisy readings the
best is lucky, and its next reading is not. The rule begins each round, in finals each category of it, without
experience.
--at-once 10: so many modes are measured side by side, and then the others: twenty servers that repack their
weights may not fit the memory.
--same-text: all decode the text of our own plain decoding, recorded before: ours say what the record says
(rehearsal.py), the servers are held to it by a grammar. Without it each writes its own, and texts that part
at a near-tie are not equally easy to draft.
--keep FOLDER: record.jsonl, the texts of --same-text, and groups.jsonl, a line for each item with what every
system took for it, as soon as it is measured: what replay says can be held against them item by item. Without
-m the inflated target is there too.
--temp: texts are drawn, and each system draws its own: outputs are compared in a first, greedy pass alone.
Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, nullcontext
from dataclasses import asdict, dataclass, replace
from math import exp, log
from pathlib import Path
from typing import Any

from never_slower import chosen, record_plainly, settings
from rehearsal import RehearsedServer, SameText, rehearse, spelled
from rich.console import Console
from rich.progress import Progress

from paceline.bench.baselines.llama_server import LlamaServer, find_program
from paceline.bench.bench import unwatched
from paceline.bench.gate import Contestant
from paceline.bench.method import Method, parse_all
from paceline.bench.paceline_system import LoadedModels
from paceline.bench.prompts import RequestBuilder
from paceline.bench.provenance import provenance
from paceline.bench.replay import traces
from paceline.bench.replay.recording import Recorder
from paceline.bench.runner import Runner
from paceline.bench.suites import workload
from paceline.bench.summary import Interval, ratio, summarize
from paceline.bench.system import BenchRequest, ItemMeasurements
from paceline.cli.groups import FLASH_ATTENTION
from paceline.hardware.threads import choose_threads
from paceline.models import zoo
from paceline.report import bench as tables
from paceline.settings import Drafting, LoadOptions
from paceline.speculative.interfaces import Budget
from paceline.speculative.sampling import Sampling

sys.path.append(str(Path(__file__).parents[1]))  # for tools

from tools.inflate import inflate, parse_count

NGRAMS = ("ngram-simple", "ngram-mod", "ngram-cache", "ngram-map-k")
LONGEST = 64  # tokens that an n-gram mode drafts at most
WARM_UP = "def greet(name):\n    return"


@dataclass(frozen=True)
class Mode:
    name: str
    method: str
    n_draft: int | None = None
    p_min: float | None = None


PLAIN = Mode("plain", "plain")


def modes() -> Iterator[Mode]:
    yield PLAIN
    for n in (2, 3, 4, 8, 16):
        for p in (0.0, 0.5, 0.75):
            yield Mode(f"draft n={n} p={p:g}", "model", n, p)
    for name in NGRAMS:
        yield Mode(name, name)


def one_round(
    number: int,
    models: LoadedModels,
    items: Sequence[workload.Item],
    some: Sequence[Mode],
    draft: Path,
    texts: dict[tuple[int, ...], str],
    folder: Path,
    arguments: argparse.Namespace,
) -> tuple[list[ItemMeasurements], list[dict[str, Any]]]:
    plain = Method("paceline", Drafting(drafters=("none",)))
    sampling = Sampling(temperature=arguments.temp)
    prompts = RequestBuilder(models.plain, n=arguments.n_predict, sampling=sampling, seed=0)
    turns = Runner(models, plain, prompts, unwatched)
    if texts:
        turns.classifier = SameText(models.plain)
    with ExitStack() as stack:
        stack.callback(turns.close)
        target: Any = models.plain.target
        with target.by_heart() if texts else nullcontext():
            turns.check(items, Sampling(), 0)
        if arguments.ours:
            turns.add(parse_all(arguments.ours, {})[1:])
        for mode in some:
            server = (RehearsedServer if texts else LlamaServer)(
                find_program(arguments.server),
                models.plain.target.path,
                draft if mode.method == "model" else None,
                name=mode.name,
                method=mode.method,
                n_draft=mode.n_draft,
                p_min=mode.p_min,
                n_ctx=models.plain.target.caps.n_ctx,
                threads=choose_threads(arguments.threads),
                flash_attention=FLASH_ATTENTION[arguments.flash_attn],
            )
            if isinstance(server, RehearsedServer):
                server.texts = texts
            if mode.method == "plain":
                turns.entries.append(Contestant(server, reference=turns.plain, other_program_plain=True))
                if not texts:
                    turns.check(items, Sampling(), 0)  # its text is what the other modes have to repeat
                llama = turns.entries[-1]
                continue
            longest = mode.n_draft or LONGEST
            turns.entries.append(Contestant(server, Budget(longest, longest), reference=llama))
        # Weights into memory, without a word of what is measured.
        ask = BenchRequest(WARM_UP, tuple(models.plain.tokens(WARM_UP)), 8)
        for entry in turns.entries:
            # The record has nothing to say to it; ours forget what they have learned before a round.
            if texts and not isinstance(entry.system, LlamaServer):
                entry.system.answer(turns.requests[items[0].id])
            else:
                entry.system.answer(ask)
        if arguments.temp > 0:
            turns.check(items, Sampling(), 0)  # outputs can be compared greedily only
        console = Console(file=sys.stderr)
        with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
            task = bars.add_task(f"round {number + 1}", total=len(items))
            groups = []
            for group in turns.rounds(items, first=number * len(items)):
                groups.append(replace(group, round=number))
                with (folder / "groups.jsonl").open("a") as file:
                    print(json.dumps(asdict(groups[-1])), file=file)
                bars.advance(task)
                if not console.is_terminal:
                    console.print(f"round {number + 1}: {len(groups)} of {len(items)} items", highlight=False)
        return groups, [entry.row for entry in turns.entries]


def batched(some: Sequence[Mode], n: int) -> Iterator[Sequence[Mode]]:
    for at in range(0, len(some), n):
        yield some[at : at + n]


def recorded_texts(
    models: LoadedModels, folder: Path, arguments: argparse.Namespace
) -> dict[tuple[int, ...], str]:
    """Hold our target to what it answers plainly, which is returned, by prompt."""
    target, file = models.plain.target, folder / "record.jsonl"
    record_plainly(models.plain, Recorder(file, print), arguments.suite, Sampling(), arguments)
    recordings = rehearse(models, [traces.read(file, target.text)])
    return {one.prompt: spelled(target, one.tokens) for one in recordings}


def by_category(groups: Sequence[ItemMeasurements]) -> Iterator[tuple[str, list[ItemMeasurements]]]:
    for category in sorted({group.category for group in groups}):
        yield category, [group for group in groups if group.category == category]


def fastest(groups: Sequence[ItemMeasurements], some: Sequence[Mode], n: int) -> dict[str, list[Mode]]:
    """By category the n that were fastest, without plain decoding, which takes part anyway."""
    out: dict[str, list[Mode]] = {}
    for category, own in by_category(groups):
        speeds = {mode: ratio(own, mode.name, PLAIN.name) for mode in some if mode != PLAIN}
        known = {mode: one.value for mode, one in speeds.items() if one is not None}
        out[category] = sorted(known, key=lambda mode: -known[mode])[:n]
    return out


def against_best(groups: Sequence[ItemMeasurements], ours: str) -> Iterator[tuple[str, str, Interval]]:
    """By category: the fastest of llama-server's modes, and our speed over it."""
    names = [mode.name for mode in modes()]
    for category, some in by_category(groups):
        ratios = {name: ratio(some, ours, name) for name in names}
        known = {name: one for name, one in ratios.items() if one is not None}
        best = min(known, key=lambda name: known[name].value)
        yield category, best, known[best]


def show(record: dict[str, object], arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(json.dumps(record))
    else:
        tables.write(record, sys.stdout)
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", required=True)
    parser.add_argument("-m", "--model", type=Path)
    parser.add_argument("-md", "--model-draft", type=Path)
    parser.add_argument("--size", default="300M")
    parser.add_argument("--type", default="Q8_0")
    parser.add_argument("--ours", default="", help="e.g. auto")
    parser.add_argument("--suite", default="code,edit,json,agent,quote,prose")
    parser.add_argument("--items", type=int, default=14)
    parser.add_argument("--longest", type=int, default=0, help="tokens of a prompt, about")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--finals", type=int, default=0, help="modes of each category that are asked again")
    parser.add_argument("--heat", type=int, help="items that all modes are asked before the finals")
    parser.add_argument("--at-once", type=int, default=20, help="modes side by side")
    parser.add_argument("--same-text", action="store_true", help="what plain decoding says, for all")
    parser.add_argument(
        "--keep", type=Path, metavar="FOLDER", help="texts and each item's times, into a new one"
    )
    parser.add_argument("--temp", type=float, default=0.0, help="texts are drawn, by each its own")
    parser.add_argument(
        "--modes", default="", help="only these, by the beginning of their names (with a space: the whole)"
    )
    parser.add_argument("-n", "--n-predict", type=int, default=96)
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument(
        "-fa",
        "--flash-attn",
        choices=FLASH_ATTENTION,
        default="auto",
        help="of all targets; auto: each as it chooses itself",
    )
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    if arguments.same_text and arguments.temp > 0:
        parser.error("--same-text: held to a text, a server would draw most tokens twice; leave --temp out")
    items = chosen(arguments.suite, arguments)
    with nullcontext(arguments.keep) if arguments.keep else tempfile.TemporaryDirectory() as kept:
        folder = Path(kept)
        if arguments.keep:
            if folder.exists():
                parser.error(f"--keep {folder}: is there already")
            folder.mkdir(parents=True)
        target, draft = arguments.model, arguments.model_draft or zoo.draft_path()
        if target is None:
            target = folder / f"{arguments.size}-{arguments.type}.gguf"
            inflate(zoo.target_path(), target, parse_count(arguments.size), arguments.type)
        groups: list[ItemMeasurements] = []
        with LoadedModels(LoadOptions.of(target, **settings(arguments)), draft) as models:
            texts = recorded_texts(models, folder, arguments) if arguments.same_text else {}

            def turns(
                rounds: Sequence[int], items: Sequence[workload.Item], some: Sequence[Mode]
            ) -> list[ItemMeasurements]:
                found: list[ItemMeasurements] = []
                rows: dict[str, dict[str, Any]] = {}
                for number in rounds:
                    measured, told = one_round(
                        number, models, items, [PLAIN, *some], draft, texts, folder, arguments
                    )
                    found += measured
                    for row in told:  # what failed in one round has failed
                        if row["system"] not in rows or rows[row["system"]]["lossless"]:
                            rows[row["system"]] = row
                known = provenance(models.plain, {"n": arguments.n_predict}) | {"suite": arguments.suite}
                results = summarize(list(rows.values()), found, PLAIN.name)
                show({"provenance": known, "results": [asdict(result) for result in results]}, arguments)
                return found

            every = [
                mode for mode in modes() if f"{mode.name} ".startswith(tuple(arguments.modes.split(",")))
            ]
            every = [mode for mode in every if mode != PLAIN]
            heat = arguments.heat or arguments.items // 2
            asked = workload.sample_items(items, heat) if arguments.finals else items
            for some in batched(every, arguments.at_once):
                groups += turns(range(1 if arguments.finals else arguments.rounds), asked, some)
            if arguments.finals:
                finalists = fastest(groups, every, arguments.finals)
                groups = []
                for category, some in finalists.items():
                    own = [item for item in items if item.category == category]
                    groups += turns(range(1, 1 + arguments.rounds), own, some)
    if arguments.ours and not arguments.json:
        ours = parse_all(arguments.ours, {})[-1].name
        found = list(against_best(groups, ours))
        for category, best, one in found:
            print(f"{category:8} {ours} over {best:16} {one.value:.2f} [{one.low:.2f}, {one.high:.2f}]")
        mean = exp(sum(log(one.value) for _, _, one in found) / len(found))
        print(f"geometric mean {mean:.2f}")


if __name__ == "__main__":
    main()
