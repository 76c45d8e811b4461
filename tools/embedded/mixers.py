"""Mamba-2, gated delta net and mixture-of-experts layers in torch, for the variants of the embedded target.

Parameters have their GGUF names. Mamba-2 is computed in chunks (Dao & Gu 2024, arXiv:2405.21060, listing 1),
as is the gated delta net (Yang et al. 2024, arXiv:2412.06464); the experts are those of Switch Transformers
(Fedus et al. 2022, arXiv:2101.03961) with several a token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F  # noqa: N812  # torch's own short name
from torch import Tensor, nn

CHUNK = 64  # tokens


@dataclass(frozen=True)
class MambaShape:
    """The dimensions of a Mamba-2 layer, by their names in GGUF files. Those of a gated delta net have
    the same names there: `groups` are its key heads, `heads` those of its values."""

    inner: int
    heads: int
    state: int = 64
    groups: int = 1
    kernel: int = 4

    @property
    def conv(self) -> int:
        return self.inner + 2 * self.groups * self.state


def inverse_softplus_steps(heads: int) -> Tensor:
    """Return random steps of 0.001 to 0.1, as softplus's argument."""
    step = torch.exp(torch.empty(heads).uniform_(-6.9, -2.3))
    return step + torch.log(-torch.expm1(-step))


