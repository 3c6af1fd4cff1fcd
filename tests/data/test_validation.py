"""Held-out training images replace the test images and are not trained on."""

import dataclasses

import pytest
import torch
from image_sets import tree

from bnrecon.config import composition
from bnrecon.config.schema import VOLATILE
from bnrecon.data import DataSpec, load
from bnrecon.run.naming import run_folder
from bnrecon.runtime import files
from bnrecon.targets.location import target_folder

CPU = torch.device("cpu")


def streamed(root, **fields):
    """ImageNet-like folders of three classes, with 40 training and 2 test images each."""
    tree(root, ("ant", "bee", "cow"), train=40, test=2, tests="val")
    return DataSpec("imagenet", root=str(root), side=8, workers=0, **fields)


def rows(images):
    """Every image as bytes, for comparing sets."""
    return {bytes(image.numpy()) for image in images}


def test_held_out_digits_are_the_last_training_images():
    whole, held = load(DataSpec("digits")), load(DataSpec("digits", validation=300))
    assert held.sizes == (1137, 300)
    assert torch.equal(torch.cat([held.train_x, held.test_x]), whole.train_x)
    assert torch.equal(torch.cat([held.train_y, held.test_y]), whole.train_y)
    assert not rows(held.test_x) & rows(whole.test_x)
    assert torch.bincount(held.test_y, minlength=10).min() >= 15  # of all classes
    assert held.checksum() != whole.checksum()


def test_remaining_images_determine_the_normalization():
    held = load(DataSpec("digits", validation=1000))
    mean, _ = held.moments()
    assert mean.item() == pytest.approx(held.train_x.double().mean().item() / 255, rel=1e-6)
    assert held.moments() != load(DataSpec("digits")).moments()


def test_limits_apply_before_and_after_holding_out():
    held = load(DataSpec("digits", train_limit=200, test_limit=30, validation=50))
    first = load(DataSpec("digits", train_limit=200))
    assert held.sizes == (150, 30)
    assert torch.equal(held.test_x, first.train_x[150:180])


def test_streamed_images_are_held_out_by_name(tmp_path):
    spec = streamed(tmp_path / "a")
    whole = load(spec)
    held = load(dataclasses.replace(spec, validation=60))
    assert held.sizes == (60, 60)
    assert sorted(held.train_files + held.test_files) == sorted(whole.train_files)
    labels = [label for _, label in held.test_files]
    assert min(labels.count(number) for number in range(3)) >= 10
    again = load(dataclasses.replace(streamed(tmp_path / "b"), validation=60))
    assert again.checksum() == held.checksum()
    fewer = load(dataclasses.replace(spec, validation=20, test_limit=5))
    assert set(fewer.test_files) < set(held.test_files)
    assert fewer.sizes == (100, 5)


def test_each_number_of_held_out_images_is_another_data_set(tmp_path):
    spec = streamed(tmp_path)
    checksums = {load(dataclasses.replace(spec, validation=n)).checksum() for n in range(1, 119)}
    assert len(checksums | {load(spec).checksum()}) == 119


def test_held_out_images_change_run_and_target():
    assert "data.validation" not in VOLATILE
    plain, held = (
        composition.compose(["data=digits", *words]) for words in ([], ["data.validation=300"])
    )
    assert run_folder(plain) != run_folder(held)
    targets = {
        target_folder(config.target_request, load(config.data), CPU) for config in (plain, held)
    }
    assert len(targets) == 2


def test_accuracy_is_measured_on_held_out_images(succeed, tmp_path):
    words = ("train", "scale=smoke", "target.groups=[1]", "train.epochs=1", f"outputs={tmp_path}")
    succeed(*words, "data.validation=250", "data.test_limit=null")
    about = files.read_json(next(tmp_path.glob("targets/*/target.json")))
    assert (about["images"], about["config"]["data"]["validation"]) == (250, 250)
