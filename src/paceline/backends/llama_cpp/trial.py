"""A model that is loaded, and asked for everything once, in a process that may end over it.

What Python can say about the file is left to whoever loads it next: only how this process ends counts."""

from __future__ import annotations

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
    print(gate.BEGUN, flush=True)
    gate.trying = True
    try:
        if way["vocab_only"]:
            _read(Path(path), way)
        else:
            _run(Path(path), way)
    except (PacelineError, MemoryError):
        pass


def _read(path: Path, way: dict[str, Any]) -> None:
    model = binding.load_model(path, **way)
    _spell(LlamaText(model), read_vocab(model).size)


def _run(path: Path, way: dict[str, Any]) -> None:
    target = LlamaTarget(path, n_ctx=N_CTX, gpu_layers=way["gpu_layers"], kernels=False)
    prompt = (_spell(target.text, target.vocab.size) or [0])[: N_CTX // 4]
    for flash in (None, False):
        target.use_flash_attention(flash)
        session = target.open()
        session.extend(prompt)
        target.forward([(session, EMPTY)], RequiredOutputs())
        if target.caps.rollback != "none":
            drafted = tuple((prompt * 4)[:4])
            target.forward([(session, DraftTree(drafted, PARENTS, SCORES, SOURCES))], RequiredOutputs())
        session.close()


def _spell(text: LlamaText, size: int) -> list[int]:
    """All tokens as bytes, and a text as tokens."""
    for token in range(size):
        text.piece(token)
    text.markers()
    return text.encode(TEXT, special=True)
