"""`paceline train`: from prompts to a head in a folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from paceline import __version__
from paceline.api import LLM
from paceline.backends.interface import ShowsHiddenStates
from paceline.hardware.probe import free_memory
from paceline.heads.config import HeadConfig, TargetFacts
from paceline.heads.decoder import LayerShape
from paceline.heads.files import CARD, read_head
from paceline.prepare.training.answers import FEATURES, TRAINING, Answer, Note, Report
from paceline.prepare.training.dataset import DraftVocabulary
from paceline.prepare.training.draft_model import DraftRecipe, ParallelDraftRecipe
from paceline.prepare.training.evaluate import Acceptance
from paceline.prepare.training.features import Sequences, TrainingFeatures
from paceline.prepare.training.generation import gather_answers
from paceline.prepare.training.gguf_files import write_eagle3
from paceline.prepare.training.loop import Trainer
from paceline.prepare.training.mtp import MtpRecipe
from paceline.prepare.training.options import TrainingOptions
from paceline.prepare.training.prompts import TrainingPrompts
from paceline.prepare.training.recipe import RANDOM_TOKENS, Recipe
from paceline.prepare.training.recipes import HEADS
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.printable import format_bytes
from paceline.system.atomic import atomic_write, write_json
from paceline.system.strict_json import parse_json

GGUF, VOCABULARY = "eagle3.gguf", "draft_vocab.npy"
RECIPES: tuple[type[Recipe], ...] = (*HEADS, DraftRecipe, ParallelDraftRecipe, MtpRecipe)
KINDS = {recipe.kind: recipe for recipe in RECIPES}
HEAD_DIM = 64
OPTIMIZER_BYTES = 16  # of a weight: itself, its gradient, and AdamW's two moments
LOGIT_COPIES = 4  # of a step: logits, their exponentials, and both gradients
WIDTHS = 24  # numbers of a token and layer that the backward pass needs, in hidden widths


def train_head(
    llm: LLM,
    prompts: TrainingPrompts,
    options: TrainingOptions,
    report: Report = lambda _stage, _progress: None,
    note: Note = lambda _line: None,
) -> dict[str, Any]:
    """Train a head for the target of `llm`, or go on with an interrupted run; return its card.
    Raises UsageError for a target without hidden states or another run's folder, PacelineError for a full
    disk."""
    target, folder = llm.target, options.folder
    if not isinstance(target, ShowsHiddenStates):
        raise UsageError(f"{target.origin}: shows no hidden states, which a head reads")
    answers = gather_answers(llm, prompts, options, report, note)
    size = target.vocab.size if KINDS[options.kind].drafts_all else options.draft_vocab
    vocabulary = run_vocabulary(folder / VOCABULARY, answers, target.vocab.size, size)
    recipe = make_recipe(target, options, vocabulary)
    torch.manual_seed(options.seed)
    embedding, device = embedding_of(target), options.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    weights = recipe.weights(target.output_head(), embedding)
    needed = require_memory(options, recipe.config, weights, embedding, device)
    note(f"training takes about {format_bytes(needed)} of memory, on {device}")
    layers = recipe.config.resolved(target.layers).layer_ids
    shared = usual_layers(recipe) if options.cache else ()
    source = TrainingFeatures(target, answers, sorted({*layers, *shared}))
    if options.use_cache:
        model, progress = target.identity()["model"], partial(report, FEATURES)
        source.fill(options.cache_folder / FEATURES, model, note=note, report=progress)
    training, held_out = Sequences(source, False, layers), Sequences(source, True, layers)
    card = make_card(llm, prompts, options, training, held_out)

    def save(weights: Any, acceptance: Acceptance) -> None:
        record = {
            "n_draft": options.n_draft,
            "length": round(acceptance.length, 4),
            "by_position": [round(rate, 4) for rate in acceptance.by_position],
            "steps": acceptance.steps,
        }
        recipe.write(folder, target, weights, card | {"acceptance": record, "history": trainer.history})

    torch.set_num_threads(int(target.settings["threads"]))
    trainer = Trainer(recipe, weights, embedding, folder, save, device)
    trainer.run(training, held_out, partial(report, TRAINING))
    if options.kind == "eagle3":
        write_for_llama_server(folder, target, note)
    try:
        written = dict(parse_json((folder / CARD).read_bytes())) | {"history": trainer.history}
    except (OSError, ValueError, TypeError) as error:
        raise UsageError(
            f"{folder}: has no head yet, as nothing was evaluated (more --epochs), or a damaged {CARD}"
        ) from error
    write_json(folder / CARD, written)
    return written | {"path": str(recipe.path(folder, target))}


def run_vocabulary(file: Path, answers: Sequence[Answer], n_vocab: int, size: int) -> DraftVocabulary:
    """Return the draft vocabulary that a run began with, if it has this size: a shared folder may have got
    other answers meanwhile."""
    if size >= n_vocab:
        return DraftVocabulary(np.arange(n_vocab), n_vocab)
    with suppress(OSError, ValueError, IndexError):
        if len(ids := np.load(file)) == size:
            return DraftVocabulary(ids, n_vocab)
    training = (answer.tokens for answer in answers if not answer.held_out)
    vocabulary = DraftVocabulary.of_answers(training, n_vocab, size)
    file.parent.mkdir(parents=True, exist_ok=True)
    with atomic_write(file) as part, part.open("wb") as opened:
        np.save(opened, vocabulary.ids)
    return vocabulary


def write_for_llama_server(folder: Path, target: Any, note: Note) -> None:
    """Write an EAGLE-3 head as a GGUF file, too, if its target is one."""
    if target.path.suffix != ".gguf":
        return
    head = read_head(folder)
    weights = {name: value for name, value in head.weights.items() if name not in ("d2t", "t2d")}
    ids = np.arange(head.config.draft_vocab) + head.weights.get("d2t", 0)
    write_eagle3(folder / GGUF, head.config, weights, ids, target.path)
    note(f"for llama-server: --spec-type draft-eagle3 -md {folder / GGUF}")


def make_recipe(target: Any, options: TrainingOptions, vocabulary: DraftVocabulary) -> Recipe:
    """Return the recipe of a kind of head for a target, whose width and tokens it takes over."""
    model, n_vocab = target.identity()["model"], target.vocab.size
    facts = TargetFacts(target.name, model, target.layers, target.hidden_size, n_vocab)
    recipe = KINDS[options.kind](facts, head_shape(target.hidden_size), vocabulary, options)
    recipe.begin(target.path, options.base)
    return recipe


def usual_layers(recipe: Recipe) -> set[int]:
    """Return the layers that heads of all kinds read of a recipe's target, unless told otherwise."""
    target, found = recipe.target, set[int]()
    for kind in HEADS:
        with suppress(ModelError, UsageError):  # the target has too few layers for some
            usual = TrainingOptions(kind.kind, recipe.options.folder)
            other = kind(target, recipe.shape, recipe.vocabulary, usual)
            found.update(other.config.resolved(target.layers).layer_ids)
    return found


