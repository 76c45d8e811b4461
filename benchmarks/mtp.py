"""The layers of a GGUF model that predict its next tokens (docs/mtp.md), beside llama-server's `draft-mtp`.

    python benchmarks/mtp.py accepted -m FILE [--suite toy] [--items 20] [-n 96] [--drafts 3]
    python benchmarks/mtp.py step -m FILE [--vocab 151936]

accepted: tokens that each of both drafts and has accepted, greedily, with the same number of drafted tokens,
on the same prompts; and those prompts whose texts are equal.
step: the time of a step of the layers, with the whole output matrix and the reduced vocabulary, and of the
same layer in heads/ (qwen35 and mimo2), relative to a pass of the target over one row. --vocab: rows of the
file's output matrix and embeddings are repeated up to so many tokens first, in a temporary copy, since small
models have small vocabularies.
Speeds over the suites:
`paceline bench -m FILE --methods plain,auto,mtp --baseline llama-server=benchmarks/xllamacpp_server.py`.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import gguf
import numpy as np

import paceline
from paceline.backends.llama_cpp import LlamaTarget
from paceline.bench.baselines.llama_server import LlamaServer, find_program
from paceline.bench.prompts import RequestBuilder
from paceline.bench.suites import workload
from paceline.hardware.threads import choose_threads
from paceline.heads.config import TargetFacts
from paceline.heads.networks import MtpHead
from paceline.heads.session import EagleSession
from paceline.models.resolve import file_of
from paceline.prepare.training.dataset import DraftVocabulary
from paceline.prepare.training.mtp import MtpRecipe
from paceline.prepare.training.options import TrainingOptions
from paceline.speculative.interfaces import NO_OUTPUTS, RequiredOutputs
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import EMPTY

CONTEXT, TEXT, ROUNDS = 2048, 256, 20  # tokens, and passes of a step's median


def accepted(path: Path, suite: str, items: int, n: int, drafts: int, server: str) -> dict[str, Any]:
    settings: dict[str, Any] = {"n_ctx": CONTEXT, "policy": "fixed", "n_draft": drafts, "width": 1}
    threads, same = choose_threads(None), 0
    sums: dict[str, dict[str, float]] = {
        name: {"tokens": 0, "drafted": 0, "accepted": 0} for name in ("paceline", "llama-server")
    }
    with paceline.load(path, drafters="mtp", **settings) as llm:
        prompts = RequestBuilder(llm, n=n, sampling=Sampling(), seed=0)
        chosen = [item for item in workload.load(suite) if not item.session]
        chosen = [item for item in chosen if workload.length(item) < CONTEXT - n]  # a token has a character
        requests = [prompts.request(item, {}) for item in workload.sample_items(chosen, items)]
        command = find_program(server)
        with closing(
            LlamaServer(command, path, name="llama-server", method="mtp", n_draft=drafts, p_min=0.0,
                        n_ctx=CONTEXT, threads=threads)
        ) as other:  # fmt: skip
            for request in requests:
                ours, theirs = (
                    llm.generate(request.tokens, max_tokens=n, ignore_eos=True),
                    other.answer(request),
                )
                same += ours.text == theirs.text
                for name, found in (("paceline", ours.stats), ("llama-server", theirs)):
                    sums[name]["tokens"] += n
                    sums[name]["drafted"] += found.drafted or 0
                    sums[name]["accepted"] += found.accepted or 0
    for counts in sums.values():
        counts["rate"] = round(counts["accepted"] / max(1, counts["drafted"]), 3)
        counts["tokens a pass"] = round(counts["tokens"] / max(1, counts["tokens"] - counts["accepted"]), 3)
    return {"prompts": len(requests), "equal texts": same, **sums}


def widened(source: Path, out: Path, n_vocab: int) -> Path:
    """A copy with more tokens, whose rows repeat those of the others."""
    reader = gguf.GGUFReader(source)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    n = len(reader.fields["tokenizer.ggml.tokens"].contents())
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        value = field.contents()
        if isinstance(value, list) and len(value) == n:
            more = (
                [f"<{i}>" for i in range(n, n_vocab)]
                if isinstance(value[0], str)
                else value[-1:] * (n_vocab - n)
            )
            value = value + more
        if key.endswith(".vocab_size"):
            value = n_vocab
        writer.add_key_value(key, value, field.types[0], field.types[-1] if len(field.types) > 1 else None)
    for tensor in reader.tensors:
        data = tensor.data
        if tensor.name in ("token_embd.weight", "output.weight"):
            data = np.ascontiguousarray(data[np.arange(n_vocab) % n])
        writer.add_tensor(tensor.name, data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def seconds(forward: Callable[[], object], prepare: Callable[[], object]) -> float:
    """The median time of one row."""
    times = []
    for _ in range(ROUNDS):
        prepare()
        began = perf_counter()
        forward()
        times.append(perf_counter() - began)
    return median(times)


def through_heads(path: Path, target: LlamaTarget) -> Any:
    """A text in the same layer, computed as other draft heads are, with Paceline's kernels."""
    vocabulary = DraftVocabulary(np.arange(target.vocab.size), target.vocab.size)
    facts = TargetFacts("", "", target.layers, target.hidden_size, target.vocab.size)
    recipe = MtpRecipe(facts, None, vocabulary, TrainingOptions("mtp", Path(), depth=1))
    recipe.begin(path, None)
    weights = {name: value.numpy() for name, value in recipe.weights(target.output_head(), None).items()}
    network = MtpHead(recipe.config, weights, target.make_linear)
    return EagleSession(network, np.zeros(0, np.float32), CONTEXT, target.token_embeddings)


