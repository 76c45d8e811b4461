"""What a look-up in a corpus costs, by its size, and how good it is: `python benchmarks/datastore.py`.

    python benchmarks/datastore.py --tokens 1M,10M,100M --from DIRECTORY --tokenizer MODEL.gguf

Text is the Python standard library's, or that of --from; every 50th file is held out, and the contexts looked
up are from there. Where the text is shorter than asked for, pieces of 64 tokens of it follow in random order.
Microseconds of finding the match and what followed it, each context's best of three passes over all of them
(other work on the machine shows in single calls), and of whole proposals of 7 tokens (a chain), and up to 28
(4 leaves). The files have just been written: they are in the page cache. accepted: tokens of a chain of 7
that agree with what really followed.
"""

from __future__ import annotations

import argparse
import resource
import sysconfig
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from paceline.backends.registry import open_tokenizer
from paceline.drafters.datastore import DatastoreDrafter
from paceline.drafters.suffix_array import SuffixArray
from paceline.drafters.suffix_sort import build
from paceline.models import zoo
from paceline.prepare.documents import DocumentReader, Skipped, find
from paceline.speculative.interfaces import Budget
from paceline.text.interface import Tokenizer

UNITS = {"K": 10**3, "M": 10**6, "B": 10**9}
PIECE = 64
CONTEXT = 16
DEPTH = 7
Ids = NDArray[np.uint32]


def read(paths: Sequence[Path], tokenizer: Tokenizer, most: int) -> tuple[list[Ids], list[Ids]]:
    """Documents to store, and those held out."""
    skipped, size = Skipped(), 0
    reader = DocumentReader(skipped)
    stored: list[Ids] = []
    held: list[Ids] = []
    for i, file in enumerate(find(paths, [], [], skipped)[0]):
        for text in reader.documents(file):
            assert isinstance(text, str)
            tokens = np.array(tokenizer.text.encode_continuation(text), np.uint32)
            (held if i % 50 == 49 else stored).append(tokens)
            size += len(tokens)
        if size >= most and held:
            break
    return stored, held


def documents(stored: Sequence[Ids], n: int) -> Iterator[Ids]:
    size = 0
    for document in stored:
        if size >= n:
            return
        yield document[: n - size]
        size += len(document)
    text, random = np.concatenate(stored), np.random.default_rng(0)
    while size < n:
        starts = random.integers(0, len(text) - PIECE, min(500, 1 + (n - size) // PIECE))
        yield np.concatenate([text[start : start + PIECE] for start in starts])
        size += PIECE * len(starts)


def best(contexts: Sequence[list[int]], work: Callable[[list[int]], object]) -> NDArray[np.float64]:
    """Microseconds of each context's best of three."""
    passes = []
    for _ in range(3):
        times = []
        for context in contexts:
            began = perf_counter()
            work(context)
            times.append(perf_counter() - began)
        passes.append(times)
    out: NDArray[np.float64] = np.min(passes, axis=0) * 1e6
    return out


def measure(folder: Path, held: Ids, n_contexts: int) -> None:
    store = SuffixArray(folder)
    drafter = DatastoreDrafter([store])
    random = np.random.default_rng(1)
    places = random.integers(CONTEXT, len(held) - DEPTH, n_contexts)
    contexts = [held[at - CONTEXT : at].tolist() for at in places]
    times = best(contexts, lambda context: drafter.look_up(context, DEPTH))
    silent = np.array([not drafter.look_up(context, DEPTH)[1] for context in contexts])
    print(f"  look-up         {spread(times)}")
    if silent.any():
        print(f"  {silent.mean():4.0%} silent     {spread(times[silent])}")
    for name, budget in (("chain", Budget(DEPTH, DEPTH)), ("tree", Budget(DEPTH, 4 * DEPTH, width=4))):
        memories = [drafter.open(context, 0) for context in contexts]
        order = iter(memories * 3)

        def propose(_: list[int], budget: Budget = budget, order: Iterator[object] = order) -> None:
            drafter.propose([(next(order), budget)])

        print(f"  proposal, {name:5} {spread(best(contexts, propose))}")
    print(f"  accepted        {accepted(drafter, held, places):.2f} tokens a look-up")
    drafter.close()


def spread(times: NDArray[np.float64]) -> str:
    names = ("median", "p90", "p99")
    return ", ".join(
        f"{name} {value:5.1f} us"
        for name, value in zip(names, np.percentile(times, [50, 90, 99]), strict=True)
    )


def accepted(drafter: DatastoreDrafter, held: Ids, places: Sequence[int] | NDArray[np.int64]) -> float:
    total = 0
    for at in places:
        memory = drafter.open(held[at - CONTEXT : at].tolist(), 0)
        (tree,) = drafter.propose([(memory, Budget(DEPTH, DEPTH))])
        agree = np.array(tree.tokens) == held[at : at + len(tree)]
        total += len(agree) if agree.all() else int(agree.argmin())
    return total / len(places)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tokens", default="1M,10M", help="sizes, e.g. 1M,10M,100M")
    parser.add_argument("--from", dest="paths", type=Path, nargs="*")
    parser.add_argument("--tokenizer", type=Path, default=zoo.target_path())
    parser.add_argument("--contexts", type=int, default=3000)
    args = parser.parse_args()
    sizes = [round(float(size[:-1]) * UNITS[size[-1]]) for size in args.tokens.split(",")]
    with closing(open_tokenizer(args.tokenizer)) as tokenizer:
        paths = args.paths or [Path(sysconfig.get_paths()["stdlib"])]
        stored, held = read(paths, tokenizer, max(sizes))
        print(f"{sum(map(len, stored)):,} tokens of text, {tokenizer.vocab.size:,} in the vocabulary")
        for n in sizes:
            with tempfile.TemporaryDirectory() as folder:
                began = perf_counter()
                build(Path(folder), documents(stored, n), tokenizer.vocab.size)
                seconds = perf_counter() - began
                size = sum(path.stat().st_size for path in Path(folder).iterdir())
                peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
                print(f"{n:,} tokens: {size / 1e6:,.0f} MB, built in {seconds:.1f} s, peak {peak:,.0f} MB")
                measure(Path(folder), np.concatenate(held), args.contexts)


if __name__ == "__main__":
    main()
