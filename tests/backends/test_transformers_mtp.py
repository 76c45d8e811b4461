"""A model's own MTP layers draft what transformers' MTPCandidateGenerator does."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import paceline
from assistants import DRAFTED, OTHER, TEXT, TREE, AssistantWorld
from command_line import command
from decoding import decoded
from hf_models import DEVICE, MTP, model_of, tokenizer_of, with_large_weights
from paceline.backends.transformers.target import HfTarget
from paceline.drafters.head import HeadDrafter
from paceline.drafters.none import NoDrafter
from paceline.fits import USABLE
from paceline.models.headers import hub_folder
from paceline.models.headers.header import read_model_facts
from paceline.speculative.errors import ModelError, UsageError
from paceline.speculative.interfaces import NO_OUTPUTS, Budget
from paceline.speculative.sampling import Sampling
from paceline.speculative.tree import chain

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
MtpModel = pytest.importorskip("transformers.modeling_layers").MtpModel
MtpCache = pytest.importorskip("transformers.cache_utils").MtpCache

PLACES = {"mellum": "mtp.layers.0", "inkling_text": "model.mtp.layers.{}"}
SETTINGS: dict[str, Any] = {"threads": 1, "n_ctx": 64, "device": DEVICE}


def write_mtp(kind: str, folder: Path, loudness: float = 1.0, left_out: str = "none") -> Path:
    """A model with MTP layers, without the weights `left_out`. In quiet layers a token follows from the one
    before, and drafts are right."""
    from safetensors.torch import load_file, save_file

    model = model_of(kind)
    layers, width = with_large_weights(MtpModel(model, MTP[kind]["num_mtp_layers"])).layers, 32
    for name, weight in [*model.named_parameters(), *layers.named_parameters()]:
        if "eh_proj" in name:  # of the token and the hidden state
            weight.data *= 0.05
            weight.data[:, width * (kind == "inkling_text") :][:, :width] += torch.eye(width)
        if "o_proj" in name or "down_proj" in name:
            weight.data *= loudness
    model.save_pretrained(folder)
    tokenizer_of().save_pretrained(folder)
    tensors = load_file(folder / "model.safetensors")
    for name, weight in layers.state_dict().items():
        layer, _, rest = name.partition(".")
        rest = rest if kind in PLACES else rest.removeprefix("mtp_block.")
        tensors[PLACES.get(kind, "model.layers.2").format(layer) + "." + rest] = weight
    tensors = {name: weight for name, weight in tensors.items() if left_out not in name}
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.fixture(scope="module", autouse=True)
def small_models_are_released_too() -> Iterator[None]:
    """The classes know the places of the layers in the released models, which have more layers."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("Glm4MoeForCausalLM", "DeepseekV3ForCausalLM"):
            model = getattr(transformers, name)
            patch.setattr(model, "_keys_to_ignore_on_load_unexpected", [r"model\.layers\.2\..*"])
        for name in ("glm4_moe", "deepseek_v3"):
            patch.setitem(hub_folder._MTP_LAYERS, name, (2,))
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

        def layer(i: int, out: Any, tokens: Sequence[int], end: int) -> Any:
            ids = torch.tensor([tokens], device=DEVICE)
            at = torch.arange(end - len(tokens), end, device=DEVICE)[None]
            return self.layers.forward_layer(i, out, at, cache, input_ids=ids)

        states, tokens = self.states(text[:-1]), list(text[1 + start :])
        out = states[:, :read]
        for i in range(n if read else 0):
            out = layer(i, out, text[1 + i : 1 + read], 1 + read)[:, :-1]
        out = states[:, start:]
        for depth, token in enumerate([None, *drafted]):
            if token is not None:
                tokens, out = ([*tokens[1:], token], out) if n > 1 else ([token], out[:, -1:])
            out = layer(depth % n, out, tokens, len(text) + depth)
            rows.append(self.layers._project_to_logits(out)[0, -1].cpu().numpy())
        return np.stack(rows)


@pytest.fixture
def world(folders: tuple[Path, Path]) -> Iterator[World]:
    with closing(World(folders[0])) as opened:
        yield opened


def test_sessions_in_turns_have_the_rows_of_transformers(world: World) -> None:
    drafted = DRAFTED[: world.draft.max_depth - 1]
    pairs = [(text, world.begin(text)) for text in (TEXT, OTHER)]
    for n in range(len(drafted) + 1):
        batch = [(drafting, chain(drafted[:n], "test")) for _, (_, drafting) in pairs]
        for out, (text, _) in zip(world.draft.forward(batch, NO_OUTPUTS), pairs, strict=True):
            assert world.are_close(out.logits(n), world.expected(text, drafted[:n])[-1])
    if world.draft.caps.max_branches > 1:
        drafting = pairs[0][1][1]
        drafting.discard_tree()
        rows = world.rows(drafting, TREE)
        for node in range(len(TREE)):
            assert world.are_close(rows[node + 1], world.expected(TEXT, TREE.path_tokens(node))[-1])


