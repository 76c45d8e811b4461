"""The arguments of `vllm serve`, as of 0.33 (config/speculative.py, config/vllm.py, engine/arg_utils.py)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from paceline.core.errors import UsageError
from paceline.export.asked import Asked
from paceline.export.keys import Key, require_free, settled, together
from paceline.export.method import COPIES, MAY, MUST, NO, meant, named
from paceline.export.reference import DRAFT_MODEL, is_gguf, plain

ENGINE = "vLLM"
PORTFOLIO = "paceline.vllm.Portfolio"
CUSTOM = "custom_class"
METHODS = {CUSTOM: NO, "ngram": NO, "ngram_gpu": NO, "suffix": NO, DRAFT_MODEL: MUST}
METHODS |= {"eagle": MUST, "eagle3": MUST, "dflash": MUST, "mtp": MAY, "dspark": MAY}
NGRAM, HEADS = ("ngram", "ngram_gpu"), ("eagle", "eagle3", "mtp")
MODELS = (DRAFT_MODEL, *HEADS, "dflash", "dspark")
# Where nothing is asked for: copies are cheap to make, and of a model's drafts every token costs a pass.
N_DRAFT = {CUSTOM: 8, "ngram": 8, "ngram_gpu": 8, DRAFT_MODEL: 4, "eagle": 3, "eagle3": 3, "mtp": 1}
N, TLI, BLOCK = "num_speculative_tokens", "use_heterogeneous_vocab", "rejection_sample_method"
BY_SIZE = "num_speculative_tokens_per_batch_size"
LOSSY = ("synthetic", "fly")
KEYS = {
    BY_SIZE: Key("", (*NGRAM, *MODELS)),
    "draft_tensor_parallel_size": Key("int", MODELS, 1),
    "quantization": Key("str", MODELS),
    "max_model_len": Key("int", MODELS, 1),
    "revision": Key("str", MODELS),
    "code_revision": Key("str", MODELS),
    "moe_backend": Key("str", MODELS),
    "attention_backend": Key("str", MODELS),
    "kv_cache_dtype": Key("str", MODELS),
    "enforce_eager": Key("bool", MODELS),
    "parallel_drafting": Key("bool", (DRAFT_MODEL, "eagle", "eagle3")),
    TLI: Key("bool", (DRAFT_MODEL,)),
    "draft_lm_head_quantization": Key("str", HEADS, choices=("fp8", "nvfp4")),
    "draft_sample_method": Key("str", MODELS, choices=("greedy", "probabilistic")),
    BLOCK: Key("str", choices=("standard", "block")),
    "enable_adaptive_verification": Key("bool", ("dspark",)),
    "dspark_draft_topk": Key("int", ("dspark",), 1),
    "xpress_topc": Key("int", ("dflash",)),
    "prompt_lookup_min": Key("int", NGRAM, 1),
    "prompt_lookup_max": Key("int", NGRAM, 1),
    "suffix_decoding_max_tree_depth": Key("int", ("suffix",), 1),
    "suffix_decoding_max_cached_requests": Key("int", ("suffix",)),
    "suffix_decoding_max_spec_factor": Key("float", ("suffix",)),
    "suffix_decoding_min_token_prob": Key("float", ("suffix",)),
    "rows": Key("int", (CUSTOM,), 1),  # the portfolio's own (paceline/vllm/options.py), as the next
    "learn": Key("bool", (CUSTOM,)),
}
# What Paceline's settings are called; the portfolio's section has its own names.
NAMES: dict[str, dict[str, str]] = {
    CUSTOM: {"p_min": "p_min", "ngram_min": "ngram_min", "ngram_max": "ngram_max"},
    "suffix": {"p_min": "suffix_decoding_min_token_prob"},
    **{name: {"ngram_min": "prompt_lookup_min", "ngram_max": "prompt_lookup_max"} for name in NGRAM},
}
NGRAMS = {"ngram_min", "ngram_max"}
SECTION = ("p_min", "ngram_min", "ngram_max", "rows", "learn")
TAKEN = (
    *("--spec*", "-sc*", "--additional-config*", "--model", "--max-model-len"),
    *("--host", "--port", "--served-model-name", "--api-key"),
)


def arguments(asked: Asked) -> list[str]:
    """The command. Raises UsageError for what vLLM cannot do, or not with the model's own output."""
    model = plain(asked.model)
    draft = plain(asked.draft, "draft") if asked.draft else ""
    for name in (model, draft):
        if is_gguf(name):
            raise UsageError(
                f"{name}: vLLM 0.33 reads no GGUF files of itself: give the folder or hub name of the model "
                "in safetensors, or use --engine sglang"
            )
    require_free(ENGINE, asked.extra, TAKEN)
    out = ["vllm", "serve", model]
    method = named(ENGINE, METHODS, asked) if asked.method else meant(ENGINE, asked)
    if method:
        method = CUSTOM if method == COPIES else method
        speculative, section = configuration(asked, method, draft)
        out += ["--speculative-config", json.dumps(speculative)]
        out += ["--additional-config", json.dumps({"paceline": section})] if section else []
    return [*out, *asked.serving("--max-model-len"), *asked.extra]


