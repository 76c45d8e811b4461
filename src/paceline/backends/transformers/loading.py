"""Loading of transformers models."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import io
import re
import warnings
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

from paceline.models.headers.gguf_file import GGUFFile, TensorRows
from paceline.models.headers.plain_file import similar_files
from paceline.models.names import model_path
from paceline.speculative.errors import MissingExtraError, ModelError, UsageError
from paceline.system.forks import OpenMPThreads
from paceline.system.home import file_fingerprint

# HfTarget's defaults.
SETTINGS: Mapping[str, Any] = {"threads": 1, "device": "auto", "dtype": "auto", "attention": "auto"}
WEIGHTS = ("*.safetensors", "*.bin", "*.json", "tokenizer.model")
# Buffers of older versions and heads of other tasks: no causal language model computes with them.
UNUSED = re.compile(r"\.masked_bias$|\.attn\.bias$|rotary_emb\.inv_freq$|^(v_head|mtp|score|classifier)\.")
# Numbers of a GGUF file's header for which transformers may have its own, by their names there.
GGUF_NUMBERS = {
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "attention.key_length": "query_pre_attn_scalar",
}


def import_libraries() -> tuple[ModuleType, ModuleType]:
    """Return torch and transformers, with their output off. Raises MissingExtraError."""
    try:
        import torch
        import transformers
    except ImportError as error:
        raise MissingExtraError(
            f"transformers models need PyTorch and transformers ({error}): pip install 'paceline[hf]'"
        ) from error
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    return torch, transformers


@cache
def openmp_threads() -> OpenMPThreads:
    """Return the OpenMP threads of PyTorch."""
    torch, _ = import_libraries()
    try:
        return OpenMPThreads(ctypes.CDLL(str(Path(torch.__path__[0]) / "lib" / "libtorch_cpu.so")))
    except OSError:  # not on Linux
        return OpenMPThreads(None)


@contextlib.contextmanager
def wrap_loading_errors(path: Path) -> Iterator[None]:
    """Turn a failed load into a ModelError, and hide warnings and progress bars."""
    try:
        with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
            warnings.simplefilter("ignore")
            yield
    except (ModelError, UsageError, MissingExtraError):
        raise
    except MemoryError as error:
        raise ModelError(f"{path}: there is not enough memory to load it") from error
    except Exception as error:  # transformers raises whatever its parts raise
        raise ModelError(f"{path}: cannot be loaded: {first_line(error)}") from error


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, or its type."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0][:300] if lines else type(error).__name__


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether memory ran out, for which torch raises a plain RuntimeError on a CPU."""
    torch, _ = import_libraries()
    return isinstance(error, MemoryError | torch.OutOfMemoryError) or "not enough memory" in str(error)


def out_of_memory_error(path: Path, error: BaseException) -> ModelError:
    return ModelError(
        f"{path}: out of memory in a pass ({first_line(error)}): use a smaller context (n_ctx, -c), "
        "fewer sessions, or bfloat16 (dtype, --dtype)"
    )


def from_pretrained_arguments(path: Path) -> tuple[str, dict[str, Any]]:
    """Return folder and keyword arguments for from_pretrained, without downloads. Raises UsageError."""
    place = model_path(path)
    if place.is_file():
        if (parts := GGUFFile(place).number("split.count")) > 1:
            raise ModelError(
                f"{place}: is one of {parts} parts, and transformers reads one file: leave out hf: "
                "(llama.cpp reads all), or join them (llama-gguf-split --merge)"
            )
        # transformers would prefer a file of the same name in the current folder to a relative path.
        return str(place.parent), {"gguf_file": str(place.absolute()), "local_files_only": True}
    if not place.is_dir():
        raise UsageError(f"{place}: no such folder or file{similar_files(place)}")
    if not (place / "config.json").is_file():
        raise UsageError(f"{place}: is no transformers model: it has no config.json")
    if (place / "adapter_config.json").is_file():
        raise ModelError(f"{place}: has an adapter (adapter_config.json): merge it into the weights first")
    return str(place), {"local_files_only": True}


@contextlib.contextmanager
def cache_gguf_reader(path: Path) -> Iterator[None]:
    """Cache the GGUF reader, which transformers 5.24 makes again for each part: a minute for 135M."""
    if not model_path(path).is_file():
        yield
        return
    import gguf

    slow = {name: getattr(gguf, name) for name in ("GGUFReader", "get_tensor_name_map")}
    for name, real in slow.items():
        setattr(gguf, name, cache(real))
    try:
        yield
    finally:
        for name, real in slow.items():
            setattr(gguf, name, real)


def load_config(path: Path) -> Any:
    """Load a configuration. Raises UsageError or ModelError."""
    _, transformers = import_libraries()
    folder, given = from_pretrained_arguments(path)
    with wrap_loading_errors(path):
        return transformers.AutoConfig.from_pretrained(folder, trust_remote_code=False, **given)


