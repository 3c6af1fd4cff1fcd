"""Data sets in the files that torchvision downloads: read if present, else downloaded."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from pathlib import Path

from bnrecon.data.in_memory import InMemoryImages, from_arrays
from bnrecon.data.spec import DataSpec, default_root
from bnrecon.data.tree import Split
from bnrecon.runtime.errors import CLEAR_ERRORS, UserError, first_line
from bnrecon.runtime.locks import lock_folder

Arrays = tuple[Sequence[str], Split, Split]  # names of the classes, training and test images


class Published(abc.ABC):
    """A published data set; ``root`` is the folder that holds it, or to which it is downloaded."""

    files: tuple[str, ...]  # files or folders below the root that torchvision's loader reads

    def __init__(self, spec: DataSpec):
        self.spec = spec
        self.root = Path(spec.root) if spec.root else default_root()

    @property
    @abc.abstractmethod
    def url(self) -> str:
        """The address of the download."""

    @abc.abstractmethod
    def layouts(self) -> str:
        """What the root may hold, as the end of a message."""

    @abc.abstractmethod
    def read_folder(self, folder: Path) -> Arrays:
        """Read the images of a folder, <split>/<class>/*."""

    @abc.abstractmethod
    def read(self, download: bool = False) -> Arrays:
        """Read torchvision's files, after a ``download`` of those that are missing or damaged.

        Without ``download`` these raise ``RuntimeError``.
        """

    @classmethod
    def load(cls, spec: DataSpec) -> InMemoryImages:
        """Read the data set in any layout of the root."""
        requested = cls(spec)
        return from_arrays(requested.spec, *requested.arrays())

    def arrays(self) -> Arrays:
        """Read the layout that exists.

        Files named after the data set come first, so that one folder can hold several data sets; a
        tree without the name comes last.
        """
        named = self.root / self.spec.name
        if (named / "train").is_dir():
            return self.read_folder(named)
        if (self.root / "train").is_dir() and not self.published():
            return self.read_folder(self.root)
        return self.read_or_download()

    def published(self) -> list[Path]:
        """The files of torchvision that the root holds."""
        return [path for name in self.files if (path := self.root / name).exists()]

    def read_or_download(self) -> Arrays:
        """Read torchvision's files, after a download if one is needed and allowed.

        Raises:
            UserError: files are missing or damaged and could not be downloaded; it says why.
        """
        state = self._state()
        try:
            return self.read()
        except RuntimeError:
            if not self.spec.download:
                raise UserError(f"{state}; {self.layouts()}, or allow download=true") from None
        # Write only from here on: existing files may be in somebody else's folder.
        try:
            what = f"downloading {self.spec.name} to {self.root}"
            with lock_folder(self.root, what, shared=True, option="root"):
                try:
                    return self.read()  # another process has downloaded it
                except RuntimeError:
                    return self.read(download=True)
        except CLEAR_ERRORS:
            raise
        except Exception as error:  # from urllib, http, tarfile, zlib, torchvision, the system
            reason = f"could not be downloaded from {self.url} ({first_line(error)})"
            raise UserError(f"{state} and {reason}; {self.layouts()}") from None

    def _state(self) -> str:
        """What is wrong with torchvision's files, if they cannot be read."""
        name, paths = self.spec.name, [self.root / file for file in self.files]
        missing = [path for path in paths if not path.exists()]
        if len(missing) == len(paths):
            return f"{name} is not in {self.root}"
        if missing:
            return f"{name}: {missing[0]} is missing"
        held = " or ".join(map(str, paths))
        return f"{name}: {held} is not complete, or damaged (by its files' checksums)"
