"""What a draft of another vocabulary is worth: as it is, transplanted, and trained on for a few minutes.

    python benchmarks/transplant.py donor --out DIR --minutes 8      # needs torch and tokenizers
    python benchmarks/transplant.py finetune --out DIR --minutes 5   # needs torch; after a first `table`
    python benchmarks/transplant.py table --out DIR                  # needs llama-cpp-python

DIR holds all files; what is there already is kept, and interrupted training goes on, so that a command can
be given again. `donor` makes a draft with a tokenizer of its own, a byte-level BPE of 4,096 tokens: the
embedded draft's blocks under new tokens, trained on the text as that tokenizer splits it. It needs the corpus
that `tools.embedded.train` makes in DIR/run on its first use (minutes). `table` counts tokens a pass and what
was kept of drafts, greedy, on the embedded suites; nothing in it depends on how fast the machine is.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

import numpy as np

from paceline.models import zoo

sys.path.append(str(Path(__file__).parents[1]))  # for tools

VOCAB = 4096
SHARE_TOKENS = 3_000_000  # of the corpus, in the target's tokens
SUITES = ("code", "json", "agent", "prose")
TOKENS = 64
P_MIN = 0.2
END = 0  # the zoo's <|endoftext|>, between documents


def documents(run: Path) -> dict[str, list[str]]:
    """Source -> texts: as much of each as the training mixture has of `SHARE_TOKENS`."""
    from tools.embedded.distil import corpus_tokens
    from tools.embedded.restore import tokenizer_of
    from tools.embedded.train import MIXTURE

    tokenizer = tokenizer_of(zoo.target_path())
    out = {}
    for name, ids in corpus_tokens(run, zoo.target_path()).items():
        if name in MIXTURE:
            part = ids[: int(SHARE_TOKENS * MIXTURE[name])]
            pieces = np.split(part, np.flatnonzero(part == END) + 1)
            out[name] = [tokenizer.decode(piece.tolist()) for piece in pieces if len(piece) > 1]
    return out


def tokenizer_for(texts: list[str], path: Path) -> Any:
    """A BPE of the zoo's kind, with fewer tokens and other merges."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    from tools.embedded.corpus import END as NAME

    if path.exists():
        return Tokenizer.from_file(str(path))
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.train_from_iterator(texts, trainers.BpeTrainer(
        vocab_size=VOCAB, special_tokens=[NAME], show_progress=False, max_token_length=32,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))  # fmt: skip
    tokenizer.save(str(path))
    return tokenizer


def write_donor(out: Path, tokenizer: Any, tokenizer_file: Path) -> None:
    """The embedded draft's blocks under the new tokens, each of which begins as the mean of its pieces."""
    from dataclasses import replace
    from functools import partial

    from tools.embedded.export import CARDS, add_tokenizer, tensors_of, write_gguf
    from tools.embedded.network import DRAFT
    from tools.embedded.restore import tokenizer_of, weights_of

    old = tokenizer_of(zoo.draft_path())
    weights = weights_of(zoo.draft_path(), DRAFT)
    table, rows = weights["token_embd.weight"], []
    for token in range(VOCAB):
        known = old.token_to_id(tokenizer.id_to_token(token))
        pieces = [known] if known is not None else old.encode(tokenizer.decode([token])).ids
        rows.append(table[pieces].mean(0))
    weights["token_embd.weight"] = np.stack(rows)
    import torch

    shape = replace(DRAFT, vocab=VOCAB)
    state = {name: torch.from_numpy(array) for name, array in weights.items()}
    name, _, description = CARDS["draft"]
    tokens = partial(add_tokenizer, path=tokenizer_file)
    write_gguf(out, tensors_of(state, shape), shape, name, description, tokens)


