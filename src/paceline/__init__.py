"""Paceline: faster decoding of the models you already have, with the same output.

    with paceline.load("model.gguf", draft="small.gguf") as llm:
        print(llm.generate("def fibonacci(n):", max_tokens=100).text)

The public names are imported at their first use, so that `import paceline` is fast.
"""

from importlib import import_module

TYPE_CHECKING = False  # without importing `typing`: Ctrl-C during that import would show a traceback

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
    """Return all public names, also those that are not imported yet."""
    return sorted({*globals(), *__all__})
