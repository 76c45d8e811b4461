"""Whether drafting by goodput is never slower than plain decoding, and how close it comes to the best.

    python benchmarks/never_slower.py [--size 1B] [--types Q4_0,Q8_0,BF16] [--items 6] [--rounds 2] [-n 96]
        [-fa off]
    python benchmarks/never_slower.py --of smollm2 --size shipped --workloads real-code,real-edit@0.7
    python benchmarks/never_slower.py --of smollm2 --types Q4_0 --workloads real-chat,real-agent --first -n 64

For each quantisation of the embedded target (or of another of the zoo's), inflated, and for each workload:
  1  plain answers are recorded, and what passes cost is measured
  2  a replay of the record scores every fixed setting (one drafter, a fixed length, a fixed p_min) and tells
     what an oracle would reach with the proposals of `auto`
  3  plain decoding, the best of the fixed settings, `auto` without and with the draft model decode the same
     answers at the same time, a few tokens each in turn (side_by_side.py): real passes and drafts, what the
     target says is the record's
  4  the same replay, with the costs as use has refreshed them and at the pace that the machine had meanwhile,
     predicts the speed of `auto`
--first: answers of processes that have learned nothing, and the draft model's reading of the prompt counts.
Ratios are of measured speeds within one run; the bound's share is the predicted one. Targets: 0.98 of plain,
1.05 of the best fixed setting in hindsight, 0.75 of the bound, a prediction within 10%. Run it on an idle
machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oracle import share_of_bound
from side_by_side import SideBySide

from paceline.api import LLM
from paceline.bench.method import parse_all
from paceline.bench.prompts import RequestBuilder
from paceline.bench.replay import traces
from paceline.bench.replay.recording import Recorder
from paceline.bench.replay.replay import Record, Replay, ReplayContext, methods_of
from paceline.bench.replay.traces import Trace
from paceline.bench.suites import workload
from paceline.bench.summary import Interval
from paceline.cli.groups import FLASH_ATTENTION
from paceline.loading import load
from paceline.models import zoo
from paceline.profiling.pass_costs import costs_of
from paceline.speculative.policy.costs import DecodingCosts
from paceline.speculative.sampling import Sampling

sys.path.append(str(Path(__file__).parents[1]))  # for tools

from tools.inflate import inflate, parse_count

AUTO, ALONE = "auto", "suffix+lookup:policy=goodput"  # with what there is; without a draft model
SHIPPED = "shipped"  # the file as it comes
WORKLOADS = {
    "code": ("code", 0.0),
    "edit": ("edit", 0.0),
    "agent": ("agent", 0.0),
    "prose": ("prose", 0.0),
    "hot": ("code", 1.0),
}
COPIED = [f"{name}:n_draft={n}" for name in ("lookup", "suffix") for n in (2, 3, 5, 7, 11, 15, 23)]
SURE = [f"suffix:n_draft={n}:p_min={p}" for n in (3, 7, 15) for p in (0.3, 0.7, 0.9)]
GUESSED = [f"model:n_draft={n}:p_min={p}" for n in (2, 3, 4, 7, 12) for p in (0.0, 0.5, 0.8)]


@dataclass
class Row:
    """One workload with one quantisation. plain, fixed: the speed of `auto` over theirs; alone: with no draft
    model, over plain decoding. bound: its share of
    the oracle's. off: how much too high the prediction is, as a share; drift: how much too high that of
    plain decoding is, which is the machine's doing: it was faster when the costs were measured."""

    type: str
    workload: str
    best: str
    plain: Interval | None
    alone: Interval | None
    fixed: Interval | None
    best_over_plain: Interval | None
    bound: float
    fixed_bound: float
    measured: float
    predicted: float
    off: float
    drift: float


def replayed(
    recorded: Sequence[Trace], methods: str, target: Any, draft: Any, costs: DecodingCosts
) -> list[Record]:
    means = ReplayContext(target.vocab, target.text, draft=draft, costs=costs)
    replay = Replay(recorded, methods_of(methods, {}, draft=True, costs=True), means)
    try:
        replay.run()
        return replay.results()
    finally:
        replay.close()


def speed(result: Record) -> float:
    return float(result["predicted"]["tokens_per_second"]["value"])


def measure(target: Path, ftype: str, name: str, arguments: argparse.Namespace) -> Row:
    suite, temperature = workload_of(name)
    sampling = Sampling(temperature=temperature)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "traces.jsonl"
        with load(target, drafters="none", **settings(arguments)) as llm:
            record_plainly(llm, Recorder(file, print), suite, sampling, arguments)
            text = llm.target.text
            recorded = [traces.read(file, text)]
        draft = drafts_of(arguments)
        with both_models(target, draft, settings(arguments)) as (big, small, costs):
            grid = ",".join([*COPIED, *SURE, *GUESSED])
            best = max(replayed(recorded, grid, big, small, costs), key=speed)["method"]
        methods = [ALONE, AUTO] if best == "plain" else [best, ALONE, AUTO]
        recordings = [request.recording for trace in recorded for request in trace.requests]
        with SideBySide(
            target,
            parse_all(",".join(methods), {}),  # plain decoding is among them
            draft,
            recordings,
            temperature,
            settings(arguments),
            arguments.first,
        ) as sides:
            sides.run(arguments.rounds)
            in_use = sides.costs()
        with both_models(target, draft, settings(arguments)) as (big, small, _):
            both = replayed(recorded, ",".join(methods), big, small, in_use)
            by_auto = methods_of(AUTO, {}, draft=True, costs=True)[-1]
            big_means = ReplayContext(big.vocab, big.text, draft=small, costs=in_use)
            reached = share_of_bound(recorded, by_auto, big_means)
    auto, fixed, plain = (
        next(result for result in both if result["method"] == name) for name in (AUTO, best, "plain")
    )
    predicted, measured = speed(auto), sides.speed(AUTO)
    return Row(
        type=ftype,
        workload=name,
        best=best,
        plain=sides.over(AUTO, "plain"),
        alone=sides.over(ALONE, "plain"),
        fixed=sides.over(AUTO, best),
        best_over_plain=sides.over(best, "plain"),
        bound=reached,
        fixed_bound=reached * speed(fixed) / predicted,
        measured=measured,
        predicted=predicted,
        off=predicted / measured - 1,
        drift=speed(plain) / sides.speed("plain") - 1,
    )


