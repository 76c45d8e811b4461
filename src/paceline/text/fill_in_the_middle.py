"""Prompts that ask for what is between a prefix and a suffix, with the control tokens of code models.

The token names are those that llama.cpp's llama-vocab.cpp knows; the order (files, prefix, suffix) is that of
its format_prompt_infill."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from paceline.speculative import validation as typed
from paceline.speculative.errors import UsageError
from paceline.speculative.vocabulary import Vocab
from paceline.text.interface import Text


def _names(role: str, of_deepseek: str, short: str) -> tuple[str, ...]:
    shapes = (f"<|fim_{role}|>", f"<fim-{role}>", f"<fim_{role}>", f"<｜fim▁{of_deepseek}｜>")
    return *shapes, f"<{short}>", f"▁<{short}>", f"<|code_{role}|>"


PREFIX, MIDDLE = _names("prefix", "begin", "PRE"), _names("middle", "end", "MID")
SUFFIX = _names("suffix", "hole", "SUF")
FILE = ("<|file_sep|>", "<file_sep>")


def infill_tokens(
    text: Text, vocab: Vocab, prefix: str, suffix: str, files: Sequence[Mapping[str, Any]] = ()
) -> list[int]:
    """Return the tokens of a prompt. files: further ones, each with `text` and perhaps `filename`.
    Raises UsageError for a model without such control tokens."""
    marks = [control_token(text, names) for names in (PREFIX, SUFFIX, MIDDLE)]
    if None in marks:
        raise UsageError("this model has no control tokens to fill in the middle: take a code model that has")
    before, after, middle = (mark for mark in marks if mark is not None)
    tokens = list[int]()
    if vocab.add_bos and vocab.bos is not None:
        tokens.append(vocab.bos)
    file_mark = control_token(text, FILE)
    for at, file in enumerate(files):
        content = typed.text(f"input_extra[{at}]: its text", file.get("text"))
        name = typed.text(f"input_extra[{at}]: its filename", file.get("filename") or "file")
        if file_mark is not None:
            tokens += [file_mark, *text.encode(f"{name}\n{content}", add_bos=False)]
        else:
            tokens += text.encode(f"\n\n--- {name} ---\n\n{content}", add_bos=False)
    if file_mark is not None and files:
        tokens += [file_mark, *text.encode("filename\n", add_bos=False)]  # as llama.cpp has it
    tokens += [before, *text.encode(prefix, add_bos=False), after]
    return [*tokens, *text.encode(suffix, add_bos=False), middle]


def control_token(text: Text, names: Sequence[str]) -> int | None:
    """Return the control token that has one of these names."""
    for name in names:
        tokens = text.encode(name, special=True, add_bos=False)
        if len(tokens) == 1:
            return tokens[0]
    return None
