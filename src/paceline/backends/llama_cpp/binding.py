"""llama.cpp's API, through llama-cpp-python's low-level bindings, which are imported with the first model."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from paceline.backends.common import parameters
from paceline.backends.llama_cpp import gate, pages, placement
from paceline.hardware.files import parse_nonnegative
from paceline.models.headers.facts import HEAD_ARCHS
from paceline.settings import PINNED
from paceline.speculative.errors import MissingExtraError, ModelError, UsageError
from paceline.speculative.printable import format_bytes
from paceline.system.forks import ForkGuard, OpenMPThreads
from paceline.system.shutdown import exit_now

if TYPE_CHECKING:
    from paceline.backends.llama_cpp.model import LlamaSettings

Changes = Iterable[Callable[[Any], None]]  # of llama.cpp's parameters
MAX_SEQUENCES = 256  # LLAMA_MAX_SEQ, a constant of the build
MAX_POSITIONS = 2**31 - 1  # llama_pos is an int32
UBATCH = 512  # tokens that llama.cpp computes at once
ERROR_LEVEL = 4  # GGML_LOG_LEVEL_ERROR
CACHE_TYPES = {"f32": (0, 4.0), "f16": (1, 2.0), "q8_0": (8, 34 / 32), "bf16": (30, 2.0)}  # ggml_type, bytes

# Fields of `Sampling`, and their names in GGUF files after general.sampling.
SAMPLING_KEYS = {"temperature": "temp", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p"}

_module: ModuleType | None = None
_process = ForkGuard()  # the process that has OpenMP's threads
_importing = threading.Lock()
_helpers = OpenMPThreads(None)
_log: deque[str] = deque(maxlen=40)
_callbacks: list[Any] = []


def llama_cpp() -> ModuleType:
    """Return the low-level module. Raises MissingExtraError, or UsageError in a forked process."""
    global _module, _process
    if _module is None:
        with _importing:
            _process = ForkGuard()
            _module = _module or _imported()
    _process.require()
    return _module


def helpers() -> OpenMPThreads:
    """Return the OpenMP threads of ggml."""
    return _helpers


def _imported() -> ModuleType:
    global _helpers
    try:
        from llama_cpp import llama_cpp as module
    except ImportError as error:
        raise MissingExtraError(
            f"GGUF models need llama-cpp-python ({error}): pip install 'paceline[llama]', which compiles "
            "llama.cpp for this processor in some minutes"
        ) from error

    @module.llama_log_callback  # type: ignore[untyped-decorator]  # ctypes
    def log_error(level: int, text: bytes, _user: object) -> None:
        if level == ERROR_LEVEL:
            _log.append(text.decode(errors="replace").strip())

    @ctypes.CFUNCTYPE(None, ctypes.c_char_p)  # type: ignore[untyped-decorator]
    def on_abort(data: bytes) -> None:
        # A failed assertion ends the process in any case: print a reason instead of a backtrace.
        assertion = " ".join(data.decode(errors="replace").rpartition(": ")[2].split())
        message = f"paceline: llama.cpp gave up ({assertion}); is the model file damaged? download it again"
        print(message, file=sys.stderr, flush=True)
        exit_now(ModelError.exit_code)

    _callbacks.extend([log_error, on_abort])  # llama.cpp holds addresses only
    module.llama_log_set(log_error, ctypes.c_void_p(0))
    with contextlib.suppress(AttributeError):  # if ggml is a separate library
        module._lib.ggml_set_abort_callback(on_abort)
    module.llama_backend_init()
    _helpers = OpenMPThreads(module._lib)
    found: ModuleType = module
    return found


def load_model(
    path: Path, *, vocab_only: bool = False, gpu_layers: int = 0, mtp: bool = False, changes: Changes = ()
) -> Any:
    """Load a causal language model, or a draft head. changes: of llama.cpp's parameters.
    Raises UsageError for no file, and ModelError for other models."""
    gate.require_gguf_path(path)
    cpp = llama_cpp()
    gate.validate_gguf(path, vocab_only=vocab_only, gpu_layers=gpu_layers, **({"mtp": True} if mtp else {}))
    params = cpp.llama_model_default_params()
    params.vocab_only = vocab_only
    params.n_gpu_layers = gpu_layers
    params.progress_callback = cpp.llama_progress_callback(_loading)
    for change in changes:
        change(params)
    _log.clear()
    model = cpp.llama_model_load_from_file(os.fsencode(path), params)
    if not model:
        reason = f"{path}: {gate.explain([*filter(None, _log)])}"
        if not vocab_only:  # a wrong kind of model is reported first
            cpp.llama_model_free(load_model(path, vocab_only=True))
        raise ModelError(reason)
    if reason := _no_decoder(model):
        cpp.llama_model_free(model)
        raise ModelError(f"{path}: is {reason}")
    return model


def _no_decoder(model: Any) -> str:
    """Return what the model is if it is no decoder-only language model, and drafts for none."""
    cpp, arch = llama_cpp(), metadata(model, "general.architecture")
    causal = metadata(model, f"{arch}.attention.causal")
    pooled = metadata(model, f"{arch}.pooling_type")
    if arch in HEAD_ARCHS:
        return ""
    encodes = not cpp.llama_model_has_decoder(model) or causal == "false" or "bert" in str(arch)
    if encodes or pooled not in (None, "0"):
        return f"an embedding model ({arch}), which does not generate text; give a causal LM"
    if cpp.llama_model_has_encoder(model):
        return f"an encoder-decoder model ({arch}); give a decoder-only causal LM"
    return ""


def _loading(done: float, _user: object) -> bool:
    """Advise huge pages at the first report of progress: memory is allocated, and not yet filled."""
    if done == 0:
        pages.advise_huge_pages()
    return True  # continue


def is_windowed(model: Any) -> bool:
    """Return whether some layers have a sliding window. llama.cpp does not report that of deepseek4."""
    has_window = llama_cpp().llama_model_n_swa(model) > 0
    return has_window or metadata(model, "general.architecture") == "deepseek4"


def keeps_other_keys(model: Any, cache_type: str) -> bool:
    """Return whether a shift of positions rotates the moved keys only. ggml cannot rotate bf16; and where
    rope scales magnitudes, llama.cpp scales all keys of the context again."""
    rope = f"{metadata(model, 'general.architecture')}.rope.scaling"
    scales = metadata(model, f"{rope}.type") in ("yarn", "longrope")
    return cache_type != "bf16" and not scales and metadata(model, f"{rope}.attn_factor") is None


def metadata(model: Any, key: str) -> str | None:
    """Return a value of the file's header as text; None if it has no such key."""
    cpp = llama_cpp()
    size = cpp.llama_model_meta_val_str(model, key.encode(), None, 0)
    if size < 0:
        return None
    buffer = ctypes.create_string_buffer(size + 1)
    cpp.llama_model_meta_val_str(model, key.encode(), buffer, size + 1)
    return buffer.value.decode(errors="replace")


