"""Train a variant of the embedded target: `python -m tools.embedded.variants hybrid --out runs/hybrid`.

mamba2: Mamba-2 blocks only. hybrid: Mamba-2 in place of most attention layers (of llama.cpp's granitehybrid).
moe: 16 experts, 4 a token (of qwen3moe). mtp: gated delta nets in place of most attention layers, the others
gated, and a block that guesses the token after next (of qwen35).

Each begins with what it can take over from the embedded target, and learns from the text and from the
target's distribution, as the draft did (train.py). Blocks of mamba2 can take over nothing; each first learns
to do what one of the target's layers does, attention or feed-forward (as in MOHAWK: Bick et al. 2024,
arXiv:2408.10189, section 3.2). Those of mtp first learn to do what the target's attention does; its embedding
and feed-forward layers stay the target's. The schedule runs on the clock; a run goes on from its last
checkpoint, and writes `paceline-VARIANT.gguf` at the end.
"""

from __future__ import annotations

import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812  # torch's own short name
from torch import Tensor, nn

from paceline.models.zoo import MODELS
from paceline.system.atomic import atomic_write
from tools.embedded.corpus import SEED
from tools.embedded.export import add_tokenizer, interleave, write_model
from tools.embedded.mixers import DeltaNet, Experts, Mamba2, MambaShape
from tools.embedded.muon import MATMUL
from tools.embedded.network import TARGET, Llama, RMSNorm, rotate
from tools.embedded.next_token import DEPTH, NextTokenHead, chain_starts
from tools.embedded.restore import tokenizer_of, weights_of
from tools.embedded.train import (
    LONGEST_STEP,
    Batches,
    Plan,
    optimizers_of,
    parser_of,
    prepare,
    update,
    window_logits,
)

