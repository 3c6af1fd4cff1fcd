"""The user's cache folder, for files that can be downloaded or unpacked again."""

from __future__ import annotations

import os
from pathlib import Path


def user_cache() -> Path | None:
    """The package's folder in the user's cache; ``None`` for a user without a home folder."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return None if cache == "~/.cache" else Path(cache) / "bnrecon"
