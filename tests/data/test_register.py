"""A user's images are the same pixels in every form that libraries use."""

import numpy as np
import pytest
import torch
from image_sets import refused
from PIL import Image
from torch.utils.data import TensorDataset
from torchvision.datasets import VisionDataset
from torchvision.transforms.functional import pil_to_tensor, to_tensor

from bnrecon.data import DataSpec, load, register_data
from bnrecon.data.archive import check_split, warn_of_empty_classes
from bnrecon.runtime.errors import UserError

PIXELS = np.random.default_rng(0).integers(0, 256, (12, 6, 5, 3), np.uint8)
LABELS = np.arange(12) % 3
PICTURES = [Image.fromarray(pixels) for pixels in PIXELS]
TENSORS = torch.stack([pil_to_tensor(picture) for picture in PICTURES])


class Vision(VisionDataset):
    """Like torchvision's data sets: pairs, class names, an optional transform, no iterator."""

    classes = ("a", "b", "c")

    def __init__(self, transform=None):
        super().__init__(root="", transform=transform)

    def __len__(self):
        return 12

    def __getitem__(self, index):
        picture = PICTURES[index]
        return (self.transform(picture) if self.transform else picture), int(LABELS[index])


FORMS = {
    "pictures": Vision(),
    "floats": Vision(to_tensor),
    "tensors": (TENSORS, torch.from_numpy(LABELS)),
    "arrays": (PIXELS, LABELS),
    "tensor data set": TensorDataset(TENSORS, torch.from_numpy(LABELS)),
    "mappings": [{"img": p, "label": i} for p, i in zip(PICTURES, LABELS, strict=True)],
    "pixel values": [
        {"pixel_values": x, "labels": i} for x, i in zip(TENSORS, LABELS, strict=True)
    ],
}


def read(train, test=None):
    register_data("mine")(lambda spec: (train, train if test is None else test))
    return load(DataSpec("mine"))


@pytest.mark.parametrize("form", FORMS)
def test_every_form_gives_the_same_images(form):
    data = read(FORMS[form])
    assert data.checksum() == read((PIXELS, LABELS)).checksum()
    assert data.shape == (3, 6, 5)
    named = form in ("pictures", "floats")
    assert data.classes == (("a", "b", "c") if named else ("0", "1", "2"))


def test_differently_numbered_classes_are_refused():
    others = Vision()
    others.classes = ("b", "c")
    with pytest.raises(UserError, match="train has the classes a, b, c, test b, c"):
        read(Vision(), others)
    others.classes = ("a", "b")  # the same numbers, as without names
    assert read(Vision(), others).classes == ("a", "b", "c")
    assert read((PIXELS, LABELS), Vision()).classes == ("0", "1", "2")


def test_images_with_more_classes_than_labels_are_others():
    """Their target has more outputs."""
    more = Vision()
    more.classes = ("a", "b", "c", "d")
    assert read(more).checksum() != read(Vision()).checksum()


def test_name_that_is_no_file_name_is_refused():
    with pytest.raises(UserError, match="part of a folder's name"):
        DataSpec("../mine")


def test_grey_images_have_one_channel_and_rounding_is_noted(caplog):
    grey = torch.rand(4, 6, 6, generator=torch.Generator().manual_seed(0))
    data = read((grey, torch.zeros(4, dtype=torch.long)))
    assert data.shape == (1, 6, 6)
    assert "rounded to 8 bits" in caplog.text


@pytest.mark.parametrize(
    ("split", "line"),
    [
        ((TENSORS.float(), LABELS), "pixels from 0 to 255; give floats from 0 to 1"),
        ((TENSORS, LABELS[:-1]), r"train_y is int64 of shape \(11,\)"),
        ([{"pixels": 1, "label": 0}], "pixels, label; it must have one of pixel_values"),
        ([(PICTURES[0], 0), (PICTURES[0].resize((9, 9)), 0)], "make all of one size"),
        ([(PICTURES[0].convert("F"), 0)], "has mode F"),
        (None, "data mine: TypeError: 'NoneType'"),
    ],
)
def test_unreadable_images_are_one_line(split, line):
    with pytest.raises(UserError, match=line):
        read(split)


def test_archive_holds_images_of_any_size_with_or_without_names(tmp_path):
    arrays = {"train_x": PIXELS, "train_y": LABELS, "test_x": PIXELS, "test_y": LABELS}
    for names in ({}, {"classes": ["a", "b", "c"]}):
        np.savez(tmp_path / "images.npz", **arrays, **names)
        data = load(DataSpec("folder", str(tmp_path)))
        assert data.checksum() == read((PIXELS, LABELS)).checksum()
        assert data.classes == tuple(names.get("classes", "012"))
    with pytest.raises(UserError, match=r"side=8: .*is not resized"):
        load(DataSpec("folder", str(tmp_path), side=8))


@pytest.mark.parametrize("shape", [(6, 3, 8, 8), (6, 8, 3, 8), (6, 1, 8, 8)])
def test_images_of_another_layout_are_named(shape):
    with pytest.raises(UserError, match=r"_x is of shape .* transpose it"):
        check_split("train", np.zeros(shape, np.uint8), np.zeros(6, int), 1, shape[1:])
    check_split("train", np.zeros((6, 3, 3, 3), np.uint8), np.zeros(6, int), 1, (3, 3, 3))


def test_classes_without_training_images_are_named(caplog):
    warn_of_empty_classes("train", np.array([0, 1, 2]), 3)
    assert not caplog.text
    warn_of_empty_classes("train", np.array([1, 2, 3]), 4)
    assert "train_y: class 0 has no image; class numbers start at 0" in caplog.text


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"train_y": np.array([0, 2**32 - 1], np.uint32)}, "the number 4294967295; at most 99,999"),
        ({"train_x": np.zeros((2, 8, 8, 0), np.uint8)}, "must have an image and pixels"),
        ({"test_x": np.zeros((0, 8, 8, 3), np.uint8)}, "must have an image and pixels"),
    ],
)
def test_impossible_arrays_are_refused_before_they_take_memory(tmp_path, change, line):
    arrays = {f"{split}_x": np.zeros((2, 8, 8, 3), np.uint8) for split in ("train", "test")}
    arrays |= {f"{split}_y": np.array([0, 1]) for split in ("train", "test")}
    np.savez(tmp_path / "images.npz", **arrays | change)
    refused(DataSpec("folder", str(tmp_path)), line)
