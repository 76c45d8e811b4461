"""The vocabulary that llama.cpp would load, from a model's header.

llama.cpp has defaults for absent values, by the type of the tokenizer (llama-vocab.cpp of llama-cpp-python
0.3.36): a BPE file without a BOS token gets token 11, often a comma."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial

from paceline.models.headers.facts import TokenizerFacts
from paceline.speculative.vocabulary import Vocab

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)
COMMA = 11
# Default ids of BOS and EOS.
BOS = {"SPM": 1, "WPM": 101, "BPE": COMMA, "PLaMo-2": 1}
EOS = {"SPM": 2, "BPE": COMMA, "UGM": 1, "PLaMo-2": 2}
NO_BOS = frozenset({"chatglm-bpe", "glm4", "glm5", "gemma4"})
NO_EOS = frozenset({"gemma4"})
# BPE pre-tokenizers that add BOS by default, like all SPM and WPM tokenizers.
WITH_BOS = {
    "llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano",
    "tekken", "chameleon",
}  # fmt: skip
ALWAYS_WITH_BOS = frozenset({"gemma4", "granite-embed-multi-311m"})  # the file's flag is ignored
SPACE_MARKER = "▁".encode()  # the space of SPM and of the BPE tokenizers below
SPACED_BPE = frozenset({"gemma4", "granite-embed-multi-311m", "sarvam-moe"})
# Tokens of gpt-oss that emit text, whatever their type.
VISIBLE_CONTROL_TOKENS = frozenset({b"<|channel|>", b"<|message|>", b"<|start|>", b"<|constrain|>"})
# Fill-in-the-middle tokens, which emit no text, whatever their type.
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
# Tokens that end a generation in llama.cpp, by text, independent of the file's special token ids.
_ENDS = {
    b"<|eot_id|>", b"<|im_end|>", b"<|end|>", b"<|return|>", b"<|call|>", b"<|flush|>", b"<|calls|>",
    b"<end_of_turn>", b"<|endoftext|>", b"</s>", b"<|eom_id|>", b"<EOT>", b"_<EOT>", b"[EOT]", b"[EOS]",
    b"<|end_of_text|>", b"<end_of_utterance>", b"<eos>", b"<turn|>", b"<|tool_response>", b"[e~[",
    "<｜end▁of▁sentence｜>".encode(),
}  # fmt: skip
# Defaults: a model that continues with the next file of a repository has ended, too.
_FILL_IN = {
    "fim_pad": (b"<|fim_pad|>", b"<fim-pad>", b"<fim_pad>", b"<PAD>", b"[PAD]"),
    "fim_rep": (b"<|fim_repo|>", b"<|repo_name|>", b"<fim-repo>", b"<REPO>", b"<reponame>"),
    "fim_sep": (b"<|file_sep|>",),
}


def _byte_level() -> dict[str, int]:
    """Return the bytes by GPT-2's printable substitutes."""
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(b): b for b in printable} | {chr(256 + i): b for i, b in enumerate(others)}


BYTE_LEVEL = _byte_level()
MAX_UNK_BYTES = 256  # of a token; llama.cpp's rendering of unknown characters is quadratic


def end_tokens(texts: Sequence[bytes], special: Mapping[str, int]) -> frozenset[int]:
    """Return the ids of all end tokens. special: see TokenizerFacts."""
    wanted = _ENDS.union(*_FILL_IN.values())
    found = {text: token for token, text in enumerate(texts) if text in wanted}
    ends = {token for text, token in found.items() if text in _ENDS}
    for role, spellings in _FILL_IN.items():
        if role not in special:
            ends |= set(sorted(found[text] for text in spellings if text in found)[:1])
    ends |= {special[role] for role in ("eos", "eot", "eom", *_FILL_IN) if role in special}
    ends = {token for token in ends if 0 <= token < len(texts)}
    spelled = {texts[token] for token in ends}
    others: set[bytes] = set()
    # gpt-oss and Solar end their messages, not their turns, with <|end|>.
    if {b"<|return|>", b"<|call|>"} <= spelled or (
        b"<|flush|>" in spelled and spelled & {b"<|call|>", b"<|calls|>"}
    ):
        others.add(b"<|end|>")
    # In Gemma 4 and PLaMo </s> is ordinary text.
    if spelled & {b"<|tool_response>", b"<|plamo:eos|>"}:
        others.add(b"</s>")
    return frozenset(token for token in ends if texts[token] not in others)


def make_vocab(tokenizer: TokenizerFacts) -> Vocab:
    n = len(tokenizer.texts)
    bos, eos = (special_id(tokenizer, role) for role in ("bos", "eos"))
    roles = {tokenizer.special.get(role) for role in ("eot", "eom")} | {eos}
    ends = frozenset(id_ for id_ in tokenizer.ends | roles if id_ is not None and 0 <= id_ < n)
    return Vocab(
        size=n,
        kind=tokenizer.kind,
        bos=bos,
        eos=ends,
        add_bos=_add_bos(tokenizer),
        add_eos=tokenizer.add_eos if tokenizer.add_eos is not None else tokenizer.kind == "UGM",
        text=partial(_text, tokenizer),
        piece=partial(_piece, tokenizer, ends),
    )


def special_id(tokenizer: TokenizerFacts, role: str) -> int | None:
    """Return the file's bos or eos, or llama.cpp's default; None if that is no token."""
    defaults, without = (BOS, NO_BOS) if role == "bos" else (EOS, NO_EOS)
    default = None if tokenizer.pre in without else defaults.get(tokenizer.kind)
    for id_ in (tokenizer.special.get(role), default):
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


def _piece(tokenizer: TokenizerFacts, ends: frozenset[int], token: int) -> bytes:
    stored = _text(tokenizer, token)
    type_ = tokenizer.types[token] if token < len(tokenizer.types) else NORMAL
    if stored in VISIBLE_CONTROL_TOKENS:
        return stored
    if token in ends or type_ in (UNKNOWN, CONTROL) or stored in INFILL_TOKENS:
        return b""
    if type_ == USER_DEFINED:
        return stored
    if type_ == BYTE:
        with suppress(ValueError):  # of a token that is not like <0x0A>
            return bytes([int(stored[3:5], 16)])
    if type_ != NORMAL:
        return b""
    if tokenizer.kind == "BPE" and tokenizer.pre not in SPACED_BPE:
        return _bpe(stored)
    return stored.replace(SPACE_MARKER, b" ")


def _bpe(stored: bytes) -> bytes:
    text = stored.decode(errors="replace")
    try:
        return bytes(map(BYTE_LEVEL.__getitem__, text))
    except KeyError:
        # llama.cpp's rendering, which occurs in no text.
        if len(stored) > MAX_UNK_BYTES:
            return b"[UNK_BYTE_%s]" % stored
        strange = {*text} - BYTE_LEVEL.keys()
        shown = {c: b"[UNK_BYTE_0x%s%s]" % (c.encode().hex().encode(), stored) for c in strange}
        return b"".join(shown.get(c) or bytes([BYTE_LEVEL[c]]) for c in text)