class Mamba2(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A Mamba-2 layer over (batch, length, width), from an empty state."""

    def __init__(self, width: int, shape: MambaShape) -> None:
        super().__init__()
        self.shape = shape
        self.ssm_in = nn.Linear(width, shape.inner + shape.conv + shape.heads, bias=False)
        self.ssm_conv1d = nn.Conv1d(shape.conv, shape.conv, shape.kernel, groups=shape.conv)
        self.ssm_dt = nn.Parameter(inverse_softplus_steps(shape.heads))
        self.ssm_a = nn.Parameter(torch.log(torch.empty(shape.heads).uniform_(1, 16)))  # of -A
        self.ssm_d = nn.Parameter(torch.ones(shape.heads))
        self.ssm_norm = nn.Parameter(torch.ones(shape.groups, shape.inner // shape.groups))
        self.ssm_out = nn.Linear(shape.inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        s, (batch, length, _) = self.shape, x.shape
        z, xbc, dt = self.ssm_in(x).split([s.inner, s.conv, s.heads], -1)
        xbc = F.silu(self.ssm_conv1d(F.pad(xbc.mT, (s.kernel - 1, 0))).mT)
        x, b, c = xbc.split([s.inner, s.groups * s.state, s.groups * s.state], -1)
        dt = F.softplus(dt.float() + self.ssm_dt)
        x = x.view(batch, length, s.heads, -1)
        y = scan(x * dt[..., None].to(x.dtype), -dt * self.ssm_a.exp(), b, c, s.groups)
        y = y + x * self.ssm_d[:, None]
        y = (y.reshape(batch, length, -1) * F.silu(z)).float().view(batch, length, s.groups, -1)
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-5) * self.ssm_norm
        return self.ssm_out(y.reshape(batch, length, -1))


def scan(x: Tensor, a: Tensor, b: Tensor, c: Tensor, groups: int) -> Tensor:
    """Return y_t = C_t h_t with h_t = exp(a_t) h_(t-1) + B_t x_t, in chunks.
    x: [batch, length, heads, width]; a: [batch, length, heads]; b, c: [batch, length, groups * state]."""
    batch, length, heads, width = x.shape
    short = -length % CHUNK
    if short:
        x, a, b, c = (F.pad(t, (0, 0) * (t.ndim - 2) + (0, short)) for t in (x, a, b, c))
    x = x.view(batch, -1, CHUNK, heads, width)
    b, c = (t.view(batch, -1, CHUNK, groups, t.shape[-1] // groups) for t in (b, c))
    logs = a.view(batch, -1, CHUNK, heads).cumsum(2).transpose(2, 3)  # [batch, chunks, heads, tokens]
    each = heads // groups
    # Within a chunk: attention with a decay for each pair of tokens.
    future = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=x.device).triu(1)
    decay = (logs[..., :, None] - logs[..., None, :]).masked_fill(future, -torch.inf).exp().to(x.dtype)
    scores = torch.einsum("zkign,zkjgn->zkgij", c, b).repeat_interleave(each, 2)
    inside = torch.einsum("zkhij,zkjhp->zkihp", scores * decay, x)
    # Between chunks: the state after each, and what is left of it later.
    left = (logs[..., -1:] - logs).exp().transpose(2, 3).to(x.dtype)  # at the end of the chunk
    added = torch.einsum("zkjgn,zkjghp->zkghpn", b, (x * left[..., None]).unflatten(3, (groups, each)))
    state, before = torch.zeros_like(added[:, 0]), list[Tensor]()
    whole = logs[..., -1].exp().unflatten(2, (groups, each))[..., None, None].to(x.dtype)
    for chunk in range(x.shape[1]):
        before.append(state)
        state = state * whole[:, chunk] + added[:, chunk]
    carried = torch.einsum("zkign,zkghpn->zkighp", c, torch.stack(before, 1)).flatten(3, 4)
    y = inside + carried * logs.transpose(2, 3).exp()[..., None].to(x.dtype)
    return y.flatten(1, 2)[:, :length]


class DeltaNet(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A gated delta net over (batch, length, width), from an empty state, as Qwen 3.5 has it."""

    def __init__(self, width: int, shape: MambaShape, eps: float) -> None:
        super().__init__()
        self.shape, self.eps = shape, eps
        self.attn_qkv = nn.Linear(width, shape.conv, bias=False)
        self.attn_gate = nn.Linear(width, shape.inner, bias=False)
        self.ssm_conv1d = nn.Conv1d(shape.conv, shape.conv, shape.kernel, groups=shape.conv, bias=False)
        self.ssm_alpha = nn.Linear(width, shape.heads, bias=False)
        self.ssm_beta = nn.Linear(width, shape.heads, bias=False)
        self.ssm_dt = nn.Parameter(inverse_softplus_steps(shape.heads))
        self.ssm_a = nn.Parameter(torch.log(torch.empty(shape.heads).uniform_(1, 16)))  # of -A
        self.ssm_norm = nn.Parameter(torch.ones(shape.state))
        self.ssm_out = nn.Linear(shape.inner, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        s, (batch, length, _) = self.shape, x.shape
        qkv = F.silu(self.ssm_conv1d(F.pad(self.attn_qkv(x).mT, (s.kernel - 1, 0))).mT)
        q, k, v = (t.unflatten(-1, (-1, s.state)) for t in qkv.split(
            [s.groups * s.state, s.groups * s.state, s.inner], -1))  # fmt: skip
        # llama.cpp lays the heads of values as (of one key head, key heads)
        q, k = (
            (t * torch.rsqrt(t.square().sum(-1, keepdim=True) + self.eps)).repeat(
                1, 1, s.heads // s.groups, 1
            )
            for t in (q, k)
        )
        decay = -F.softplus(self.ssm_alpha(x).float() + self.ssm_dt) * self.ssm_a.exp()
        y = delta_scan(q * s.state**-0.5, k, v, decay, self.ssm_beta(x).float().sigmoid())
        y = y * torch.rsqrt(y.square().mean(-1, keepdim=True) + self.eps) * self.ssm_norm
        return self.ssm_out(y.reshape(batch, length, -1) * F.silu(self.attn_gate(x)))


def delta_scan(q: Tensor, k: Tensor, v: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """Return y_t = S_t^T q_t with S_t = R_t + beta_t k_t (v_t - R_t^T k_t)^T and R_t = exp(decay_t) S_(t-1),
    in chunks. q, k, v: [batch, length, heads, state]; decay, beta: [batch, length, heads]."""
    length = q.shape[1]
    short = -length % CHUNK

    def chunks(t: Tensor) -> Tensor:  # [batch, heads, chunks, tokens, ...]
        t = F.pad(t.float(), (0, 0) * (t.ndim - 2) + (0, short))
        return t.unflatten(1, (-1, CHUNK)).movedim(3, 1)

    q, k, v, decay, beta = map(chunks, (q, k, v, decay, beta))
    logs = decay.cumsum(-1)
    future = torch.ones(CHUNK, CHUNK, dtype=torch.bool, device=q.device).triu(1)
    between = (logs[..., :, None] - logs[..., None, :]).masked_fill(future, -torch.inf).exp()
    grown = logs.exp()[..., None]
    # What each token writes, u, is what is left of its value after the tokens before it in the chunk:
    # (1 + lower) u = beta (v - grown S^T k), with the state S before the chunk: it is solved for both parts.
    lower = (beta[..., None] * (k @ k.mT) * between).tril(-1)
    solved = torch.linalg.solve_triangular(
        lower + torch.eye(CHUNK, device=q.device),
        beta[..., None] * torch.cat((v, grown * k), -1),
        upper=False,
        unitriangular=True,
    )
    written, read = solved.chunk(2, -1)
    inside, carried = (q @ k.mT) * between, q * grown
    left = k * (logs[..., -1:] - logs).exp()[..., None]  # of each key at the end of its chunk
    state = torch.zeros_like(k[:, :, 0, :1].mT @ v[:, :, 0, :1])
    out = list[Tensor]()
    for i in range(q.shape[2]):
        u = written[:, :, i] - read[:, :, i] @ state
        out.append(carried[:, :, i] @ state + inside[:, :, i] @ u)
        state = state * grown[:, :, i, -1:] + left[:, :, i].mT @ u
    return torch.stack(out, 2).flatten(2, 3)[:, :, :length].transpose(1, 2)


class Experts(nn.Module):  # type: ignore[misc]  # torch is untyped here
    """SwiGLU experts, of which a router picks `used` for each token; their weights add up to one.
    load: the last forward's balance loss, 1 if all experts are chosen equally often."""

    def __init__(self, width: int, inner: int, experts: int, used: int) -> None:
        super().__init__()
        self.used = used
        self.ffn_gate_inp = nn.Linear(width, experts, bias=False)
        # A list of matrices each, as Muon makes matrices orthogonal.
        self.ffn_gate_exps = nn.ParameterList(torch.randn(inner, width) * width**-0.5 for _ in range(experts))
        self.ffn_up_exps = nn.ParameterList(torch.randn(inner, width) * width**-0.5 for _ in range(experts))
        self.ffn_down_exps = nn.ParameterList(torch.zeros(width, inner) for _ in range(experts))
        self.load = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        rows = x.reshape(-1, x.shape[-1])
        p = self.ffn_gate_inp(rows).float().softmax(-1)
        weights, chosen = p.topk(self.used, -1)
        weights = weights / weights.sum(-1, keepdim=True)
        experts = p.shape[-1]
        often = F.one_hot(chosen, experts).float().mean((0, 1))
        self.load = experts * (often * p.mean(0)).sum()
        out = torch.zeros_like(rows, dtype=torch.float32)
        for expert in range(experts):
            row, place = (chosen == expert).nonzero(as_tuple=True)
            h = rows[row]
            gate, up = self.ffn_gate_exps[expert], self.ffn_up_exps[expert]
            h = F.linear(F.silu(F.linear(h, gate)) * F.linear(h, up), self.ffn_down_exps[expert])
            out = out.index_add(0, row, h.float() * weights[row, place, None])
        return out.view_as(x)