def configuration(asked: Asked, method: str, draft: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The speculative configuration, and the portfolio's section. Raises UsageError."""
    out: dict[str, Any] = {"method": method}
    if model := PORTFOLIO if method == CUSTOM else draft:
        out["model"] = model
    if n_draft := asked.n_draft or N_DRAFT.get(method, 0):
        out[N] = n_draft
    elif method == "dflash" or (method == "dspark" and not draft):
        raise UsageError(f"vLLM's {method} needs the length of its blocks: give the longest draft")
    settings = together(ENGINE, tuned(asked, method), settled(ENGINE, lossless(asked.own), KEYS, method))
    section: dict[str, Any] = {name: settings.pop(name) for name in SECTION if name in settings}
    if method == CUSTOM and asked.drafters != ("auto",):
        section["drafters"] = list(asked.drafters)
    if asked.corpora:
        if method != CUSTOM:
            raise UsageError(f"vLLM's {method} does not draft from corpora: leave out them, or the method")
        section["corpora"] = list(asked.corpora)
    require_possible(settings, method)
    return out | settings, section


def lossless(own: Mapping[str, Any]) -> Mapping[str, Any]:
    """`own`. Raises UsageError for what accepts tokens that the target would not have said."""
    for name, value in own.items():
        if name.startswith(LOSSY) or (name == BLOCK and value in LOSSY):
            raise UsageError(
                f"vLLM: {name} {value} accepts drafted tokens that the model itself would not have said: "
                "leave it out"
            )
    return own


def tuned(asked: Asked, method: str) -> dict[str, Any]:
    """Paceline's settings by vLLM's names. Raises UsageError."""
    names, given = NAMES.get(method, {}), {*asked.settings}
    given |= NGRAMS if given & NGRAMS else set()  # of which vLLM would take the one for the other
    out = {there: getattr(asked.drafting, here) for here, there in names.items() if here in given}
    translated = {*names}
    if method == DRAFT_MODEL and asked.settings.get("cross_vocab") == "tli":
        out[TLI] = True
        translated.add("cross_vocab")
    if asked.settings.get("verify") == "block":
        out[BLOCK] = "block"
        translated.add("verify")
    asked.require_settled(f"vLLM's {method}", translated)
    return out


def require_possible(settings: Mapping[str, Any], method: str) -> None:
    """Raises UsageError for settings that vLLM refuses, or ignores, in this combination."""
    tli = settings.get(TLI, False)
    if settings.get(BLOCK) == "block" and (method in (CUSTOM, "suffix") or tli):
        what = "drafts of another vocabulary" if tli else f"the method {method}"
        raise UsageError(f"vLLM's first model runner, for {what}, verifies no blocks: leave out one")
    if tli and settings.get("draft_sample_method") == "probabilistic":
        raise UsageError("vLLM draws no drafts of another vocabulary: leave out draft_sample_method")
    least, most = settings.get("prompt_lookup_min"), settings.get("prompt_lookup_max")
    if least is not None and most is not None and least > most:
        raise UsageError(f"prompt_lookup_min {least}: must be at most prompt_lookup_max {most}")
    if BY_SIZE in settings and not ranges(settings[BY_SIZE]):
        raise UsageError(
            f"{BY_SIZE} {settings[BY_SIZE]}: must be a list of [first, last, tokens] by the batch's size, "
            "from 1 on, in order and without overlaps"
        )


def ranges(steps: Any) -> bool:
    """Whether it is [[1, last, tokens], ...] as vLLM wants it (v1/spec_decode/dynamic/utils.py)."""
    before = 0
    for step in steps if isinstance(steps, list) else ():
        if not isinstance(step, list | tuple) or [type(n) for n in step] != [int] * 3:
            return False
        if not before < step[0] <= step[1] or step[2] < 0 or (before == 0 and step[0] != 1):
            return False
        before = step[1]
    return before > 0
