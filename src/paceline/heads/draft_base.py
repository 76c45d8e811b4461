"""What all drafts have that draw on another model."""

from __future__ import annotations

from pathlib import Path
from typing import Any


class DraftBase:
    """A draft in the folder `path`, beside or around the model `_base`."""

    modification = ""
    path: Path
    _base: Any

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def origin(self) -> str:
        return str(self.path)

    @property
    def text(self) -> Any:
        return self._base.text

    @property
    def token_trie(self) -> Any:
        return self._base.token_trie
