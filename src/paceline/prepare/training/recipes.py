"""What a kind of head is made of, and its training loss. The networks are those that draft (paceline.heads),
over torch tensors."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from paceline.heads.config import LAST_OUTPUT, ExitFacts, HeadConfig, TargetFacts
from paceline.heads.decoder import KeyValueCache, LayerShape, Weights, causal_mask
from paceline.heads.files import write_head
from paceline.heads.networks import BlockHead, EagleHead, ExitsHead, KangarooHead, MedusaHead
from paceline.heads.session import SESSIONS
from paceline.heads.target import sample_tokens
from paceline.prepare.training.dataset import DraftVocabulary, TrainingBatch
from paceline.prepare.training.evaluate import (
    Acceptance,
    Agreement,
    Draft,
    draft_along,
    fit_temperature,
    run_lengths,
    walk,
)
from paceline.prepare.training.features import Recorded, TrainingSequence
from paceline.prepare.training.plan import TrainingOptions
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.tree import chain

INIT_STD = 0.02
RANDOM_TOKENS = 4096  # in the loss of a draft model, with the likely ones


class Recipe(ABC):
    """One kind of head for one target."""

    kind = ""
    network_class: Any  # of paceline.heads
    is_parallel = False  # drafts `depth` tokens in a pass
    reads_three = False  # layers of the target, in place of its last output
    frozen = frozenset[str]()  # names of weights that are not trained
    evaluates_first = False  # before the first step: nothing worse is written
    drafts_all = False  # tokens of the target's vocabulary, whose logits are sampled in the loss

    def __init__(
        self, target: TargetFacts, shape: LayerShape, vocabulary: DraftVocabulary, options: TrainingOptions
    ) -> None:
        self.target, self.shape, self.vocabulary, self.options = target, shape, vocabulary, options
        # As in HeadConfig.
        self.layer_ids: tuple[int, ...] = three_layers(target.layers) if self.reads_three else (LAST_OUTPUT,)

    @property
    def config(self) -> HeadConfig:
        return HeadConfig(
            kind=self.kind,
            target=self.target,
            shape=self.shape,
            draft_vocab=len(self.vocabulary),
            layer_ids=self.layer_ids,
            depth=self.options.depth if self.is_parallel else 0,
        )

    def begin(self, target: Path, base: Path | None) -> None:  # noqa: B027
        """Read weights to begin with, of the target's file or of a given one. Raises ModelError."""

    @abstractmethod
    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        """Return first weights as torch tensors.
        output, embedding: the target's OutputHead, and its embedding matrix [n_vocab, hidden]."""

    @abstractmethod
    def loss(self, network: Any, batch: TrainingBatch, embed: Any) -> Any:
        """Return the loss of a batch. embed: returns embeddings [n, hidden] of tokens."""

    def network(self, weights: Mapping[str, Any]) -> Any:
        return self.network_class(self.config, weights)

    def acceptance(self, weights: Weights, embedding: Any, sequences: Recorded, n_draft: int) -> Acceptance:
        """Return the acceptance on held-out answers, which the sessions that decoding uses draft along.
        weights, embedding: numpy arrays."""
        head = self.network(weights)
        depth = min(n_draft, head.config.depth or n_draft)

        def right_of(one: TrainingSequence) -> Callable[[int], int]:
            n_ctx, like = len(one.tokens) + depth + 1, np.zeros(0, np.float32)
            session = SESSIONS[type(head)](head, like, n_ctx, lambda tokens: embedding[list(tokens)])

            def is_right(drafted: list[int], token: int) -> bool:
                _, rows = session.compute(chain(drafted, self.kind))
                return bool(self.vocabulary.ids[int(rows[len(drafted)].argmax())] == token)

            return draft_along(one, session, depth, is_right)

        return walk(((one, right_of(one)) for one in sequences), depth, reads_target=True)

    def path(self, folder: Path, target: Any) -> Path:
        """Return what `-md` names."""
        return folder

    def write(self, folder: Path, target: Any, weights: Weights, card: Mapping[str, Any]) -> None:
        """Write the head. Raises OSError."""
        sample = target.token_embeddings(sample_tokens(target.vocab.size))
        write_head(folder, self.config, weights, self.vocabulary.ids, sample, card)

    def final_norm(self, output: Any) -> Any:
        """Return the target's final norm, to begin with."""
        if output.norm is None:
            return torch.ones(self.target.hidden)
        return torch.tensor(output.norm).float()

    def fusing_matrix(self) -> Any:
        """Return the matrix that fuses three layers; it begins as the last of them."""
        hidden, width = self.shape.hidden, self.target.hidden
        out = normal(hidden, 3 * width)
        out[:, 2 * width :] += torch.eye(hidden, width)
        return out

    def decayed_loss(self, logits: Iterable[Any], targets: Sequence[tuple[Any, Any, Any]]) -> Any:
        """Return the sum of the losses at successive depths, each with `decay` of the weight before.
        logits: [rows, draft_vocab] at each depth. targets: ids, p and weight."""
        options = self.options
        return sum(
            options.decay**depth * head_loss(some, *target, options.variation)
            for depth, (some, target) in enumerate(zip(logits, targets, strict=True))
        )

    def sampled_loss(
        self, outputs: Sequence[Any], matrix: Any, targets: Sequence[tuple[Any, Any, Any]]
    ) -> Any:
        """Return `decayed_loss` of what `matrix` multiplies, [rows, width] at each depth."""
        sizes = [len(p) for _, p, _ in targets]
        logits, ids = sampled_logits(torch.cat([*outputs]), matrix, torch.cat([ids for ids, _, _ in targets]))
        parts = zip(ids.split(sizes), targets, strict=True)
        return self.decayed_loss(logits.split(sizes), [(ids, p, weight) for ids, (_, p, weight) in parts])

    def rows_of(self, output: Any) -> Any:
        return torch.from_numpy(output.weight[self.vocabulary.ids]).float().clone()


