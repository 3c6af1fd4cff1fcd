"""Published data sets of 32x32 colour images, in any of the layouts in which people keep them."""

from __future__ import annotations

from pathlib import Path

from bnrecon.data.archive import read_archive
from bnrecon.data.in_memory import InMemoryImages, from_arrays
from bnrecon.data.published import Arrays, Published
from bnrecon.data.tree import list_split, read_tree, require_classes
from bnrecon.runtime.errors import UserError

__all__ = ["SmallImages"]


class SmallImages(Published):
    """Images as torchvision's files (downloaded if need be), a tree of images or an npz archive.

    Attributes:
        count: number of classes.
        classes: their names in order; any are taken where ``None``.
        beside: the data sets that the same folder can hold.
    """

    count: int
    classes: tuple[str, ...] | None
    beside: str

    def load(self) -> InMemoryImages:
        """Read the layout that is there.

        What is named after the data set comes first, so that one folder can hold several; a tree
        without a name comes last.
        """
        return from_arrays(self.spec, *self._arrays())

    def layouts(self) -> str:
        """What the root may hold."""
        name = self.spec.name
        kinds = f"{name}.npz, {name}/{{train,test}}/<class>/* images"
        published = f"torchvision's {' and '.join(self.files)}"
        beside = f"the same folder can hold {self.beside} in the same way"
        return f"give root=FOLDER that holds {kinds}, or {published} ({beside})"

    def _arrays(self) -> Arrays:
        root, name = self.root, self.spec.name
        if (root / name / "train").is_dir():
            return self._read_tree(root / name)
        if (root / f"{name}.npz").is_file():
            return read_archive(root / f"{name}.npz", name, self.count, self.classes)
        if (root / "train").is_dir() and not any((root / file).exists() for file in self.files):
            return self._read_tree(root)
        return self.read_or_download()

    def _read_tree(self, folder: Path) -> Arrays:
        train = folder / "train"
        classes, _ = list_split(train, None)
        if len(classes) != self.count:
            found = f"{train} holds {len(classes)} class folders; {self.spec.name} has {self.count}"
            raise UserError(f"{found}; {self.layouts()}")
        if self.classes is not None:
            require_classes(train, classes, self.classes)
        return read_tree(folder, self.spec)
