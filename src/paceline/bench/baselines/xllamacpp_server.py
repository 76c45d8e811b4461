"""The server inside the package xllamacpp as a program, with the flags of llama-server that we give it.

That package carries a portable build of llama.cpp, and no executable. A process of its own keeps its threads
and its memory apart from ours. Run as `python -m paceline.bench.baselines.xllamacpp_server`.
"""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from importlib.metadata import version
from operator import attrgetter
from typing import Any

PACKAGE = "xllamacpp"
# Flag, with its other names -> the setting in CommonParams, and what makes a value of its text.
SETTINGS: dict[tuple[str, ...], tuple[str, Callable[[str], Any]]] = {
    ("-m", "--model"): ("model.path", str),
    ("-md", "--spec-draft-model"): ("speculative.draft.mparams.path", str),
    ("-c", "--ctx-size"): ("n_ctx", int),
    ("-np", "--parallel"): ("n_parallel", int),
    ("-t", "--threads"): ("cpuparams.n_threads", int),
    ("-tb", "--threads-batch"): ("cpuparams_batch.n_threads", int),
    ("-b", "--batch-size"): ("n_batch", int),
    ("-ub", "--ubatch-size"): ("n_ubatch", int),
    ("-ngl", "--gpu-layers"): ("n_gpu_layers", int),
    ("--spec-draft-ngl", "-ngld"): ("speculative.draft.n_gpu_layers", int),
    ("--host",): ("hostnames", lambda text: [text]),
    ("--port",): ("port", int),
    ("--cache-ram",): ("cache_ram_mib", int),
    ("--fit",): ("fit_params", lambda text: text == "on"),
    ("--spec-draft-n-max",): ("speculative.draft.n_max", int),
    ("--spec-draft-n-min",): ("speculative.draft.n_min", int),
    ("--spec-draft-p-min",): ("speculative.draft.p_min", float),
    **{
        (f"--spec-{kind}-size-m",): (f"speculative.{kind.replace('-', '_')}.size_m", int)
        for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
    },
}
CACHE_TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
CACHES = {
    ("-ctk", "--cache-type-k"): "cache_type_k",
    ("-ctv", "--cache-type-v"): "cache_type_v",
    ("-ctkd", "--spec-draft-type-k"): "speculative.draft.cache_type_k",
    ("-ctvd", "--spec-draft-type-v"): "speculative.draft.cache_type_v",
}
SPEC_TYPES = (
    "none,draft-simple,draft-eagle3,draft-dflash,draft-dspark,draft-mtp,"
    "ngram-simple,ngram-map-k,ngram-map-k4v,ngram-mod,ngram-cache"
)


def parser() -> argparse.ArgumentParser:
    """Return the flags; what is not given is not in the result, so that the package's own defaults stay."""
    flags = argparse.ArgumentParser(
        prog=f"{PACKAGE}_server", argument_default=argparse.SUPPRESS, allow_abbrev=False, add_help=True
    )
    flags.add_argument("--version", action="version", version=f"version: {PACKAGE} {version(PACKAGE)}")
    for names, (setting, kind) in SETTINGS.items():
        flags.add_argument(*names, dest=setting, type=kind, metavar="VALUE")
    flags.add_argument("-fa", "--flash-attn", dest="flash_attn_type", metavar="[on|off|auto]")
    for names, setting in CACHES.items():
        flags.add_argument(*names, dest=setting, choices=CACHE_TYPES)
    flags.add_argument("--spec-type", dest="speculative.types", metavar=SPEC_TYPES)
    flags.add_argument("--metrics", dest="endpoint_metrics", action="store_true")
    return flags


def main() -> None:
    given = vars(parser().parse_args())

    import xllamacpp  # late, and only here: the package is no dependency of ours

    def member(enum: str, prefix: str, name: str) -> Any:
        return getattr(getattr(xllamacpp, enum), prefix + name.upper().replace("-", "_"))

    params = xllamacpp.CommonParams()
    for setting, value in given.items():
        if setting == "flash_attn_type":
            name = {"on": "enabled", "off": "disabled"}.get(value, "auto")
            value = member("llama_flash_attn_type", "LLAMA_FLASH_ATTN_TYPE_", name)
        elif setting in CACHES.values():
            value = member("ggml_type", "GGML_TYPE_", value)
        elif setting == "speculative.types":
            value = [
                member("common_speculative_type", "COMMON_SPECULATIVE_TYPE_", one) for one in value.split(",")
            ]
        owner, _, name = setting.rpartition(".")
        setattr(attrgetter(owner)(params) if owner else params, name, value)
    server = xllamacpp.Server(params)
    print(f"{PACKAGE} answers at {server.listening_address}", flush=True)
    signal.pause()


if __name__ == "__main__":
    main()
