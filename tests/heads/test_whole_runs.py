"""Heads beside whole models: the output is that of plain decoding, whatever loads the model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from gguf import GGMLQuantizationType

import paceline
from command_line import command
from gguf_files import write_llama
from head_layouts import load_reference, write_layout
from head_sidecars import write_reference, write_sidecar
from paceline.backends.llama_cpp import mtp, mtp_sidecar
from paceline.backends.registry import open_engine
from paceline.bench.certify import certificate
from paceline.heads.confidence import Confidence
from paceline.heads.config import KIND_KEY, VERSION, TargetFacts
from paceline.heads.files import read_head
from paceline.speculative.errors import ModelError
from tiny_heads import write_tiny_head

KINDS = ("eagle3", "block", "medusa", "eagle", "exits", "kangaroo")
HEAD_OF = {"cascade": "exits"}
DRAFTERS = (*KINDS, "pard", "cascade")
PROMPTS = ["The quick brown fox", "The quick brown dog", "Another text, which is longer: 1, 2, 3, 1, 2, 3"]
N_TOKENS = 24


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_llama(tmp_path_factory.mktemp("whole") / "llama.gguf", layers=3, width=64)


@pytest.fixture(scope="module")
def heads(file: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Write a head of each kind, with random weights."""
    folder, out = tmp_path_factory.mktemp("heads"), {}
    with closing(open_engine(file, n_ctx=64)) as target:
        for kind in KINDS:
            out[kind] = write_tiny_head(folder / kind, kind, target)
        out["pard"] = write_parallel_draft(tmp_path_factory.mktemp("drafts") / "pard", target)
    return out


def write_parallel_draft(folder: Path, target: Any) -> Path:
    folder.mkdir()
    write_llama(folder / "draft.gguf", layers=1, width=64, seed=7)
    facts = TargetFacts(target.name, "", target.layers, target.hidden_size, target.vocab.size)
    config = {KIND_KEY: "pard", "version": VERSION, "target": asdict(facts), "draft": "draft.gguf"}
    (folder / "config.json").write_text(json.dumps(config | {"mask_token_id": 5, "depth": 4}))
    return folder


def texts(target: Any, **settings: Any) -> Iterator[tuple[Any, int]]:
    with paceline.load(target, n_ctx=256, policy="fixed", **settings) as llm:
        for prompt in PROMPTS:
            found = llm.generate(prompt, max_tokens=N_TOKENS)
            yield list(found.tokens), found.stats.drafted


@pytest.mark.parametrize("prefix", ["", "hf:"])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_the_text_is_that_of_plain_decoding(
    prefix: str, drafter: str, file: Path, heads: dict[str, Path]
) -> None:
    if prefix:
        pytest.importorskip("transformers")
    target = f"{prefix}{file}"
    plain = [tokens for tokens, _ in texts(target, drafters="none")]
    found = list(texts(target, draft=heads[HEAD_OF.get(drafter, drafter)], drafters=drafter))
    assert [tokens for tokens, _ in found] == plain
    assert all(drafted for _, drafted in found)  # also after a common prefix


