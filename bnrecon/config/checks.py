"""Checks of what a run needs: writable folders, a GPU, memory."""

from __future__ import annotations

import tempfile
from pathlib import Path

from bnrecon.config.schema import RunConfig
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.extras import require_trackers
from bnrecon.runtime.options import check_path
from bnrecon.runtime.units import format_bytes


def require_folders(config: RunConfig) -> None:
    """Raise ``UserError`` if the folder of a run's results or targets is impossible."""
    require_folder("outputs", config.outputs)
    if config.targets is not None:
        require_folder("targets", config.targets)


def require_folder(name: str, folder: str) -> None:
    """Raise ``UserError`` if an option's folder is a file, or cannot be created.

    Creates nothing permanently. An existing folder may be read-only.
    """
    check_path(name, folder)
    if Path(folder).is_symlink() and not Path(folder).exists():
        raise UserError(f"{name}={folder}: this link leads nowhere; give a folder")
    ancestor, shown = Path(folder), folder if len(folder) <= 200 else f"{folder[:200]}…"
    try:
        while not ancestor.exists():
            ancestor = ancestor.parent
        if not ancestor.is_dir():
            raise UserError(f"{name}={shown}: {ancestor} is a file; give a folder")
        if ancestor != Path(folder):
            with tempfile.TemporaryDirectory(dir=ancestor):
                pass
    except OSError as error:
        raise UserError(
            f"{name}={shown}: cannot be created ({error.strerror}); give another folder"
        ) from None


def check_machine(config: RunConfig) -> None:
    """Raise ``UserError`` for what is missing: a GPU, memory, a tracker's library."""
    from bnrecon.runtime import hardware  # late: help and completion do not load torch
    from bnrecon.targets.building import training_bytes

    require_trackers(config.tracker)
    device = hardware.resolve_device(config.device)
    free, needed = hardware.available_memory(device), training_bytes(config.target)
    if needed > free:
        memory = f"{format_bytes(needed)}, and {format_bytes(free)} are free"
        raise UserError(
            f"target.width={config.target.width}: training {config.target.name} of this width "
            f"takes about {memory}; give a smaller width"
        )
