"""`paceline serve` beside llama-server with its speculative modes: throughput, TPOT and first tokens.

    python benchmarks/serve_load.py --server PATH [-m TARGET -md DRAFT] [--streams 1,4,8,16] [--md]
    python benchmarks/serve_load.py --server PATH --size 1B --type Q4_0

All servers run side by side on the same files, with as many sessions as the most streams, and take turns: at
each number of streams each answers the same chats (suite real-chat and others), greedy, of the same length.
Of llama-server's modes the best at each number is the one to compare with, chosen in hindsight. Targets: 1.1
of its throughput at one stream, 1.0 at sixteen.
--long N: then the first token of a short request while a prompt of N tokens is read, in pieces of what one
chunk takes; target: a few. Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import geometric_mean
from typing import Any
from urllib.request import urlopen

import httpx2 as httpx
from clients import Load, Messages, ask, load

from paceline.bench.baselines.llama_server import LlamaServer, find_program
from paceline.bench.baselines.process import LOCAL, BackgroundProgram, free_port
from paceline.bench.suites import workload
from paceline.hardware.threads import choose_threads
from paceline.models import zoo
from paceline.server.settings import PREFILL_CHUNK_TOKENS

sys.path.append(str(Path(__file__).parents[1]))  # for tools

from tools.inflate import inflate, parse_count

MODES = "none,model:8:0.75,ngram-simple"
OURS = "paceline"
LONGEST = 1500  # characters of a chat


@dataclass(frozen=True)
class Server:
    name: str
    url: str


@dataclass(frozen=True)
class Row:
    """One server at one number of streams. rate: tokens a second. each: seconds a token of one answer. first:
    seconds to the first."""

    name: str
    streams: int
    rate: float
    each: float
    first: float


def chats(n: int, seed: str) -> list[Messages]:
    """Of all real suites in turns. Each begins with words of its own (of `seed`, so that all servers get the
    same), or some would find in their caches what they were asked before."""
    told = [
        [{"role": role, "content": content or ""} for role, content in item.messages]
        for item in workload.interleaved(workload.load("real"))
        if item.messages and all(content is not None for _, content in item.messages)
    ]
    short = [one for one in told if sum(len(message["content"]) for message in one) < LONGEST]
    return [
        [{"role": "system", "content": f"Request {seed}-{at}."}, *without_system(short[at % len(short)])]
        for at in range(n)
    ]


def without_system(messages: Messages) -> Messages:
    return [message for message in messages if message["role"] != "system"]


def ours(
    stack: ExitStack, target: Path, draft: Path | None, n_ctx: int, threads: int, sessions: int
) -> Server:
    port = free_port()
    argv = [sys.executable, "-m", "paceline", "serve", "-m", str(target), "--port", str(port), "--quiet"]
    argv += [
        "-c",
        str(n_ctx),
        "-t",
        str(threads),
        "--sessions",
        str(sessions),
        "--chunk",
        str(PREFILL_CHUNK_TOKENS),
    ]
    if draft is not None:
        argv += ["-md", str(draft)]
    program = BackgroundProgram(OURS, argv)
    stack.callback(program.close)
    url = f"http://{LOCAL}:{port}"
    program.wait_ready(lambda: answers(url), 300.0)
    return Server(OURS, url)


def answers(url: str) -> bool:
    """Asked often, while the server measures what its passes cost: at hardly any cost of its own."""
    try:
        with urlopen(f"{url}/health", timeout=5.0) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def theirs(
    stack: ExitStack,
    server: str,
    mode: str,
    target: Path,
    draft: Path | None,
    n_ctx: int,
    threads: int,
    sessions: int,
) -> Server:
    """mode: "none", or a method with n-max and p-min behind it."""
    method, *numbers = mode.split(":")
    started = LlamaServer(
        find_program(server),
        target,
        draft if method == "model" else None,
        name=mode,
        method="plain" if method == "none" else method,
        n_draft=int(numbers[0]) if numbers else None,
        p_min=float(numbers[1]) if len(numbers) > 1 else None,
        n_ctx=n_ctx,
        threads=threads,
        parallel=sessions,
        extra=("--jinja",),
    )
    stack.callback(started.close)
    return Server(f"llama-server {mode}", started.url)


def measured(servers: Sequence[Server], streams: int, n: int, seed: str, length: int) -> list[Row]:
    """In turns, all with the same chats."""
    rows = []
    for server in servers:
        one: Load = asyncio.run(load(server.url, chats(n, seed), streams, temperature=0, max_tokens=length))
        rows.append(Row(server.name, streams, one.rate, one.each, one.first))
        print(f"  {server.name:32} {streams:3} streams  {one.rate:7.1f} tokens/s", file=sys.stderr)
    return rows


async def beside_long(server: Server, n_tokens: int) -> tuple[float, float]:
    """Seconds to a short request's first token while a long prompt is read, and those of one chunk."""
    words = ["rivers", "stone", "light", "paper", "seven", "windows", "green", "morning", "salt", "engine"]
    text = " ".join(words[(at * 7 + at // 11) % len(words)] for at in range(int(n_tokens / 1.3)))
    async with httpx.AsyncClient(base_url=server.url, timeout=600.0) as client:
        short: Messages = [{"role": "user", "content": "Say hello."}]
        await ask(client, short, temperature=0, max_tokens=4)
        body = {"messages": [{"role": "user", "content": text}], "temperature": 0, "max_tokens": 1}
        long_ = asyncio.ensure_future(client.post("/v1/chat/completions", json=body))
        await asyncio.sleep(0.3)
        reply = await ask(
            client, [{"role": "user", "content": "Name a colour."}], temperature=0, max_tokens=4
        )
        still_reading = not long_.done()
        said = (await long_).json()
        if not still_reading:
            raise SystemExit("the long prompt was read before the short one came: make it longer (--long)")
        read, took = said["timings"]["prompt_n"], said["timings"]["prompt_ms"] / 1000
        return reply.first, took / max(1.0, read / PREFILL_CHUNK_TOKENS)


def table(rows: Sequence[Row], rounds: int) -> list[dict[str, Any]]:
    """Per number of streams: ours over the best mode's, by the geometric mean of the rounds."""
    out = []
    for streams in sorted({row.streams for row in rows}):
        of = {
            name: geometric_mean([row.rate for row in rows if (row.name, row.streams) == (name, streams)])
            for name in {row.name for row in rows}
        }
        each = {
            name: geometric_mean([row.each for row in rows if (row.name, row.streams) == (name, streams)])
            for name in of
        }
        best = max((name for name in of if name != OURS), key=of.__getitem__)
        quickest = min((name for name in of if name != OURS), key=each.__getitem__)
        out.append(
            {
                "streams": streams,
                "best": best,
                "throughput": of[OURS] / of[best],
                "of_plain": of[OURS] / of.get("llama-server none", of[best]),
                "tpot": each[OURS] / each[quickest],
                "rounds": rounds,
            }
        )
    return out


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--server", required=True, help="a llama-server")
    parser.add_argument("-m", type=Path, help="target; default: SmolLM2")
    parser.add_argument("-md", dest="draft", type=Path, help="draft; default: SmolLM2's")
    parser.add_argument("--size", help="inflate the target, such as 1B")
    parser.add_argument("--type", default="Q4_0")
    parser.add_argument("--modes", default=MODES, help="of llama-server: METHOD[:N_MAX[:P_MIN]], ...")
    parser.add_argument("--streams", default="1,4,8,16")
    parser.add_argument("--each", type=int, default=2, help="chats a stream")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("-n", type=int, default=64, help="tokens of an answer")
    parser.add_argument("-c", type=int, default=2048)
    parser.add_argument("-t", type=int)
    parser.add_argument("--long", type=int, default=0, help="tokens of a long prompt")
    parser.add_argument("--md", action="store_true", help="a Markdown table")
    args = parser.parse_args()
    streams = [int(one) for one in args.streams.split(",")]
    threads = choose_threads(args.t)
    n_ctx = max(args.c, args.long + 512 if args.long else 0)
    with ExitStack() as stack:
        target = args.m or zoo.path("smollm2")
        draft = args.draft or (zoo.path("smollm2-draft") if args.m is None else None)
        if args.size:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            made = folder / f"{args.size}-{args.type}.gguf"
            inflate(target, made, parse_count(args.size), args.type)
            target = made
        settings = (n_ctx, threads, max(streams))
        servers = [ours(stack, target, draft, *settings)]
        servers += [
            theirs(stack, args.server, mode, target, draft, *settings) for mode in args.modes.split(",")
        ]
        rows: list[Row] = []
        for server in servers:  # warm: caches of files, compiled code
            asyncio.run(load(server.url, chats(2, "warm"), 2, temperature=0, max_tokens=16))
        for round_ in range(args.rounds):
            for n in streams:
                order = servers if round_ % 2 == 0 else servers[::-1]
                rows += measured(order, n, max(4, args.each * n), f"{round_}-{n}", args.n)
        found = table(rows, args.rounds)
        beside = asyncio.run(beside_long(servers[0], args.long)) if args.long else None
    if args.md:
        print("| streams | best mode of llama-server | throughput | of its plain decoding | TPOT |")
        print("|---|---|---|---|---|")
        for one in found:
            best = one["best"].removeprefix("llama-server ")
            ratios = " | ".join(f"{one[name]:.2f}" for name in ("throughput", "of_plain", "tpot"))
            print(f"| {one['streams']} | {best} | {ratios} |")
        if beside is not None:
            print(
                f"\nFirst token beside a prompt of {args.long:,} tokens: {beside[0] / beside[1]:.1f} chunks"
            )
    else:
        print(json.dumps({"table": found, "rows": [asdict(row) for row in rows], "beside": beside}, indent=1))


if __name__ == "__main__":
    main()
