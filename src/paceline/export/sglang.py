"""The arguments of `sglang serve`, as of 0.5.23 (srt/arg_groups/speculative_hook.py, fields/spec.py)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from paceline.core.errors import UsageError
from paceline.export.asked import Asked
from paceline.export.keys import Key, require_free, settled, together
from paceline.export.method import COPIES, MAY, MUST, NO, meant, named
from paceline.export.reference import DRAFT_MODEL, is_gguf, plain

ENGINE = "SGLang"
METHODS = {"ngram": NO, "standalone": MUST, "eagle": MUST, "eagle3": MUST, "nextn": MAY}
METHODS |= {"dflash": MUST, "dspark": MAY}
EAGLES = ("eagle", "eagle3", "nextn")
STEPPED = (*EAGLES, "standalone")
BLOCKS = ("dflash", "dspark")
MODELS = (*STEPPED, *BLOCKS)
STEPS, TOPK, TOKENS = "speculative_num_steps", "speculative_eagle_topk", "speculative_num_draft_tokens"
DFLASH_BLOCK, DSPARK_BLOCK = "speculative_dflash_block_size", "speculative_dspark_block_size"
ADAPTIVE, VERIFY_BLOCKS = "speculative_adaptive", "speculative_use_block_verification"
REJECTION = "speculative_use_rejection_sampling"
SAM = "speculative_ngram_external_"
KEYS = {
    STEPS: Key("int", STEPPED, 1),
    TOPK: Key("int", STEPPED, 1),
    TOKENS: Key("int", (*STEPPED, "dflash", "ngram"), 1),
    "speculative_draft_model_revision": Key("str", MODELS),
    "speculative_draft_model_quantization": Key("str", MODELS),
    "speculative_draft_load_format": Key("str", MODELS),
    "speculative_draft_attention_backend": Key("str", MODELS),
    "speculative_draft_kv_cache_dtype": Key("str", MODELS),
    "speculative_draft_window_size": Key("int", (*EAGLES, "dflash"), 1),
    "speculative_draft_sink_size": Key("int", EAGLES),
    "speculative_attention_mode": Key("str", MODELS, choices=("prefill", "decode")),
    "speculative_token_map": Key("str", ("eagle",)),
    REJECTION: Key("bool", EAGLES),
    VERIFY_BLOCKS: Key("bool", (*EAGLES, *BLOCKS)),
    ADAPTIVE: Key("bool", EAGLES),
    f"{ADAPTIVE}_config": Key("str", EAGLES),
    DFLASH_BLOCK: Key("int", ("dflash",), 1),
    DSPARK_BLOCK: Key("int", ("dspark",), 1),
    "speculative_ngram_min_bfs_breadth": Key("int", ("ngram",), 1),
    "speculative_ngram_max_bfs_breadth": Key("int", ("ngram",), 1),
    "speculative_ngram_match_type": Key("str", ("ngram",), choices=("BFS", "PROB")),
    "speculative_ngram_max_trie_depth": Key("int", ("ngram",), 2),
    "speculative_ngram_capacity": Key("int", ("ngram",), 1),
    f"{SAM}corpus_path": Key("str", ("ngram",)),
    f"{SAM}sam_budget": Key("int", ("ngram",), 1),
    f"{SAM}corpus_max_tokens": Key("int", ("ngram",), 1),
}
THRESHOLD = "speculative_accept_threshold_"  # 1, which they are anyway, leaves the output the target's
N_TOKENS = 12  # of its NGRAM, where nothing is asked for
TAKEN = (
    *("--spec*", "--enable-multi-layer-eagle", "--model-path", "--model", "--context-length"),
    *("--host", "--port", "--served-model-name", "--api-key"),
)


def arguments(asked: Asked) -> list[str]:
    """The command. Raises UsageError for what SGLang cannot do, or not with the model's own output."""
    model = plain(asked.model)
    draft = plain(asked.draft, "draft") if asked.draft else ""
    if draft and is_gguf(model) != is_gguf(draft):
        raise UsageError(
            f"{model} and {draft}: SGLang reads both in one way: both must be GGUF files, or none"
        )
    if asked.corpora:
        raise UsageError(
            f"SGLang reads no corpora of Paceline's: its own are files of JSON lines ({SAM}corpus_path)"
        )
    require_free(ENGINE, asked.extra, TAKEN)
    out = ["sglang", "serve", "--model-path", model]
    if method := method_of(asked):
        out += ["--speculative-algorithm", method.upper()]
        out += ["--speculative-draft-model-path", draft] if draft else []
        out += flags(settings_of(asked, method))
    return [*out, *asked.serving("--context-length"), *asked.extra]


