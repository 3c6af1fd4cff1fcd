"""What a run says before it starts: how long, which images, and that it can be stopped."""

import logging
import re

import pytest
import torch
from pretended_gpu import PretendedGpu
from processes import SMALLEST
from torch import nn

from bnrecon.config.composition import compose
from bnrecon.data import load
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.run import announcement, estimate
from bnrecon.run.announcement import announce, source_images
from bnrecon.runtime.errors import UserError
from bnrecon.solvers.spec import SolverSpec

CPU = torch.device("cpu")


def announced(caplog, *options):
    """The lines that a run of these options logs."""
    config = compose([*SMALLEST, *options])
    with caplog.at_level(logging.INFO):
        announce(config, load(config.data), CPU)
    return dict(line.split(maxsplit=1) for line in caplog.messages[-1].splitlines())


def test_a_run_says_how_many_images_go_through_the_source_network(caplog):
    lines = announced(caplog)
    assert lines["testing"] == "all 128 images through the source network"
    lines = announced(caplog, "evaluate=collapsed", "source_images=8")
    assert lines["testing"] == (
        "8 of 128 images through the source network, the others through its collapsed form"
    )


def test_all_images_go_through_the_source_where_that_is_affordable_or_nothing_else_is_true():
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


def test_a_run_says_the_oversampling_of_all_layers_and_the_batch_that_there_is(caplog):
    lines = announced(caplog, "features.excess=5", "train.batch_size=5000")
    least, most = re.search(r"oversampling (\S+) to (\S+)\)", lines["source"]).groups()
    assert 1 < float(least) < float(most)
    assert "batch 512," in lines["scale"]
    assert "(oversampling 1.5)" in announced(caplog)["source"]


def test_no_image_at_all_through_the_source_network_is_refused():
    with pytest.raises(UserError, match="source_images=0: must be at least 1"):
        compose([*SMALLEST, "source_images=0"])


def test_a_run_says_what_a_solver_takes_that_factorizes(caplog):
    assert "solver" not in announced(caplog)["needs"]
    needs = announced(caplog, "features.width=maximum", "solver=lu")["needs"]
    total, own = re.match(
        r"about (\S+) MB of memory for the source \(features in memory, (\S+) MB of it for "
        r"solver lu\), ",
        needs,
    ).groups()
    assert 64 < float(own) <= float(total)


def test_what_a_gpu_and_its_host_need_is_planned_for_layers_that_are_there(monkeypatch):
    monkeypatch.setitem(estimate.SIDES, "cuda", 64)
    config = compose([*SMALLEST, "features=he_normal"])
    with PretendedGpu() as gpu:
        plan = announce(config, load(config.data), gpu.device)
        assert {layer.device for layer in plan.layers} == {gpu.device}
        assert plan.host_memory > 0


def test_a_layer_without_equations_is_expected_to_take_no_time():
    """Of one input, beside a skip connection: its second scales do it alone."""
    plan = plan_layers(nn.Linear(1, 4).eval(), FeatureSpec(width=2, skip="outer"))
    assert plan.layers[0].rows == 0
    assert estimate.solving_seconds(plan, SolverSpec(), CPU)[""] < 1


def test_a_run_of_hours_says_that_what_is_solved_is_kept(caplog, monkeypatch):
    assert "note" not in announced(caplog)
    count = 0

    def solving_seconds(plan, *_):
        nonlocal count
        count = len(plan.layers)
        return {layer.name: 7200.0 for layer in plan.layers}

    monkeypatch.setattr(estimate, "solving_seconds", solving_seconds)
    lines = announced(caplog, "seeds=[0,1]")
    assert f"{4 * count} h solving" in lines["expect"]
    assert lines["note"].startswith("the largest layer takes about 120 min; what is solved is kept")
