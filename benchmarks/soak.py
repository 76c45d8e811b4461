"""An hour of mixed load with faults on `paceline serve`: does everything return to where it began?

    python benchmarks/soak.py [--minutes 60] [--clients 12] [-m MODEL -md DRAFT] [--seed 0]

Clients chat, complete, ask for JSON, for several answers, stop in the middle, stall, send half a body or
garbage, in a mix that a seed draws. Each good one asks for its own number, and an answer that names another's
is a failure. Every minute a line tells what is open; at the end, after a rest, sessions, queue and files have
to be where they were after the first requests, and memory within a tenth.
Exit status 1 where something is not.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import re
import sys
from collections import Counter
from contextlib import suppress
from pathlib import Path
from time import monotonic
from typing import Any

import httpx2 as httpx
import psutil
from clients import ask
from serve_load import answers

from paceline.bench.baselines.process import LOCAL, BackgroundProgram, free_port

SESSIONS = 4
REST = 5.0  # seconds after which nothing may be open
GARBAGE = (
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET / HTTP/9.9\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: -5\r\n\r\n",
    b"A" * 70_000,
)
BODIES: tuple[Any, ...] = (
    {"messages": []},
    {"messages": [{"role": "user", "content": "x"}], "max_tokens": 10**9},
    {"messages": [{"role": "user", "content": "word " * 20_000}]},
    {"messages": [{"role": "user", "content": "x"}], "temperature": "hot"},
    {"messages": [{"role": "user", "content": "x"}], "no_such_field": 1},
    {"prompt": "x", "model": "nobody"},
)


class Soak:
    def __init__(self, url: str, port: int, pid: int, seed: int) -> None:
        self.url, self.port, self.seed = url, port, seed
        self.process = psutil.Process(pid)
        self.counts: Counter[str] = Counter()
        self.failures: list[str] = []
        self.numbers: set[str] = set()  # that clients have asked for
        self.completed = ""

    def open_files(self) -> int:
        return int(self.process.num_fds())

    def memory(self) -> int:
        return int(self.process.memory_info().rss)

    async def gauges(self) -> dict[str, float]:
        async with httpx.AsyncClient(base_url=self.url, timeout=30.0) as client:
            said = (await client.get("/metrics")).text
        return {
            name: float(value)
            for name, value in re.findall(r"^paceline:num_requests_(\w+) (\S+)$", said, re.MULTILINE)
        }

    async def client(self, number: int, until: float) -> None:
        rng = random.Random(f"{self.seed}/{number}")
        acts = (self.chat, self.chat, self.chat, self.complete, self.several, self.structured, self.leave,
                self.stall, self.garble, self.refused)  # fmt: skip
        async with httpx.AsyncClient(base_url=self.url, timeout=600.0) as client:
            while monotonic() < until:
                act = rng.choice(acts)
                try:
                    await act(client, rng)
                except (OSError, httpx.HTTPError) as error:
                    self.failures.append(f"{act.__name__}: {type(error).__name__}: {error}")
                self.counts[act.__name__] += 1
                await asyncio.sleep(rng.expovariate(4.0))

    async def chat(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        number = rng.randrange(10_000, 99_999)
        self.numbers.add(str(number))
        said = f"Repeat this number three times: {number}"
        try:
            reply = await ask(
                client, [{"role": "user", "content": said}], temperature=0, max_tokens=rng.choice((16, 48))
            )
        except ValueError as error:
            if "429" not in str(error):
                self.failures.append(f"chat: {error}")
            return
        for other in re.findall(r"\b\d{5}\b", reply.text):
            if other != str(number):
                self.counts["another number"] += 1  # a small model errs; whose number it is tells
                if other in self.numbers:
                    self.failures.append(f"an answer to {number} names {other}, another client's")

    async def complete(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        body = {"prompt": "1, 2, 3, 4, 5, 6,", "max_tokens": 24, "temperature": 0}
        response = await client.post("/v1/completions", json=body)
        if response.status_code == 200:
            text = response.json()["choices"][0]["text"]
            self.completed = self.completed or text
            self.counts["parted at a near-tie"] += self.completed != text
        elif response.status_code != 429:
            self.failures.append(f"complete: HTTP {response.status_code}")

    async def several(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        body = {"prompt": "The sea", "max_tokens": 12, "n": 3, "temperature": 0.8, "seed": rng.randrange(99)}
        response = await client.post("/v1/completions", json=body)
        if response.status_code not in (200, 429):
            self.failures.append(f"several: HTTP {response.status_code}")

    async def structured(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        schema = {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "age": {"type": "integer", "maximum": 99},
            },
            "required": ["name", "age"],
            "additionalProperties": False,
        }
        form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}
        body = {
            "messages": [{"role": "user", "content": "Invent a person."}],
            "max_tokens": 80,
            "temperature": 0.5,
            "response_format": form,
        }
        response = await client.post("/v1/chat/completions", json=body)
        if response.status_code == 200:
            choice = response.json()["choices"][0]
            if choice["finish_reason"] == "stop":
                try:
                    json.loads(choice["message"]["content"])
                except ValueError:
                    self.failures.append(f"no JSON: {choice['message']['content']!r}")
        elif response.status_code != 429:
            self.failures.append(f"structured: HTTP {response.status_code}")

    async def leave(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        """In the middle of a stream."""
        body = {
            "messages": [{"role": "user", "content": "Write a long story."}],
            "max_tokens": 200,
            "stream": True,
        }
        async with client.stream("POST", "/v1/chat/completions", json=body) as response:
            n = rng.randrange(1, 12)
            async for _ in response.aiter_lines():
                n -= 1
                if not n:
                    return

    async def stall(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        """Half a body, or a stream that nobody reads."""
        reader, writer = await asyncio.open_connection(LOCAL, self.port)
        with suppress(OSError):
            head = f"POST /v1/completions HTTP/1.1\r\nHost: {LOCAL}\r\nContent-Type: application/json\r\n"
            if rng.random() < 0.5:
                writer.write(f'{head}Content-Length: 500\r\n\r\n{{"prompt": "a'.encode())
            else:
                body = json.dumps({"prompt": "a b c", "max_tokens": 64, "stream": True})
                writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n{body}".encode())
            await writer.drain()
            await asyncio.sleep(rng.uniform(0.1, 3.0))
        writer.close()
        del reader

    async def garble(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        _, writer = await asyncio.open_connection(LOCAL, self.port)
        with suppress(OSError):
            writer.write(rng.choice(GARBAGE))
            await writer.drain()
            await asyncio.sleep(0.05)
        writer.close()

    async def refused(self, client: httpx.AsyncClient, rng: random.Random) -> None:
        body = rng.choice(BODIES)
        path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
        response = await client.post(path, json=body)
        if response.status_code not in (400, 404, 429) or not response.json()["error"]["message"]:
            self.failures.append(f"refused: HTTP {response.status_code} for {str(body)[:80]}")

    async def run(self, minutes: float, clients: int) -> None:
        async with httpx.AsyncClient(base_url=self.url, timeout=600.0) as client:
            for act in (self.chat, self.complete, self.several, self.structured):
                await act(client, random.Random(1))
        await asyncio.sleep(1.0)
        files, began = self.open_files(), monotonic()
        working = asyncio.gather(*(self.client(one, began + 60 * minutes) for one in range(clients)))
        memory = 0
        while not working.done():
            await asyncio.wait((working,), timeout=60.0)
            done = (monotonic() - began) / 60
            memory = memory or (self.memory() if done > min(5.0, minutes / 2) else 0)
            print(
                f"{done:5.1f} min  {sum(self.counts.values())} acts  {len(self.failures)} failures  "
                f"{self.open_files()} files  {self.memory() / 1e6:.0f} MB  {await self.gauges()}",
                file=sys.stderr,
            )
        await working
        await asyncio.sleep(REST)
        gauges = await self.gauges()
        if any(gauges.values()):
            self.failures.append(f"after a rest there are still {gauges}")
        if self.open_files() > files + 4:
            self.failures.append(f"{self.open_files()} open files, at first {files}")
        if memory and self.memory() > 1.1 * memory:
            self.failures.append(f"{self.memory() / 1e6:.0f} MB, {memory / 1e6:.0f} after the beginning")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--clients", type=int, default=12)
    parser.add_argument("-m", default="zoo:smollm2")
    parser.add_argument("-md", default="zoo:smollm2-draft")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--log", type=Path, help="where the server's log goes")
    args = parser.parse_args()
    port = free_port()
    argv = [sys.executable, "-m", "paceline", "serve", "-m", args.m, "-md", args.md, "--port", str(port)]
    argv += ["--sessions", str(SESSIONS), "--queue", "8", "-c", "2048", "--log-json"]
    server = BackgroundProgram("paceline", argv)
    try:
        url = f"http://{LOCAL}:{port}"
        server.wait_ready(lambda: answers(url), 300.0)
        soak = Soak(url, port, server.pid, args.seed)
        asyncio.run(soak.run(args.minutes, args.clients))
    finally:
        if args.log:
            args.log.write_text(server.output_tail())
        server.close()
    print(json.dumps({"acts": soak.counts, "failures": soak.failures[:20]}, indent=1))
    raise SystemExit(bool(soak.failures))


if __name__ == "__main__":
    main()
