"""What llama.cpp's command-line programs print; of the versions recorded in tests/data/llama_cpp."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

from paceline.bench.baselines.llama_log import TAIL, cause_of_failure, readable
from paceline.bench.baselines.process import ending
from paceline.speculative.printable import shortened

COUNT = r"(\d{1,9})"
NUMBER = r"([-+]?(?:\d{1,12}(?:\.\d{0,12})?|nan|inf))"
FIGURES = {
    name: re.compile(pattern, re.ASCII)
    for name, pattern in {
        "'encoded ... tokens'": rf"encoded\s+{COUNT} tokens in\s+{NUMBER} seconds",
        "'decoded ... tokens'": rf"decoded\s+{COUNT} tokens in .{{0,80}}?speed:\s+{NUMBER} t/s",
        "n_drafted": rf"n_drafted\s+= {COUNT}(?!\d)",
        "n_accept": rf"n_accept\s+= {COUNT}(?!\d)",
    }.items()
}
# Said among the text by llama-lookup of 2025.
ASIDE = re.compile(r" - draft candidate: token=\d+\n")
FRAME = "\n\n"
BOS_ROOM = 64  # characters that the first token, of no text, may be spelled with

# What only these programs say, with what it means; the causes that the server shares come after.
CAUSES = (
    (
        re.compile(r"draft (model )?(vocab|special|bos|eos).*(must|to use spec)|token \d+ content differs"),
        "draft and target do not share a vocabulary: take a draft of the target's family",
    ),
    (
        re.compile(
            r"prompt too long|exceeds the (context|batch) size|find (a memory|KV cache) slot"
            r"|invalid logits id"
        ),
        "prompt and answer do not fit its context: use a longer one (-c)",
    ),
)


@dataclass(frozen=True)
class ProgramReport:
    """What a program said of one request. seconds: of decoding, speed: its own tokens/s."""

    text: str
    n_prompt: int
    prompt_seconds: float
    n_tokens: int
    seconds: float
    speed: float
    drafted: int
    accepted: int


def read(out: str, err: str, prompt: str) -> ProgramReport | str:
    """Its report; where something is missing in what it said, what that is."""
    figures = {name: last(pattern, err[-TAIL:]) for name, pattern in FIGURES.items()}
    text = answer_text(out, err, prompt)
    missing = [name for name, match in figures.items() if match is None]
    if text is None:
        missing.append("the prompt before the answer")
    encoded, decoded, drafted, accepted = figures.values()
    if text is None or not (encoded and decoded and drafted and accepted):
        return f"{', '.join(missing)} missing"
    n_tokens, speed, prompt_seconds = int(decoded[1]), float(decoded[2]), float(encoded[2])
    if n_tokens == 0 or not math.isfinite(speed) or speed <= 0.0:
        return f"no speed in {decoded[0]!r}"
    if not math.isfinite(prompt_seconds) or prompt_seconds < 0.0:
        return f"no time in {encoded[0]!r}"
    if int(accepted[1]) > int(drafted[1]):
        return f"more accepted than drafted in {accepted[0]!r}"
    return ProgramReport(
        text=text,
        n_prompt=int(encoded[1]),
        prompt_seconds=prompt_seconds,
        n_tokens=n_tokens,
        seconds=n_tokens / speed,  # the seconds it prints are rounded to thousandths
        speed=speed,
        drafted=int(drafted[1]),
        accepted=int(accepted[1]),
    )


def last(pattern: re.Pattern[str], said: str) -> re.Match[str] | None:
    """The last one: a prompt, which comes before, may say the same."""
    found = None
    for found in pattern.finditer(said):  # noqa: B007
        pass
    return found


def answer_text(out: str, err: str, prompt: str) -> str | None:
    """The text by itself. The prompt comes before it on stdout, or, in 2024, on stderr; None where it does
    not."""
    if f"{prompt}{FRAME}encoded" in err:
        return out
    start = out.find(prompt, 0, len(FRAME) + BOS_ROOM + len(prompt))
    if start < 0:
        return None
    return ASIDE.sub("", out[start + len(prompt) :].removesuffix(2 * FRAME))


def failure(name: str, code: int, err: str) -> str:
    """What went wrong, for an error message. A program may say why before a signal ends it."""
    lines = readable(err)
    for pattern, meaning in CAUSES:
        said = next((line for line in lines if pattern.search(line)), None)
        if said is not None:
            return f"{name}: {meaning}. It says: {shortened(said)}"
    if cause := cause_of_failure(err):
        return f"{name}: {cause}"
    return f"{name} {ending(code)}{last_words(lines)}"


def unreadable(name: str, why: str, said: str) -> str:
    return f"{name}: its output cannot be read ({why}){last_words(readable(said))}"


def last_words(lines: Sequence[str], n: int = 3) -> str:
    return f"; its last words: {' / '.join(map(shortened, lines[-n:]))}" if lines else ", without a word"
