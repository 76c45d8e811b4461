"""The server of the package xllamacpp as a program with the llama-server flags that we use.

The package has a portable build of llama.cpp without an executable. A separate process isolates its threads
and memory. `paceline bench --baseline llama-server=benchmarks/xllamacpp_server.py` runs it."""

from __future__ import annotations

import signal
import sys
from enum import Enum
from operator import attrgetter
from typing import Any

# Flag -> field of CommonParams.
SETTINGS = {
    "-m": "model.path", "-md": "speculative.draft.mparams.path", "-c": "n_ctx", "-np": "n_parallel",
    "-t": "cpuparams.n_threads", "-tb": "cpuparams_batch.n_threads", "-fa": "flash_attn_type",
    "-ngl": "n_gpu_layers", "--spec-draft-ngl": "speculative.draft.n_gpu_layers", "-ctk": "cache_type_k",
    "-ctv": "cache_type_v", "-ctkd": "speculative.draft.cache_type_k",
    "-ctvd": "speculative.draft.cache_type_v", "--host": "hostnames", "--port": "port",
    "--cache-ram": "cache_ram_mib", "--fit": "fit_params", "--spec-draft-n-max": "speculative.draft.n_max",
    "--spec-draft-n-min": "speculative.draft.n_min", "--spec-draft-p-min": "speculative.draft.p_min",
    "--spec-draft-sampling": "speculative.draft.probabilistic", "--spec-type": "speculative.types",
    "--spec-ngram-simple-size-m": "speculative.ngram_simple.size_m",
    "--spec-ngram-map-k-size-m": "speculative.ngram_map_k.size_m",
    "--spec-ngram-map-k4v-size-m": "speculative.ngram_map_k4v.size_m",
}  # fmt: skip
FLASH_ATTENTION = {"on": "enabled", "off": "disabled"}


def converted(text: str, default: Any) -> Any:
    """Return the value that `text` stands for, of the type of `default`."""
    if isinstance(default, list):
        return [converted(part, default[0]) for part in text.split(",")]
    if isinstance(default, Enum):
        kind, name = default.name.rpartition("_TYPE_")[0], FLASH_ATTENTION.get(text, text)
        return type(default)[f"{kind}_TYPE_{name.upper().replace('-', '_')}"]
    return text in ("on", "probabilistic") if isinstance(default, bool) else type(default)(text)


def has_field(params: Any, field: str) -> bool:
    try:
        attrgetter(field)(params)
    except AttributeError:
        return False
    return True


def main() -> None:
    import xllamacpp  # an optional dependency

    if sys.argv[1:] == ["--version"]:
        print(f"version: xllamacpp {xllamacpp.__version__}")
        return
    params = xllamacpp.CommonParams()
    if sys.argv[1:] == ["--help"]:
        print(*(flag for flag, field in SETTINGS.items() if has_field(params, field)))
        return
    for flag, text in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        if flag not in SETTINGS:
            sys.exit(f"error: invalid argument: {flag}")
        owner, _, name = SETTINGS[flag].rpartition(".")
        part = attrgetter(owner)(params) if owner else params
        setattr(part, name, converted(text, getattr(part, name)))
    try:
        server = xllamacpp.Server(params)
    except RuntimeError as error:
        sys.exit(f"error: {error}")
    print(f"xllamacpp answers at {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