def description(model: Any) -> str:
    """Return architecture, size and quantization: llama 7B Q8_0.
    llama.cpp's size class is missing or wrong below 1B: these parameters are counted."""
    cpp, buffer = llama_cpp(), ctypes.create_string_buffer(256)
    cpp.llama_model_desc(model, buffer, len(buffer))
    words = buffer.value.decode(errors="replace").split(" ")
    n = int(cpp.llama_model_n_params(model))
    if len(words) > 1 and (n < 1e9 or words[1] == "?B"):
        words[1] = parameters(n)
    return " ".join(words)


def suggested_sampling(model: Any) -> dict[str, float]:
    """Return the sampling settings in the file's header."""
    found: dict[str, float] = {}
    for name, key in SAMPLING_KEYS.items():
        value = metadata(model, f"general.sampling.{key}")
        with contextlib.suppress(ValueError):
            if value is not None:
                found[name] = int(value) if name == "top_k" else float(value)
    return found


def make_context(
    model: Any,
    path: Path,
    settings: LlamaSettings,
    *,
    n_ctx: int,
    sequences: int,
    rows: int,
    n_batch: int,
    changes: Changes,
    layers: int = 0,
) -> Any:
    """Make a context of `n_ctx` cells. changes: of llama.cpp's parameters. layers: those of an MTP context.
    Raises ModelError if memory is too small."""
    cpp = llama_cpp()
    ggml_type, element_bytes = CACHE_TYPES[settings.cache_type]
    states = 0 if layers else state_bytes(model) * sequences
    check_memory(path, n_ctx, cache_bytes(model, n_ctx, element_bytes, layers), states, sequences)
    params = cpp.llama_context_default_params()
    params.n_ctx = n_ctx
    params.n_batch = n_batch
    params.n_ubatch = UBATCH
    params.n_seq_max = sequences
    params.n_outputs_max = rows
    params.n_threads = params.n_threads_batch = settings.threads
    params.kv_unified = True  # branches share the main sequence's cells, and sessions a prefix
    params.swa_full = True  # keep cells outside the window, for rollback
    params.no_perf = True
    params.type_k = params.type_v = ggml_type
    params.flash_attn_type = -1 if settings.flash_attention is None else int(settings.flash_attention)
    for change in changes:
        change(params)
    _log.clear()
    with placement.interleaved(settings.placement):
        context = cpp.llama_init_from_model(model, params)
    if not context:
        reason = next(filter(None, _log), "memory?")
        raise ModelError(
            f"{path}: no context of {n_ctx:,} tokens can be made ({reason}); ask for fewer (n_ctx, -c), or "
            "for the usual cache_type (--cache-type) and flash_attention (-fa)"
        )
    pages.advise_huge_pages()  # scratch space is allocated, and not yet touched
    if settings.placement == PINNED:
        placement.pin(cpp, context, settings.threads)
    return context


