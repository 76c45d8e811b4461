"""The subprocess of gate.py, which loads a model and runs each kind of pass once.

Only a crash counts. Errors of Python are suppressed: the next load of the file reports them."""

from __future__ import annotations

from contextlib import closing, suppress
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
CHAIN = (-1, 0, 1, 2)


def main(path: str, way: dict[str, Any]) -> None:
    binding.llama_cpp()
    print(gate.STARTED_WORD, flush=True)
    gate.in_load_subprocess = True
    with suppress(PacelineError, MemoryError):
        if way.pop("vocab_only"):
            model = binding.load_model(Path(path), vocab_only=True, **way)
            _use_tokenizer(LlamaText(model), read_vocab(model).size)
        else:
            _run(LlamaTarget(Path(path), n_ctx=N_CTX, kernels=False, **way), mtp=way.get("mtp", False))


def _run(target: LlamaTarget, *, mtp: bool) -> None:
    prompt = (_use_tokenizer(target.text, target.vocab.size) or [0])[: N_CTX // 4]
    parents = PARENTS if target.caps.max_branches > 1 else CHAIN
    drafted = DraftTree(tuple((prompt * 4)[:4]), parents, SCORES, SOURCES)
    for engine in (target, target.with_shared_weights(n_ctx=N_CTX, flash_attention=False)):
        session = engine.open()
        session.extend(prompt)
        engine.forward([(session, EMPTY)], RequiredOutputs())
        if engine.caps.rollback != "none":
            engine.forward([(session, drafted)], RequiredOutputs())
        session.close()
    if mtp:
        _draft(target, prompt, drafted)


def _draft(target: LlamaTarget, prompt: list[int], drafted: DraftTree) -> None:
    """Run the model's own MTP layers."""
    print(gate.DRAFTING_WORD, flush=True)
    draft = target.open_mtp()
    with closing(target.open()) as session, closing(draft.open()) as drafting:
        session.extend(prompt)
        target.forward([(session, EMPTY)], RequiredOutputs(layers=draft.config.layer_ids))
        drafting.extend(prompt)
        draft.forward([(drafting, drafted)], RequiredOutputs())


def _use_tokenizer(text: LlamaText, size: int) -> list[int]:
    """Decode all tokens, and return the tokens of a text."""
    for token in range(size):
        text.piece(token)
    text.added_tokens()
    return text.encode(TEXT, special=True)
