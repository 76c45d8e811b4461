"""Train a draft on, from a GGUF file to a GGUF file: `python -m tools.embedded.distil --help`.

For a draft that has just been given another vocabulary (`paceline transplant`), or for any file of the
embedded models' architecture (Llama, without biases) with a tokenizer of their kind. With a target of the
same vocabulary the draft learns the target's distribution (DistillSpec: Zhou et al. 2023, arXiv:2310.08461),
without one the text. The schedule runs on the clock, as in train.py; an interrupted run resumes from its last
checkpoint.
"""

from __future__ import annotations

import json
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own short name
from torch import Tensor, nn

from paceline.speculative.errors import ModelError, PacelineError, UsageError
from paceline.speculative.printable import printable
from paceline.system.atomic import atomic_write
from tools.embedded.corpus import END
from tools.embedded.export import tensors_of
from tools.embedded.muon import MATMUL
from tools.embedded.network import Llama, Shape
from tools.embedded.restore import tokenizer_of, weights_of
from tools.embedded.train import LONGEST_STEP, Batches, optimizers_of, parser_of, prepare, update

RATES = (1e-3, 2e-3)  # of matrices, and of embeddings and norms
WARMUP = 0.05
SEQUENCE = 256
CHECKPOINT_SECONDS = 60.0


class Untied(Llama):
    """Llama with an output matrix of its own."""

    def __init__(self, shape: Shape) -> None:
        super().__init__(shape)
        self.output = nn.Linear(shape.width, shape.vocab, bias=False)

    def logits(self, hidden: Tensor) -> Tensor:
        return self.output(hidden)


def load(path: Path) -> Llama:
    """A Llama without biases; its tensors of any type that gguf can read. Raises ModelError."""
    import gguf

    reader = gguf.GGUFReader(path)

    def number(key: str) -> Any:
        field = reader.get_field(f"llama.{key}")
        if field is None:
            raise ModelError(f"{path} has no llama.{key}: only Llama models can be trained here")
        return field.contents()

    names = {tensor.name for tensor in reader.tensors}
    shape = Shape(
        width=number("embedding_length"), blocks=number("block_count"), heads=number("attention.head_count"),
        kv_heads=number("attention.head_count_kv"), feed_forward=number("feed_forward_length"),
        vocab=next(int(t.shape[1]) for t in reader.tensors if t.name == "token_embd.weight"),
        context=number("context_length"), rope_base=number("rope.freq_base"),
        eps=number("attention.layer_norm_rms_epsilon"),
    )  # fmt: skip
    model = Untied(shape) if "output.weight" in names else Llama(shape)
    state = {name: torch.from_numpy(array) for name, array in weights_of(path, shape).items()}
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        raise ModelError(
            f"{path} has other tensors than a Llama without biases: cannot be trained here"
        ) from error
    return model


def save(model: Llama, source: Path, out: Path) -> None:
    """`source` with the model's weights, each in the type it had; whole or not at all."""
    import gguf

    arrays = tensors_of(model.state_dict(), model.shape)
    with atomic_write(out) as part:
        shutil.copyfile(source, part)
        reader = gguf.GGUFReader(part, "r+")
        for tensor in reader.tensors:
            tensor.data[:] = gguf.quants.quantize(arrays[tensor.name], tensor.tensor_type)
        reader.data.flush()


def check_types(path: Path) -> None:
    """Raise ModelError where `save` could not write a tensor in the type it has."""
    import gguf

    for tensor in gguf.GGUFReader(path).tensors:
        try:
            gguf.quants.quantize(np.zeros((1, int(tensor.shape[0])), np.float32), tensor.tensor_type)
        except NotImplementedError as error:
            raise ModelError(
                f"{path}: {tensor.name} is {tensor.tensor_type.name}, which cannot be written here: begin "
                "with the model as F16 or Q8_0"
            ) from error


def check_tokenizer(path: Path) -> None:
    """Raise ModelError for a tokenizer that is not of the embedded models' kind: another would split the text
    otherwise than llama.cpp does."""
    import gguf

    fields = gguf.GGUFReader(path).fields
    kind, split, tokens = (
        fields[key].contents() if (key := f"tokenizer.ggml.{name}") in fields else ""
        for name in ("model", "pre", "tokens")
    )
    most = np.iinfo(np.uint16).max  # that `prepare` can keep
    if (kind, split) != ("gpt2", "gpt-2") or list(tokens[:1]) != [END] or len(tokens) > most:
        raise ModelError(
            f"{path}: tokenizer {kind or 'unknown'} ({split or 'unknown'}): only models with a byte-level "
            f"BPE such as the embedded ones' (gpt-2, {END} first) can be trained here"
        )


