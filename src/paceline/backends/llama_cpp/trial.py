"""A model that is loaded, and asked for everything once, in a process that may end over it.

What Python can say about the file is left to whoever loads it next: only how this process ends counts."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from paceline.backends.llama_cpp import binding, gate
from paceline.backends.llama_cpp.target import LlamaTarget
from paceline.backends.llama_cpp.text import LlamaText, read_vocab
from paceline.speculative.errors import PacelineError
from paceline.speculative.interfaces import RequiredOutputs
from paceline.speculative.tree import EMPTY, DraftTree

TEXT = "The\tquick (brown) fox,\r\n  12345 jumps: éß 漢字 🙂 \x00\x7f"
N_CTX = 256
PARENTS, SCORES, SOURCES = (-1, 0, 0, 2), (0.5,) * 4, ("trial",) * 4  # two branches


def main(path: str, way: dict[str, Any]) -> None:
    binding.llama_cpp()
    print(gate.STARTED_WORD, flush=True)
    gate.in_load_subprocess = True
    with suppress(PacelineError, MemoryError):
        if way["vocab_only"]:
            model = binding.load_model(Path(path), **way)
            _spell(LlamaText(model), read_vocab(model).size)
        else:
            _run(LlamaTarget(Path(path), n_ctx=N_CTX, gpu_layers=way["gpu_layers"], kernels=False))


def _run(target: LlamaTarget) -> None:
    prompt = (_spell(target.text, target.vocab.size) or [0])[: N_CTX // 4]
    drafted = DraftTree(tuple((prompt * 4)[:4]), PARENTS, SCORES, SOURCES)
    for flash in (None, False):
        target.use_flash_attention(flash)
        session = target.open()
        session.extend(prompt)
        target.forward([(session, EMPTY)], RequiredOutputs())
        if target.caps.rollback != "none":
            target.forward([(session, drafted)], RequiredOutputs())
        session.close()


def _spell(text: LlamaText, size: int) -> list[int]:
    """Spell all tokens, and return a text's tokens."""
    for token in range(size):
        text.piece(token)
    text.markers()
    return text.encode(TEXT, special=True)
