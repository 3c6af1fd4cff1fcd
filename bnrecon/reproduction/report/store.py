"""Writing a report: at once or not at all, and never over a file that is no report."""

from __future__ import annotations

from pathlib import Path

from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError

MARK = b'<meta name="generator" content="bnrecon report">'
BEGINNING = 4096  # bytes in which a report says by this line that it is one


def check_place(path: Path, overwrite: bool) -> None:
    """Refuse a place where no report can be written; ``overwrite`` allows a file that is none.

    Raises:
        UserError: it is a folder, or a file that is no report, or lies below a file.
        FileExistsError: it is a device, a pipe, a socket or a link that leads nowhere.
    """
    if path.is_dir():
        raise UserError(f"--output {path}: is a folder; give a file, as in {path / 'report.html'}")
    above = next((folder for folder in path.parents if folder.exists()), None)
    if above is not None and not above.is_dir():
        raise UserError(f"--output {path}: {above} is a file, not a folder")
    files.resolve_target(path)
    if path.exists() and not overwrite:
        with open(path, "rb") as file:
            if MARK not in file.read(BEGINNING):
                raise UserError(
                    f"--output {path}: there is a file that is no report of bnrecon; give another "
                    "name, or --overwrite"
                )


def write_report(path: Path, content: bytes, overwrite: bool = False) -> None:
    """Write a report's file in the place of an earlier report; see ``check_place``."""
    check_place(path, overwrite)
    files.write_bytes(path, content)