def loss_of(draft: Llama, target: Llama | None, ids: Tensor) -> Tensor:
    """Nats a token: against the target's distribution, or against the text."""
    x = ids[:, :-1]
    with torch.autocast("cpu", MATMUL, enabled=torch.float32 != MATMUL):
        q = draft(x).flatten(0, 1).float()
        if target is None:
            return F.cross_entropy(q, ids[:, 1:].reshape(-1))
        with torch.no_grad():
            p = target(x).flatten(0, 1).float().softmax(-1)
    return -(p * q.log_softmax(-1)).sum(-1).mean()


def rate(done: float, warmup: float = WARMUP) -> float:
    """Multiplier of the learning rates after the fraction `done`: warm-up, then linear to 2%."""
    return min(max(done / warmup, 0.02), max(0.02, (1 - done) / (1 - warmup)))


def corpus_tokens(run: Path, model: Path) -> dict[str, np.ndarray[Any, Any]]:
    """The corpus in the tokens of `model`, kept in the folder `run`. Raises UsageError where they are kept
    in others, and ModelError for a tokenizer of another kind."""
    check_tokenizer(model)
    run.mkdir(parents=True, exist_ok=True)
    tokenizer, kept = tokenizer_of(model), run / "tokenizer.json"
    if not kept.exists():
        with atomic_write(kept) as part:
            tokenizer.save(str(part))
    elif (
        json.loads(kept.read_text("utf-8"))["model"]["vocab"]
        != json.loads(tokenizer.to_str())["model"]["vocab"]
    ):
        raise UsageError(f"{run} holds text in the tokens of another tokenizer: name another folder")
    return prepare(run)


class Run:
    """Owns the draft, its optimisers and the clock; what it has come to is kept beside `out`."""

    def __init__(self, source: Path, out: Path) -> None:
        self.source, self.out, self.kept = source, out, out.with_name(f"{out.name}.pt")
        check_types(source)
        self.draft = load(source)
        self.optimizers = optimizers_of(RATES, self.draft)
        self.seconds, self.steps = 0.0, 0
        if self.kept.exists():
            state = torch.load(self.kept)
            self.draft.load_state_dict(state["draft"])
            for optimizer, one in zip(self.optimizers, state["optimizers"], strict=True):
                optimizer.load_state_dict(one)
            self.seconds, self.steps = state["seconds"], state["steps"]

    def commit(self) -> None:
        state = {
            "draft": self.draft.state_dict(), "seconds": self.seconds, "steps": self.steps,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }  # fmt: skip
        with atomic_write(self.kept) as part:
            torch.save(state, part)

    def step(self, teacher: Llama | None, ids: Tensor, done: float) -> float:
        """One update; the batch's loss before it."""
        began = time.monotonic()
        loss = loss_of(self.draft, teacher, ids)
        loss.backward()
        update(self.optimizers, [lr * rate(done) for lr in RATES], self.draft)
        self.steps += 1
        # a step that took longer was a machine asleep: not the run's time
        self.seconds += min(time.monotonic() - began, LONGEST_STEP)
        return float(loss.detach())


def distil(
    source: Path,
    out: Path,
    data: dict[str, np.ndarray[Any, Any]],
    *,
    target: Path | None,
    minutes: float,
    rows: int = 8,
    seed: int = 0,
) -> None:
    """data: the sources of `train.MIXTURE`, in the draft's tokens. `out` is written at the end; until then
    there is `out` with .pt added, from which the same call goes on."""
    torch.manual_seed(seed)
    run = Run(source, out)
    teacher = load(target).requires_grad_(False) if target else None
    batches, saved = Batches(data, SEQUENCE, seed + run.steps), run.seconds
    recent: list[float] = []
    while run.seconds < minutes * 60:
        recent.append(run.step(teacher, batches.next(rows), run.seconds / (minutes * 60)))
        if run.steps % 25 == 0:
            tokens, loss = run.steps * rows * SEQUENCE, np.mean(recent[-25:])
            print(f"{run.seconds / 60:5.1f} min  {tokens:,} tokens  loss {loss:.3f}", flush=True)
        if run.seconds - saved > CHECKPOINT_SECONDS:
            saved = run.seconds
            run.commit()
    save(run.draft, source, out)
    run.kept.unlink(missing_ok=True)


def main() -> None:
    parser = parser_of("distil", "Train a draft on the training corpus.", 5.0, "the GGUF file to write")
    parser.add_argument("--draft", type=Path, required=True, help="the GGUF file to begin with")
    parser.add_argument("--target", type=Path, help="learn from this GGUF file of the same vocabulary")
    parser.add_argument("--run", type=Path, required=True, help="folder of the corpus' tokens; filled if new")
    args = parser.parse_args()
    try:
        check_types(args.draft)  # before the corpus is read
        data = corpus_tokens(args.run, args.draft)
        distil(args.draft, args.out, data, target=args.target, minutes=args.minutes)
    except PacelineError as error:
        raise SystemExit(f"{parser.prog}: {printable(str(error))}") from error


if __name__ == "__main__":
    main()
