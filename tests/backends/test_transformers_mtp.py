"""A model's own MTP layers draft what transformers' MTPCandidateGenerator does."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import paceline
from assistants import AssistantWorld
from command_line import command
from decoding import decoded
from hf_models import DEVICE, MTP, folder_of
from paceline.backends.transformers.target import HfTarget
from paceline.drafters.head import HeadDrafter
from paceline.drafters.none import NoDrafter
from paceline.fits import STRIPPED, USABLE
from paceline.models.headers.header import read_model_facts
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.interfaces import NO_OUTPUTS, Budget
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import ROOT, DraftTree, chain

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
MtpModel = pytest.importorskip("transformers.modeling_layers").MtpModel
MtpCache = pytest.importorskip("transformers.cache_utils").MtpCache

ROUNDING = 1e-4
TEXT = [7, 3, 9, 3, 7, 5, 2, 11, 5, 40, 41, 20, 21, 22]  # longer than the window
OTHER = [5, 11, 2, 90, 91, 92]
DRAFTED = [60, 61, 62]
TREE = DraftTree((60, 61, 63, 64, 65), (ROOT, 0, ROOT, 2, 0), (0.5,) * 5, ("test",) * 5)
# Names in the files: of the block, and of the two norms, the projection and the last norm around it.
NAMES = {
    "mellum": ("mtp.layers.{}.", "mtp.", ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm")),
    "inkling_text": (
        *("model.mtp.layers.{}.transformer_block.", "model.mtp.layers.{}."),
        ("embed_norm", "hidden_norm", "input_proj"),
    ),
}
USUAL = ("model.layers.2.", "model.layers.2.", ("enorm", "hnorm", "eh_proj", "shared_head.norm"))


def write_mtp(kind: str, folder: Path, loudness: float = 1.0) -> Path:
    """A model whose last layers are those of MTP. If the layers are quiet, drafts are right: a token follows
    from the one before."""
    from safetensors.torch import load_file, save_file

    path = folder_of(kind, folder)
    config, tensors = json.loads((path / "config.json").read_text()), load_file(path / "model.safetensors")
    heads, width, eye = MTP[kind]["num_mtp_layers"], config["hidden_size"], torch.eye(config["hidden_size"])
    layers = config["num_hidden_layers"]
    lists = {name: one[:2] for name, one in config.items() if isinstance(one, list) and len(one) == layers}
    (path / "config.json").write_text(json.dumps(config | lists | {"num_hidden_layers": 2}))
    random, out = torch.Generator().manual_seed(5), dict[str, Any]()
    block, around, others = NAMES.get(kind, USUAL)
    for name, tensor in tensors.items():
        for head in range(heads):
            name = name.replace(f"model.layers.{2 + head}.", block.format(head))
        out[name] = loudness * tensor if "o_proj" in name or "down_proj" in name else tensor
    for head in range(heads):
        for part in others:
            weight = 1 + 0.1 * torch.randn(width, generator=random)
            if part in ("eh_proj", "fc", "input_proj"):
                weight = torch.cat([eye, 0 * eye] if part != "input_proj" else [0 * eye, eye], 1)
                weight = weight + 0.02 * torch.randn(width, 2 * width, generator=random)
            out[f"{around.format(head)}{part}.weight"] = weight
    save_file(out, path / "model.safetensors", {"format": "pt"})
    return path


@pytest.fixture(scope="module", autouse=True)
def small_models_are_released_too() -> Iterator[None]:
    """The classes know the places of the layers in the released models, which have more layers."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("Glm4MoeForCausalLM", "DeepseekV3ForCausalLM"):
            model = getattr(transformers, name)
            patch.setattr(model, "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.2\..*"])
        yield


