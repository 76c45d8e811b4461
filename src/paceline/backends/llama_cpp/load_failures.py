"""llama.cpp's reasons for not loading a file, in words that say what to do."""

from __future__ import annotations

import re

from paceline.speculative.printable import printable

# A pattern of llama.cpp's messages, and the explanation with the pattern's groups. The first match counts.
FAILURES = {
    "not within the file bounds|corrupted or incomplete|exceeds remaining file size|failed to read": (
        "is cut short or damaged; download it again"
    ),
    r"expected (\d+), got (\d+)$": "holds {0} tensors, of which llama.cpp uses {1} for its architecture: "
    "fetch a model that nothing was added to, or update llama-cpp-python",
    "(?:missing )?tensor '(.*?)'(?: not found|$)": "holds no usable weights (no {0}: a vocabulary-only or "
    "incomplete file); give a whole model",
    "tensor '(.*?)' has wrong shape; expected (.*), got (.*)": "holds no usable weights ({0} is [{2}], and "
    "its header says [{1}]); fetch the model again",
    "unknown (model architecture|pre-tokenizer type|tokenizer): '(.*?)'": "has the {0} {1!r}, which this "
    "llama.cpp does not know: update llama-cpp-python, or give another model",
    "key not found in model: (.*)|key (.*) has wrong|cannot find (.*) in model": "has no usable {0} in its "
    "header: convert the model anew, or fetch another file of it",
    "(?:unable|failed) to allocate": "does not fit into memory: give a smaller model or quantisation, or "
    "fewer GPU layers (-ngl)",
    "(invalid .*)": "has a header that contradicts itself ({0}): convert the model anew, or fetch it again",
}


def explain(log: list[str]) -> str:
    """Return what is wrong with a file, by llama.cpp's log of its load."""
    for line in log:
        for pattern, explanation in FAILURES.items():
            if match := re.search(pattern, line):
                groups = [printable(" ".join(group.split())[:80]) for group in match.groups() if group]
                return explanation.format(*groups)
    return f"llama.cpp cannot load it: {printable(log[0]) if log else 'the reason is not known'}"
