"""The results that ship inside an installed package, which are read and never written."""

from __future__ import annotations

from pathlib import Path

DEFAULT_OUTPUTS = Path("outputs")  # of the option outputs

# A checkout has no such folder: what ships lies in its own outputs/.
PACKAGED = Path(__file__).parents[1] / "shipped"


def shipped_folder() -> Path:
    """What ships: in the installed package, or in the outputs of a checkout."""
    return PACKAGED if PACKAGED.is_dir() else Path(__file__).parents[2] / DEFAULT_OUTPUTS


def shipped_outputs(outputs: Path) -> Path:
    """Where what ships is read from, for somebody whose own results are in ``outputs``.

    It is ``outputs`` itself in a checkout, and wherever another folder was chosen: in a folder of
    their own everything can be computed anew.
    """
    return PACKAGED if outputs == DEFAULT_OUTPUTS and PACKAGED.is_dir() else outputs


def is_packaged(path: Path) -> bool:
    """Whether a file belongs to the installed package."""
    return path.is_relative_to(PACKAGED)