WIDTH, HEADS, KV_HEADS, HEAD = TARGET.width, TARGET.heads, TARGET.kv_heads, TARGET.head_dim
MAMBA = MambaShape(inner=2 * WIDTH, heads=2 * WIDTH // 64)
DELTA = MambaShape(inner=WIDTH, heads=HEADS, state=HEAD, groups=HEADS)
EXPERTS, USED, INNER = 16, 4, 128
BALANCE = 0.01  # weight of the balance loss
IMITATION = {"mamba2": 0.35, "mtp": 0.08}  # share of the minutes in which blocks imitate layers
# The block that guesses the token after next: the weight of its loss, the positions from one of its chains to
# the next, and the share of the minutes after which it learns alone, from chains that start everywhere.
HEAD_SHARE, STRIDE, ALONE_FROM = 0.3, 2, 0.39
ALL = slice(None)
# Variant: the mixer of each block.
VARIANTS = {
    "mamba2": ("mamba",) * 2 * TARGET.blocks,  # for the attention and feed-forward layers of the target
    "hybrid": ("mamba", "mamba", "attention", "mamba", "mamba", "attention"),
    "moe": ("attention",) * 6,
    "mtp": ("delta", "delta", "attention") * 2,
}
ARCHITECTURES = {"mamba2": "mamba2", "hybrid": "granitehybrid", "moe": "qwen3moe", "mtp": "qwen35"}


class Attention(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Grouped-query attention; `normed` queries and keys, as in Qwen 3. gated: each head's output is, by the
    second half of its rows of `attn_q`, as in Qwen 3.5."""

    def __init__(self, normed: bool, gated: bool = False) -> None:
        super().__init__()
        self.gated = gated
        self.attn_q = nn.Linear(WIDTH, HEADS * HEAD * (1 + gated), bias=False)
        self.attn_k = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.attn_v = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.attn_output = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.attn_q_norm = RMSNorm(HEAD, TARGET.eps) if normed else None
        self.attn_k_norm = RMSNorm(HEAD, TARGET.eps) if normed else None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        (q, gate), (k, v) = self.queries(x, cos, sin), self.keys_values(x, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return self.output(mixed, gate)

    def queries(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor | None]:
        """Queries (batch, heads, length, head) and the gates of their outputs (batch, length, width)."""
        q, gate = self.attn_q(x).unflatten(-1, (HEADS, -1)), None
        if self.gated:
            q, gate = q.chunk(2, -1)
        return self._rotated(q, self.attn_q_norm, cos, sin), None if gate is None else gate.flatten(2)

    def keys_values(self, x: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        k, v = (part(x).unflatten(-1, (KV_HEADS, HEAD)) for part in (self.attn_k, self.attn_v))
        return self._rotated(k, self.attn_k_norm, cos, sin), v.transpose(1, 2)

    def _rotated(self, x: Tensor, norm: nn.Module | None, cos: Tensor, sin: Tensor) -> Tensor:
        kind = x.dtype
        return rotate((x if norm is None else norm(x)).transpose(1, 2), cos, sin).to(kind)

    def output(self, mixed: Tensor, gate: Tensor | None) -> Tensor:
        mixed = mixed.transpose(1, 2).flatten(2)
        return self.attn_output(mixed if gate is None else mixed * gate.sigmoid())


class FeedForward(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """SwiGLU."""

    def __init__(self) -> None:
        super().__init__()
        self.ffn_gate = nn.Linear(WIDTH, TARGET.feed_forward, bias=False)
        self.ffn_up = nn.Linear(WIDTH, TARGET.feed_forward, bias=False)
        self.ffn_down = nn.Linear(TARGET.feed_forward, WIDTH, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.ffn_down(F.silu(self.ffn_gate(x)) * self.ffn_up(x))


class Block(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A mixer of tokens and, but for mamba2, a feed-forward layer."""

    def __init__(self, variant: str, mixer: str) -> None:
        super().__init__()
        self.attn_norm = RMSNorm(WIDTH, TARGET.eps)
        self.mixer: nn.Module
        if mixer == "attention":
            self.mixer = Attention(variant in ("moe", "mtp"), gated=variant == "mtp")
        else:
            self.mixer = Mamba2(WIDTH, MAMBA) if mixer == "mamba" else DeltaNet(WIDTH, DELTA, TARGET.eps)
        self.ffn: nn.Module | None = None
        if variant != "mamba2":
            self.ffn_norm = RMSNorm(WIDTH, TARGET.eps)
            self.ffn = Experts(WIDTH, INNER, EXPERTS, USED) if variant == "moe" else FeedForward()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, *_: Any) -> Tensor:
        x = self.mixed(x, cos, sin)
        return x if self.ffn is None else x + self.ffn(self.ffn_norm(x))

    def mixed(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        h = self.attn_norm(x)
        return x + (self.mixer(h, cos, sin) if isinstance(self.mixer, Attention) else self.mixer(h))


class Variant(Llama):
    """Token ids (batch, length) -> logits (batch, length, vocab)."""

    def __init__(self, variant: str) -> None:
        super().__init__(TARGET)
        self.blk = nn.ModuleList(Block(variant, mixer) for mixer in VARIANTS[variant])
        self.head: Any = None
        if variant == "mtp":
            self.head = NextTokenHead(WIDTH, TARGET.eps, Block(variant, "attention"))
        for name, weight in self.named_parameters():
            others = ("token_embd", "exps", "ssm_norm")
            if weight.ndim == 2 and not any(part in name for part in others):
                nn.init.normal_(weight, std=WIDTH**-0.5 / 1.5)
            if "ssm_out" in name:  # a block that starts as the identity trains more steadily
                nn.init.zeros_(weight)

    def guesses(
        self, ids: Tensor, hidden: Tensor, starts: Tensor, depth: int, vocab: Tensor | slice = ALL
    ) -> list[Tensor]:
        """Return the logits (batch, starts, vocab) of each step of the head's chains, or those of `vocab`."""
        cos, sin = self.cos[: ids.shape[1]], self.sin[: ids.shape[1]]
        states = self.head(self.token_embd(ids), hidden, starts, depth, cos, sin)
        return [F.linear(state, self.token_embd.weight[vocab]) for state in states]

    def balance(self) -> Tensor:
        """Return the mean balance loss of the last forward."""
        loads = [block.ffn.load for block in self.blk if isinstance(block.ffn, Experts)]
        return torch.stack(loads).mean() if loads else torch.zeros(())


def begin(variant: str) -> Variant:
    """Return the variant with what it can take over from the embedded target."""
    model = Variant(variant)
    known = weights_of(MODELS / "paceline-target.gguf", TARGET)
    own = model.state_dict()
    with torch.no_grad():
        for name, array in known.items():
            parts = name.split(".")
            if parts[-2].startswith("attn_") and "norm" not in name:
                parts.insert(2, "mixer")
            elif parts[-2].startswith("ffn_") and "norm" not in name:
                parts.insert(2, "ffn")
            own_name = ".".join(parts)
            if own_name in own and own[own_name].shape == array.shape and variant != "mamba2":
                own[own_name].copy_(torch.from_numpy(array))
        for name in ("token_embd.weight", "output_norm.weight"):
            own[name].copy_(torch.from_numpy(known[name]))
        if variant == "moe":
            split_feed_forward(model, known)
        if variant == "mtp":
            take_over_attention(model, known)
        if variant == "mamba2":
            for i, block in enumerate(model.blk):
                norm = known[f"blk.{i // 2}.{('attn', 'ffn')[i % 2]}_norm.weight"]
                block.attn_norm.weight.copy_(torch.from_numpy(norm))
    return model


def take_over_attention(model: Variant, known: dict[str, Any]) -> None:
    """Begin gated attention and delta nets with the target's queries, keys and values, and the head with the
    target's last block. A matrix that is zero leaves half open the gate of each head."""
    last = TARGET.blocks - 1
    for name, weight in model.head.block.state_dict().items():
        array = known.get(f"blk.{last}.{name.removeprefix('mixer.').removeprefix('ffn.')}")
        if array is not None and array.shape == weight.shape:
            small = 0.025 if "attn_output" in name or "ffn_down" in name else 1.0  # as its residual stream is
            weight.copy_(torch.from_numpy(array) * small)
    model.head.eh_proj.weight[:, WIDTH:] += 0.5 * torch.eye(WIDTH)
    model.head.shared_head_norm.weight.copy_(model.output_norm.weight)
    for i, block in enumerate((*model.blk, model.head.block)):
        q, k, v = (torch.from_numpy(known[f"blk.{min(i, last)}.attn_{part}.weight"]) for part in "qkv")
        mixer: Any = block.mixer
        if not isinstance(mixer, DeltaNet):
            rows = mixer.attn_q.weight.view(HEADS, 2, HEAD, WIDTH)
            rows[:, 0], rows[:, 1] = q.view(HEADS, HEAD, WIDTH), 0.0
            mixer.attn_output.weight *= 2
            mixer.attn_q_norm.weight.fill_(1.4)  # about what those of the target's have
            mixer.attn_k_norm.weight.fill_(2.0)
        else:
            k, v = (t.view(KV_HEADS, HEAD, WIDTH).repeat_interleave(HEADS // KV_HEADS, 0) for t in (k, v))
            mixer.attn_qkv.weight.copy_(torch.cat((q, k.flatten(0, 1), v.flatten(0, 1))))
            mixer.ssm_conv1d.weight[:, 0, :-1] *= 0.2
            mixer.ssm_conv1d.weight[:, 0, -1] = 1.0


@torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped here
def fit_outputs(model: Variant, target: Llama, ids: Tensor) -> None:
    """Set the mixers' output matrices so that they add what the target's attention adds, by least squares."""
    states = layer_inputs(target, ids)
    for block, x, y in zip(model.blk, states[:-1:2], states[1::2], strict=True):
        out = block.mixer.attn_output if isinstance(block.mixer, Attention) else block.mixer.ssm_out
        read = list[Tensor]()
        hook = out.register_forward_pre_hook(lambda _, given, read=read: read.append(given[0].flatten(0, 1)))
        block.mixed(x, model.cos[: x.shape[1]], model.sin[: x.shape[1]])
        hook.remove()
        gram = read[0].mT @ read[0]
        ridge = 0.01 * gram.diagonal().mean() * torch.eye(len(gram))
        out.weight.copy_(torch.linalg.solve(gram + ridge, read[0].mT @ (y - x).flatten(0, 1)).mT)


def split_feed_forward(model: Variant, known: dict[str, Any]) -> None:
    """Deal the columns of each feed-forward layer to the experts, each column to two of them (sparse
    upcycling: Komatsuzaki et al. 2023, arXiv:2212.05055). A scale makes up for those that are not chosen."""
    rng, copies = np.random.default_rng(SEED), EXPERTS * INNER // TARGET.feed_forward
    for i, block in enumerate(model.blk):
        columns = np.concatenate([rng.permutation(TARGET.feed_forward) for _ in range(copies)])
        for expert, mine in enumerate(columns.reshape(EXPERTS, INNER)):
            for part in ("gate", "up"):
                weight = known[f"blk.{i}.ffn_{part}.weight"][mine]
                getattr(block.ffn, f"ffn_{part}_exps")[expert].copy_(torch.from_numpy(weight))
            down = known[f"blk.{i}.ffn_down.weight"][:, mine] * (EXPERTS / copies)
            block.ffn.ffn_down_exps[expert].copy_(torch.from_numpy(np.ascontiguousarray(down)))


def layer_inputs(target: Llama, ids: Tensor) -> list[Tensor]:
    """Return the inputs (batch, length, width) of the target's attention and feed-forward layers, and the
    last layer's output."""
    found = list[Tensor]()
    norms = [norm for block in target.blk for norm in (block.attn_norm, block.ffn_norm)]
    hooks = [
        norm.register_forward_pre_hook(lambda _, given: found.append(given[0]))
        for norm in (*norms, target.output_norm)
    ]
    with torch.no_grad():
        target.hidden(ids)
    for hook in hooks:
        hook.remove()
    return found


def imitation_loss(model: Variant, states: list[Tensor]) -> Tensor:
    """Return the mean squared error of the blocks, as a share of what the imitated layers add."""
    if model.head is None:
        made = [block(x, None, None) for block, x in zip(model.blk, states, strict=False)]
    else:  # a block is two layers, and its feed-forward layer is the target's
        cos, sin = model.cos[: states[0].shape[1]], model.sin[: states[0].shape[1]]
        made = [block.mixed(x, cos, sin) for block, x in zip(model.blk, states[:-1:2], strict=True)]
    each = 1 if model.head is None else 2
    shares = [
        (got - y).float().square().mean() / (y - x).float().square().mean()
        for got, x, y in zip(made, states[:-1:each], states[1::each], strict=True)
    ]
    return torch.stack(shares).mean()


def distillation_loss(
    model: Variant, x: Tensor, y: Tensor, p: Tensor, distil: float, starts: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Return (sum to minimise, cross-entropy in nats a token). p: [tokens, vocab], the target's.
    starts: of the head's chains."""
    hidden = model.hidden(x)
    q = model.logits(hidden).float().log_softmax(-1)
    text, soft = F.nll_loss(q.flatten(0, 1), y), -(p * q.flatten(0, 1)).sum(-1).mean()
    total = distil * soft + (1 - distil) * text + BALANCE * model.balance()
    if starts is None:
        return total, text
    return total + HEAD_SHARE * guess_loss(model, x, hidden, q.detach().exp(), starts), text


def guess_loss(
    model: Variant, x: Tensor, hidden: Tensor, p: Tensor, starts: Tensor, vocab: Tensor | slice = ALL
) -> Tensor:
    """Return the cross-entropy of the head's steps against what they have to agree with, the trunk's
    distributions p [batch, length, vocab]."""
    losses = [
        -(p[:, starts + i] * logits.float().log_softmax(-1)).sum(-1).mean()
        for i, logits in enumerate(model.guesses(x, hidden, starts, DEPTH, vocab))
    ]
    return torch.stack(losses).mean()


class Trainer:
    """Owns a variant, the target it learns from, and the run's clock."""

    def __init__(self, variant: str, plan: Plan, out: Path) -> None:
        self.plan, self.out = plan, out
        torch.manual_seed(SEED)
        with atomic_write(out / "tokenizer.json") as part:
            part.write_text(tokenizer_of(MODELS / "paceline-target.gguf").to_str(pretty=True), "utf-8")
        self.data = prepare(out)
        self.target = Llama(TARGET)
        known = weights_of(MODELS / "paceline-target.gguf", TARGET)
        self.target.load_state_dict({name: torch.from_numpy(array) for name, array in known.items()})
        self.model, self.imitation = begin(variant), IMITATION.get(variant, 0.0)
        if variant == "mtp":
            if not (out / "checkpoint.pt").exists():
                fit_outputs(self.model, self.target, Batches(self.data, plan.sequence, SEED).next(64)[:, :-1])
            for name, weight in self.model.named_parameters():  # as in Wang et al. 2024, arXiv:2408.15237
                weight.requires_grad_(not name.startswith("token_embd") and (
                    ".ffn." not in name or name.startswith("head.")))  # fmt: skip
        # The rows of an expert vary, and the loops over chunks and steps take minutes to compile.
        compiles = variant not in ("moe", "mtp")
        self.loss: Any = torch.compile(distillation_loss, dynamic=False, disable=not compiles)
        self.imitation_loss: Any = torch.compile(imitation_loss, dynamic=False, disable=not compiles)
        self.optimizers = optimizers_of(plan.rates, self.model)
        self.seconds, self.steps = 0.0, 0
        if (out / "checkpoint.pt").exists():
            saved = torch.load(out / "checkpoint.pt")
            self.model.load_state_dict(saved["model"])
            for optimizer, state in zip(self.optimizers, saved["optimizers"], strict=True):
                optimizer.load_state_dict(state)
            self.seconds, self.steps = saved["seconds"], saved["steps"]

    def save(self) -> None:
        state = {
            "model": self.model.state_dict(), "seconds": self.seconds, "steps": self.steps,
            "optimizers": [optimizer.state_dict() for optimizer in self.optimizers],
        }  # fmt: skip
        with atomic_write(self.out / "checkpoint.pt") as part:
            torch.save(state, part)

    def step(self, ids: Tensor, rate: float, imitates: bool, alone: bool = False) -> float:
        """One update; returns the cross-entropy in nats a token, or the loss of what learns.
        alone: the head does."""
        x, y = ids[:, :-1], ids[:, 1:].reshape(-1)
        with torch.autocast("cpu", MATMUL, enabled=torch.float32 != MATMUL):
            if imitates:
                loss = shown = self.imitation_loss(self.model, layer_inputs(self.target, x))
            elif alone:
                with torch.no_grad():
                    hidden = self.model.hidden(x)
                    logits = self.model.logits(hidden).float()
                    # tokens that are likely somewhere in the batch, and some that are not, cost less than all
                    some = torch.randint(TARGET.vocab, (1024,))
                    some = torch.cat((some, logits.topk(4).indices.flatten())).unique()
                    p = logits[..., some].softmax(-1)
                loss = shown = guess_loss(self.model, x, hidden, p, chain_starts(x.shape[1]), some)
            else:
                with torch.no_grad():
                    p = self.target(x).flatten(0, 1).float().softmax(-1)
                starts = None
                if self.model.head is not None:
                    starts = chain_starts(x.shape[1], self.steps % STRIDE, STRIDE)
                loss, shown = self.loss(self.model, x, y, p, self.plan.distil, starts)
        loss.backward()
        update(self.optimizers, [lr * rate for lr in self.plan.rates], self.model)
        self.steps += 1
        return float(shown.detach())

    @torch.no_grad()  # type: ignore[untyped-decorator]  # torch is untyped here
    def evaluate(self, rows: int = 32, length: int = 512) -> str:
        """Held-out loss of the variant and of the target, over evenly spaced windows."""
        totals = np.zeros(2)
        for ids, found in window_logits(self.data["held_out"], rows, length, self.model, self.target):
            totals += [float(F.cross_entropy(logits, ids[1:])) for logits in found]
        line = f"held-out {totals[0] / rows:.3f} nats/token, target {totals[1] / rows:.3f}"
        return line + self.evaluate_head(rows, length) if self.model.head else line

    def evaluate_head(self, rows: int, length: int) -> str:
        """How often each step of the head agrees with the trunk's likeliest token, and its loss on text."""
        starts, counts = torch.arange(1, length - DEPTH), np.zeros((2, DEPTH))
        for ids, _ in window_logits(self.data["held_out"], rows, length):
            hidden = self.model.hidden(ids[None, :-1])
            likeliest = self.model.logits(hidden)[0].argmax(-1)
            for i, logits in enumerate(self.model.guesses(ids[None, :-1], hidden, starts, DEPTH)):
                counts[0, i] += float(F.cross_entropy(logits[0], ids[starts + i + 1]))
                counts[1, i] += float((logits[0].argmax(-1) == likeliest[starts + i]).float().mean())
        losses, shares = (" ".join(f"{mean:.3f}" for mean in row / rows) for row in counts)
        return f", head {losses} nats/token, agreement {shares}"

    def run(self) -> None:
        """Train until the plan's minutes are over; Ctrl-C leaves the last checkpoint."""
        plan, total = self.plan, self.plan.minutes * 60
        short, long = (
            Batches(self.data, length, SEED + self.steps + i)
            for i, length in enumerate((plan.sequence, plan.long_sequence))
        )
        saved, losses = time.monotonic(), list[float]()
        while self.seconds < total:
            began, done = time.monotonic(), self.seconds / total
            batches = long if done > plan.long_from else short
            # each part of mtp's minutes has a schedule of its own
            begins = ALONE_FROM * (self.model.head is not None and done > ALONE_FROM)
            ends = ALONE_FROM if self.model.head is not None and not begins else 1.0
            rate = plan.rate((done - begins) / (ends - begins))
            ids = batches.next(
                plan.batch_tokens // batches.length // (1 + (begins > 0))
            )  # its chains are more
            losses.append(self.step(ids, rate, imitates=done < self.imitation, alone=begins > 0))
            self.seconds += min(time.monotonic() - began, LONGEST_STEP)
            if self.steps % 20 == 0:
                each = (time.monotonic() - began) / plan.batch_tokens
                print(
                    f"{self.seconds / 60:6.1f} min  step {self.steps}  {np.mean(losses[-20:]):.3f}  "
                    f"{1 / each:.0f} tokens/s",
                    flush=True,
                )
            if time.monotonic() - saved > plan.checkpoint_minutes * 60:
                self.save()
                print(f"checkpoint: {self.evaluate()}", flush=True)
                saved = time.monotonic()
        self.save()
        print(f"done: {self.evaluate()}", flush=True)


def tensors_of(variant: str, model: Variant) -> dict[str, np.ndarray[Any, Any]]:
    """GGUF tensor name -> float32 array. Of granitehybrid, rotary pairs are neighbours."""
    out: dict[str, np.ndarray[Any, Any]] = {}
    stacks: dict[str, list[Any]] = {}
    for name, value in model.state_dict().items():
        array = value.float().numpy()
        name = name.replace(".mixer.", ".").replace(".ffn.", ".")
        if variant == "mtp":
            name = name.replace("head.block.", "blk.6.").replace("head.", "blk.6.nextn.")
            name = name.replace(".ffn_norm.", ".post_attention_norm.")
        if "_exps." in name:
            stacks.setdefault(name.rpartition(".")[0] + ".weight", []).append(array)
            continue
        if name.endswith("ssm_a"):
            array = -np.exp(array) if variant == "mtp" else -np.exp(array)[:, None]
        elif name.endswith("ssm_d"):
            array = array[:, None]
        elif name.endswith("ssm_dt"):
            name += ".bias"
        elif name.endswith("ssm_norm"):
            name += ".weight"
        elif name.endswith("conv1d.weight"):
            array = array[:, 0]
        elif variant == "hybrid" and ("attn_q." in name or "attn_k." in name):
            array = interleave(array, HEADS if "attn_q." in name else KV_HEADS)
        out[name] = np.ascontiguousarray(array)
    return out | {name: np.stack(arrays) for name, arrays in stacks.items()}


def keys_of(variant: str) -> dict[str, int | float | list[int]]:
    """Return the architecture's keys without its name."""
    mixers = VARIANTS[variant]
    keys: dict[str, int | float | list[int]] = {
        "context_length": TARGET.context, "embedding_length": WIDTH, "block_count": len(mixers),
        "vocab_size": TARGET.vocab, "attention.layer_norm_rms_epsilon": TARGET.eps,
        "feed_forward_length": 0 if variant == "mamba2" else TARGET.feed_forward,
        "attention.head_count": 0 if variant == "mamba2" else HEADS,
    }  # fmt: skip
    if "mamba" in mixers:
        keys |= {
            "ssm.conv_kernel": MAMBA.kernel, "ssm.inner_size": MAMBA.inner, "ssm.state_size": MAMBA.state,
            "ssm.time_step_rank": MAMBA.heads, "ssm.group_count": MAMBA.groups,
        }  # fmt: skip
    if "attention" in mixers:
        keys |= {
            "attention.head_count_kv": [KV_HEADS * (mixer == "attention") for mixer in mixers],
            "attention.key_length": HEAD, "attention.value_length": HEAD,
            "rope.dimension_count": HEAD, "rope.freq_base": TARGET.rope_base,
        }  # fmt: skip
    if variant == "mtp":
        keys |= {
            "block_count": len(mixers) + 1, "nextn_predict_layers": 1, "full_attention_interval": 3,
            "attention.head_count_kv": KV_HEADS, "rope.dimension_sections": [11, 11, 10, 0],
            "ssm.conv_kernel": DELTA.kernel, "ssm.inner_size": DELTA.inner, "ssm.state_size": DELTA.state,
            "ssm.time_step_rank": DELTA.heads, "ssm.group_count": DELTA.groups,
        }  # fmt: skip
    if variant == "moe":
        keys |= {
            "attention.head_count_kv": KV_HEADS, "expert_count": EXPERTS, "expert_used_count": USED,
            "expert_feed_forward_length": INNER,
        }  # fmt: skip
    return keys


def write_variant(variant: str, model: Variant, tokenizer: Path, out: Path, ftype: str) -> None:
    """Write the model as a GGUF file. tokenizer: a file of `tokenizers`. ftype: of the matrices."""
    write_model(
        out,
        ARCHITECTURES[variant],
        keys_of(variant),
        tensors_of(variant, model),
        f"Paceline zoo {variant}",
        "A variant of the zoo's target; a test model, not an assistant",
        partial(add_tokenizer, path=tokenizer),
        ftype,
        kept=("ssm_conv1d", "ssm_a", "ssm_d", "ssm_norm", "ffn_gate_inp"),
    )


def export(variant: str, run: Path) -> Path:
    """Write the run's checkpoint as `paceline-VARIANT.gguf`, with matrices in Q8_0."""
    model, out = Variant(variant), run / f"paceline-{variant}.gguf"
    model.load_state_dict(torch.load(run / "checkpoint.pt", map_location="cpu")["model"])
    with atomic_write(out) as part:
        write_variant(variant, model, run / "tokenizer.json", part, "Q8_0")
    return out


def main() -> None:
    parser = parser_of("variants", "Train a variant of the embedded target.", 60.0, "folder of the run")
    parser.add_argument("variant", choices=VARIANTS)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    # its steps cost more, so that fewer tokens each leave enough of them
    plan = Plan(args.minutes, batch_tokens=2048 if args.variant == "mtp" else 4096, long_sequence=1024)
    Trainer(args.variant, plan, args.out).run()
    print(export(args.variant, args.out))


if __name__ == "__main__":
    main()
