"""Where the time of a busy server goes, without HTTP: chats through its service, so many at once.

    python benchmarks/served_passes.py [--streams 16] [--draft auto] [--chunk 512] [--profile]

Run it on an idle machine.
"""

from __future__ import annotations

import argparse
import cProfile
import pstats
import queue
from collections import Counter
from time import perf_counter

from serve_load import chats

from paceline.loading import load
from paceline.models import zoo
from paceline.request_handle import Finish, StepOutput
from paceline.server.service import ServingEngine
from paceline.server.settings import PREFILL_CHUNK_TOKENS
from paceline.speculative.request import GenerationRequest
from paceline.speculative.stats import TIME_PARTS

PROFILE = cProfile.Profile()
run_worker = ServingEngine._run


def profiled(worker: ServingEngine) -> None:
    PROFILE.enable()
    try:
        run_worker(worker)
    finally:
        PROFILE.disable()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--streams", type=int, default=16)
    parser.add_argument("--sessions", type=int, help="as many as there are streams unless given")
    parser.add_argument("--draft", default="auto", help="drafters, or none")
    parser.add_argument("--chunk", type=int, default=PREFILL_CHUNK_TOKENS)
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("-t", type=int)
    parser.add_argument("--profile", action="store_true")
    args = parser.parse_args()
    plain = args.draft == "none"
    with load(
        zoo.path("smollm2"),
        None if plain else zoo.path("smollm2-draft"),
        None if args.draft == "auto" else args.draft,
        sessions=args.sessions or args.streams,
        n_ctx=1024,
        threads=args.t,
    ) as llm:
        left = [llm.chat_tokens(list(chat)) for chat in chats(2 * args.streams, "passes")]
        ended: queue.Queue[Finish] = queue.Queue()
        if args.profile:
            setattr(ServingEngine, "_run", profiled)  # noqa: B010  # looked at from outside
        service = ServingEngine(llm, chunk=args.chunk)

        def deliver(_: int, output: StepOutput) -> None:
            if output.finish is not None:
                ended.put(output.finish)

        n, ends = len(left), list[Finish]()
        began = perf_counter()
        for _ in range(args.streams):
            service.submit([GenerationRequest(prompt=left.pop(), max_tokens=args.n)], deliver)
        while len(ends) < n:
            ends.append(ended.get())
            if left:
                service.submit([GenerationRequest(prompt=left.pop(), max_tokens=args.n)], deliver)
        seconds = perf_counter() - began
        service.close()
    tokens, prompts = sum(end.n_tokens for end in ends), sum(end.n_prompt - end.n_cached for end in ends)
    print(f"{tokens / seconds:.1f} tokens/s: {tokens} tokens of {n} answers, {prompts} read, {seconds:.1f} s")
    print(
        "  ".join(
            f"{part} {sum(getattr(end.stats, f'{part}_seconds') for end in ends):.2f}"
            for part in (*TIME_PARTS, "reading")
        )
    )
    by = Counter[str]()
    for end in ends:
        for name, source in end.stats.by_source.items():
            by[f"{name} drafted"] += source.drafted
            by[f"{name} accepted"] += source.accepted
    print(f"{sum(end.stats.steps for end in ends)} steps", *(f"{name} {n}" for name, n in sorted(by.items())))
    if args.profile:
        pstats.Stats(PROFILE).sort_stats("tottime").print_stats(20)


if __name__ == "__main__":
    main()