def donor(out: Path, minutes: float) -> None:
    from tools.embedded.distil import distil

    if (out / "donor.gguf").exists():
        return
    out.mkdir(parents=True, exist_ok=True)
    texts = documents(out / "run")
    tokenizer = tokenizer_for(texts["prose"], out / "donor-tokenizer.json")
    data = {
        name: np.array([t for one in tokenizer.encode_batch_fast(part) for t in (*one.ids, END)], np.uint16)
        for name, part in texts.items()
    }
    if not (out / "donor-untrained.gguf").exists():
        write_donor(out / "donor-untrained.gguf", tokenizer, out / "donor-tokenizer.json")
    distil(out / "donor-untrained.gguf", out / "donor.gguf", data, target=None, minutes=minutes)


def finetune(out: Path, minutes: float, distil_target: bool) -> None:
    from tools.embedded.distil import corpus_tokens, distil

    data, target = corpus_tokens(out / "run", zoo.target_path()), zoo.target_path() if distil_target else None
    for way in ("transplanted", "tied"):
        trained = out / f"{way}-finetuned.gguf"
        if not trained.exists():
            distil(out / f"{way}.gguf", trained, data, target=target, minutes=minutes)


def measure(draft: Path, mode: str, n: int) -> tuple[str, ...]:
    """Tokens a pass by suite and of all; kept of drafted; drafted a pass; all greedy."""
    import paceline
    from paceline.bench.suites import workload

    sums = []
    settings: dict[str, Any] = {"policy": "p_min", "p_min": P_MIN, "cross_vocab": mode}
    with paceline.load(zoo.target_path(), draft, "model", n_ctx=1536, threads=1, **settings) as llm:
        for suite in SUITES:
            items = [item for item in workload.load(suite) if item.size == "tiny" and item.prompt][:n]
            stats = [llm.generate(i.prompt, max_tokens=TOKENS, ignore_eos=True).stats for i in items]
            sums.append(
                [sum(s.accepted for s in stats), sum(s.drafted for s in stats), sum(s.steps for s in stats)]
            )
    accepted, drafted, steps = np.sum(sums, 0)
    return (
        f"{1 + accepted / steps:.2f}",
        *(f"{1 + a / s:.2f}" for a, _, s in sums),
        f"{accepted / drafted:.2f}",
        f"{drafted / steps:.1f}",
    )


def table(out: Path, n: int) -> None:
    import sys

    from paceline.prepare.transplant import Transplant
    from paceline.report.table import Block

    def made(name: str, tied: bool | None = None) -> Path:
        path = out / f"{name}.gguf"
        if not path.exists():
            with Transplant(out / "donor.gguf", zoo.target_path(), tied=tied) as transplant:
                transplant.write(path)
        return path

    ways = [
        ("as it is, --cross-vocab tli", out / "donor.gguf", "tli"),
        ("as it is, --cross-vocab slem", out / "donor.gguf", "slem"),
        ("transplanted", made("transplanted"), "off"),
        ("one matrix", made("tied", tied=True), "off"),
        ("trained on", out / "transplanted-finetuned.gguf", "off"),
        ("one matrix, trained on", out / "tied-finetuned.gguf", "off"),
        ("the embedded draft", zoo.draft_path(), "off"),
    ]
    rows = [(name, *measure(path, mode, n)) for name, path, mode in ways if path.exists()]
    columns = ("draft", "all", *SUITES, "kept", "drafted")
    Block("", columns, tuple(rows), 1).write(sys.stdout)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("step", choices=("donor", "finetune", "table"))
    parser.add_argument("--out", type=Path, required=True, help="folder for all files")
    parser.add_argument("--minutes", type=float, default=5.0, help="of training, for each draft")
    parser.add_argument("--distil", action="store_true", help="from the target's distribution, not the text")
    parser.add_argument("-n", type=int, default=4, help="items a suite")
    args = parser.parse_args()
    if args.step == "table":
        table(args.out, args.n)
    elif args.step == "finetune":
        finetune(args.out, args.minutes, args.distil)
    else:
        donor(args.out, args.minutes)


if __name__ == "__main__":
    main()