def method_of(asked: Asked) -> str:
    """Its algorithm in small letters; "" for plain decoding. Raises UsageError."""
    if asked.method:
        return named(ENGINE, METHODS, asked)
    method = meant(ENGINE, asked)
    if method == COPIES and not set(asked.drafters) <= {"auto", "lookup", "ngram"}:
        raise UsageError(
            f"SGLang takes no drafters from outside, and {','.join(asked.drafters)} would be: it has "
            "n-grams of its own (--draft lookup); Paceline's drafters run in vLLM (--engine vllm)"
        )
    return {COPIES: "ngram", DRAFT_MODEL: "standalone"}.get(method, method)


def settings_of(asked: Asked, method: str) -> dict[str, Any]:
    """By SGLang's names. Raises UsageError."""
    own = settled(ENGINE, lossless(asked.own), KEYS, method)
    out = together(ENGINE, tuned(asked, method), own)
    require_possible(out, method)
    if method == "ngram":
        require_corpus(out)
    return out


def lossless(own: Mapping[str, Any]) -> Mapping[str, Any]:
    """`own` without thresholds of 1. Raises UsageError for others, which change the output."""
    for name, value in own.items():
        if name.startswith(THRESHOLD) and value != 1:
            raise UsageError(
                f"SGLang: {name} {value} accepts more drafted tokens than the model says: leave it out"
            )
    return {name: value for name, value in own.items() if not name.startswith(THRESHOLD)}


def tuned(asked: Asked, method: str) -> dict[str, Any]:
    """Paceline's settings by SGLang's names. Raises UsageError."""
    out: dict[str, Any] = {}
    n, translated = asked.n_draft, set[str]()
    if method in STEPPED and "width" in asked.settings:
        translated.add("width")
        if not n:
            raise UsageError("SGLang sets the width and the longest draft together: give that, too")
    if n and method in STEPPED:
        width = asked.drafting.width if translated else 1
        out |= {STEPS: n, TOPK: width, TOKENS: n * width + 1}  # the token before the draft is counted
    elif n:
        out |= {DSPARK_BLOCK: n} if method == "dspark" else {TOKENS: n + 1}
    if asked.settings.get("verify") == "block":
        if method not in KEYS[VERIFY_BLOCKS].methods:
            raise UsageError(f"SGLang does not verify blocks with {method}: leave out verify")
        translated.add("verify")
        out[VERIFY_BLOCKS] = True
    asked.require_settled(f"SGLang's {method}", translated)
    return out


def require_possible(out: Mapping[str, Any], method: str) -> None:
    """Raises UsageError for settings that SGLang refuses, changes or ignores in this combination."""
    there = [name for name in (STEPS, TOPK, TOKENS) if name in out]
    topk, adaptive = out.get(TOPK, 1), out.get(ADAPTIVE, False)
    if method in STEPPED and 0 < len(there) < 3 and not adaptive:
        raise UsageError(f"SGLang wants {STEPS}, {TOPK} and {TOKENS} together, or none of them")
    if method in STEPPED and len(there) == 3 and topk == 1 and out[TOKENS] != out[STEPS] + 1:
        raise UsageError(f"{TOKENS} {out[TOKENS]}: with {TOPK} 1 it is {STEPS} + 1, {out[STEPS] + 1}")
    for name in (REJECTION, VERIFY_BLOCKS, ADAPTIVE):
        if out.get(name) and topk != 1:
            raise UsageError(f"{name} is for chains: {TOPK} must be 1, and is {topk}")
        if out.get(name) and method in EAGLES and TOPK not in out and name != ADAPTIVE:
            raise UsageError(
                f"{name} is for chains, and SGLang may choose a tree: give the longest draft, too"
            )
    if f"{ADAPTIVE}_config" in out and not adaptive:
        raise UsageError(f"{ADAPTIVE}_config needs {ADAPTIVE}")
    if "speculative_draft_sink_size" in out and "speculative_draft_window_size" not in out:
        raise UsageError("speculative_draft_sink_size needs speculative_draft_window_size")
    if DFLASH_BLOCK in out and out.get(TOKENS, out[DFLASH_BLOCK]) != out[DFLASH_BLOCK]:
        raise UsageError(f"{TOKENS} {out[TOKENS]} and {DFLASH_BLOCK} {out[DFLASH_BLOCK]} are one number")


def require_corpus(out: Mapping[str, Any]) -> None:
    """Raises UsageError for a corpus without room in the draft, or room without a corpus."""
    corpus, room = out.get(f"{SAM}corpus_path"), out.get(f"{SAM}sam_budget")
    if (corpus is None) != (room is None):
        raise UsageError(f"SGLang wants {SAM}corpus_path and {SAM}sam_budget together, or none of them")
    tokens = out.get(TOKENS, N_TOKENS)
    if room is not None and room >= tokens:
        raise UsageError(f"{SAM}sam_budget {room}: must be below {TOKENS}, {tokens}")


def flags(settings: Mapping[str, Any]) -> list[str]:
    """On the command line. What is True there has no value, and what is False is left out."""
    out: list[str] = []
    for name, value in settings.items():
        if value is not False:
            out += [f"--{name.replace('_', '-')}", *([] if value is True else [str(value)])]
    return out