@pytest.mark.parametrize("kind", ["eagle3", "block"])
def test_a_gguf_file_drafts_the_tokens_of_its_folder(
    kind: str,
    file: Path,
    heads: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    head = read_head(heads[kind])
    config = replace(head.config, target=replace(head.config.target, name=""))
    sidecar = write_sidecar(tmp_path / "h.gguf", config, dict(head.weights), GGMLQuantizationType.BF16)
    found, expected = (list(texts(file, draft=it, drafters=kind)) for it in (sidecar, heads[kind]))
    assert found == expected
    assert all(drafted for _, drafted in found)
    # As on a GPU, in a context of llama.cpp; and if that cannot be made.
    monkeypatch.setattr(mtp_sidecar, "offloads", lambda _: True)
    monkeypatch.setattr(mtp, "MIN_VOCAB", 0)
    for width in (1, 3):
        moved = list(texts(file, draft=sidecar, drafters=kind, width=width))
        assert [tokens for tokens, _ in moved] == [tokens for tokens, _ in expected]
        assert all(drafted for _, drafted in moved)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(mtp.MtpDraft, "open_context", Mock(side_effect=ModelError("no memory")))
    assert list(texts(file, draft=sidecar, drafters=kind)) == expected
    assert capsys.readouterr().err == "paceline: no memory: the head is computed on the processor instead\n"


@pytest.mark.parametrize("kind", KINDS)
def test_a_head_computes_with_tensors_where_the_model_has_a_gpu(
    kind: str, file: Path, heads: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    from paceline.backends.transformers.target import HfTarget

    target = f"hf:{file}"
    found = list(texts(target, draft=heads[kind], drafters=kind))
    monkeypatch.setattr(HfTarget, "tensor_like", property(lambda _: torch.zeros(0)))
    with paceline.load(target, draft=heads[kind], drafters=kind, n_ctx=256) as llm:
        draft: Any = llm.draft
        session = draft.open()
        assert isinstance(session._like, torch.Tensor)
        assert draft.identity()["engine"] == "torch, cpu"
        session.close()
    assert list(texts(target, draft=heads[kind], drafters=kind)) == found


def test_auto_uses_a_head(file: Path, heads: dict[str, Path]) -> None:
    with paceline.load(file, draft=heads["eagle3"], n_ctx=256) as llm:
        assert "eagle3" in llm.drafter.name.split(",")
        found = [list(llm.generate(prompt, max_tokens=N_TOKENS).tokens) for prompt in PROMPTS]
    assert found == [tokens for tokens, _ in texts(file, drafters="none")]


@pytest.mark.parametrize("drafter", ["eagle3", "exits", "pard", "cascade", "model"])
def test_a_bench_measures_heads(
    drafter: str, capsys: pytest.CaptureFixture[str], file: Path, heads: dict[str, Path], tmp_path: Path
) -> None:
    draft = heads.get(HEAD_OF.get(drafter, drafter), tmp_path / "confidence")
    if drafter == "model":
        small = heads["pard"] / "draft.gguf"
        with closing(open_engine(small, n_ctx=64)) as engine:
            Confidence(str(small), engine.identity()["model"], (0.1,) * 7).write(draft, {})
    suite = tmp_path / "suite.jsonl"
    suite.write_text(json.dumps({"id": "a", "category": "b", "prompt": PROMPTS[2], "max_tokens": 12}))
    given = ("--methods", f"plain,{drafter}:p_min=0", "--suite", suite, "-t", "1", "-c", "256")
    done = command(capsys, "bench", "-m", file, "-md", draft, *given, "--items", "1", "--json")
    found = {result["system"]: result for result in done.json["results"]}[f"{drafter}:p_min=0"]
    assert (done.code, found["lossless"]) == (0, True)
    assert found["acceptance_length"] >= 1.0
    assert sum(m["drafted"] for m in done.json["measurements"] if m["system"] != "plain") > 0


def test_check_says_what_a_head_is_and_whether_it_fits(
    capsys: pytest.CaptureFixture[str], file: Path, heads: dict[str, Path], tmp_path: Path
) -> None:
    done = command(capsys, "check", file, heads["eagle3"])
    assert (done.code, done.out) == (0, "eagle3 head: it fits: eagle3 head 0.0M\n")
    found = command(capsys, "check", file, heads["medusa"], "--json").json
    assert (found["kind"], found["usable"]) == ("medusa head", True)
    other = write_llama(tmp_path / "other.gguf", layers=3, width=64, seed=5)
    done = command(capsys, "check", other, heads["eagle3"])
    assert done.code == 3
    assert "eagle3 head: it does not fit" in done.out
    assert "is another model" in done.out


def test_pairs_lists_models_beside_heads(
    capsys: pytest.CaptureFixture[str], file: Path, heads: dict[str, Path]
) -> None:
    folder = heads["eagle"].parent
    published = write_layout(load_reference("eagle3_safeailab"), folder / "published")  # says it is a llama
    sidecar = write_reference(folder / "eagle3-x.gguf", load_reference("eagle3"))
    (folder / "dflash-x.gguf").write_bytes(sidecar.read_bytes()[:900])
    for target in ((), (file,)):
        done = command(capsys, "pairs", *target, "--folder", folder, "--json")
        assert done.code == 0
        assert str(folder) not in str(done.json.get("models", ""))
        notes = str(done.json["notes"])
        for path in (published, sidecar):  # of another vocabulary than the target's
            line = f"{path}: is a draft head (eagle3) for another model, 32 wide, 96 tokens"
            assert (line in notes) == (target == ())
        assert f"{folder / 'eagle'}: is a draft head (eagle) for a toy, 64 wide, 258 tokens" in notes
        assert (f"paceline check {file} {folder / 'eagle'}" in notes) == (target != ())
        assert f"{folder / 'dflash-x.gguf'}: " in notes


@pytest.mark.parametrize("drafter", DRAFTERS)
@pytest.mark.parametrize("temperature", [(), ("--draft-temp", "0.9")], ids=["greedy", "sampled"])
def test_drafts_of_heads_are_certified(
    drafter: str,
    temperature: tuple[str, ...],
    capsys: pytest.CaptureFixture[str],
    file: Path,
    heads: dict[str, Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(certificate, "MIN_TEXT_TOKENS", 32)
    text = tmp_path / "prompts.txt"
    text.write_text("ab ab ab ab\nhello hello\n")
    exact = ("--cache-type", "f32", "-fa", "off")  # such short texts cannot tell more rounding from errors
    small = ("--samples", "100", "--contexts", "2", "--sequences", "3", "-n", "12")
    head = heads[HEAD_OF.get(drafter, drafter)]
    models = ("-m", file, "-md", head, "--draft", drafter, "--policy", "fixed")
    done = command(capsys, "certify", *models, *temperature, "--prompts", text, *exact, *small, "--json")
    assert (done.code, done.json["certified"]) == (0, True), done
