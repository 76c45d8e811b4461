"""Distilled draft models, and the GGUF files of trained drafts."""

from __future__ import annotations

import json
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("torch", reason="training needs PyTorch")

import paceline
from fake_llama_server import XLLAMACPP
from paceline.bench.baselines.process import free_port
from paceline.heads.config import HeadConfig, TargetFacts
from paceline.heads.decoder import LayerShape
from paceline.heads.files import read_head
from paceline.models import zoo
from paceline.models.headers.gguf_file import GGUFFile
from paceline.prepare.training.gguf_files import read_llama, write_eagle3
from paceline.prepare.training.options import make_options
from paceline.prepare.training.prompts import read_prompts
from paceline.prepare.training.train import train_head
from paceline.request_handle import Generation

PROMPT = "def read_config(path):\n    "


@pytest.fixture(scope="module")
def prompts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("prompts") / "prompts.txt"
    names = ("config", "lines", "table", "header", "token", "record", "page", "image", "node", "index")
    file.write_text("\n\n".join(f"def {verb}_{name}(path):" for verb in ("read", "write") for name in names))
    return file


def test_weights_are_read_in_a_fixed_order() -> None:
    """The state of an optimizer is stored in the order of the weights."""
    names = list(read_llama(zoo.draft_path()).weights)
    assert names[:3] == ["embed_tokens.weight", "norm.weight", "layers.0.input_layernorm.weight"]


def trained(kind: str, prompts: Path, folder: Path, **options: Any) -> dict[str, Any]:
    plan = make_options(kind, folder, max_tokens=24, epochs=2, batch_tokens=256, **options)
    with paceline.load(None, None, "none", sessions=4, threads=1) as llm:
        return train_head(llm, read_prompts([prompts], chat=False, held_out=0.3), plan)


