"""The tokens that end a generation, as in llama.cpp (src/llama-vocab.cpp)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

# By text, independent of the file's special token ids.
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


def end_tokens(texts: Sequence[bytes], special: Mapping[str, int]) -> frozenset[int]:
    """Return the ids of all end tokens. special: see TokenizerFacts."""
    wanted = _ENDS.union(*_FILL_IN.values())
    found: dict[bytes, int] = {}
    for token, text in enumerate(texts):
        if text in wanted:
            found[text] = token
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