def head_shape(hidden: int) -> LayerShape:
    """Return the dimensions of a head's layer, like those of a small Llama of this width."""
    head_dim = next((size for size in (HEAD_DIM, 32, 16, 8, 4, 2) if hidden % size == 0), hidden)
    heads = hidden // head_dim
    kv_heads = next(n for n in (3, 2, 4, 5, 7, heads) if heads % n == 0 and n <= heads)
    feed_forward = max(16, -(-hidden * 8 // 3 // 64) * 64)
    return LayerShape(hidden, heads, kv_heads, head_dim, feed_forward)


def embedding_of(target: Any) -> Any:
    return torch.from_numpy(target.token_embeddings(range(target.vocab.size)))


def make_card(
    llm: LLM, prompts: TrainingPrompts, options: TrainingOptions, training: Sequences, held_out: Sequences
) -> dict[str, Any]:
    """Return what a head was trained for and on."""

    def size(sequences: Sequences) -> dict[str, int]:
        tokens = sum(len(answer.tokens) for answer in sequences.answers)
        return {"answers": len(sequences), "answer_tokens": tokens}

    return {
        "kind": options.kind,
        "paceline": __version__,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "target": {"name": llm.target.name, "model": llm.target.identity()["model"]},
        "sources": [asdict(source) for source in prompts.sources],
        "training": size(training),
        "held_out": size(held_out),
        "settings": options.record,
    }


def require_memory(
    options: TrainingOptions, config: HeadConfig, weights: Mapping[str, Any], embedding: Any, device: str
) -> int:
    """Return the estimated bytes of weights, embedding and a batch, without the target itself.
    Raises UsageError if they are more than the device has free."""
    tokens, steps = options.batch_tokens, max(1, options.depth)
    parameters = sum(int(weight.numel()) for weight in weights.values())
    vocab = config.draft_vocab
    if KINDS[options.kind].drafts_all:  # see sampled_logits
        vocab = min(vocab, 3 * RANDOM_TOKENS)
    logits = LOGIT_COPIES * tokens * vocab * steps
    states = tokens * steps * (WIDTHS * config.shape.hidden + 4 * config.shape.feed_forward) * config.n_layers
    masks = tokens * tokens * (steps + 1)
    numbers = logits + states + masks + int(embedding.numel())
    needed = OPTIMIZER_BYTES * parameters + 4 * numbers
    free = torch.cuda.mem_get_info()[0] if device.startswith("cuda") else free_memory()
    if needed > free:
        raise UsageError(
            f"training needs about {format_bytes(needed)} of memory, and {format_bytes(free)} are free: "
            "smaller batches (--batch-tokens) or a smaller draft vocabulary (--draft-vocab) need less"
        )
    return needed