def normal(*shape: int) -> Any:
    return torch.randn(*shape) * INIT_STD


def layer_weights(shape: LayerShape, prefix: str, inputs: int, *, qk_norm: bool) -> dict[str, Any]:
    """Return first weights of a decoder layer whose attention takes `inputs` numbers."""
    width, kv = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    out = {
        "self_attn.q_proj.weight": normal(width, inputs),
        "self_attn.k_proj.weight": normal(kv, inputs),
        "self_attn.v_proj.weight": normal(kv, inputs),
        "self_attn.o_proj.weight": normal(shape.hidden, width),
        "mlp.gate_proj.weight": normal(shape.feed_forward, shape.hidden),
        "mlp.up_proj.weight": normal(shape.feed_forward, shape.hidden),
        "mlp.down_proj.weight": normal(shape.hidden, shape.feed_forward),
        "input_layernorm.weight": torch.ones(shape.hidden),
        "post_attention_layernorm.weight": torch.ones(shape.hidden),
    }
    if qk_norm:
        out |= {f"self_attn.{name}_norm.weight": torch.ones(shape.head_dim) for name in "qk"}
    return {prefix + name: value for name, value in out.items()}


class StepsCache:
    """Keys and values of several steps over the same rows, end to end, with gradients."""

    def __init__(self) -> None:
        self._parts: list[tuple[Any, Any]] = []

    def extend(self, keys: Any, values: Any) -> tuple[Any, Any]:
        self._parts.append((keys, values))
        every_key, every_value = zip(*self._parts, strict=True)
        return torch.cat(every_key, 1), torch.cat(every_value, 1)


