"""Causes of failures in the logs of llama.cpp's programs, with advice."""

from __future__ import annotations

import re

from paceline.speculative.printable import truncated

TAIL = 1 << 16  # characters at the end of an output that are searched
LONGEST_LINE = 1000  # characters; some patterns take quadratic time

OTHER_VOCABULARY = (
    r"vocabs are not compatible|is not compatible with the target model|draft model vocab (?:type )?must",
    "the draft model has another vocabulary than the target, which llama.cpp does not speculate with: "
    "choose another draft, or leave this method out",
)
NO_SPECULATION = (r"failed to initialize speculative decoding context: (.*)", "it cannot speculate: {0}")
# Log messages and their meanings; the first match is the cause of later ones.
CAUSES = (
    OTHER_VOCABULARY,
    (
        r"(?:error: invalid argument: |error: unknown argument: |unrecognized arguments: )(\S+)",
        "it does not know the flag {0}: this build is older or newer; see its --help",
    ),
    (r'error while handling argument "([^"]+)": (.*)', "it refuses the flag {0}: {1}"),
    (r"unknown model architecture: '([^']+)'", "it does not know the architecture {0}: take a newer build"),
    (r"invalid magic characters", "a model file is no GGUF file"),
    (r"failed to open GGUF file '([^']+)'", "{0} cannot be opened"),
    (
        r"failed to allocate|unable to allocate|out of memory",
        "it ran out of memory: take a smaller context, fewer slots or fewer layers on the GPU",
    ),
    (r"failed to load (?:draft )?model,? '([^']+)'", "{0} cannot be loaded"),
    NO_SPECULATION,
)


def cause(log: str, causes: tuple[tuple[str, str], ...] = CAUSES) -> str:
    """Return the cause of a failure by the log; "" if unknown."""
    message = "\n".join(line[:LONGEST_LINE] for line in log[-TAIL:].splitlines())
    for pattern, meaning in causes:
        if found := re.search(pattern, message):
            return meaning.format(*map(truncated, found.groups()))
    return ""


def cause_of_no_speculation(log: str) -> str:
    """Return why a running server does not speculate; "" if it does."""
    return cause(log, (OTHER_VOCABULARY, NO_SPECULATION))
