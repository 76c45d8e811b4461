"""Models through transformers, against transformers itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("transformers")

import numpy as np
import torch

from decoding import decoded
from hf_models import ARCHITECTURES, DEVICE, RECURRENT, V, folder_of, tokenizer_of
from paceline.backends.interface import ShowsHiddenStates
from paceline.backends.transformers.loading import identity
from paceline.backends.transformers.opener import open_engine, open_tokenizer
from paceline.backends.transformers.target import HfTarget
from paceline.backends.transformers.text import HfText
from paceline.drafters.lookup import LookupDrafter
from paceline.drafters.none import NoDrafter
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.interfaces import Budget, RequiredOutputs
from paceline.speculative.tree import EMPTY, ROOT, DraftTree
from rows import text_rows

PROMPT = [5, 9, 14, 5, 9, 14, 20, 33, 5, 9, 14, 20]
N = 60
FORK = DraftTree((7, 8, 9, 7), (ROOT, 0, 0, ROOT), (0.5,) * 4, ("test",) * 4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("hf")


@pytest.fixture(scope="module")
def llama(folder: Path) -> Iterator[HfTarget]:
    target = open_engine(folder_of("llama", folder), n_ctx=128, device=DEVICE)
    yield target
    target.close()


def said(target: Any, drafter: Any, depth: int = 0) -> tuple[list[int], int]:
    """Tokens, and in how many passes."""
    width = 2 if target.caps.max_branches > 1 else 1
    tokens, steps = decoded(target, drafter, PROMPT, N, Budget(depth, 2 * depth, width), ignore_eos=True)
    return tokens, len(steps)


def generated(path: Path) -> list[int]:
    import transformers

    model = transformers.AutoModelForCausalLM.from_pretrained(path)
    out = model.generate(
        torch.tensor([PROMPT]),
        attention_mask=torch.ones(1, len(PROMPT), dtype=torch.long),
        max_new_tokens=N,
        do_sample=False,
        eos_token_id=None,
        pad_token_id=1,
    )
    tokens: list[int] = out[0, len(PROMPT) :].tolist()
    return tokens


@pytest.mark.parametrize("kind", [*ARCHITECTURES, *RECURRENT])
def test_greedy_text_is_that_of_generate(kind: str, folder: Path) -> None:
    path = folder_of(kind, folder)
    expected = generated(path)
    assert len(set(expected)) > 3  # it says something
    target = open_engine(path, n_ctx=128, device=DEVICE, sessions=3)
    assert said(target, NoDrafter()) == (expected, N)
    assert target.caps.rollback == ("restore" if kind in RECURRENT else "free")
    assert target.caps.max_branches == (1 if kind in ("bloom", *RECURRENT) else 64)
    assert target.caps.max_sessions == 3
    drafted, passes = said(target, LookupDrafter(), 6)
    assert drafted == expected
    assert passes < N or kind in RECURRENT  # drafts were accepted


def rewrite(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the weights of a folder."""
    from safetensors.torch import load_file, save_file

    file = folder / "model.safetensors"
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, {"format": "pt"})


NORM = "model.layers.1.input_layernorm.weight"


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: rewrite(folder, lambda it: it.pop(NORM)), "1 missing: " + NORM),
        (lambda folder: rewrite(folder, lambda it: it.pop("lm_head.weight")), "1 missing: lm_head"),
        (
            lambda folder: rewrite(folder, lambda it: it.update({"x.bias": it[NORM] + 1})),
            "1 unexpected: x.bias",
        ),
        (lambda folder: rewrite(folder, lambda it: it.update({NORM: it[NORM][:8] + 1})), "cannot be loaded"),
        (lambda folder: shard(folder)[1].unlink(), "cannot be loaded"),
        (lambda folder: (shard(folder), (folder / INDEX).unlink()), "cannot be loaded"),
        (lambda folder: (folder / "adapter_config.json").write_text("{}"), "has an adapter"),
    ],
)
def test_a_folder_with_other_weights_than_its_configuration_is_refused(
    damage: Callable[[Path], object], message: str, tmp_path: Path
) -> None:
    folder = folder_of("llama", tmp_path)
    damage(folder)
    with pytest.raises(ModelError, match=message):
        open_engine(folder, n_ctx=64, device=DEVICE)


@pytest.mark.parametrize(
    "name", ["v_head.summary.weight", "model.layers.0.attn.masked_bias", "mtp.fc.weight"]
)
def test_weights_that_no_language_model_computes_with_are_left_out(name: str, tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path)
    rewrite(folder, lambda it: it.update({name: it[NORM] + 1}))
    open_engine(folder, n_ctx=64, device=DEVICE).close()


INDEX = "model.safetensors.index.json"


