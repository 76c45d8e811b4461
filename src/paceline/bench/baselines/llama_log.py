"""What llama.cpp's programs say when they fail, in words that say what to do."""

from __future__ import annotations

import re

from paceline.speculative.printable import shortened

TAIL = 1 << 16  # characters at the end of an output, in which figures and causes are
LONGEST_LINE = 1000

# What they print, with what it means; the first that is found is the cause of those that follow.
CAUSES = (
    (
        # Builds of 2025 went on by translating tokens, and then say so in the same line.
        r"vocabs are not compatible(?! - tokens will be translated)"
        r"|is not compatible with the target model(?!.*tokens will be translated)"
        r"|draft model vocab type must match",
        "the draft model has another vocabulary than the target, which llama.cpp does not speculate with: "
        "choose another draft, or leave this method out",
    ),
    (
        r"(?:error: invalid argument: |error: unknown argument: |unrecognized arguments: )(\S+)",
        "it does not know the flag {0}: this build is older or newer; see its --help",
    ),
    (r'error while handling argument "([^"]+)": (.*)', "it refuses the flag {0}: {1}"),
    (r"unknown speculative type: (\S+)", "it does not draft by {0}: see --spec-type in its --help"),
    (
        r"couldn't bind (?:HTTP server socket|to server socket)",
        "its port is taken: stop what listens there, or choose another",
    ),
    (r"unknown model architecture: '([^']+)'", "it does not know the architecture {0}: take a newer build"),
    (r"invalid magic characters", "a model file is no GGUF file"),
    (r"failed to open GGUF file '([^']+)'", "{0} cannot be opened"),
    (
        r"failed to allocate|unable to allocate|out of memory",
        "it ran out of memory: take a smaller context, fewer slots or fewer layers on the GPU",
    ),
    (r"failed to load (?:draft )?model,? '([^']+)'", "{0} cannot be loaded"),
    (r"failed to initialize speculative decoding context: (.*)", "it cannot speculate: {0}"),
)


def readable(log: str) -> list[str]:
    """The lines at the end of a program's output, and no more of each than a person would read: some patterns
    take time by the square of a line's length."""
    lines = (line.strip()[:LONGEST_LINE] for line in log[-TAIL:].splitlines())
    return [line for line in lines if line]


def cause_of_failure(log: str) -> str | None:
    """Why a program failed, by its output; None where that does not tell."""
    said = "\n".join(readable(log))
    for pattern, meaning in CAUSES:
        if found := re.search(pattern, said):
            return meaning.format(*map(shortened, found.groups()))
    return None


def cause_of_silence(log: str) -> str | None:
    """Why a server that was told to speculate does not, though it runs; None where it does."""
    said = "\n".join(readable(log))
    if re.search(CAUSES[0][0], said):
        return CAUSES[0][1]
    found = re.search(CAUSES[-1][0], said)
    return None if found is None else CAUSES[-1][1].format(*map(shortened, found.groups()))
