"""Train a variant of the embedded target: `python -m tools.embedded.variants hybrid --out runs/hybrid`.

mamba2: Mamba-2 blocks only. hybrid: Mamba-2 in place of most attention layers (of llama.cpp's granitehybrid).
moe: 16 experts, 4 a token (of qwen3moe). Each begins with what it can take over from the embedded target, and
learns from the text and from the target's distribution, as the draft did (train.py). Blocks of mamba2 can
take over nothing; each first learns to do what one of the target's layers does, attention or feed-forward (as
in MOHAWK: Bick et al. 2024, arXiv:2408.10189, section 3.2). The schedule runs on the clock; a run goes on
from its last checkpoint, and writes `paceline-VARIANT.gguf` at the end.
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
from paceline.system.whole import atomic_write
from tools.embedded.corpus import SEED
from tools.embedded.export import add_tokenizer, interleave, write_model
from tools.embedded.mixers import Experts, Mamba2, MambaShape
from tools.embedded.muon import MATMUL
from tools.embedded.network import TARGET, Llama, RMSNorm, rotate
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
EXPERTS, USED, INNER = 16, 4, 128
BALANCE = 0.01  # weight of the balance loss
IMITATION = 0.35  # share of the minutes in which mamba2's blocks imitate layers
# Variant: the mixer of each block.
VARIANTS = {
    "mamba2": ("mamba",) * 2 * TARGET.blocks,  # for the attention and feed-forward layers of the target
    "hybrid": ("mamba", "mamba", "attention", "mamba", "mamba", "attention"),
    "moe": ("attention",) * 6,
}
ARCHITECTURES = {"mamba2": "mamba2", "hybrid": "granitehybrid", "moe": "qwen3moe"}


class Attention(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """Grouped-query attention; `normed` queries and keys, as in Qwen 3."""

    def __init__(self, normed: bool) -> None:
        super().__init__()
        self.attn_q = nn.Linear(WIDTH, HEADS * HEAD, bias=False)
        self.attn_k = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.attn_v = nn.Linear(WIDTH, KV_HEADS * HEAD, bias=False)
        self.attn_output = nn.Linear(HEADS * HEAD, WIDTH, bias=False)
        self.attn_q_norm = RMSNorm(HEAD, TARGET.eps) if normed else None
        self.attn_k_norm = RMSNorm(HEAD, TARGET.eps) if normed else None

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        batch, length, _ = x.shape
        q, k, v = (part(x).view(batch, length, -1, HEAD) for part in (self.attn_q, self.attn_k, self.attn_v))
        if self.attn_q_norm is not None and self.attn_k_norm is not None:
            q, k = self.attn_q_norm(q), self.attn_k_norm(k)
        q, k = (rotate(t.transpose(1, 2), cos, sin).to(v.dtype) for t in (q, k))
        mixed = F.scaled_dot_product_attention(q, k, v.transpose(1, 2), is_causal=True, enable_gqa=True)
        return self.attn_output(mixed.transpose(1, 2).reshape(batch, length, -1))


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
        self.mixer = Mamba2(WIDTH, MAMBA) if mixer == "mamba" else Attention(variant == "moe")
        self.ffn: nn.Module | None = None
        if variant != "mamba2":
            self.ffn_norm = RMSNorm(WIDTH, TARGET.eps)
            self.ffn = Experts(WIDTH, INNER, EXPERTS, USED) if variant == "moe" else FeedForward()

    def forward(self, x: Tensor, cos: Tensor, sin: Tensor, *_: Any) -> Tensor:
        h = self.attn_norm(x)
        x = x + (self.mixer(h) if isinstance(self.mixer, Mamba2) else self.mixer(h, cos, sin))
        return x if self.ffn is None else x + self.ffn(self.ffn_norm(x))


class Variant(Llama):
    """Token ids (batch, length) -> logits (batch, length, vocab)."""

    def __init__(self, variant: str) -> None:
        super().__init__(TARGET)
        self.blk = nn.ModuleList(Block(variant, mixer) for mixer in VARIANTS[variant])
        for name, weight in self.blk.named_parameters():
            if weight.ndim == 2 and "exps" not in name and "ssm_norm" not in name:
                nn.init.normal_(weight, std=WIDTH**-0.5 / 1.5)
            if "ssm_out" in name:  # a block that starts as the identity trains more steadily
                nn.init.zeros_(weight)

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
        if variant == "mamba2":
            for i, block in enumerate(model.blk):
                norm = known[f"blk.{i // 2}.{('attn', 'ffn')[i % 2]}_norm.weight"]
                block.attn_norm.weight.copy_(torch.from_numpy(norm))
    return model


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
    shares = [
        (block(x, None, None) - y).float().square().mean() / (y - x).float().square().mean()
        for block, x, y in zip(model.blk, states[:-1], states[1:], strict=True)
    ]
    return torch.stack(shares).mean()


def distillation_loss(
    model: Variant, x: Tensor, y: Tensor, p: Tensor, distil: float
) -> tuple[Tensor, Tensor]:
    """Return (sum to minimise, cross-entropy in nats a token). p: [tokens, vocab], the target's."""
    q = model(x).flatten(0, 1).float().log_softmax(-1)
    text, soft = F.nll_loss(q, y), -(p * q).sum(-1).mean()
    return distil * soft + (1 - distil) * text + BALANCE * model.balance(), text


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
        self.model, self.imitation = begin(variant), IMITATION * (variant == "mamba2")
        self.loss: Any = distillation_loss  # the rows of an expert vary, so nothing is compiled for moe
        if variant != "moe":
            self.loss = torch.compile(distillation_loss, dynamic=False)
        self.imitation_loss: Any = torch.compile(imitation_loss, dynamic=False)
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

    def step(self, ids: Tensor, rate: float, imitates: bool) -> float:
        """One update; returns the cross-entropy in nats a token, or the imitation loss."""
        x, y = ids[:, :-1], ids[:, 1:].reshape(-1)
        with torch.autocast("cpu", MATMUL, enabled=torch.float32 != MATMUL):
            if imitates:
                loss = shown = self.imitation_loss(self.model, layer_inputs(self.target, x))
            else:
                with torch.no_grad():
                    p = self.target(x).flatten(0, 1).float().softmax(-1)
                loss, shown = self.loss(self.model, x, y, p, self.plan.distil)
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
        return f"held-out {totals[0] / rows:.3f} nats/token, target {totals[1] / rows:.3f}"

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
            ids = batches.next(plan.batch_tokens // batches.length)
            losses.append(self.step(ids, plan.rate(done), imitates=done < self.imitation))
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


def tensors_of(model: Variant, interleaved: bool) -> dict[str, np.ndarray[Any, Any]]:
    """GGUF tensor name -> float32 array. interleaved: rotary pairs are neighbours."""
    out: dict[str, np.ndarray[Any, Any]] = {}
    stacks: dict[str, list[Any]] = {}
    for name, value in model.state_dict().items():
        array = value.float().numpy()
        name = name.replace(".mixer.", ".").replace(".ffn.", ".")
        if "_exps." in name:
            stacks.setdefault(name.rpartition(".")[0] + ".weight", []).append(array)
            continue
        if name.endswith("ssm_a"):
            array = -np.exp(array)[:, None]
        elif name.endswith("ssm_d"):
            array = array[:, None]
        elif name.endswith("ssm_dt"):
            name += ".bias"
        elif name.endswith("ssm_norm"):
            name += ".weight"
        elif name.endswith("conv1d.weight"):
            array = array[:, 0]
        elif interleaved and ("attn_q." in name or "attn_k." in name):
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
        tensors_of(model, variant == "hybrid"),
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
    Trainer(args.variant, Plan(minutes=args.minutes, long_sequence=1024), args.out).run()
    print(export(args.variant, args.out))


if __name__ == "__main__":
    main()