def shard(folder: Path) -> list[Path]:
    """Split the weights of a folder into shards with an index."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    model.save_pretrained(folder, max_shard_size="20KB")
    return sorted(folder.glob("model-*.safetensors"))


def test_shards_and_links_give_the_logits_of_one_file(tmp_path: Path) -> None:
    folder = folder_of("llama", tmp_path)
    expected = text_rows(open_engine(folder, n_ctx=64, device=DEVICE), PROMPT, FORK)
    (linked := tmp_path / "linked").mkdir()
    assert len(shard(folder)) > 2
    for i, file in enumerate(folder.iterdir()):
        (linked / file.name).symlink_to(file.rename(tmp_path / f"{i}"))
    found = text_rows(open_engine(linked, n_ctx=64, device=DEVICE), PROMPT, FORK)
    assert np.array_equal(found, expected)


LAYER_NORMS = ("gpt_neox", "gpt2", "bloom")


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_the_output_layer_and_the_embeddings_are_those_of_the_model(kind: str, folder: Path) -> None:
    with closing(open_engine(folder_of(kind, folder), n_ctx=128, device=DEVICE)) as target:
        assert isinstance(target, ShowsHiddenStates)
        assert target.hidden_size == 32
        head = target.output_head()
        session = target.open()
        session.extend(PROMPT)
        out = target.forward([(session, EMPTY)], RequiredOutputs(layers=(0, target.layers)))[0]
        states = out.features.hidden.cpu().numpy()
        assert head.weight.shape == (V, 32)
        assert np.abs(target.embed(PROMPT) - states[:, 1].mean(axis=0)).max() < 1e-4
        assert np.abs(head.weight @ states[-1, 1] - out.logits(0)).max() < 1e-4
        scale = 32**0.5 if kind == "gemma3_text" else 1.0
        embeddings = scale * target.token_embeddings(PROMPT)
        if kind not in ("gpt2", "bloom"):  # which add places, or normalise
            assert np.abs(embeddings - states[:, 0]).max() < 1e-5
        assert (head.norm is None) is (kind in LAYER_NORMS)
        if head.norm is not None:
            norm = target._model.get_decoder().norm
            with torch.inference_mode():
                norm.weight.normal_()
                x = torch.randn(3, 32, device=DEVICE)
                expected = norm(x).cpu().numpy()
            factors, states = target.output_head().norm, x.cpu().numpy()
            assert factors is not None
            mean = (states * states).mean(-1, keepdims=True)
            assert np.abs(factors * states / np.sqrt(mean) - expected).max() < 1e-4


def test_out_of_memory_in_a_pass_is_one_clear_line(llama: HfTarget, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: Any) -> Any:
        raise torch.OutOfMemoryError("Tried to allocate 20.00 MiB.\nGPU 0 has ...")

    llama.forget()
    session = llama.open()
    session.extend(PROMPT)
    monkeypatch.setattr(llama, "_model", full)
    with pytest.raises(ModelError, match=r"out of memory in a pass \(Tried to allocate 20.00 MiB.\)"):
        llama.forward([(session, EMPTY)], RequiredOutputs())
    monkeypatch.undo()
    assert llama.forward([(session, EMPTY)], RequiredOutputs())[0].computed == len(PROMPT)  # and it goes on
    session.close()


def test_what_it_tells_of_itself(folder: Path) -> None:
    path = folder_of("llama", folder)
    target = open_engine(path, n_ctx=64, device=DEVICE, threads=1)
    assert target.description.startswith("llama 0.0M float32")
    assert (target.name, target.origin, target.modification) == ("llama", str(path), "")
    assert target.identity() == identity(path, target.settings)
    assert target.identity()["model"] != identity(folder_of("qwen3", folder), {})["model"]
    assert (target.vocab.bos, target.vocab.eos, target.vocab.kind) == (0, frozenset({1}), "BPE")
    assert target.weight_bytes >= 4 * 29_408
    with closing(open_tokenizer(path)) as tokenizer:
        assert (tokenizer.vocab.size, tokenizer.vocab.eos) == (V, frozenset({1}))
    target.close()
    with pytest.raises(UsageError, match="is closed"):
        target.open()


def test_text_goes_to_tokens_and_back() -> None:
    text = HfText(tokenizer_of(), V)
    tokens = text.encode("ab c</s>")
    assert b"".join(map(text.piece, tokens)) == b"ab c</s>"
    assert text.encode("ab</s>", special=True)[-1] == 1
    assert text.encode("ab</s>")[-1] != 1
    assert text.piece(1) == b""
    assert text.piece(V + 7) == b""
    assert text.encode_continuation("ab") == text.encode("ab")
    with pytest.raises(ModelError, match="no chat template"):
        text.render([{"role": "user", "content": "hello"}])


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"model_type": "mine", "auto_map": {"AutoModel": "mine.Model"}}, "cannot be loaded"),
        ({"model_type": "mine"}, "cannot be loaded"),
        ({"model_type": "vit"}, "is no causal language model"),
    ],
)
def test_what_cannot_be_run_is_refused(folder: Path, tmp_path: Path, changes: Any, reason: str) -> None:
    tokenizer_of().save_pretrained(tmp_path)
    known = json.loads((folder_of("llama", folder) / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(known | changes))
    with pytest.raises(ModelError, match=reason):
        open_engine(tmp_path)
