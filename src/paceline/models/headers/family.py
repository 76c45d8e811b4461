"""Guess a model's family from its names."""

from __future__ import annotations

import re
from collections.abc import Iterable

# File name endings such as "-Q4_K_M", ".IQ2_XXS", "-UD-Q4_K_XL" and "_f16".
_QUANTISED = re.compile(
    r"[-_. ](?:ud[-_])?(?:i?q\d(?:_[0-9a-z]+)*|tq\d_\d|bf16|fp?16|fp?32|fp8|mxfp4(?:_moe)?|nvfp4|[48]bit)$"
)
_ENDINGS = re.compile(r"\.gguf$|-\d{5}-of-\d{5}$|[-_. ](?:imatrix|imat|i1|gguf|ggml|awq|gptq|exl2|mlx|hf)$")
_SIZE = re.compile(r"(?:\d+x)?[ae]?\d+(?:\.\d+)?[bm]|\d+(?:\.\d+)?[bm]-a\d+(?:\.\d+)?b|\d+e|\d+k")
_DATE_WORD = re.compile(r"\d{4}|\d{6}|\d{8}")
_RELEASE = re.compile(r"v\d+(?:\.\d+)*")
# Variants and sizes within a family.
_VARIANT_WORDS = re.compile(
    "instruct|chat|it|base|pt|sft|dpo|rlhf|thinking|reasoning|preview|text|instruction|tuned|uncensored"
    "|abliterated|qat|release|hf|gguf|ud|imatrix|draft|target|mini|medium|tiny|nano|micro|lite|air"
)
_MAKERS = frozenset({"meta", "google", "microsoft", "mistralai", "ibm"})
# Names of unnamed files.
_PLACEHOLDER_NAMES = frozenset(
    {"", "model", "models", "ggml", "gguf", "unknown", "none", "snapshots", "main", "unsloth"}
)
_HASH = re.compile(r"(?:sha256-)?[0-9a-f]{16,}")


def family_of(names: Iterable[str]) -> str:
    """Return the family of the first meaningful name: "qwen2.5-coder" for "Qwen2.5-Coder-0.5B-Instruct"."""
    for name in names:
        family = _family(name)
        placeholder = _PLACEHOLDER_NAMES.issuperset(family.split("-")) or _HASH.fullmatch(family)
        if not placeholder and re.search(r"[a-z]{2}", family):
            return family
    return ""


def _family(name: str) -> str:
    text = name[:256].strip().lower().replace("\\", "/").rstrip("/").rpartition("/")[2]
    before = ""
    while text != before:
        before, text = text, _QUANTISED.sub("", _ENDINGS.sub("", text))
    text = re.sub(r"(?<=\d)_(?=\d)", ".", text)
    words: list[str] = []
    after_size = False  # a release number after the size belongs to the model, not to its family
    for word in re.split(r"[-_\s:()\[\],]+", text):
        if _SIZE.fullmatch(word) or _VARIANT_WORDS.fullmatch(word):
            after_size = True
        elif not word or (not words and word in _MAKERS) or (words and _DATE_WORD.fullmatch(word)):
            continue
        elif not (after_size and _RELEASE.fullmatch(word)):
            words.append(word)
    return printable_name("-".join(words))


def printable_name(text: str) -> str:
    """Return the printable characters of a name from a file, at most 512."""
    return "".join(c for c in text[:512] if c.isprintable()).strip()
