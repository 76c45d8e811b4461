"""Compile the kernels if needed, and print the library's path."""

from __future__ import annotations

import sys

from paceline.backends.llama_cpp.kernels.build import library, recipe_for
from paceline.speculative.errors import KernelError


def main() -> int:
    try:
        print(library(recipe_for(), again=True))
    except KernelError as error:
        print(f"paceline: no kernels: {error}", file=sys.stderr)
        return KernelError.exit_code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
