"""The suffix drafter on recorded traces, and what it costs with a long history:
`python benchmarks/suffix.py --vocab VOCAB.gguf --traces TRACES.jsonl`.

The record's own next token plays the target, so no model is needed, only a vocabulary: any GGUF, one without
weights will do (llama.cpp's models/ggml-vocab-qwen2.gguf). Traces are JSON lines with `messages` of `role`
and `content`: every assistant message is a request, all before it the prompt, and requests come in order.
Beside them files of the standard library are continued from their first third, and costs are measured on top
of a history of its source.

Where arctic-inference is installed, its SuffixDecodingCache (exact counts in a suffix tree, arXiv:2411.04975)
does the same work; both may draft as many tokens. It builds from source: torch, grpcio-tools and nanobind
2.9.2 installed first, then, in an active environment, `pip install --no-build-isolation arctic-inference`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from time import perf_counter
from typing import Any

from paceline.drafters.suffix import SuffixDrafter
from paceline.speculative.interfaces import Budget, Features
from paceline.speculative.stats import Step, StepTimes
from paceline.speculative.tree import ROOT

try:
    SuffixDecodingCache: Any = import_module("arctic_inference.suffix_decoding").SuffixDecodingCache
except ImportError:
    SuffixDecodingCache = None

Draft = tuple[Sequence[int], Sequence[int]]  # tokens and parents
Request = tuple[list[int], list[int]]  # prompt and output
REACH = 64


@dataclass
class Ours:
    """drafter: a fresh one."""

    drafter: SuffixDrafter
    name = "paceline"
    _memory: Any = None

    def start(self, prompt: list[int]) -> None:
        self._memory = self.drafter.open(prompt, 0)

    def draft(self, n: int, tree: bool) -> Draft:
        (found,) = self.drafter.propose([(self._memory, Budget(n, n, n if tree else 1))])
        return found.tokens, found.parents

    def add(self, tokens: list[int]) -> None:
        self._memory.update(
            Step(tuple(tokens), ("target",) * len(tokens), (), {}, {}, None, StepTimes()), Features()
        )

    def stop(self) -> None:
        self._memory.close()

    def learn(self, tokens: list[int]) -> None:
        self.drafter.learn(tokens)

    def size(self) -> int:
        history = self.drafter.history
        return sum(memoryview(x).nbytes for x in (history.ring, history.links, history.heads))


class Arctic:
    name = "arctic"

    def __init__(self) -> None:
        self._cache: Any = SuffixDecodingCache(REACH, -1)
        self._request = 0
        self._context: list[int] = []

    def start(self, prompt: list[int]) -> None:
        self._request += 1
        self._context = prompt[-REACH:]
        self._cache.start_request(self._request, prompt)

    def draft(self, n: int, tree: bool) -> Draft:
        found = self._cache.speculate(self._request, self._context, max_spec_tokens=n, use_tree_spec=tree)
        return found.token_ids, found.parents

    def add(self, tokens: list[int]) -> None:
        self._cache.add_active_response(self._request, tokens)
        self._context = (self._context + tokens)[-REACH:]

    def stop(self) -> None:
        self._cache.stop_request(self._request)

    def learn(self, tokens: list[int]) -> None:
        self.start([])
        self.add(tokens)
        self.stop()

    def size(self) -> int:
        size: int = self._cache._global_tree.estimate_memory()
        return size


def systems() -> list[Ours | Arctic]:
    return [Ours(SuffixDrafter()), *([] if SuffixDecodingCache is None else [Arctic()])]


def accepted(draft: Draft, output: list[int], at: int) -> int:
    """How many of the output's tokens from `at` on the tree holds."""
    children = {(parent, token): i for i, (token, parent) in enumerate(zip(*draft, strict=True))}
    node, n = ROOT, 0
    while at + n < len(output) and (node, output[at + n]) in children:
        node = children[node, output[at + n]]
        n += 1
    return n


def replay(system: Ours | Arctic, requests: list[Request], n: int, tree: bool) -> str:
    steps = drafted = kept = 0
    seconds = []
    for prompt, output in requests:
        system.start(prompt)
        at = 0
        while at < len(output):
            began = perf_counter()
            draft = system.draft(n, tree)
            seconds.append(perf_counter() - began)
            right = accepted(draft, output, at)
            steps, drafted, kept = steps + 1, drafted + len(draft[0]), kept + right
            system.add(output[at : at + right + 1])
            at += right + 1
        system.stop()
    return (
        f"{system.name:10} {n:3} {'tree' if tree else 'path'}  {kept / steps:8.3f} {drafted / steps:9.2f}"
        f" {kept / drafted:7.1%}  {statistics.median(seconds) * 1e6:6.1f}"
    )