@pytest.fixture(scope="module", params=MTP)
def folders(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and one with quiet layers."""
    folder = tmp_path_factory.mktemp("mtp")
    return write_mtp(request.param, folder / "loud"), write_mtp(request.param, folder / "quiet", 0.01)


class World(AssistantWorld):
    def __init__(self, folder: Path) -> None:
        target = HfTarget(folder, n_ctx=64, sessions=2, device=DEVICE, dtype="float32")
        super().__init__(target, target.open_mtp())
        self.layers = MtpModel.from_pretrained(target._model)

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is untyped here
    def states(self, text: Sequence[int]) -> Any:
        ids = torch.tensor([text], device=DEVICE)
        return self.target._model(input_ids=ids, use_cache=False, output_hidden_states=-1).hidden_states[-1]

    @torch.inference_mode()  # type: ignore[untyped-decorator]  # torch is untyped here
    def expected(
        self, text: Sequence[int], drafted: Sequence[int], start: int = 0, read: int = 0
    ) -> np.ndarray:
        """The rows of the root and of drafted tokens, as MtpModel.forward computes them; one layer goes on
        with its own output. start: of the states that are shown, after those of the first `read` tokens."""
        cache, n, rows = MtpCache(config=self.layers.config), len(self.layers.layers), list[np.ndarray]()
        states = self.states(text[:-1])
        tokens, out = list(text[1 + start :]), states[:, :read]
        for layer in range(n if read else 0):
            ids, at = torch.tensor([text[1 + layer : 1 + read]]), torch.arange(1 + layer, 1 + read)[None]
            out = self.layers.forward_layer(layer, out, at.to(DEVICE), cache, input_ids=ids.to(DEVICE))[
                :, :-1
            ]
        out = states[:, start:]
        for depth, token in enumerate([None, *drafted]):
            if token is not None:
                tokens, out = ([*tokens[1:], token], out) if n > 1 else ([token], out[:, -1:])
            ids = torch.tensor([tokens], device=DEVICE)
            at = torch.arange(len(text) + depth - len(tokens), len(text) + depth, device=DEVICE)[None]
            out = self.layers.forward_layer(depth % n, out, at, cache, input_ids=ids)
            rows.append(self.layers._project_to_logits(out)[0, -1].cpu().numpy())
        return np.stack(rows)


@pytest.fixture
def world(folders: tuple[Path, Path]) -> Iterator[World]:
    with closing(World(folders[0])) as opened:
        yield opened


def close(rows: np.ndarray, others: np.ndarray) -> bool:
    return rows.shape == others.shape and bool((np.abs(rows - others) < ROUNDING).all())


def test_chains_and_trees_are_those_of_transformers(world: World) -> None:
    _reading, drafting = world.begin(TEXT)
    assert drafting.is_ready
    drafted = DRAFTED[: world.draft.max_depth - 1]
    assert close(world.rows(drafting, chain(drafted, "test")), world.expected(TEXT, drafted))
    if world.draft.caps.max_branches > 1:
        drafting.discard_tree()
        rows = world.rows(drafting, TREE)
        for node in range(len(TREE)):
            assert close(rows[[node + 1]], world.expected(TEXT, TREE.path_tokens(node))[-1:])


def test_drafts_of_a_whole_text_are_those_of_transformers_generator(world: World) -> None:
    model, text, accepted = world.target._model, TEXT[:], 0
    generator = transformers.generation.candidate_generator.MTPCandidateGenerator(
        model, transformers.GenerationConfig(do_sample=False), {}
    )
    reading, drafting = world.begin(text)
    states, n = world.states(text[:-1]), len(world.layers.layers)
    for more in (0, 1, n, 0, 1, 0):
        at = torch.arange(len(text), device=DEVICE)[None]
        ids, out = torch.tensor([text], device=DEVICE), SimpleNamespace(hidden_states=[states])
        with torch.inference_mode():
            found, logits = generator.get_candidates(ids, {"position_ids": at}, out, False, accepted)
        drafted = found[0, len(text) :].tolist()
        rows = world.rows(drafting, chain(drafted[:-1], "test"))
        assert close(rows, logits[0].cpu().numpy())
        assert rows.argmax(-1).tolist() == drafted
        # The drafts are verified as if `more` of them were right.
        verified = world.target.forward([(reading, chain(drafted, "test"))], world.want)[0]
        states = world.states([*text, *drafted])[:, -1 - len(drafted) :]
        reading.commit(range(more), 70 + more)
        drafting.extend([*drafted[:more], 70 + more])
        shown = verified.features  # of a recurrent target from its checkpoint on
        drafting.observe(shown.start, shown.hidden[: shown.lead + 1 + more])
        text, accepted = [*text, *drafted[:more], 70 + more], more


def test_two_sessions_in_turns_have_the_rows_of_each_alone(world: World) -> None:
    drafted = DRAFTED[: world.draft.max_depth - 1]
    pairs = [(text, world.begin(text)) for text in (TEXT, OTHER)]
    for n in range(len(drafted) + 1):
        tree = chain(drafted[:n], "test")
        outs = world.draft.forward([(drafting, tree) for _, (_, drafting) in pairs], NO_OUTPUTS)
        for out, (text, _) in zip(outs, pairs, strict=True):
            assert np.abs(out.logits(n) - world.expected(text, drafted[:n])[-1]).max() < ROUNDING


@pytest.mark.parametrize("kept", [5, len(TEXT)])
def test_a_closed_session_goes_on_with_another_text(world: World, kept: int) -> None:
    _reading, drafting = world.begin(TEXT)
    world.rows(drafting, chain(DRAFTED[:1], "test"))
    drafting.close()
    drafting.rewind(kept)
    text = [*TEXT[:kept], 33, 34, 35]
    drafting.extend(text)
    assert not drafting.is_ready
    drafting.observe(0, world.states(text[:-1])[0][:, None])
    assert close(world.rows(drafting, chain([9], "test")), world.expected(text, [9]))


def test_tokens_whose_states_were_not_shown_are_left_out(world: World) -> None:
    states = world.states(TEXT[:-1])[0][:, None]
    for read in (0, 4):
        drafting = world.draft.open()
        drafting.extend(TEXT[:6])
        drafting.observe(0, states[: read + read // 4])
        world.draft.forward([(drafting, read)], NO_OUTPUTS)
        drafting.extend(TEXT[6:])
        drafting.observe(8, states[8:])
        assert drafting.is_ready
        rows = world.rows(drafting, chain([9], "test"))
        assert close(rows, world.expected(TEXT, [9], start=8, read=read))


@pytest.mark.parametrize("width", [1, 3])
@pytest.mark.parametrize("temperature", [0.0, 0.3])
def test_drafted_text_is_plain_text(folders: tuple[Path, Path], width: int, temperature: float) -> None:
    request: dict[str, Any] = {"sampling": Sampling(temperature=temperature), "seed": 5}
    with closing(World(folders[1])) as world:
        plain, _ = decoded(world.target, NoDrafter(), TEXT, 40, **request)
        for draft_temp in (0.0, 0.5):
            drafter = HeadDrafter(world.draft, temperature=draft_temp)
            budget = Budget(3, 3 * width, width=width)
            text, steps = decoded(world.target, drafter, TEXT, 40, budget, **request)
            assert text == plain or draft_temp > 0.0
            assert sum(len(step.path) for step in steps) > (0 if draft_temp else 5)


def test_the_layers_draft_in_generate(folders: tuple[Path, Path]) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folders[1]).to(DEVICE)
    given: dict[str, Any] = {"inputs": torch.tensor([TEXT], device=DEVICE), "max_new_tokens": 16}
    plain = model.generate(**given, do_sample=False)
    given |= {"custom_generate": paceline.hf_generate, "draft_model": "view:mtp", "drafters": ("mtp",)}
    given |= {"drafting": {"p_min": 0.0}}
    model.generate(**given)  # the first time it is measured
    passes = list[Any]()
    with model.register_forward_pre_hook(lambda *got: passes.append(got)):
        assert torch.equal(model.generate(**given, do_sample=False), plain)
    assert len(passes) < 14


def test_auto_finds_the_layers_by_itself_and_the_folder_says_so(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = folders
    with paceline.load(folder, threads=1, n_ctx=64, device=DEVICE) as llm:
        assert "mtp" in llm.drafter.name.split(",")
        assert llm.generate(TEXT, max_tokens=8, ignore_eos=True).stats.tokens == 8
    facts = read_model_facts(folder, tokens=False)
    assert (facts.mtp, facts.traits.mtp) == (USABLE, USABLE)
    assert 0.1 < facts.mtp_cost < 1.0
    assert command(capsys, "check", folder, "view:mtp").code == 0
    assert "view:mtp" in command(capsys, "pairs", folder).out


def test_layers_that_cannot_be_loaded_are_left_out_in_a_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from safetensors.torch import load_file, save_file

    folder = write_mtp("glm4_moe", tmp_path)
    tensors = load_file(folder / "model.safetensors")
    del tensors["model.layers.2.hnorm.weight"]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with paceline.load(folder, threads=1, n_ctx=64, device=DEVICE) as llm:
        assert "mtp" not in llm.drafter.name.split(",")
    assert "multi-token prediction (MTP) is not used: " in capsys.readouterr().err
    with pytest.raises(ModelError, match="weights are missing"):
        paceline.load(folder, drafters="mtp", threads=1, n_ctx=64, device=DEVICE)
    tensors = {name: one for name, one in tensors.items() if ".layers.2." not in name}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    assert read_model_facts(folder, tokens=False).mtp == STRIPPED
    with paceline.load(folder, threads=1, n_ctx=64, device=DEVICE) as llm:
        assert "mtp" not in llm.drafter.name.split(",")
    assert "MTP" not in capsys.readouterr().err
    with pytest.raises(UsageError, match="were left out of its file"):
        paceline.load(folder, drafters="mtp", threads=1, n_ctx=64, device=DEVICE)