def test_drafts_of_a_whole_text_are_those_of_transformers_generator(world: World) -> None:
    model, text, accepted, n = world.target._model, TEXT[:], 0, len(world.layers.layers)
    generator = transformers.generation.candidate_generator.MTPCandidateGenerator(
        model, transformers.GenerationConfig(do_sample=False), {}
    )
    (reading, drafting), states = world.begin(text), world.states(text[:-1])
    for more in (0, 1, n, 0, 1, 0):
        at = torch.arange(len(text), device=DEVICE)[None]
        ids, out = torch.tensor([text], device=DEVICE), SimpleNamespace(hidden_states=[states])
        with torch.inference_mode():
            found, logits = generator.get_candidates(ids, {"position_ids": at}, out, False, accepted)
        drafted = found[0, len(text) :].tolist()
        rows = world.rows(drafting, chain(drafted[:-1], "test"))
        assert world.are_close(rows, logits[0].cpu().numpy())
        assert rows.argmax(-1).tolist() == drafted
        # The drafts are verified as if `more` of them were right.
        shown = world.target.forward([(reading, chain(drafted, "test"))], world.want)[0].features
        states = world.states([*text, *drafted])[:, -1 - len(drafted) :]
        new, accepted = [*drafted[:more], 70 + more], more
        reading.commit(range(more), new[-1])
        drafting.extend(new)
        drafting.observe(shown.start, shown.hidden[: shown.lead + 1 + more])
        text += new


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
    assert world.drafts(drafting, text, [9])


@pytest.mark.parametrize("read", [0, 4])
def test_tokens_whose_states_were_not_shown_are_left_out(world: World, read: int) -> None:
    drafting, states = world.draft.open(), world.states(TEXT[:-1])[0][:, None]
    drafting.extend(TEXT[:6])
    drafting.observe(0, states[: read + read // 4])
    world.draft.forward([(drafting, read)], NO_OUTPUTS)
    drafting.extend(TEXT[6:])
    drafting.observe(8, states[8:])
    assert drafting.is_ready
    expected = world.expected(TEXT, [9], start=8, read=read)
    assert world.are_close(world.rows(drafting, chain([9], "test")), expected)


@pytest.mark.parametrize(("width", "temperature"), [(1, 0.1), (3, 0.0)])
def test_drafted_text_is_plain_text(folders: tuple[Path, Path], width: int, temperature: float) -> None:
    request: dict[str, Any] = {"sampling": Sampling(temperature=temperature), "seed": 5}
    with closing(World(folders[1])) as world:
        plain, _ = decoded(world.target, NoDrafter(), TEXT, 40, **request)
        for draft_temp in (0.0, 0.5):
            drafter = HeadDrafter(world.draft, temperature=draft_temp)
            budget = Budget(3, 3 * width, width=width)
            text, steps = decoded(world.target, drafter, TEXT, 40, budget, **request)
            assert text == plain or draft_temp > 0.0
            assert sum(len(step.path) for step in steps) > (0 if draft_temp else 3)


def test_the_layers_draft_in_generate(folders: tuple[Path, Path]) -> None:
    model = transformers.AutoModelForCausalLM.from_pretrained(folders[1]).to(DEVICE)
    given = {"inputs": torch.tensor([TEXT], device=DEVICE), "max_new_tokens": 16, "do_sample": False}
    plain, passes = model.generate(**given), list[Any]()
    given |= {"custom_generate": paceline.hf_generate, "draft_model": "view:mtp", "drafters": ("mtp",)}
    given |= {"drafting": {"p_min": 0.0}}
    model.generate(**given)  # the first time it is measured
    with model.register_forward_pre_hook(lambda *got: passes.append(got)):
        assert torch.equal(model.generate(**given), plain)
    assert len(passes) < 15  # a prompt may take two: for the state before its end


def test_auto_finds_the_layers_by_itself_and_the_folder_says_so(
    folders: tuple[Path, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    folder, _ = folders
    with paceline.load(folder, **SETTINGS) as llm:
        assert "mtp" in llm.drafter.name.split(",")
        assert llm.generate(TEXT, max_tokens=8, ignore_eos=True).stats.tokens == 8
    facts = read_model_facts(folder, tokens=False)
    assert facts.mtp == USABLE
    assert 0.1 < facts.mtp_cost < 1.0
    assert command(capsys, "check", folder, "view:mtp").code == 0
    assert "view:mtp" in command(capsys, "pairs", folder).out


@pytest.mark.parametrize(
    ("left_out", "error", "reason"),
    [
        ("model.layers.2.hnorm", ModelError, "weights are missing"),
        ("model.layers.2.", UsageError, "were left out of its file"),
    ],
)
def test_without_the_weights_auto_does_without(
    left_out: str, error: type[Exception], reason: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = write_mtp("glm4_moe", tmp_path, left_out=left_out)
    with paceline.load(folder, **SETTINGS) as llm:
        assert "mtp" not in llm.drafter.name.split(",")
    assert (reason in capsys.readouterr().err) == (error is ModelError)  # in a line
    with pytest.raises(error, match=reason):
        paceline.load(folder, drafters="mtp", **SETTINGS)
