"""Model references, and the file of a repository that each one selects."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from paceline.models.stores.reference import HUB, OLLAMA, PATH, ZOO, Reference, parse, select_variant
from paceline.speculative.errors import UsageError

LIBRARY = "registry.ollama.ai/library"


PATHS = ("m.gguf", "dir/M.GGUF", "~/m", "/models/a:b", "a/b/c", "C:/m.gguf")


@pytest.mark.parametrize(
    ("text", "kind", "name", "tag"),
    [
        *((path, PATH, path, "") for path in PATHS),
        ("ollama:llama3.2:3b", OLLAMA, f"{LIBRARY}/llama3.2", "3b"),
        ("ollama:llama3.2", OLLAMA, f"{LIBRARY}/llama3.2", "latest"),
        ("ollama:hf.co/me/mine-GGUF:Q8_0", OLLAMA, "hf.co/me/mine-GGUF", "Q8_0"),
        ("hf.co/user/repo:Q4_K_M", HUB, "user/repo", "Q4_K_M"),
        ("hf.co/user/repo:latest", HUB, "user/repo", ""),
        ("https://huggingface.co/user/repo", HUB, "user/repo", ""),
        ("https:/huggingface.co/user/repo", HUB, "user/repo", ""),  # as a Path spells it
        ("https://huggingface.co/user/repo/tree/main", HUB, "user/repo", ""),
        ("https://huggingface.co/u/r/resolve/main/Q8/m.gguf?download=true", HUB, "u/r", "Q8/m.gguf"),
        ("user/repo:q8_0", HUB, "user/repo", "q8_0"),
        ("user/repo:m-Q8_0.gguf", HUB, "user/repo", "m-Q8_0.gguf"),
        ("zoo:target", ZOO, "target", ""),
        ("ZOO:smollm2-draft", ZOO, "smollm2-draft", ""),
    ],
)
def test_every_way_to_name_a_model(text: str, kind: str, name: str, tag: str) -> None:
    reference = parse(text)
    assert reference == Reference(kind, name, tag)
    assert parse(str(reference)) == reference


@pytest.mark.parametrize("text", ["ollama:llama3.2", "user/repo", "zoo:target", "a;b", "llama"])
def test_a_path_that_exists_wins(text: str) -> None:
    assert parse(text, exists={text}.__contains__) == Reference(PATH, text)


NO_NAMES = [
    "", " \n", "llama3.2", "ollama:", "ollama:a/b/c/d", "ollama:../../etc/passwd",
    "ollama:a..b", "ollama:a\0b", "user/", "user/repo:", "user/a--b", "user/repo.",
    "hf.co/user", "hf.co/user/repo/tree/dev", "https://example.com/user/repo", "zoo:",
    "\x1b[31mred",
    "hf.co/" + "a" * 600 + "/b", "user/repo;rm", "user/`id`", "user/repo:a|b", "ollama:a$(id)",
    "ollama:-flag", "user/--repo", "user/re po", "user/repo\n", "us..er/repo", "zoo:../x", "zoo:a/b",
    "hf.co/../user/repo",
]  # fmt: skip


@pytest.mark.parametrize("text", NO_NAMES)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="no such file, and no name of a model: give a path") as caught:
        parse(text)
    assert len(str(caught.value)) < 400


WORDS = st.sampled_from(
    ["ollama:", "hf.co/", "zoo:", "https://", "..", "/", ":", "a", "b-c", "\\", "\0", "\n"]
)


@given(st.one_of(st.text(), st.lists(WORDS, max_size=8).map("".join)))
def test_whatever_is_typed_nothing_leads_out_of_a_store(text: str) -> None:
    try:
        reference = parse(text, exists=lambda _: False)
    except UsageError:
        return
    if reference.kind != PATH:
        parts = [*reference.name.split("/"), *reference.tag.split("/")]
        assert len(parts) <= 8
        assert not any(".." in part or "\\" in part or not part.isprintable() for part in parts)
        assert not Path(reference.name).is_absolute()
        assert parse(str(reference), exists=lambda _: False) == reference


QUANTS = ["IQ2_M", "Q2_K", "Q3_K_L", "Q4_K_L", "Q4_K_M", "Q4_K_M_L", "Q8_0", "Q8_0_L", "f32"]
BARTOWSKI = [f"Phi-3-mini-{quant}.gguf" for quant in QUANTS]
SPLIT = [f"{q}/m-{q}-0000{i}-of-00002.gguf" for q in ("Q2_K", "Q8_0") for i in (2, 1)]
UNSLOTH = [f"Qwen3-8B-{quant}.gguf" for quant in ("UD-Q4_K_M", "Q4_K_M", "UD-Q4_K_XL")]
UNSLOTH += ["BF16/Qwen3-8B.gguf"]
WITH_HEADS = ["m-Q8_0.gguf", "dflash-m-Q8_0.gguf", "eagle3-m-BF16.gguf", "eagle3-m-Q4_0.gguf"]
NAME_IT = "Name it after a colon, as in hf.co/u/r:"


@pytest.mark.parametrize(
    ("names", "asked", "files"),
    [
        (BARTOWSKI, "", ["Phi-3-mini-Q4_K_M.gguf"]), (BARTOWSKI, "Q4_K_M_L", ["Phi-3-mini-Q4_K_M_L.gguf"]),
        (BARTOWSKI, "F32", ["Phi-3-mini-f32.gguf"]),
        (BARTOWSKI, "phi-3-mini-q2_k.gguf", ["Phi-3-mini-Q2_K.gguf"]),
        (SPLIT, "", ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"]),
        (SPLIT, "m-Q2_K-00001-of-00002.gguf", SPLIT[1::-1]), (UNSLOTH, "", ["Qwen3-8B-Q4_K_M.gguf"]),
        (UNSLOTH, "UD-Q4_K_M", ["Qwen3-8B-UD-Q4_K_M.gguf"]), (UNSLOTH, "bf16", ["BF16/Qwen3-8B.gguf"]),
        (["mmproj-m-Q8_0.gguf", "m.Q5_0.gguf", "imatrix-Q8_0.gguf", "mtp-m-Q8_0.gguf"], "", ["m.Q5_0.gguf"]),
        (["ggml-model-q4_0.gguf", "tokenizer.json"], "Q4_0", ["ggml-model-q4_0.gguf"]),
        (["a/m-Q8_0.gguf", "b/m-Q8_0.gguf"], "b/m-Q8_0.gguf", ["b/m-Q8_0.gguf"]),
        (WITH_HEADS, "", ["m-Q8_0.gguf"]), (WITH_HEADS, "Q8_0", ["m-Q8_0.gguf"]),
        (WITH_HEADS, "dflash", ["dflash-m-Q8_0.gguf"]),
        (WITH_HEADS, "EAGLE3-m-BF16.gguf", ["eagle3-m-BF16.gguf"]),
        (WITH_HEADS[1:], "", ["dflash-m-Q8_0.gguf"]), (WITH_HEADS[1:], "bf16", ["eagle3-m-BF16.gguf"]),
    ],
)  # fmt: skip
def test_the_file_that_is_meant(names: list[str], asked: str, files: list[str]) -> None:
    assert select_variant(names, asked, "u/r") == tuple(files)


@pytest.mark.parametrize(
    ("names", "asked", "said"),
    [
        ([], "", "u/r: has no model as a GGUF file; look for a repository whose name ends in -GGUF"),
        (["a-Q2_K.gguf", "a-F16.gguf"], "", f"u/r: which one of F16, Q2_K? {NAME_IT}F16"),
        (["a-Q2_K.gguf"], "Q2", f"u/r: has no Q2; there is Q2_K. {NAME_IT}Q2_K"),
        (["a-Q4_K_M_L.gguf"], "Q4_K_M", "u/r: has no Q4_K_M; there is Q4_K_M_L."),
        (
            ["mmproj-a-Q8_0.gguf", "a-Q2_K.gguf"],
            "mmproj-a-Q8_0.gguf",
            "u/r: mmproj-a-Q8_0.gguf is a projector",
        ),
        (
            ["mtp-a-Q8_0.gguf", "a-Q2_K.gguf"],
            "mtp-a-Q8_0.gguf",
            "is a file of MTP layers without their model",
        ),
        (WITH_HEADS, "eagle3", f"which one of eagle3-m-BF16.gguf, eagle3-m-Q4_0.gguf? {NAME_IT}eagle3-m-BF"),
        (
            WITH_HEADS[:2],
            "eagle3",
            f"has no eagle3; there is dflash-m-Q8_0.gguf. {NAME_IT}dflash-m-",
        ),
        (["x/a-Q8_0.gguf", "b-Q8_0.gguf"], "", f"which one of b-Q8_0.gguf, x/a-Q8_0.gguf? {NAME_IT}"),
        ([SPLIT[0], SPLIT[3]], "Q2_K", "u/r: 1 of the parts of Q2_K are missing"),
        (["../a-Q8_0.gguf", "/a-Q8_0.gguf"], "", "u/r: has no model as a GGUF file"),
        ([f"m{i}-Q2_K.gguf" for i in range(99)], "", "m3-Q2_K.gguf and 75 more? Name it after"),
    ],
)
def test_what_is_not_clear_is_asked_back(names: list[str], asked: str, said: str) -> None:
    with pytest.raises(UsageError) as caught:
        select_variant(names, asked, "u/r")
    assert said in str(caught.value)
