"""Paceline: faster decoding of the models you already have, with the same output.

    with paceline.load("model.gguf", draft="small.gguf") as llm:
        print(llm.generate("def fibonacci(n):", max_tokens=100).text)

The names below are imported when first used, so that `import paceline` stays light.
"""

from importlib import import_module

TYPE_CHECKING = False  # typing's own, without importing that: until it is here, Ctrl-C shows a traceback

__version__ = "0.1.0"

if TYPE_CHECKING:
    from typing import Any

    from paceline.assemble import load as load
    from paceline.core.errors import BatchError as BatchError
    from paceline.core.errors import PacelineError as PacelineError
    from paceline.core.sampling import Sampling as Sampling
    from paceline.core.tree import DraftTree as DraftTree
    from paceline.engines.toy import ToyTarget as ToyTarget
    from paceline.generating import hf_generate as hf_generate
    from paceline.handle import Generation as Generation
    from paceline.llm import LLM as LLM

_HOMES = {
    "load": "paceline.assemble",
    "LLM": "paceline.llm",
    "Generation": "paceline.handle",
    "Sampling": "paceline.core.sampling",
    "DraftTree": "paceline.core.tree",
    "ToyTarget": "paceline.engines.toy",
    "BatchError": "paceline.core.errors",
    "PacelineError": "paceline.core.errors",
    "hf_generate": "paceline.generating",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> "Any":
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, whether or not they have been used yet."""
    return sorted({*globals(), *__all__})