def step(path: Path, n_vocab: int) -> dict[str, Any]:
    threads, rng = choose_threads(None), np.random.default_rng(0)
    with tempfile.TemporaryDirectory() as folder:
        file = widened(path, Path(folder) / "wide.gguf", n_vocab) if n_vocab else path
        with closing(LlamaTarget(file, n_ctx=CONTEXT, threads=threads, mtp=True)) as target:
            text = rng.integers(target.vocab.size, size=TEXT).tolist()
            with closing(target.open()) as session, closing(target.open_mtp()) as draft:
                session.extend(text)
                want = RequiredOutputs(layers=draft.config.layer_ids)
                (out,) = target.forward([(session, EMPTY)], want)
                drafting, other = draft.open(), through_heads(file, target)
                for one in (drafting, other):
                    one.observe(0, out.features.hidden[:-1])
                    one.extend(text)
                draft.forward([(drafting, drafting.pending_tokens)], NO_OUTPUTS)
                reduced, taken = draft.vocabulary, dict[str, list[float]]()
                ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
                    # A state cannot go back by a row.
                    "a row": (
                        lambda: target.forward([(session, EMPTY)], NO_OUTPUTS),
                        lambda: session.commit((), 1),
                    ),
                    "full": (lambda: draft.forward([(drafting, EMPTY)], NO_OUTPUTS), drafting.discard_tree),
                    "reduced": (
                        lambda: draft.forward([(drafting, EMPTY)], NO_OUTPUTS),
                        drafting.discard_tree,
                    ),
                    "heads": (lambda: other.compute(EMPTY), other.discard_tree),
                }
                for _ in range(3):  # in turns, against drift
                    for name, way in ways.items():
                        draft.vocabulary = reduced if name == "reduced" else None
                        taken.setdefault(name, []).append(seconds(*way))
                tokens = 0 if reduced is None else len(reduced.ids)
            one, full, less, heads = (min(taken[name]) for name in ways)
            return {
                "vocabulary": target.vocab.size, "reduced to": tokens, "full": round(full / one, 3),
                "reduced": round(less / one, 3), "reduced over full": round(less / full, 3),
                "heads over full": round(heads / full, 3),
            }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=("accepted", "step"))
    parser.add_argument("-m", dest="model", required=True)
    parser.add_argument("--suite", default="toy")
    parser.add_argument("--items", type=int, default=20)
    parser.add_argument("-n", type=int, default=96)
    parser.add_argument("--drafts", type=int, default=3)
    parser.add_argument("--server", default="benchmarks/xllamacpp_server.py")
    parser.add_argument("--vocab", type=int, default=0)
    given = parser.parse_args()
    path = file_of(given.model)
    if given.what == "accepted":
        found = accepted(path, given.suite, given.items, given.n, given.drafts, given.server)
    else:
        found = step(path, given.vocab)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