def free_context(context: Any) -> None:
    placement.free(llama_cpp(), context, _helpers)


def state_bytes(model: Any) -> int:
    """Return the bytes of a recurrent model's state, 0 for others."""

    def number(key: str) -> int:
        value = metadata(model, f"{arch}.{key}")
        return parse_nonnegative(value or "") or 0

    cpp, arch = llama_cpp(), metadata(model, "general.architecture")
    inner, state = number("ssm.inner_size"), number("ssm.state_size")
    conv = max(0, number("ssm.conv_kernel") - 1) * (inner + 2 * number("ssm.group_count") * state)
    wkv = number("wkv.head_size") * int(cpp.llama_model_n_embd(model))
    return 4 * int(cpp.llama_model_n_layer(model)) * (inner * state + conv + wkv)


def cache_bytes(model: Any, n_ctx: int, element_bytes: float, layers: int = 0) -> float:
    """Return the bytes of keys and values of a context, or of some layers; 0 for hybrid models, of which only
    some layers have a cache."""
    cpp = llama_cpp()
    if cpp.llama_model_is_hybrid(model) and not layers:
        return 0.0
    head = cpp.llama_model_n_embd(model) // max(1, cpp.llama_model_n_head(model))
    arch = metadata(model, "general.architecture")
    lengths = [metadata(model, f"{arch}.attention.{of}_length") for of in ("key", "value")]
    width = cpp.llama_model_n_head_kv(model) * sum(int(n) if n else head for n in lengths)
    return float(element_bytes * width * (layers or cpp.llama_model_n_layer(model)) * n_ctx)


def check_memory(path: Path, n_ctx: int, cache: float, states: float, sequences: int) -> None:
    """Raise ModelError if the KV cache, or the states of the sequences, exceed free memory: Linux grants it,
    and kills the process later."""
    import psutil

    if n_ctx > MAX_POSITIONS:
        raise UsageError(
            f"a context of {n_ctx:,} tokens: at most {MAX_POSITIONS:,}; ask for fewer (n_ctx, -c)"
        )
    if llama_cpp().llama_supports_gpu_offload():
        return  # the cache is on the GPU
    free = psutil.virtual_memory().available + psutil.swap_memory().free
    recurrent = f"{sequences} states, of sessions and their checkpoints, need", "fewer sessions (--sessions)"
    context = f"a context of {n_ctx:,} tokens needs", "fewer (n_ctx, -c)"
    for needed, (what, fewer) in ((states, recurrent), (cache, context)):
        if needed > free:
            memory = f"{format_bytes(needed)} of memory, {format_bytes(free)} are free"
            raise ModelError(f"{path}: {what} {memory}: ask for {fewer}")
