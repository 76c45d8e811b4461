"""A vocabulary as llama.cpp would load it, told from a model's header alone.

What a file leaves out has a default there, by the type of the tokenizer (llama-vocab.cpp, as of
llama-cpp-python 0.3.36): so a BPE file that names no BOS token has token 11, which is often a comma.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from paceline.models.headers.facts import TokenizerFacts
from paceline.speculative.vocabulary import Vocab

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
COMMA = 11
# BOS and EOS, where the file names none.
BOS = {"SPM": 1, "WPM": 101, "BPE": COMMA, "PLaMo-2": 1}
EOS = {"SPM": 2, "BPE": COMMA, "UGM": 1, "PLaMo-2": 2}
NO_BOS = frozenset({"chatglm-bpe", "glm4", "glm5", "gemma4"})
NO_EOS = frozenset({"gemma4"})
# Pre-tokenizers of BPE that come with a BOS; every SPM and WPM does.
WITH_BOS = {
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
    "tekken", "chameleon",
}  # fmt: skip
ALWAYS_WITH_BOS = frozenset({"gemma4", "granite-embed-multi-311m"})  # whatever the file says
SPACE_MARKER = "▁".encode()  # what stands for a space in SPM, and in a few BPE
SPACED_BPE = frozenset({"gemma4", "granite-embed-multi-311m", "sarvam-moe"})
# Tokens of gpt-oss that are shown as text, whatever the file calls them.
VISIBLE_CONTROL_TOKENS = frozenset({b"<|channel|>", b"<|message|>", b"<|start|>", b"<|constrain|>"})
# For filling in the middle; they say no text, whatever the file calls them.
INFILL_TOKENS = frozenset(
    text.encode()
    for text in (
        *(f"<|fim_{role}|>" for role in ("prefix", "suffix", "middle", "pad", "repo")),
        *(f"<fim-{role}>" for role in ("prefix", "suffix", "middle", "pad", "repo")),
        *(f"<fim_{role}>" for role in ("prefix", "suffix", "middle", "pad")),
        *(f"<｜fim▁{role}｜>" for role in ("begin", "hole", "end")),
        *(f"{space}<{role}>" for role in ("PRE", "SUF", "MID") for space in ("", "▁")),
        *(f"<|{code}{role}|>" for role in ("prefix", "suffix", "middle") for code in ("", "code_")),
        *("<PAD>", "[PAD]", "<|repo_name|>", "<REPO>", "<reponame>", "<|file_sep|>"),
    )
)


def _byte_level() -> dict[str, int]:
    """GPT-2's printable stand-ins for bytes, and the bytes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_LEVEL = _byte_level()
# Bytes of a token; of a longer one what llama.cpp makes of it, whose length is squared, is not followed.
MAX_UNK_BYTES = 256


def make_vocab(tokenizer: TokenizerFacts) -> Vocab:
    n = len(tokenizer.texts)
    bos, eos = (special_id(tokenizer, role) for role in ("bos", "eos"))
    roles = {tokenizer.special.get(role) for role in ("eot", "eom")} | {eos}
    ends = frozenset(id_ for id_ in tokenizer.ends | roles if id_ is not None and 0 <= id_ < n)
    text = partial(_text, tokenizer)
    return Vocab(
        size=n,
        kind=tokenizer.kind,
        bos=bos,
        eos=ends,
        add_bos=_add_bos(tokenizer),
        add_eos=tokenizer.add_eos if tokenizer.add_eos is not None else tokenizer.kind == "UGM",
        text=text,
        piece=partial(_piece, tokenizer, ends, text),
    )


def special_id(tokenizer: TokenizerFacts, role: str) -> int | None:
    """role: bos or eos. What the file names, or else what llama.cpp assumes; None where that is no token."""
    defaults, without = (BOS, NO_BOS) if role == "bos" else (EOS, NO_EOS)
    assumed = None if tokenizer.pre in without else defaults.get(tokenizer.kind)
    for id_ in (tokenizer.special.get(role), assumed):
        if id_ is not None and 0 <= id_ < len(tokenizer.texts):
            return id_
    return None


def _add_bos(tokenizer: TokenizerFacts) -> bool:
    if tokenizer.pre in ALWAYS_WITH_BOS:
        return True
    if tokenizer.add_bos is not None:
        return tokenizer.add_bos
    return tokenizer.kind in ("SPM", "WPM") or (tokenizer.kind == "BPE" and tokenizer.pre in WITH_BOS)


def _text(tokenizer: TokenizerFacts, token: int) -> bytes:
    return tokenizer.texts[token] or b"[EMPTY_%d]" % token


def _type(tokenizer: TokenizerFacts, token: int) -> int:
    return tokenizer.types[token] if token < len(tokenizer.types) else NORMAL


def _piece(
    tokenizer: TokenizerFacts, ends: frozenset[int], text: Callable[[int], bytes], token: int
) -> bytes:
    stored, type_ = text(token), _type(tokenizer, token)
    if stored in VISIBLE_CONTROL_TOKENS:
        return stored
    if token in ends or type_ in (UNKNOWN, CONTROL) or stored in INFILL_TOKENS:
        return b""
    if type_ == USER_DEFINED:
        return stored
    if type_ == BYTE:
        return _byte(stored)
    if type_ != NORMAL:
        return b""
    if tokenizer.kind == "BPE" and tokenizer.pre not in SPACED_BPE:
        return _bpe(stored)
    return stored.replace(SPACE_MARKER, b" ")


def _bpe(stored: bytes) -> bytes:
    spelled = stored.decode(errors="replace")
    try:
        return bytes(map(BYTE_LEVEL.__getitem__, spelled))
    except KeyError:
        # Spelled as llama.cpp does: no text says it, so that it is never taken for one.
        if len(stored) > MAX_UNK_BYTES:
            return b"[UNK_BYTE_%s]" % stored
        known: Mapping[str, int] = BYTE_LEVEL
        return b"".join(
            bytes([known[c]]) if c in known else b"[UNK_BYTE_0x%s%s]" % (c.encode().hex().encode(), stored)
            for c in spelled
        )


def _byte(stored: bytes) -> bytes:
    """Of <0x0A>."""
    try:
        return bytes([int(stored[3:5], 16)])
    except ValueError:
        return b""