@pytest.mark.slow
def test_a_distilled_draft_is_an_ordinary_draft_model_whose_file_computes_what_was_trained(
    prompts: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first guess behind each token of a text, by llama.cpp and by the network."""
    import torch

    from paceline.backends.logit_drift import teacher_forced_logits
    from paceline.prepare.training.draft_model import DraftRecipe
    from paceline.prepare.training.recipe import document_mask

    networks = list[Any]()
    write = DraftRecipe.write

    def spy(recipe: Any, folder: Path, target: Any, weights: Any, card: Any) -> None:
        networks.append(recipe.network({name: torch.tensor(value) for name, value in weights.items()}))
        write(recipe, folder, target, weights, card)

    monkeypatch.setattr(DraftRecipe, "write", spy)
    card = trained("draft", prompts, tmp_path / "d", layers=2, width=128, learning_rate=3e-3)
    assert card["path"] == str(tmp_path / "d" / "draft.gguf")
    assert card["acceptance"]["length"] >= 1.0
    require_lossless(card["path"], "model")
    with paceline.load(card["path"], None, "none", threads=1) as llm:
        text = llm.tokens("def read_config(path):\n    return json.load(open(path))\n\n\ndef write_config(")
        theirs = np.asarray(teacher_forced_logits(llm.target, text, 1, 1))
    tokens = torch.tensor(text)
    ours = networks[-1].logits(tokens, document_mask(torch.zeros_like(tokens))).numpy()[: len(theirs)]
    for a, b in zip(ours, theirs, strict=True):
        a, b = a - a.mean(), b - b.mean()
        assert float(a @ b) / float(np.linalg.norm(a) * np.linalg.norm(b)) > 0.999


def require_lossless(draft: Any, drafter: str) -> Generation:
    """Require that the draft is used, and that the text is that of plain decoding."""
    with paceline.load(None, draft, drafter, threads=1, policy="fixed") as llm:
        drafted = llm.generate(PROMPT, max_tokens=30)
        assert llm.draft is not None
        assert llm.draft.vocab.size == llm.target.vocab.size
    assert drafted.stats.drafted > 0
    with paceline.load(None, None, "none", threads=1) as llm:
        assert llm.generate(PROMPT, max_tokens=30).tokens == drafted.tokens
    return drafted


@pytest.mark.slow
def test_a_parallel_draft_begins_with_a_draft_model_and_drafts_several_tokens_a_pass(
    prompts: Path, tmp_path: Path
) -> None:
    card = trained(
        "pard", prompts, tmp_path / "pard", base=zoo.draft_path(), depth=3, learning_rate=3e-4, n_draft=3
    )
    assert card["acceptance"]["length"] > 1.2  # what the draft model can do already
    drafted = require_lossless(tmp_path / "pard", "pard")
    assert drafted.stats.drafted <= 3 * len(drafted.tokens)


def head(**variant: Any) -> tuple[HeadConfig, dict[str, Any], Any]:
    """A random EAGLE-3 head for the embedded target."""
    rng = np.random.default_rng(0)
    hidden, vocab = 384, 8192
    shape = LayerShape(hidden, 6, 3, 64, 512)
    config = HeadConfig(
        "eagle3", TargetFacts("zoo", "", 8, hidden, vocab), shape, 500, layer_ids=(2, 4, 5), **variant
    )
    sizes = {
        "fc": (hidden, 3 * hidden), "lm_head": (500, hidden), "layers.0.self_attn.q_proj": (384, 2 * hidden),
        "layers.0.self_attn.k_proj": (192, 2 * hidden), "layers.0.self_attn.v_proj": (192, 2 * hidden),
        "layers.0.self_attn.o_proj": (hidden, 384), "layers.0.mlp.gate_proj": (512, hidden),
        "layers.0.mlp.up_proj": (512, hidden), "layers.0.mlp.down_proj": (hidden, 512),
    }  # fmt: skip
    weights = {f"{name}.weight": rng.normal(0, 0.05, size).astype(np.float32) for name, size in sizes.items()}
    norms = ("norm", "layers.0.input_layernorm", "layers.0.hidden_norm", "layers.0.post_attention_layernorm")
    weights |= {f"{name}.weight": np.ones(hidden, np.float32) for name in norms}
    return config, weights, np.arange(0, vocab, 16)[:500]


def test_llama_cpps_names_and_absolute_ids(tmp_path: Path) -> None:
    config, weights, ids = head()
    write_eagle3(tmp_path / "e.gguf", config, weights, ids, zoo.target_path())
    file = GGUFFile(tmp_path / "e.gguf")
    assert file.text("general.architecture") == "eagle3"
    assert file.values["eagle3.target_hidden_size"] == 384
    assert np.frombuffer(file.weights(file.tensors["d2t"]), "<i8").tolist() == ids.tolist()
    names = {"fc.weight", "blk.0.attn_norm_2.weight", "blk.0.attn_norm.weight", "output.weight", "d2t"}
    assert names <= set(file.tensors)
    assert "tokenizer.ggml.tokens" in file.fields


@pytest.mark.parametrize(
    "variant", [{"norm_output": True}, {"fc_norm": True}, {"windows": (8,)}, {"n_layers": 2}]
)
def test_variants_that_llama_cpp_would_load_wrongly_are_refused(
    variant: dict[str, Any], tmp_path: Path
) -> None:
    config, weights, ids = head(**variant)
    with pytest.raises(AssertionError, match=r"llama\.cpp does not know"):
        write_eagle3(tmp_path / "e.gguf", config, weights, ids, zoo.target_path())


@pytest.mark.slow
def test_llama_server_accepts_what_ours_does(prompts: Path, tmp_path: Path) -> None:
    """The same head in llama-server and here, from its folder and its file, with drafts of two tokens."""
    pytest.importorskip("xllamacpp")
    trained("eagle3", prompts, tmp_path, depth=2, draft_vocab=1024, learning_rate=3e-3)
    assert read_head(tmp_path).config.kind == "eagle3"
    port = free_port()
    command = [
        sys.executable, XLLAMACPP, "-m", str(zoo.target_path()),
        "-md", str(tmp_path / "eagle3.gguf"), "--spec-type", "draft-eagle3", "--spec-draft-n-max", "2",
        "--spec-draft-p-min", "0", "-c", "512", "-t", "1", "-np", "1", "--host", "127.0.0.1", "--port",
        str(port),
    ]  # fmt: skip
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            answer = ask(port, {"prompt": PROMPT, "n_predict": 40, "temperature": 0})
        finally:
            server.kill()
    timings = answer["timings"]
    assert timings["draft_n"] > 0
    for draft in (tmp_path, tmp_path / "eagle3.gguf"):
        with paceline.load(
            None, draft, "eagle3", threads=1, policy="fixed", n_draft=2, width=1, kernels="off"
        ) as llm:
            ours = llm.generate(PROMPT, max_tokens=40)
        assert answer["content"] == ours.text
        # Rounding may turn a guess between two tokens of nearly equal logits.
        assert abs(timings["draft_n_accepted"] - ours.stats.accepted) <= 3


def ask(port: int, request: dict[str, Any]) -> dict[str, Any]:
    data = json.dumps(request).encode()
    until = time.monotonic() + 60
    while True:
        try:
            url = f"http://127.0.0.1:{port}/completion"
            with urllib.request.urlopen(
                urllib.request.Request(url, data, {"Content-Type": "application/json"})
            ) as reply:
                return dict(json.load(reply))
        except OSError:
            if time.monotonic() > until:
                raise
            time.sleep(0.2)
