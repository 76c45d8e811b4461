"""Measure the shipped models through llama.cpp: `python -m tools.embedded.evaluate`.

Text that neither model has seen: the modules in `corpus.HELD_OUT` (which must be those of the Python that the
models were trained with, for the same numbers) and generated records of another seed.
"""

from __future__ import annotations

import argparse
import codeop
import math
import re
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from paceline.models.zoo import draft_path, target_path
from tools.embedded.corpus import frequent_words, held_out
from tools.embedded.records import Records

Array = np.ndarray[Any, Any]
CONTEXT = 1024
UNSEEN_SEED = 7_777_777


@dataclass(frozen=True)
class Loss:
    """What one model pays for a text: nats per token, bits per byte, over so many tokens."""

    nats: float
    bits_per_byte: float
    tokens: int


def load(path: Path, context: int = CONTEXT) -> Any:
    """A llama-cpp-python model that keeps the logits of every position."""
    import llama_cpp

    return llama_cpp.Llama(str(path), n_ctx=context, n_batch=context, logits_all=True, verbose=False)


def logits(model: Any, ids: list[int]) -> Array:
    """Logits (len(ids), vocab) of one text from an empty cache."""
    model.reset()
    model.eval(ids)
    return np.asarray(model.scores[: len(ids)])


def texts(limit: int) -> dict[str, list[str]]:
    """Kind -> unseen documents, each cut to `limit` characters."""
    modules = [text[:limit] for text in held_out().values()]
    records = Records(UNSEEN_SEED, frequent_words(list(held_out().values())))
    return {
        "Python (held-out modules)": modules,
        "Records (unseen seed)": [records.document() for _ in range(40)],
    }


def compare(target: Any, draft: Any, documents: list[str]) -> tuple[Loss, Loss, float]:
    """(target's loss, draft's loss, agreement) over windows of the context length, each from nothing."""
    nats, agree, tokens, size = np.zeros(2), 0, 0, 0
    for text in documents:
        ids = target.tokenize(text.encode(), add_bos=False, special=False)
        for start in range(0, len(ids) - 1, CONTEXT):
            window = ids[start : start + CONTEXT]
            if len(window) < 2:
                continue
            both = [logits(model, window)[:-1] for model in (target, draft)]
            for i, rows in enumerate(both):
                top = rows.max(-1, keepdims=True)
                total = np.log(np.exp(rows - top).sum(-1)) + top[:, 0]
                nats[i] += float((total - rows[np.arange(len(rows)), window[1:]]).sum())
            agree += int((both[0].argmax(-1) == both[1].argmax(-1)).sum())
            tokens += len(window) - 1
            size += len(target.detokenize(window[1:]))
    first, second = (Loss(n / tokens, n / size / math.log(2), tokens) for n in nats)
    return first, second, agree / tokens


def greedy(model: Any, prompt: list[int], count: int) -> list[int]:
    """Up to `count` greedy tokens after `prompt`; stops at the end token."""
    model.reset()
    model.eval(prompt)
    out: list[int] = []
    while len(out) < count:
        out.append(int(model.scores[model.n_tokens - 1].argmax()))
        if out[-1] == model.token_eos():
            break
        model.eval(out[-1:])
    return out


def free_running(
    target: Any, draft: Any, prompts: list[list[int]], count: int, k: int
) -> tuple[float, float]:
    """(acceptance, tokens per target pass) of greedy drafting, `k` tokens at a time.

    Greedy speculation yields the target's own greedy text, so it is enough to draft along that text.
    """
    drafted = accepted = passes = 0
    for prompt in prompts:
        text = prompt + greedy(target, prompt, count)
        draft.reset()
        draft.eval(text[: len(prompt) - 1])
        position = len(prompt)
        while position < len(text):
            # eval drops the cache from n_tokens on, which forgets the last rejected tokens
            draft.n_tokens = min(draft.n_tokens, position - 1)
            draft.eval(text[draft.n_tokens : position])
            right = 0
            for step in range(min(k, len(text) - position)):
                guess = int(draft.scores[draft.n_tokens - 1].argmax())
                drafted += 1
                if guess != text[position + step]:
                    break
                right += 1
                draft.eval([guess])
            # tokens behind a wrong one are drafted as well, and lost
            drafted += max(0, min(k, len(text) - position) - right - 1)
            accepted, passes = accepted + right, passes + 1
            position += right + 1
    return accepted / drafted, 1 + accepted / passes


def prompts(model: Any, documents: list[str], tokens: int = 160) -> list[list[int]]:
    """The beginnings of documents that are longer than that, as token ids."""
    found = [model.tokenize(text.encode(), add_bos=False, special=False) for text in documents]
    return [ids[:tokens] for ids in found if len(ids) > tokens + 32]


