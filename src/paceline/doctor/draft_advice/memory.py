"""What a pair takes of the machine's memory: weights, and keys and values of the context."""

from __future__ import annotations

from paceline.models.headers.facts import ModelFacts

# Bytes of the cache beside F16; q8_0 has a scale of two bytes for 32 values.
BY_TYPE = {"f32": 2.0, "f16": 1.0, "bf16": 1.0, "q8_0": 34 / 64}


def needed(models: tuple[ModelFacts, ...], n_ctx: int, cache_type: str = "f16") -> tuple[int, bool]:
    """Bytes of models that are used together, each with the same context, and whether all of it is known. A
    model without keys and values (recurrent) has none to pay for; one whose size of them is not known makes
    the sum a lower bound."""
    scale = BY_TYPE.get(cache_type, 1.0)
    total = sum(model.size + round(model.kv_bytes * scale) * n_ctx for model in models)
    return total, all(model.kv_bytes or model.memory == "recurrent" for model in models)


def available(*, gpus: bool = False) -> int:
    """Bytes that processes can still get, by the system's word and the container's; what files fill is given
    back to them, and so counts. gpus: with what is free of the memory that GPUs have of their own."""
    import psutil

    from paceline.hardware.containers import read
    from paceline.hardware.files import SystemFiles
    from paceline.hardware.gpus import read as read_gpus

    free, limit = int(psutil.virtual_memory().available), read(SystemFiles()).memory
    free = free if limit is None else min(free, limit)
    if gpus:
        free += sum(gpu.free or 0 for gpu in read_gpus(SystemFiles()) if not gpu.shared)
    return free
