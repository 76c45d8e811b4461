"""Where Paceline keeps what belongs to its user: corpora, and what it remembers."""

from __future__ import annotations

import os
from pathlib import Path


def home() -> Path:
    """PACELINE_HOME, or the platform's own folder for such data. It need not exist yet."""
    if given := os.environ.get("PACELINE_HOME"):
        return Path(given).expanduser().absolute()
    from platformdirs import user_data_path

    return user_data_path("paceline")
