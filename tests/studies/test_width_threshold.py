"""Burkholz 2024, Theorems 2.2 and 2.3 on small layers: widths that reach the target."""

import dataclasses

import pytest
import torch

from bnrecon.construction.kernel_composition import kernel_composition_system
from bnrecon.studies.burkholz2024.thresholds import (
    SETTINGS,
    SUCCESS,
    Setting,
    composed_error,
    features,
    pathological_target,
    random_target,
    rates,
)

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    "setting",
    [
        Setting(3, 2, 1, 1, 1),
        Setting(4, 3, 3, 3, 1),
        Setting(2, 2, 3, 2, 2),
        Setting(3, 2, 1, 1, 3),
    ],
)
def test_random_targets_are_reached_from_the_minimum_width(setting):
    frame = rates(dataclasses.asdict(setting), draws=5, below=2)
    random = frame[frame["target"] == "random"]
    enough = random["c1"] >= setting.minimum_width
    assert (random["rebuilt"][enough] == 5).all()
    assert (random["rebuilt"][~enough] == 0).all()


@pytest.mark.parametrize("setting", SETTINGS)
def test_pathological_targets_are_reached_only_at_n_features(setting):
    widths = [
        width
        for width in range(setting.minimum_width, setting.equations)
        if setting.has_pathological(width)
    ]
    for width in (widths[0], widths[-1]):
        target = pathological_target(setting, width, seed=1)
        # Features from which the target is not made reach it at that width.
        minimum, maximum, other = (
            composed_error(kernel_composition_system(target, *features(setting, c1, seed), CPU))
            for c1, seed in ((width, 1), (setting.equations, 1), (width, 2))
        )
        assert minimum > 1e-2
        assert max(maximum, other) < SUCCESS


def test_pathological_target_leaves_other_outputs_dead():
    """Every vector in the null space of Eq. 2's homogeneous rows has outputs at zero."""
    setting = Setting(4, 3, 3, 3, 1)
    width = setting.minimum_width + 1
    target = pathological_target(setting, width, seed=3)
    matrix = kernel_composition_system(target, *features(setting, width, 3), CPU).matrix.dense()
    weight = target.permute(0, 2, 3, 1).flatten(1)
    table = matrix.reshape(4, -1, width)
    along = torch.einsum("oe,oew->ow", weight, table) / weight.square().sum(1, keepdim=True)
    # Mγ minus its component along W, for each output.
    homogeneous = (table - weight[..., None] * along[:, None]).flatten(0, 1)
    values, vh = torch.linalg.svd(homogeneous)[1:]
    assert int((values > 1e-10 * values[0]).sum()) == width - 2  # a null space of c1 + c2 - n = 2
    reached = torch.einsum("oew,kw->oek", table, vh[-2:]).norm(dim=1)
    assert (reached[:2].norm(dim=1) > 1e-3).all()
    assert (reached[2:] < 1e-9).all()


def test_no_pathological_target_below_a_width_that_depends_on_the_kernels():
    for setting, width in (
        (Setting(4, 3, 1, 1, 3), 105),
        (Setting(4, 3, 3, 3, 1), 108),
        (Setting(4, 3, 1, 1, 1), 9),
    ):
        assert not setting.has_pathological(width)


def test_targets_do_not_depend_on_the_features():
    assert torch.equal(random_target(SETTINGS[0], 4), random_target(SETTINGS[0], 4))
    assert not torch.equal(random_target(SETTINGS[0], 4), random_target(SETTINGS[0], 5))
