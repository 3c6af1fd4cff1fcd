"""Published data sets of 32x32 colour images, in any of the layouts in which people keep them."""

from __future__ import annotations

from pathlib import Path

from bnrecon.data.archive import read_archive
from bnrecon.data.published import Arrays, Published
from bnrecon.data.tree import list_split, read_tree, require_classes
from bnrecon.runtime.errors import UserError

SHAPE = (32, 32, 3)


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

    def layouts(self) -> str:
        """What the root may hold."""
        name = self.spec.name
        kinds = f"{name}.npz, {name}/{{train,test}}/<class>/* images"
        published = f"torchvision's {' and '.join(self.files)}"
        beside = f"the same folder can hold {self.beside} in the same way"
        return f"give root=FOLDER that holds {kinds}, or {published} ({beside})"

    def arrays(self) -> Arrays:
        """The data set in whichever layout the root holds it; an archive comes second."""
        root, name = self.root, self.spec.name
        archive = root / f"{name}.npz"
        if archive.is_file() and not (root / name / "train").is_dir():
            return read_archive(archive, name, self.count, self.classes, SHAPE)
        return super().arrays()

    def read_folder(self, folder: Path) -> Arrays:
        """Read {train,test}/<class>/* images."""
        train = folder / "train"
        classes, _ = list_split(train, None)
        if len(classes) != self.count:
            found = f"{train} holds {len(classes)} class folders; {self.spec.name} has {self.count}"
            raise UserError(f"{found}; {self.layouts()}")
        if self.classes is not None:
            require_classes(train, classes, self.classes)
        return read_tree(folder, self.spec)
