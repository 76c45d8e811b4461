"""Linear layers with weights of 8 or 4 bits, by the kernels that PyTorch has for few rows on a processor.

A model with such weights is another one than its files hold, like any requantisation: the target says so
(`alters`).
"""

from __future__ import annotations

from typing import Any

import torch

from paceline.core.errors import UsageError

GROUP = 32  # weights of 4 bits that share a scale and a zero, as llama.cpp's Q4_1 has it


class Int8(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """One scale a row; what comes in stays as it is."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        self.n_weights = weight.numel()
        scale = (weight.abs().amax(1) / 127.0).clamp_min(1e-12)
        self.register_buffer("packed", (weight / scale[:, None]).round().to(torch.int8))
        self.register_buffer("scale", scale.to(linear.weight.dtype))
        self.bias = linear.bias

    def forward(self, x: Any) -> Any:
        rows = x.reshape(-1, x.shape[-1])
        out = torch.ops.aten._weight_int8pack_mm(rows, self.packed, self.scale).reshape(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias


class Int4(torch.nn.Module):  # type: ignore[misc]  # torch is untyped here
    """A scale and a zero for every `GROUP` weights of a row."""

    def __init__(self, linear: Any) -> None:
        super().__init__()
        weight = linear.weight.detach().float()
        self.n_weights = weight.numel()
        n, width = weight.shape
        groups = weight.reshape(n, width // GROUP, GROUP)
        low, high = groups.amin(-1), groups.amax(-1)
        scale = ((high - low) / 15.0).clamp_min(1e-12)
        whole = ((groups - low[..., None]) / scale[..., None]).round().clamp(0, 15).to(torch.int32)
        self.register_buffer(
            "packed", torch.ops.aten._convert_weight_to_int4pack_for_cpu(whole.reshape(n, width), 1)
        )
        # The kernel reads (number - 8) * scale + zero.
        both = torch.stack([scale, low + 8.0 * scale], dim=-1).transpose(0, 1).contiguous()
        self.register_buffer("scales", both.to(linear.weight.dtype))
        self.bias = linear.bias

    def forward(self, x: Any) -> Any:
        rows = x.reshape(-1, x.shape[-1])
        out = torch.ops.aten._weight_int4pack_mm_for_cpu(rows, self.packed, GROUP, self.scales)
        out = out.reshape(*x.shape[:-1], -1)
        return out if self.bias is None else out + self.bias


KINDS: dict[str, type[Any]] = {"int8": Int8, "int4": Int4}


def pack(model: Any, kind: str) -> int:
    """Replace the model's linear layers; returns how many. Layers that 4 bits do not fit (their width is no
    multiple of a group, their rows none of 16) stay as they are. Raises UsageError on another device than the
    processor."""
    if model.device.type != "cpu":
        raise UsageError(f"dtype {kind}: its kernels are for a processor: cpu (device, --device)")
    made, n = KINDS[kind], 0
    with torch.inference_mode():
        for module in list(model.modules()):
            for name, child in list(module.named_children()):
                if type(child) is torch.nn.Linear and fits(child, kind):
                    setattr(module, name, made(child))
                    n += 1
    return n


def fits(linear: Any, kind: str) -> bool:
    rows, width = linear.weight.shape
    return kind != "int4" or (width % GROUP == 0 and rows % 16 == 0)
