"""Makes vocabularies.json.xz from llama.cpp's vocabulary-only files, with what llama.cpp itself says of them:

    pip download --no-binary :all: --no-deps llama-cpp-python==0.3.36 && tar xf llama_cpp_python-0.3.36.tar.gz
    python tests/data/vocabularies/extract.py llama_cpp_python-0.3.36/vendor/llama.cpp/models
    python tests/data/vocabularies/extract.py llama_cpp_python-0.3.36/vendor/llama.cpp/models --table

The second prints the verdicts of all pairs of the full files, for docs/check.md.
"""

from __future__ import annotations

import ctypes
import hashlib
import json
import lzma
import os
import sys
from itertools import product
from pathlib import Path
from typing import Any

from paceline.backends.llama_cpp.binding import llama_cpp
from paceline.backends.llama_cpp.text import read_vocab
from paceline.models.compatibility.check import compare
from paceline.models.headers.facts import ModelFacts
from paceline.models.headers.header import read_gguf
from paceline.models.headers.vocabulary import make_vocab
from paceline.speculative.errors import VocabError
from paceline.speculative.vocabulary import Vocab
from paceline.vocab.translation import check_shared

OUT = Path(__file__).with_name("vocabularies.json.xz")
PREFIX = "ggml-vocab-"
BLOCK = 256  # tokens that one digest stands for
WHOLE = ("llama-spm", "phi-3", "starcoder", "refact")  # small, and pairs that differ in interesting ways


def main() -> None:
    folder, *options = sys.argv[1:]
    quiet()
    facts = {path.stem.removeprefix(PREFIX): read_gguf(path) for path in sorted(Path(folder).glob("*.gguf"))}
    loaded = {name: load(one.path) for name, one in facts.items()}
    for name, (vocab, piece) in loaded.items():
        check_read(name, facts[name], vocab, piece)
    shared = [(a, b) for a, b in product(loaded, repeat=2) if shares(loaded[a][0], loaded[b][0])]
    if "--table" in options:
        print_table(facts, shared)
        return
    record = {
        "made_from": "vendor/llama.cpp/models of llama-cpp-python 0.3.36",
        "block": BLOCK,
        "vocabularies": {name: extract(name, one, loaded[name][0]) for name, one in facts.items()},
        "shared": shared,
    }
    OUT.write_bytes(lzma.compress(json.dumps(record).encode(), preset=9 | lzma.PRESET_EXTREME))
    print(
        f"{OUT.name}: {OUT.stat().st_size:,} bytes; {sum(fact.n_vocab for fact in facts.values()):,} tokens"
    )


def quiet() -> None:
    @llama_cpp().llama_log_callback  # type: ignore[untyped-decorator]
    def nothing(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
        pass

    quiet.kept = nothing  # type: ignore[attr-defined]  # llama.cpp calls it as long as it lives
    llama_cpp().llama_log_set(nothing, None)


def load(path: Path) -> tuple[Vocab, Any]:
    """Load a vocabulary with llama.cpp, because our own loader refuses embedding models."""
    params = llama_cpp().llama_model_default_params()
    params.vocab_only = True
    vocab = read_vocab(llama_cpp().llama_model_load_from_file(os.fsencode(path), params))
    return vocab, vocab.piece


def check_read(name: str, facts: ModelFacts, theirs: Vocab, piece: Any) -> None:
    """Check that the header gives llama.cpp's vocabulary, down to every token's text and bytes."""
    assert facts.tokenizer is not None
    ours = make_vocab(facts.tokenizer)
    for field in ("size", "kind", "bos", "eos", "add_bos", "add_eos"):
        assert getattr(ours, field) == getattr(theirs, field), (name, field)
    for token in range(theirs.size):
        assert ours.text(token) == theirs.text(token), (name, token)
        assert ours.piece(token) == piece(token), (name, token)


def shares(target: Vocab, draft: Vocab) -> bool:
    try:
        check_shared(target, draft)
    except VocabError:
        return False
    return True


def extract(name: str, facts: ModelFacts, said: Vocab) -> dict[str, Any]:
    tokenizer = facts.tokenizer
    assert tokenizer is not None
    texts = [text.decode(errors="surrogateescape") for text in tokenizer.texts]
    whole = name in WHOLE
    return {
        "arch": facts.arch,
        "family": facts.family,
        "n_ctx": facts.n_ctx,
        "kind": tokenizer.kind,
        "pre": tokenizer.pre,
        "special": dict(tokenizer.special),
        "ends": sorted(tokenizer.ends),
        "add_bos": tokenizer.add_bos,
        "add_eos": tokenizer.add_eos,
        "add_space_prefix": tokenizer.add_space_prefix,
        # Nobody renders it here.
        "chat_template": facts.chat_template and hashlib.sha256(facts.chat_template.encode()).hexdigest(),
        "size": len(texts),
        "texts": texts if whole else texts[:BLOCK],
        "types": list(tokenizer.types) if whole else list(tokenizer.types[:BLOCK]),
        "digests": [] if whole else [digest(texts[i : i + BLOCK]) for i in range(BLOCK, len(texts), BLOCK)],
        "llama_cpp": {
            "size": said.size,
            "kind": said.kind,
            "bos": said.bos,
            "eos": sorted(said.eos),
            "add_bos": said.add_bos,
            "add_eos": said.add_eos,
        },
    }


def digest(texts: list[str]) -> str:
    return hashlib.sha256(json.dumps(texts).encode()).hexdigest()[:12]


def print_table(facts: dict[str, ModelFacts], shared: list[tuple[str, str]]) -> None:
    """Print a table with one cell a pair: same, yes, x, or the share of the target's texts in common."""
    print(f"| target \\ draft | {' | '.join(facts)} |")
    print(f"|---|{'---|' * len(facts)}")
    for ours, target in facts.items():
        cells = []
        for theirs, draft in facts.items():
            found = compare(target, draft)
            common = next((reason for reason in found.reasons if reason.field == "tokens in common"), None)
            fits = found.verdict in ("same", "compatible")
            # Embedding models share a vocabulary with themselves, and still nothing can be drafted with them.
            assert fits == ((ours, theirs) in shared) or not found.usable, (ours, theirs)
            share = common.text.partition(".")[0] + "%" if common else ""
            cells.append(
                {"same": "same", "compatible": "**yes**", "incompatible": "x"}.get(found.verdict, share)
            )
        print(f"| {ours} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