def load_model(path: Path, *, device: str, dtype: str, attention: str) -> Any:
    """Load a causal language model. Raises UsageError or ModelError."""
    torch, transformers = import_libraries()
    openmp_threads()  # belong to this process, not to its forks
    folder, given = from_pretrained_arguments(path)
    config = load_config(path)
    if type(config) not in transformers.MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ModelError(f"{path}: {config.model_type} is no causal language model that transformers has")
    usual = torch.float32 if model_path(path).is_file() else "auto"  # as stored
    if attention != "auto":
        given["attn_implementation"] = attention
    with wrap_loading_errors(path):
        model, report = transformers.AutoModelForCausalLM.from_pretrained(
            folder,
            config=config,
            dtype=usual if dtype == "auto" else getattr(torch, dtype),
            trust_remote_code=False,
            output_loading_info=True,
            **given,
        )
        for what in ("missing", "unexpected", "mismatched"):
            names = sorted(name for name in map(str, report[f"{what}_keys"]) if not UNUSED.search(name))
            if names:
                raise ModelError(
                    f"{path}: its weights are not those of its configuration ({len(names)} {what}: "
                    f"{', '.join(names)[:100]}): fetch the model again"
                )
        if model_path(path).is_file():
            match_gguf(path, model)
        return model.to(device).eval()


def match_gguf(path: Path, model: Any) -> None:
    """Apply the factors of rotary frequencies, which transformers leaves out.
    Raises ModelError if transformers leaves out more of the file."""
    file = GGUFFile(model_path(path))
    arch, rotary = file.text("general.architecture"), getattr(model.get_decoder(), "rotary_emb", None)
    left_out = sum(tensor.elements for tensor in file.tensors.values())
    left_out -= sum(weight.numel() for weight in model.parameters())
    factors = file.tensors.get("rope_freqs.weight")
    if factors is not None and rotary is not None and rotary.inv_freq.numel() == factors.elements:
        rows = TensorRows(file, factors).rows(slice(None))[:, 0]
        rotary.inv_freq /= rotary.inv_freq.new_tensor(rows)
        left_out -= factors.elements
    scales = [file.values.get(f"{arch}.rope.{key}", 0.0) for key in ("scaling.factor", "scale_linear")]
    kinds = getattr(rotary, "rope_type", "default")  # a mapping, for several types of layers
    is_plain = set(kinds.values() if isinstance(kinds, dict) else [kinds]) == {"default"}
    config = model.config.get_text_config(decoder=True)
    ours = {key: getattr(config, name, None) for key, name in GGUF_NUMBERS.items()}
    others = [key for key, n in ours.items() if n is not None and file.values.get(f"{arch}.{key}", n) != n]
    if others:
        what = f"the {others[0]}"
    elif is_plain and any(scale not in (0.0, 1.0) for scale in scales):
        what = "the scale of rotary positions"
    elif left_out and not model.hf_quantizer.supported:  # else the report has all names
        what = f"{abs(left_out):,} numbers"
    else:
        return
    raise ModelError(
        f"{path}: transformers leaves out {what} of this file: leave out hf: (llama.cpp reads all)"
    )


def load_tokenizer(path: Path) -> Any:
    """Load a tokenizer. Raises UsageError or ModelError."""
    _, transformers = import_libraries()
    folder, given = from_pretrained_arguments(path)
    with wrap_loading_errors(path):
        return transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=False, **given)


def check_device(device: str) -> str:
    """Return the device; auto is a GPU if there is one. Raises UsageError for a missing device."""
    torch, _ = import_libraries()
    devices = ["cpu"]
    if torch.cuda.is_available():
        devices += ["cuda", *(f"cuda:{n}" for n in range(torch.cuda.device_count()))]
    if torch.backends.mps.is_available():
        devices.append("mps")
    if device == "auto":
        return devices[min(1, len(devices) - 1)]
    if device not in devices:
        raise UsageError(f"device {device!r}: is not there; choose from {', '.join(devices)}")
    return device


def identity(path: Path, settings: Mapping[str, Any], /) -> dict[str, Any]:
    """See ModelSetup. Raises OSError if `path` does not exist, and MissingExtraError."""
    return _identity(fingerprint_weights(model_path(path)), settings)


def identity_of(model: Any, settings: Mapping[str, Any], /) -> dict[str, Any]:
    """Return the identity of a model in memory, by its configuration and some weights."""
    digest = hashlib.sha256(model.config.to_json_string().encode())
    for name, weight in model.named_parameters():
        digest.update(f"{name}{tuple(weight.shape)}{weight.flatten()[:4].tolist()}".encode())
    return _identity(digest.hexdigest(), settings)


def _identity(model: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    torch, transformers = import_libraries()
    return {
        "model": model,
        "engine": f"transformers {transformers.__version__}, torch {torch.__version__}",
        **{name: settings.get(name, usual) for name, usual in SETTINGS.items()},
    }


def fingerprint_weights(place: Path) -> str:
    """Return a fingerprint of a file, or of a folder's weights and configuration. Raises OSError."""
    if place.is_file():
        return file_fingerprint(place)
    if not place.is_dir():
        raise FileNotFoundError(str(place))
    digest = hashlib.sha256()
    for file in sorted({file for pattern in WEIGHTS for file in place.glob(pattern)}):
        digest.update(f"{file.name}\0{file_fingerprint(file)}\0".encode())
    return digest.hexdigest()
