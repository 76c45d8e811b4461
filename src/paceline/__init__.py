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

    from paceline.api import LLM as LLM
    from paceline.backends.toy import ToyTarget as ToyTarget
    from paceline.integrations.transformers_generate import hf_generate as hf_generate
    from paceline.loading import load as load
    from paceline.request_handle import Generation as Generation
    from paceline.speculative.errors import BatchError as BatchError
    from paceline.speculative.errors import PacelineError as PacelineError
    from paceline.speculative.sampling import Sampling as Sampling
    from paceline.speculative.tree import DraftTree as DraftTree

_HOMES = {
    "load": "paceline.loading",
    "LLM": "paceline.api",
    "Generation": "paceline.request_handle",
    "Sampling": "paceline.speculative.sampling",
    "DraftTree": "paceline.speculative.tree",
    "ToyTarget": "paceline.backends.toy",
    "BatchError": "paceline.speculative.errors",
    "PacelineError": "paceline.speculative.errors",
    "hf_generate": "paceline.integrations.transformers_generate",
}
__all__ = ["__version__", *_HOMES]


def __getattr__(name: str) -> "Any":
    if name not in _HOMES:
        raise AttributeError(f"module 'paceline' has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    """The public names, whether or not they have been used yet."""
    return sorted({*globals(), *__all__})
