"""The process in which grammars are compiled first (started by grammar_check.py).

llguidance may overflow its stack over a schema, never come back, or take all memory: none of it can be undone
in a process that does anything else. Bytes are the tokens here: a vocabulary takes no longer to compile for.
"""

from __future__ import annotations

import math
import sys
import threading
from contextlib import suppress

STARTED = b"+"  # the first byte on stdout
STACK = 6 << 20  # bytes: less than whoever compiles what has passed here
MEMORY = 1 << 30  # bytes of addresses
CPU = 2  # seconds for one grammar; a schema of a thousand properties takes 0.3


def main() -> None:
    """Answer until stdin ends. In and out go texts in UTF-8, each after its length in eight bytes: a grammar,
    and why llguidance cannot use it (nothing where it can)."""
    threading.stack_size(STACK)
    thread = threading.Thread(target=_answer)
    thread.start()
    thread.join()


def _answer() -> None:
    from llguidance import LLMatcher, LLTokenizer

    tokenizer = LLTokenizer("byte")
    _limit_memory()
    source, sink = sys.stdin.buffer, sys.stdout.buffer
    sink.write(STARTED)
    sink.flush()
    while len(length := source.read(8)) == 8:
        lark = source.read(int.from_bytes(length)).decode()
        _limit_time()
        matcher = LLMatcher(tokenizer, lark, log_level=0)
        said = matcher.get_error().encode()
        if not said:
            matcher.compute_bitmask()  # for the time it takes; what it is depends on the vocabulary
        del matcher  # which may overflow the stack, too
        sink.write(len(said).to_bytes(8) + said)
        sink.flush()


def _limit_memory() -> None:
    with suppress(ImportError, ValueError, OSError):  # a system without such limits
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def _limit_time() -> None:
    """The process is ended by SIGXCPU after it."""
    with suppress(ImportError, ValueError, OSError):
        import resource

        usage = resource.getrusage(resource.RUSAGE_SELF)
        soft = math.ceil(usage.ru_utime + usage.ru_stime) + CPU
        resource.setrlimit(resource.RLIMIT_CPU, (soft, resource.getrlimit(resource.RLIMIT_CPU)[1]))