def cost(system: Ours | Arctic, past: list[list[int]], request: Request, size: int) -> str:
    """Medians: of the documents for learning, of the steps for proposing and observing one token."""
    learned, n = [], 0
    for tokens in past:
        began = perf_counter()
        system.learn(tokens)
        learned.append((perf_counter() - began) / len(tokens))
        n += len(tokens)
        if n >= size:
            break
    prompt, output = request
    began = perf_counter()
    system.start(prompt)
    opened = perf_counter() - began
    proposed, added = [], []
    for token in output:
        began = perf_counter()
        system.draft(16, False)
        between = perf_counter()
        system.add([token])
        proposed.append(between - began)
        added.append(perf_counter() - between)
    tenth = sorted(proposed)[-len(proposed) // 10]
    return (
        f"{system.name:10} {n:9,} {statistics.median(learned) * 1e6:11.2f} {system.size() / n:11.1f}"
        f" {statistics.median(proposed) * 1e6:9.1f} {tenth * 1e6:9.1f} {statistics.median(added) * 1e6:9.2f}"
        f" {opened / len(prompt) * 1e6:12.2f}"
    )


class Tokenizer:
    def __init__(self, vocab: str) -> None:
        from llama_cpp import Llama

        self._model: Any = Llama(vocab, vocab_only=True, verbose=False)

    def __call__(self, text: str, special: bool = False) -> list[int]:
        tokens: list[int] = self._model.tokenize(text.encode(), add_bos=False, special=special)
        return tokens


def transcripts(path: Path, tokenize: Tokenizer) -> Iterator[Request]:
    """In ChatML, whatever the vocabulary: the template is the same for all systems."""
    for line in path.read_text(encoding="utf-8").splitlines():
        text: list[int] = []
        for message in json.loads(line)["messages"]:
            text += tokenize(f"<|im_start|>{message['role']}\n", special=True)
            content = tokenize(message["content"]) + tokenize("<|im_end|>", special=True)
            if message["role"] == "assistant":
                yield text, content
            text = text + content + tokenize("\n")


def library(tokenize: Tokenizer, size: int) -> list[list[int]]:
    """Files of the standard library, in an order of its own, of at least `size` tokens together."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py"))
    files = [file for file in files if "site-packages" not in file.parts]
    random.Random(0).shuffle(files)
    out: list[list[int]] = []
    while files and size > 0:
        out.append(tokenize(files.pop().read_text(encoding="utf-8", errors="replace")[:200_000]))
        size -= len(out[-1])
    return [tokens for tokens in out if len(tokens) > 100]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--vocab", required=True, help="a GGUF with the vocabulary")
    parser.add_argument("--traces", nargs="*", default=[], type=Path)
    parser.add_argument("--drafts", nargs="*", default=[4, 8, 16, 32], type=int, help="most tokens a draft")
    parser.add_argument("--history", default=1_000_000, type=int, help="tokens to learn for the costs")
    args = parser.parse_args()
    tokenize = Tokenizer(args.vocab)
    files = library(tokenize, args.history + 100_000)
    traces = {str(path): list(transcripts(path, tokenize)) for path in args.traces}
    traces["the standard library"] = [
        (tokens[: len(tokens) // 3], tokens[len(tokens) // 3 :][:1500]) for tokens in files[:40]
    ]
    for name, requests in traces.items():
        print(f"\n{name}: {len(requests)} outputs, {sum(len(output) for _, output in requests):,} tokens")
        print("             draft  accepted   drafted  rate   microseconds")
        print("                    per step  per step")
        for n in args.drafts:
            for tree in (False, True):
                for system in systems():
                    print(replay(system, requests, n, tree), flush=True)
    print("\ncosts (microseconds, but for bytes)")
    print(
        f"{'':10} {'history':>9} {'learn/token':>11} {'bytes/token':>11} {'proposal':>9} {'90% below':>9}"
        f" {'observe':>9} {'prompt/token':>12}"
    )
    last, rest = max(files, key=len), sorted(files, key=len)[:-1]
    random.Random(1).shuffle(rest)
    request = (last[: len(last) // 2], last[len(last) // 2 :][:3000])
    for size in (args.history // 100, args.history // 10, args.history):
        for system in systems():
            print(cost(system, rest, request, size), flush=True)


if __name__ == "__main__":
    main()
