"""A run announces its duration, its images, its memory and faster solvers."""

import pytest
import torch
from fake_gpu import FakeGpu
from processes import SMALLEST
from torch import nn

from bnrecon.config.composition import compose
from bnrecon.data import load
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction import duration
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.run import announcement
from bnrecon.run.announcement import announce, source_images
from bnrecon.solvers.register import SOLVERS

CPU = torch.device("cpu")


def test_all_images_pass_the_source_where_affordable_or_necessary():
    affordable = int(announcement.SOURCE_FLOPS["cpu"]) // 360
    for options, flops, count in (
        ((), affordable, 360),
        ((), affordable + 1, 64),
        (("source_images=5",), affordable + 1, 5),
        (("source_images=1000",), affordable + 1, 360),
        (("evaluate=source",), affordable + 1, 360),
        (("evaluate=collapsed",), 1, 64),
        (("features.activation=tanh",), affordable + 1, 360),
    ):
        assert source_images(compose([*SMALLEST, *options]), flops, 360, CPU) == count


def test_memory_of_a_gpu_and_its_host_is_planned(monkeypatch):
    monkeypatch.setitem(duration.SIDES, "cuda", 64)
    config, plans = compose([*SMALLEST, "features=he_normal"]), []

    def planned(*arguments):
        plans.append(plan_layers(*arguments))
        return plans[-1]

    monkeypatch.setattr(announcement, "plan_layers", planned)
    with FakeGpu() as gpu:
        announce(config, load(config.data), gpu.device)
        assert {layer.device for layer in plans[0].layers} == {gpu.device}
        assert plans[0].host_memory > 0


def test_layer_without_equations_takes_no_time():
    """For one input and a skip connection the second scales suffice."""
    plan = plan_layers(nn.Linear(1, 4).eval(), FeatureSpec(width=2, skip="outer"))
    assert plan.layers[0].rows == 0
    assert plan.seconds < 1


@pytest.mark.parametrize(
    ("solver", "rate", "named"),
    [
        ("lu_lbfgs", 5e8, "matrix_free with 7776 features"),
        ("lu_lbfgs", 5e10, ""),  # seconds
        ("minimum_norm", 3e8, ""),  # a third longer
        ("auto", 3e8, ""),
        ("a user's", 5e8, ""),  # of unknown duration
    ],
)
def test_faster_solver_is_named_for_runs_of_minutes(monkeypatch, caplog, solver, rate, named):
    """With the given rates of this machine; n = 5,184."""
    if solver == "a user's":
        solver = "lu_lbfgs"
        monkeypatch.setattr(SOLVERS[solver].registered, "user_defined", True)
    rates = {torch.int8: 3 * rate}
    monkeypatch.setattr(duration, "rate", lambda dtype, device: rates.get(dtype, rate))
    words = ("target.width=24", "target.groups=[2]", "features=he_normal", f"solver={solver}")
    config = compose([*SMALLEST, *words])
    with caplog.at_level("INFO", logger="bnrecon"):
        announce(config, load(config.data), CPU)
    (said,) = [record.getMessage() for record in caplog.records if "expect " in record.getMessage()]
    assert (f"{named} in the largest layer" in said) == bool(named)
    assert ("solver=auto is expected" in said) == bool(named)