def evaluate(target_file: Path, draft_file: Path, limit: int = 6_000, k: int = 4) -> str:
    """The model card's numbers as a Markdown table."""
    target, draft = load(target_file), load(draft_file)
    head = ["unseen text", "tokens", "target nats/token", "target bits/byte", "draft nats/token"]
    head += ["draft bits/byte", "same argmax", f"accepted at K={k}", "tokens per target pass"]
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for kind, documents in texts(limit).items():
        big, small, same = compare(target, draft, documents)
        starts = prompts(target, documents)[:20]
        rate, length = free_running(target, draft, starts, 128, k)
        cells = [kind, f"{big.tokens:,}", f"{big.nats:.3f}", f"{big.bits_per_byte:.3f}", f"{small.nats:.3f}"]
        cells += [f"{small.bits_per_byte:.3f}", f"{same:.3f}", f"{rate:.3f}", f"{length:.2f}"]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


# One function in the middle of each of the first eight longer modules: none was chosen for what came out.
SAMPLES = (
    ("calendar", "    def formatweekheader(self):"),
    ("cmd", "    def completedefault(self, *ignored):"),
    ("configparser", "    def _get_conv(self, section, option, conv, *, raw=False, vars=None,"),
    ("csv", "    def _guess_delimiter(self, data, delimiters):"),
    ("difflib", "def _check_types(a, b, *args):"),
    ("fractions", "    def _add(a, b):"),
    ("gettext", "    def gettext(self, message):"),
    ("graphlib", "    def done(self, *nodes):"),
)


def samples(target_file: Path, count: int = 80) -> str:
    """Greedy completions of held-out modules, cut after a line."""
    model, out = load(target_file), []
    for name, line in SAMPLES:
        source = held_out()[name]
        # Without the line's end: the tokenizer merges it with the next line's indentation.
        end = source.index(line) + len(line)
        prompt = source[max(0, end - 1500) : end]
        ids = greedy(model, model.tokenize(prompt.encode(), add_bos=False, special=False), count)
        text = model.detokenize(ids).decode("utf-8", "replace")
        out.append(f"`{name}`, after its line `{line.strip()}`:\n```text\n{text}\n```")
    return "\n\n".join(out)


def functions(each: int = 5) -> list[tuple[str, str]]:
    """(text before and with its first line, that line) of functions spread over every held-out module."""
    found = []
    for source in held_out().values():
        lines = list(re.finditer(r"^ *def .*:$", source, re.MULTILINE))
        for place in np.linspace(0, len(lines) - 1, min(each, len(lines)), dtype=int):
            line = lines[place]
            found.append((source[max(0, line.end() - 1500) : line.end()], line.group()))
    return found


def is_python(first_line: str, body: str) -> bool:
    """Whether a function and what follows may begin so: its whole lines compile, or would with more."""
    indent = len(first_line) - len(first_line.lstrip())
    # what a method stands in, so that what follows it may stand beside it, or further out
    outside = "".join(f"{' ' * depth}if True:\n" for depth in range(0, indent, 4))
    text = f"{outside}{first_line}\n{body.strip(chr(10)).rpartition(chr(10))[0]}\n"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            codeop.compile_command(text, symbol="exec")  # None: Python, but not to its end
    except (SyntaxError, ValueError, OverflowError):
        return False
    return True


def loops(ids: list[int], longest: int = 24, end: int = 30) -> bool:
    """Whether the last tokens only repeat the (at most 24) before them."""
    tail = len(ids) - end
    return tail > 0 and any(
        ids[tail:] == ids[tail - period : len(ids) - period] for period in range(1, min(longest, tail) + 1)
    )


def completions(target_file: Path, count: int = 80) -> str:
    """How many greedy completions of held-out functions are Python, end in a loop, or do the first only."""
    model, right, looping, code, prompts = load(target_file), 0, 0, 0, functions()
    for prompt, line in prompts:
        ids = greedy(model, model.tokenize(prompt.encode(), add_bos=False, special=False), count)
        python, loop = is_python(line, model.detokenize(ids).decode("utf-8", "replace")), loops(ids)
        right, looping, code = right + python, looping + loop, code + (python and not loop)
    return (
        f"of {len(prompts)} held-out functions, {count} greedy tokens each: {right} go on as Python, "
        f"{looping} loop, {code} do the one and not the other"
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tools.embedded.evaluate", description="Measure the embedded models."
    )
    parser.add_argument("--target", type=Path, default=target_path())
    parser.add_argument("--draft", type=Path, default=draft_path())
    parser.add_argument("--samples", action="store_true", help="print completions too")
    args = parser.parse_args()
    print(evaluate(args.target, args.draft))
    if args.samples:
        print("\n" + completions(args.target))
        print("\n" + samples(args.target))


if __name__ == "__main__":
    main()
