"""From a spec to its images, with one line for everything that can be wrong on the way."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable

from bnrecon.data.cifar import load_cifar10, load_cifar100
from bnrecon.data.digits import load_digits
from bnrecon.data.folder import load_folder
from bnrecon.data.imagenet import load_imagenet
from bnrecon.data.imagenette import load_imagenette
from bnrecon.data.in_memory import InMemoryImages
from bnrecon.data.spec import DataSpec
from bnrecon.data.streaming import StreamedImages
from bnrecon.data.svhn import load_svhn
from bnrecon.runtime.errors import UserError, printable
from bnrecon.runtime.user_code import unregistered

Images = InMemoryImages | StreamedImages

# One data set a file; the names are those of ``bnrecon.data.spec.DATASET_NAMES``, and a user's own.
DATASETS: dict[str, Callable[[DataSpec], Images]] = {
    "digits": load_digits,
    "cifar10": load_cifar10,
    "cifar100": load_cifar100,
    "svhn": load_svhn,
    "folder": load_folder,
    "imagenet": load_imagenet,
    "imagenette": load_imagenette,
}


def load(spec: DataSpec) -> Images:
    """Load a data set by its name in ``DATASETS``.

    Raises:
        UserError: naming the file or folder that is missing or damaged, and what to do; or the
            field that does not fit the images.

    >>> load(DataSpec("digits")).sizes
    (1437, 360)
    """
    try:
        if spec.root is not None:
            spec = dataclasses.replace(spec, root=_existing_root(spec.root, spec.name))
        if spec.name not in DATASETS:
            raise unregistered("name", spec.name, DATASETS)
        images = DATASETS[spec.name](spec)
        if spec.validation is not None:
            train = images.sizes[0]
            if train - spec.validation < 2:
                remaining = f"two or more of the {train:,} training images must be left"
                raise UserError(f"validation={spec.validation}: {remaining}; hold out fewer")
            images = images.hold_out(spec.validation, spec.test_limit)
        return images
    except UserError as error:
        raise UserError(printable(str(error))) from None
    except OSError as error:
        what = error.filename or spec.root or spec.name
        raise UserError(printable(f"{what} cannot be read ({error.strerror or error})")) from None


def _existing_root(given: str, name: str) -> str:
    """The folder with ``~`` written out; raise ``UserError`` where it is none."""
    root = os.path.expanduser(given)
    try:
        os.stat(os.path.join(root, ""))  # with a slash at the end, only a folder will do
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        shown = root if len(root) <= 200 else f"{root[:200]}..."
        tree = "train/<class>/* and test/<class>/* images"
        held = f"{tree}, or images.npz" if name == "folder" else f"the {name} files"
        raise UserError(
            f"root={shown}: no such folder ({reason}); give the folder that holds {held}"
        ) from None
    return root


def refuse_unused_root(spec: DataSpec) -> None:
    """Raise ``UserError`` where a folder is given for a data set without files.

    Otherwise a run would silently train on the digits instead of the user's images. ``load`` does
    not check this: a study passes one ``root`` to all its runs.

    >>> refuse_unused_root(DataSpec("digits", root="mine"))
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: root=mine: digits has no files; ... name=folder ...
    """
    if spec.name == "digits" and spec.root is not None:
        given = f"root={printable(spec.root)}"
        raise UserError(
            f"{given}: digits has no files; for your own images give name=folder and {given}"
        )