def settings(arguments: argparse.Namespace) -> dict[str, Any]:
    """Of the engine, for the target."""
    return {"threads": arguments.threads, "flash_attention": FLASH_ATTENTION[arguments.flash_attn]}


@contextmanager
def both_models(
    target: Path, draft: Path, given: Mapping[str, Any]
) -> Iterator[tuple[Any, Any, DecodingCosts]]:
    """The target, its draft, and what their passes cost."""
    with (
        load(target, drafters="none", **given) as big,
        load(draft, drafters="none", **given) as small,
    ):
        yield big.target, small.target, costs_of(big.target, small.target)


def workload_of(name: str) -> tuple[str, float]:
    """A suite and a temperature: one of WORKLOADS, or SUITE[@TEMPERATURE]."""
    suite, _, temperature = name.partition("@")
    return WORKLOADS.get(name, (suite, float(temperature or 0.0)))


def drafts_of(arguments: argparse.Namespace) -> Path:
    return zoo.path("draft" if arguments.of == "target" else f"{arguments.of}-draft")


def chosen(suite: str, arguments: argparse.Namespace) -> list[workload.Item]:
    items = workload.load(suite)
    items = workload.filter_size(items, "tiny") or items
    if arguments.longest:
        items = [item for item in items if length(item) <= arguments.longest]
    return workload.sample_items(items, arguments.items) if arguments.items else items


def length(item: workload.Item) -> int:
    """Of its prompt, about, in tokens."""
    return len(item.prompt or " ".join(content or "" for _, content in item.messages)) // 4


def prompts_of(llm: LLM, sampling: Sampling, arguments: argparse.Namespace) -> RequestBuilder:
    n = arguments.n_predict
    return RequestBuilder(llm, n=n, sampling=sampling, seed=0)


def record_plainly(
    llm: LLM, recorder: Recorder, suite: str, sampling: Sampling, arguments: argparse.Namespace
) -> None:
    """What the model answers, item after item, as the bench asks them."""
    items = chosen(suite, arguments)
    prompts = prompts_of(llm, sampling, arguments)
    said: dict[str, str] = {}
    recorder.begin(llm.target.vocab, llm.target.name)
    for item in items:
        ask = prompts.request(item, said)
        answer = llm.generate(
            ask.tokens, max_tokens=ask.max_tokens, seed=ask.seed, ignore_eos=True, **asdict(sampling)
        )
        said[item.id] = answer.text
        recorder.add(
            ask.tokens, answer, id_=item.id, sampling=sampling, seed=ask.seed, session=item.session or ""
        )


def shown(interval: Interval | None) -> str:
    return "-" if interval is None else f"{interval.value:.2f} [{interval.low:.2f}, {interval.high:.2f}]"


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    small, types = zoo.path(arguments.of), arguments.types.split(",")
    for ftype in [SHIPPED] if arguments.size == SHIPPED else types:
        with tempfile.TemporaryDirectory() as folder:
            target = Path(arguments.models or folder) / f"{arguments.size}-{ftype}.gguf"
            if arguments.size == SHIPPED:
                target = small
            elif not target.exists():
                inflate(small, target, parse_count(arguments.size), ftype)
            for name in arguments.workloads.split(","):
                yield measure(target, ftype, name, arguments)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--of", default="target", help="which of the zoo's models")
    parser.add_argument("--size", default="1B", help=f"or {SHIPPED!r}: the file as it comes")
    parser.add_argument("--types", default="Q4_0,Q8_0,BF16")
    parser.add_argument("--workloads", default=",".join(WORKLOADS), help="or suites, SUITE@TEMPERATURE")
    parser.add_argument("--longest", type=int, default=0, help="tokens of a prompt, about")
    parser.add_argument("--items", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("-n", "--n-predict", type=int, default=96)
    parser.add_argument("--first", action="store_true", help="each answer is the first one of its process")
    parser.add_argument("-t", "--threads", type=int)
    parser.add_argument("-fa", "--flash-attn", choices=FLASH_ATTENTION, default="auto", help="of the target")
    parser.add_argument("--models", help="a folder for the inflated models, to be kept")
    parser.add_argument("--json", action="store_true", help="one JSON object a row on stdout")
    arguments = parser.parse_args()
    if not arguments.json:
        print(
            "type    workload           auto over plain     without a draft     over the best fixed   "
            "the best fixed             bound (fixed)  off (drift)"
        )
    for row in rows(arguments):
        if arguments.json:
            print(json.dumps(asdict(row)), flush=True)
            continue
        off = f"{row.off:+.0%} ({row.drift:+.0%})"
        print(
            f"{row.type:7} {row.workload:18} {shown(row.plain):19} {shown(row.alone):19} "
            f"{shown(row.fixed):21} {row.best:26} "
            f"{row.bound:.2f} ({row.fixed_bound:.2f})   {off}",
            flush=True,
        )
    sys.stdout.flush()


if __name__ == "__main__":
    main()
