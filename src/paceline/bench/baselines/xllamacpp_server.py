"""The server of the package xllamacpp as a program with the llama-server flags that we use.

The package has a portable build of llama.cpp without an executable. A separate process isolates its threads
and memory. Run as `python -m paceline.bench.baselines.xllamacpp_server`."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Callable
from importlib.metadata import version
from operator import attrgetter
from typing import Any

PACKAGE = "xllamacpp"
# Flag -> field of CommonParams, and the conversion of its text.
SETTINGS: dict[str, tuple[str, Callable[[str], Any]]] = {
    "-m": ("model.path", str),
    "-md": ("speculative.draft.mparams.path", str),
    "-c": ("n_ctx", int),
    "-np": ("n_parallel", int),
    "-t": ("cpuparams.n_threads", int),
    "-tb": ("cpuparams_batch.n_threads", int),
    "-ngl": ("n_gpu_layers", int),
    "--spec-draft-ngl": ("speculative.draft.n_gpu_layers", int),
    "--host": ("hostnames", lambda text: [text]),
    "--port": ("port", int),
    "--cache-ram": ("cache_ram_mib", int),
    "--fit": ("fit_params", lambda text: text == "on"),
    "--spec-draft-n-max": ("speculative.draft.n_max", int),
    "--spec-draft-n-min": ("speculative.draft.n_min", int),
    "--spec-draft-p-min": ("speculative.draft.p_min", float),
    **{
        f"--spec-{kind}-size-m": (f"speculative.{kind.replace('-', '_')}.size_m", int)
        for kind in ("ngram-simple", "ngram-map-k", "ngram-map-k4v")
    },
}
CACHES = {
    "-ctk": "cache_type_k",
    "-ctv": "cache_type_v",
    "-ctkd": "speculative.draft.cache_type_k",
    "-ctvd": "speculative.draft.cache_type_v",
}
SPEC_TYPES = (
    "none,draft-simple,draft-eagle3,draft-dflash,draft-dspark,draft-mtp,"
    "ngram-simple,ngram-map-k,ngram-map-k4v,ngram-mod,ngram-cache"
)


def parser() -> argparse.ArgumentParser:
    """Return the argument parser. Absent flags are absent from the result, so that the package's defaults
    apply."""
    flags = argparse.ArgumentParser(
        prog=f"{PACKAGE}_server", argument_default=argparse.SUPPRESS, allow_abbrev=False, add_help=True
    )
    flags.add_argument("--version", action="version", version=f"version: {PACKAGE} {version(PACKAGE)}")
    for name, (setting, kind) in SETTINGS.items():
        flags.add_argument(name, dest=setting, type=kind, metavar="VALUE")
    flags.add_argument("-fa", dest="flash_attn_type", metavar="[on|off|auto]")
    for name, setting in CACHES.items():
        flags.add_argument(name, dest=setting, metavar="TYPE")
    flags.add_argument("--spec-type", dest="speculative.types", metavar=SPEC_TYPES)
    return flags


def main() -> None:
    flags = vars(parser().parse_args())

    import xllamacpp  # an optional dependency

    def member(enum: str, prefix: str, name: str) -> Any:
        return getattr(getattr(xllamacpp, enum), prefix + name.upper().replace("-", "_"))

    params = xllamacpp.CommonParams()
    for setting, value in flags.items():
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
