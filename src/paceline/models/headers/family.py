"""Which family a model is of, as its makers call it: a guess from its names."""

from __future__ import annotations

import re
from collections.abc import Iterable

# "-Q4_K_M", ".IQ2_XXS", "-UD-Q4_K_XL", "_f16", as files end.
_QUANTISED = re.compile(
    r"[-_. ](?:ud[-_])?(?:i?q\d(?:_[0-9a-z]+)*|tq\d_\d|bf16|fp?16|fp?32|fp8|mxfp4(?:_moe)?|nvfp4|[48]bit)$"
)
_ENDINGS = re.compile(r"\.gguf$|-\d{5}-of-\d{5}$|[-_. ](?:imatrix|imat|i1|gguf|ggml|awq|gptq|exl2|mlx|hf)$")
_SIZE = re.compile(r"(?:\d+x)?[ae]?\d+(?:\.\d+)?[bm]|\d+(?:\.\d+)?[bm]-a\d+(?:\.\d+)?b|\d+e|\d+k")
_DATE_WORD = re.compile(r"\d{4}|\d{6}|\d{8}")
_RELEASE = re.compile(r"v\d+(?:\.\d+)*")
# What was done to a model of the family, or which size of it this is.
_VARIANT_WORDS = re.compile(
    "instruct|chat|it|base|pt|sft|dpo|rlhf|thinking|reasoning|preview|text|instruction|tuned|uncensored"
    "|abliterated|qat|release|hf|gguf|ud|imatrix|draft|target|mini|medium|tiny|nano|micro|lite|air"
)
_MAKERS = frozenset({"meta", "google", "microsoft", "mistralai", "ibm"})
# Words that files have where nobody named them.
_PLACEHOLDER_NAMES = frozenset(
    {"", "model", "models", "ggml", "gguf", "unknown", "none", "snapshots", "main", "unsloth"}
)
_HASH = re.compile(r"(?:sha256-)?[0-9a-f]{16,}")


def family_of(names: Iterable[str]) -> str:
    """Of the first name that tells, "qwen2.5-coder" of "Qwen2.5-Coder-0.5B-Instruct"; empty without."""
    for name in names:
        family = _family(name)
        nobodys = _PLACEHOLDER_NAMES.issuperset(family.split("-")) or _HASH.fullmatch(family)
        if not nobodys and re.search(r"[a-z]{2}", family):
            return family
    return ""


def _family(name: str) -> str:
    text = name[:256].strip().lower().replace("\\", "/").rstrip("/").rpartition("/")[2]
    before = ""
    while text != before:
        before, text = text, _QUANTISED.sub("", _ENDINGS.sub("", text))
    text = re.sub(r"(?<=\d)_(?=\d)", ".", text)
    selected: list[str] = []
    sized = False  # a release of this model, not of its family, comes behind the size
    for word in re.split(r"[-_\s:()\[\],]+", text):
        if _SIZE.fullmatch(word) or _VARIANT_WORDS.fullmatch(word):
            sized = True
        elif not word or (not selected and word in _MAKERS) or (selected and _DATE_WORD.fullmatch(word)):
            continue
        elif not (sized and _RELEASE.fullmatch(word)):
            selected.append(word)
    return printable_name("-".join(selected))


def printable_name(text: str) -> str:
    """A name from a file, fit to be shown."""
    return "".join(c for c in text[:512] if c.isprintable()).strip()