def three_layers(layers: int) -> tuple[int, int, int]:
    """Return a low, a middle and a high layer of a target. Raises ModelError for fewer than three."""
    if layers < 3:
        raise ModelError(f"the target has {layers} layers, and the head reads three")
    return (2, layers // 2, layers - 3) if layers >= 8 else (layers // 4, layers // 2, layers - 1)


def document_mask(document: Any) -> Any:
    """Return the mask [tokens, tokens] of a causal pass over several sequences."""
    at = torch.arange(len(document), device=document.device)
    return (document[:, None] == document[None]) & (at[:, None] >= at[None])


def sampled_logits(outputs: Any, matrix: Any, ids: Any) -> tuple[Any, Any]:
    """Return logits [rows, m] of the tokens in `ids` [rows, k] and of random others, and the places of `ids`
    among them. A random token stands for all that are not there, so the log of how many is added to its logit
    (Jean et al. 2015, arXiv:1412.2007). outputs: [rows, width]. matrix: [n_vocab, width]."""
    wanted = ids.unique()
    others = torch.randperm(len(matrix), device=wanted.device)[: len(wanted) + RANDOM_TOKENS]
    others = others[torch.isin(others, wanted, invert=True)][:RANDOM_TOKENS]
    logits = outputs @ matrix[torch.cat([wanted, others])].T
    if len(others):
        left = torch.zeros(logits.shape[1], device=logits.device)
        left[len(wanted) :] = math.log((len(matrix) - len(wanted)) / len(others))
        logits = logits + left
    return logits, torch.searchsorted(wanted, ids)


def head_loss(logits: Any, ids: Any, p: Any, weight: Any, variation: float) -> Any:
    """Return (1 - variation) * cross-entropy + variation * total variation, the mean over rows by weight.
    Cross-entropy is -sum p log q. Total variation is 1 - sum min(p, q), the rate at which sampled drafts are
    refused (Leviathan et al. 2023, arXiv:2211.17192, theorem 3.5).
    logits: [rows, draft_vocab]. ids, p: [rows, k]. weight: [rows]."""
    logq = logits.gather(1, ids) - logits.logsumexp(1, keepdim=True)
    loss = (1.0 - variation) * (p * -logq).sum(1)
    if variation > 0.0:
        loss = loss + variation * (1.0 - torch.minimum(p, logq.exp()).sum(1))
    return (loss * weight).sum() / weight.sum().clamp(min=1.0)


class Eagle3Recipe(Recipe):
    """EAGLE-3 with training-time test: further steps on the head's own hidden states (arXiv:2503.01840).
    A row of a later step sees the rows of the text, and its own rows of the steps before."""

    kind, network_class, reads_three = "eagle3", EagleHead, True

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        hidden = self.shape.hidden
        return {
            "fc.weight": self.fusing_matrix(),
            **layer_weights(self.shape, "layers.0.", 2 * hidden, qk_norm=False),
            "layers.0.hidden_norm.weight": torch.ones(hidden),
            "norm.weight": self.final_norm(output),
            "lm_head.weight": self.rows_of(output),
        }

    def loss(self, network: Any, batch: TrainingBatch, embed: Any) -> Any:
        depths = range(1, 1 + self.options.depth)
        rows = batch.rows_before(depths)
        outputs, targets = self.steps(network, batch, embed, rows, len(depths)), batch.targets(depths, rows)
        if self.drafts_all:
            return self.sampled_loss([*map(network.normed, outputs)], network.matrix, targets)
        return self.decayed_loss(map(network.logits, outputs), targets)

    def steps(
        self, network: EagleHead, batch: TrainingBatch, embed: Any, rows: Any, depth: int
    ) -> Iterator[Any]:
        """Yield the outputs [rows, hidden] at each depth of the drafts behind `rows`, which are the text."""
        # All rows are context of the first step; only those that draft are computed behind it.
        causal, caches, hidden = document_mask(batch.document), [StepsCache()], network.fuse(batch.hidden)
        places, embeddings = np.arange(len(batch)), embed(torch.roll(batch.tokens, -1, 0))
        causal = torch.cat([self.first_rows(network, batch, embed, caches), causal], 1)
        hidden = network.forward(embeddings, hidden, places, caches, causal)[rows]
        places, seen = places[rows.cpu().numpy()], causal[rows]
        yield hidden
        for step in range(1, depth):
            embeddings = embed(torch.roll(batch.tokens, -1 - step, 0)[rows])
            seen = torch.cat([seen, torch.eye(len(rows), dtype=torch.bool, device=seen.device)], 1)
            hidden = network.forward(embeddings, hidden, places + step, caches, seen)
            yield hidden

    def first_rows(self, network: EagleHead, batch: TrainingBatch, embed: Any, caches: Any) -> Any:
        """Compute rows before those of the text; return which of them each row sees [rows, first rows]."""
        return torch.zeros(len(batch), 0, dtype=torch.bool, device=batch.document.device)


class EagleRecipe(Recipe):
    """EAGLE: regression of the next hidden state, and cross-entropy through the target's own output matrix
    (arXiv:2401.15077, section 3.2), with noise on the hidden states."""

    kind, network_class = "eagle", EagleHead
    frozen = frozenset({"lm_head.weight"})
    noise, cross_entropy_weight = 0.2, 0.1

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        hidden = self.shape.hidden
        layer = layer_weights(self.shape, "layers.0.", hidden, qk_norm=False)
        del layer["layers.0.input_layernorm.weight"]  # the authors' layer has none
        fc = normal(hidden, 2 * hidden)
        fc[:, hidden:] += torch.eye(hidden)
        first = {"fc.weight": fc, "fc.bias": torch.zeros(hidden)}
        return {**first, **layer, "lm_head.weight": self.rows_of(output)}

    def loss(self, network: EagleHead, batch: TrainingBatch, embed: Any) -> Any:
        features = batch.hidden[:, 0]
        noisy = features + (torch.rand_like(features) - 0.5) * self.noise * features.std()
        embeddings = embed(torch.roll(batch.tokens, -1, 0))
        mask = document_mask(batch.document)
        hidden = network.forward(embeddings, noisy, np.arange(len(batch)), [StepsCache()], mask)
        ids, p, weight = batch.shifted(1)
        total = weight.sum().clamp(min=1.0)
        apart = torch.nn.functional.smooth_l1_loss(hidden, torch.roll(features, -1, 0), reduction="none")
        regression = (apart.mean(1) * weight).sum() / total
        loss = head_loss(network.logits(hidden), ids, p, weight, self.options.variation)
        return regression + self.cross_entropy_weight * loss


class MedusaRecipe(Recipe):
    """Medusa-1: the target is frozen, and each block predicts its own distance (arXiv:2401.10774, 2.2.1)."""

    kind, network_class, is_parallel = "medusa", MedusaHead, True

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        hidden = self.target.hidden
        blocks = {
            f"blocks.{i}.linear.{name}": torch.zeros(shape)
            for i in range(self.options.depth)
            for name, shape in (("weight", (hidden, hidden)), ("bias", (hidden,)))
        }
        return {**blocks, "lm_head.weight": self.rows_of(output)}

    def loss(self, network: MedusaHead, batch: TrainingBatch, embed: Any) -> Any:
        depths = range(1, 1 + self.options.depth)
        rows = batch.rows_before(depths)
        logits = network.forward(batch.hidden[rows, 0]).view(len(depths), len(rows), len(self.vocabulary))
        return self.decayed_loss(logits, batch.targets(depths, rows))


class BlockRecipe(Recipe):
    """DFlash with the loss of DSpark: blocks behind random places of the answers, each beside its context."""

    kind, network_class = "block", BlockHead
    is_parallel = reads_three = True
    anchors_per_token = 1 / 8

    @property
    def n_layers(self) -> int:
        return self.options.layers or 2

    @property
    def config(self) -> HeadConfig:
        return replace(
            super().config,
            n_layers=self.n_layers,
            mask_token=self.options.mask_token,
            markov="vanilla" if self.options.markov_rank else "",
            markov_rank=self.options.markov_rank,
            from_root=True,
        )

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        hidden, layers = self.shape.hidden, dict[str, Any]()
        for i in range(self.n_layers):
            layers |= layer_weights(self.shape, f"layers.{i}.", hidden, qk_norm=True)
        out = {
            "fc.weight": self.fusing_matrix(),
            "hidden_norm.weight": torch.ones(hidden),
            **layers,
            "norm.weight": self.final_norm(output),
            "lm_head.weight": self.rows_of(output),
        }
        if rank := self.options.markov_rank:
            out["markov_head.markov_w1.weight"] = normal(self.target.vocab, rank)
            out["markov_head.markov_w2.weight"] = torch.zeros(len(self.vocabulary), rank)
        return out

    def loss(self, network: BlockHead, batch: TrainingBatch, embed: Any) -> Any:
        n, rows = len(batch), network.block_tokens
        anchors = batch.random_anchors(self.anchors_per_token)
        places = (anchors[:, None] + torch.arange(rows, device=anchors.device)).flatten()
        block = torch.arange(len(anchors), device=anchors.device).repeat_interleave(rows)
        begin = anchors.repeat_interleave(rows)
        at = torch.arange(n, device=anchors.device)
        same = batch.document[None] == batch.document[begin][:, None]
        mask = torch.cat([same & (at[None] < begin[:, None]), block[:, None] == block[None]], 1)
        caches = [StepsCache() for _ in network.layers]
        network.extend(caches, network.context(batch.hidden), np.arange(n))  # type: ignore[arg-type]
        tokens = torch.where(places == begin, batch.tokens[begin], self.options.mask_token)
        masks = [mask] * len(network.layers)
        outputs = network.forward(embed(tokens), caches, places.cpu().numpy(), masks)
        before = batch.tokens[places.clamp(max=n - 1)]  # the token that a slot's draft follows
        logits = network.logits(outputs)
        if network.markov is not None:
            logits = logits + network.markov(before, outputs)[0]
        logits = logits.view(len(anchors), rows, len(self.vocabulary)).unbind(1)
        return self.decayed_loss(logits, batch.targets(range(rows), anchors))


LAYER_WEIGHTS = 12  # of a usual layer, in squares of its width


class ExitRecipe(Recipe):
    """A head on some of the target's first layers, measured on the recorded answers alone: while a draft is
    accepted, its tokens are the answer's, and the hidden states of its rows are known."""

    default_layers: tuple[float, ...] = ()  # below 1: shares of the layers
    reads_target = False  # see evaluate.walk
    frozen = frozenset({"lm_head.weight"})

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        n = self.target.layers
        given = self.options.exit_layers or [
            layer if layer >= 1 else round(layer * n) for layer in self.default_layers
        ]
        if n < 2 or (self.options.exit_layers and not all(1 <= layer < n for layer in given)):
            raise UsageError(
                f"exit layers {given} (--exit-layers): must be 1 to {n - 1}, before the target's last"
            )
        self.layer_ids = tuple(sorted({int(min(max(layer, 1), n - 1)) for layer in given}))
        self._exits: tuple[ExitFacts, ...] = ()
        self._default = 0

    @property
    def config(self) -> HeadConfig:
        return replace(super().config, exits=self._exits, default_exit=self._default)

    def network(self, weights: Mapping[str, Any]) -> Any:
        return self.network_class(replace(self.config, exits=()), weights)

    def acceptance(self, weights: Weights, embedding: Any, sequences: Recorded, n_draft: int) -> Acceptance:
        """Evaluate all exits, and record what was measured of each. Return the acceptance over all."""
        network, some = self.network(weights), list(sequences)
        drafts, facts = list[Draft](), list[ExitFacts]()
        for place, layer in enumerate(self.layer_ids):
            rows = [self._logits(network, one, place) for one in some]
            agrees: list[Agreement] = [
                self.vocabulary.ids[logits.argmax(1)] == one.tokens[one.first_answer :]
                for logits, one in zip(rows, some, strict=True)
            ]
            found: list[Draft] = [(one, run_lengths(a).item) for one, a in zip(some, agrees, strict=True)]
            drafts += found
            numbers, cost = range(1, n_draft + 1), self._cost(layer)
            lengths = [walk(found, n, reads_target=self.reads_target).length for n in numbers]
            speedup = max(length / (1.0 + n * cost) for n, length in zip(numbers, lengths, strict=True))
            temperature = fit_temperature(np.concatenate(rows), np.concatenate(agrees))
            facts.append(ExitFacts(temperature, round(lengths[-1], 4), round(speedup, 4)))
        self._exits = tuple(facts)
        self._default = max(range(len(facts)), key=lambda place: facts[place].speedup)
        return walk(drafts, n_draft, reads_target=self.reads_target)

    @abstractmethod
    def _logits(self, network: Any, one: TrainingSequence, place: int) -> NDArray[np.float32]:
        """Return the logits of the rows that predict the answer's tokens."""

    def _cost(self, layer: int) -> float:
        """Return the weights that a drafted token reads, as a share of those of a token of the target."""
        square = LAYER_WEIGHTS * self.target.hidden**2
        ours = layer * square + len(self.vocabulary) * self.target.hidden
        return ours / (self.target.layers * square + self.target.vocab * self.target.hidden)


class ExitsRecipe(ExitRecipe):
    """Early exits at a quarter, half and three quarters of the layers, which begin as the target's output."""

    kind, network_class = "exits", ExitsHead
    default_layers = (0.25, 0.5, 0.75)

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        width, out = self.target.hidden, dict[str, Any]()
        rank = min(self.options.rank, width)
        for place in range(len(self.layer_ids)):
            out |= {
                f"exits.{place}.input_norm.weight": torch.ones(width),
                f"exits.{place}.down.weight": normal(rank, width),
                f"exits.{place}.up.weight": torch.zeros(width, rank),
                f"exits.{place}.norm.weight": self.final_norm(output),
            }
        return {**out, "lm_head.weight": self.rows_of(output)}

    def loss(self, network: ExitsHead, batch: TrainingBatch, embed: Any) -> Any:
        rows, variation = batch.answered, self.options.variation
        logits = (network.logits(batch.hidden[rows, i], i) for i in range(len(self.layer_ids)))
        return sum(head_loss(of_exit, *batch.at(rows), variation) for of_exit in logits)

    def _logits(self, network: ExitsHead, one: TrainingSequence, place: int) -> NDArray[np.float32]:
        hidden = one.hidden[one.first_answer - 1 : -1, place].astype(np.float32)
        return np.asarray(network.logits(hidden, place))


class KangarooRecipe(ExitRecipe):
    """Kangaroo: the loss against the target's distribution, through its own output matrix (section 3.2)."""

    kind, network_class = "kangaroo", KangarooHead
    default_layers = (2,)
    reads_target = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        if len(self.layer_ids) != 1:
            raise UsageError("a Kangaroo adapter has one exit layer: give one (--exit-layers)")

    def weights(self, output: Any, embedding: Any) -> dict[str, Any]:
        layer = layer_weights(self.shape, "layers.0.", self.shape.hidden, qk_norm=False)
        layer = {name: value for name, value in layer.items() if "attn" in name or "input" in name}
        layer["layers.0.self_attn.o_proj.weight"].zero_()
        return {**layer, "norm.weight": self.final_norm(output), "lm_head.weight": self.rows_of(output)}

    def loss(self, network: KangarooHead, batch: TrainingBatch, embed: Any) -> Any:
        mask = document_mask(batch.document)
        outputs = network.forward(batch.hidden[:, 0], np.arange(len(batch)), [StepsCache()], mask)
        rows = batch.answered
        return head_loss(network.logits(outputs[rows]), *batch.at(rows), self.options.variation)

    def _logits(self, network: KangarooHead, one: TrainingSequence, place: int) -> NDArray[np.float32]:
        hidden = one.hidden[:-1, 0].astype(np.float32)
        n, caches = len(hidden), [KeyValueCache() for _ in network.layers]
        outputs = network.forward(hidden, range(n), caches, causal_mask(n, n))
        return np.asarray(network.logits(outputs[one.first_answer - 1 :]))


HEADS = (MedusaRecipe, EagleRecipe, Eagle3Recipe, BlockRecipe, ExitsRecipe, KangarooRecipe)
