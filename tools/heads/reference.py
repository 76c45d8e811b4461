"""Compute reference values of published draft heads by the classes that their authors publish."""

import argparse
import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

from tools.heads import cases

OUT = Path("tests/data/heads")
MAX_BYTES = 150_000


def speculators_cases() -> dict[str, Callable[[], cases.Reference]]:
    """Return what `speculators` computes: a file's name, and how to make it."""
    from tools.heads.speculators_dflash import dflash, dspark
    from tools.heads.speculators_eagle3 import eagle3

    two_layers = {"num_hidden_layers": 2, "attention_bias": True, "theta": 500000.0}
    sliding = {"layer_types": ["sliding_attention"], "sliding_window": 8}
    mixed = {
        "layer_types": ["sliding_attention", "full_attention"],
        "use_sliding_window": True,
        "sliding_window": 5,
    }
    published = {"norm_before_residual": True, "norm_before_fc": True, "norm_output": True}
    return {
        "eagle3": lambda: eagle3(1, {}, {}),
        "eagle3_norm_before_residual": lambda: eagle3(2, {}, {"norm_before_residual": True}),
        "eagle3_norm_before_fc": lambda: eagle3(3, {}, {"norm_before_fc": True}),
        "eagle3_fc_norm": lambda: eagle3(4, {}, {"fc_norm": True}),
        "eagle3_norm_output": lambda: eagle3(5, {}, {"norm_output": True}),
        "eagle3_sliding": lambda: eagle3(6, sliding, published),
        "eagle3_head_dim": lambda: eagle3(7, {"head_dim": 16}, {}),
        "eagle3_qwen3": lambda: eagle3(8, {"architecture": "qwen3"}, {"norm_before_residual": True}),
        "eagle3_two_layers": lambda: eagle3(9, two_layers, {}),
        "eagle3_full_vocabulary": lambda: eagle3(10, {}, {"draft_vocab_size": cases.VOCABULARY}),
        "dflash": lambda: dflash(11, {}, {}),
        "dflash_small_blocks": lambda: dflash(
            12, {"head_dim": 16, "num_hidden_layers": 1}, {"block_size": 4}
        ),
        "dflash_sliding": lambda: dflash(13, mixed, {}),
        "dflash_sliding_non_causal": lambda: dflash(14, mixed, {"sliding_window_non_causal": True}),
        "dflash_full_vocabulary": lambda: dflash(15, {}, {"draft_vocab_size": cases.VOCABULARY}),
        "dspark": lambda: dspark(21, {}, {}),
        "dspark_gated": lambda: dspark(22, {}, {"markov_head_type": "gated"}),
        "dspark_rnn": lambda: dspark(23, {}, {"markov_head_type": "rnn", "block_size": 4}),
        "dspark_from_mask": lambda: dspark(24, mixed, {"sample_from_anchor": False}),
        "dspark_no_markov": lambda: dspark(25, {}, {"markov_rank": 0, "confidence_head_with_markov": False}),
    }


def authors_cases(folder: Path) -> dict[str, Callable[[], cases.Reference]]:
    """Return what the authors' own code computes, of the checkouts that the folder has."""
    from tools.heads import authors_eagle, authors_others

    makers: dict[str, Callable[[], cases.Reference]] = {}
    if (folder / "EAGLE").is_dir():
        cnets3 = load(folder / "EAGLE", "eagle.model.cnets")
        makers["eagle3_safeailab"] = lambda: authors_eagle.eagle3(cnets3, 33)
        makers["eagle3_safeailab_head_dim"] = lambda: authors_eagle.eagle3(cnets3, 35, head_dim=16)
        makers["eagle3_safeailab_wide_target"] = lambda: authors_eagle.eagle3(
            cnets3, 36, target_hidden_size=48
        )
    if (folder / "eagle-llm").is_dir():
        cnets = load(folder / "eagle-llm", "eagle.model.cnets")
        makers["eagle"] = lambda: authors_eagle.eagle(cnets, 41, bias=True)
        makers["eagle_no_bias"] = lambda: authors_eagle.eagle(cnets, 42, bias=False)
    if (folder / "medusa-llm").is_dir():
        authors_others.without_base_models(["medusa.model.modeling_llama_kv"])
        medusa = load(folder / "medusa-llm", "medusa.model.medusa_model")
        makers["medusa"] = lambda: authors_others.medusa(medusa, 51, heads=3)
        makers["medusa_two_blocks"] = lambda: authors_others.medusa(medusa, 52, heads=2, blocks=2)
    if (folder / "Kangaroo").is_dir():
        adapter = load(folder / "Kangaroo", "kangaroo.adapter")
        makers["kangaroo"] = lambda: authors_others.kangaroo(adapter, 61)
    return makers


def load(checkout: Path, name: str) -> ModuleType:
    """Import a module of a checkout; packages of the same name may come from several of them."""
    top = name.split(".")[0]
    for loaded in [module for module in sys.modules if module.split(".")[0] == top]:
        if sys.modules[loaded].__spec__ is not None:
            del sys.modules[loaded]
    sys.path.insert(0, str(checkout))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(checkout))


def main() -> None:
    """Write the files."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--authors",
        type=Path,
        help="a folder with the authors' code: EAGLE and Kangaroo (checkouts of the repositories), eagle-llm "
        "and medusa-llm (the unpacked wheels)",
    )
    parser.add_argument("--out", type=Path, default=OUT, help=f"the folder to write to (default: {OUT})")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="write only these files")
    arguments = parser.parse_args()
    os.environ["HF_HUB_OFFLINE"] = "1"  # speculators looks for the target's configuration
    arguments.out.mkdir(parents=True, exist_ok=True)
    makers = speculators_cases()
    if arguments.authors is not None:
        makers |= authors_cases(arguments.authors)
    for name, make in makers.items():
        if arguments.only is None or name in arguments.only:
            path = arguments.out / f"{name}.npz"
            make().save(path)
            size = path.stat().st_size
            print(f"{path}: {size} bytes")
            if size > MAX_BYTES:
                raise SystemExit(f"{path} has more than {MAX_BYTES} bytes")


if __name__ == "__main__":
    main()
