"""Make the n-gram caches of idioms: `python -m tools.embedded.idioms [--out FOLDER]`.

What every SQL script, JSON document and Python module says, counted with the embedded tokenizer, in the
format of llama.cpp's static lookup caches. The texts are the standard library without tests and the held-out
modules, and records of a generator, as the embedded models were trained on (corpus.py). The same Python
gives the same files. Needs llama-cpp-python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

from paceline.drafters.ngram_cache import NgramCache
from paceline.models import zoo
from tools.embedded import corpus
from tools.embedded.records import Records

SIZE = 100_000  # bytes of a file, at most
BYTES = 3_000_000  # of generated text a kind


def generated(kind: str) -> Iterator[str]:
    records = Records(corpus.SEED, corpus.frequent_words([text for _, text in modules()]))
    size = 0
    while size < BYTES:
        text = records.sql() if kind == "sql" else records.json_document()
        size += len(text)
        yield text


def modules() -> Iterator[tuple[Path, str]]:
    banned = {window for text in corpus.held_out().values() for window in corpus.windows(text)}
    for path, text in corpus.python_files(corpus.stdlib()):
        if not {"test", "tests", "idle_test"} & set(path.parts) and banned.isdisjoint(corpus.windows(text)):
            yield path, text


def texts(kind: str) -> Iterator[str]:
    return (text for _, text in modules()) if kind == "python" else generated(kind)


def idioms(streams: Iterator[list[int]]) -> NgramCache:
    """The continuations that were seen often enough to fit."""
    cache, least = NgramCache.build(streams), 2
    while cache.words().nbytes > SIZE:
        least += 1 + least // 16
        ngrams, tokens, counts = cache.rows()
        frequent = counts >= least
        cache = NgramCache.of((ngrams[frequent], tokens[frequent], counts[frequent]))
    return cache


def main() -> None:
    from llama_cpp import Llama

    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=zoo.MODELS.parent / "idioms")
    out = parser.parse_args().out
    model = Llama(str(zoo.target_path()), vocab_only=True, verbose=False)
    for kind in ("json", "python", "sql"):
        streams = (model.tokenize(text.encode(), add_bos=False, special=False) for text in texts(kind))
        cache = idioms(streams)
        path = out / f"{kind}.ngram"
        cache.write(path)
        print(f"{path}: {len(cache):,} n-grams, {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
