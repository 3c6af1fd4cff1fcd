"""Burkholz 2024, Sect. 3: what LU, LBFGS and float32 contribute, and a few features more."""

from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from torch import nn

from bnrecon.config import composition
from bnrecon.features.drawing import draw
from bnrecon.reporting.figures import image, style
from bnrecon.runtime.precision import FLOAT32
from bnrecon.studies.burkholz2024 import (
    accuracy,
    accuracy_claims,
    accuracy_steps,
    excess_layers,
    log_means,
    single_layers,
    solver_steps,
    table1,
)

LAYER, SEED = "0", 3


@pytest.fixture
def layer(monkeypatch):
    """One random 3x3 layer from 4 to 4 channels in place of a trained target."""
    torch.manual_seed(1)
    network = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1)).eval()
    trained = SimpleNamespace(network=network)
    monkeypatch.setattr(single_layers, "obtain", lambda _: (trained, None, torch.device("cpu")))
    return network[0].weight.detach().double()


def pair(width):
    """The frozen pair that a layer of that many features has: A (c1, c0), B (c2, c1, kh, kw)."""
    shape = single_layers.single_layer(LAYER, SEED, None, ()).target.shape
    return [w.double() for w in draw("he_normal", shape, width, SEED, 0).weights()]


def composed(first, second, scales):
    return torch.einsum("o,oluv,l,lc->ocuv", scales.outer, second, scales.inner, first)


def test_the_first_step_is_torch_linalg_solve_in_float32(layer):
    rows = accuracy_steps.measure(LAYER, SEED, 60, ()).set_index("step")
    part = single_layers.single_layer(LAYER, SEED, None, ())
    single = part.system.operator.to(FLOAT32).dense()
    x = torch.linalg.solve(single, part.system.rhs.float())
    weight = composed(*pair(141), part.system.scales(x.double()))
    error = float((weight - layer).norm() / layer.norm())
    assert rows.loc["LU", "error"] == pytest.approx(error, rel=1e-6)
    assert rows.loc["LU", "iterations"] == 0
    assert rows.loc["LU, LBFGS", "error"] < error
    in_float64 = rows.loc["LU, LBFGS in float64"]
    assert in_float64["error"] < rows.loc["LU, LBFGS", "error"]
    assert in_float64["iterations"] == rows.loc["LU, LBFGS in float64", "limit"] == 60
    assert list(rows["at_limit"]) == [False, False, True, False]
    assert rows.loc["refined", "error"] < 1e-10
    matrix = part.system.operator.dense()
    assert rows["condition"].iloc[0] == pytest.approx(float(torch.linalg.cond(matrix)), rel=1e-6)


def test_in_the_float32_network_the_exact_solution_has_roundings_error(layer):
    """Rounding scales alone costs less than u per term, 2^-24 of the cancellation in all."""
    refined = accuracy_steps.measure(LAYER, SEED, 60, ()).set_index("step").loc["refined"]
    part = single_layers.single_layer(LAYER, SEED, None, ())
    first, second = pair(141)
    scales = part.system.scales(torch.linalg.solve(part.system.operator.dense(), part.system.rhs))
    sizes = torch.einsum(
        "o,oluv,l,lc->ocuv", scales.outer.abs(), second.abs(), scales.inner.abs(), first.abs()
    )
    cancellation = float(sizes.norm() / layer.norm())
    assert refined["cancellation"] == pytest.approx(cancellation, rel=1e-6)
    assert 1e-9 < refined["assembled_error"] < 4 * 2.0**-24 * cancellation
    assert refined["assembled_error"] > 1e3 * refined["error"]


def made(errors, steps=("LU", "LU, LBFGS", "refined")):
    """Rows with these errors by step and n, a system each."""
    return pd.DataFrame(
        [
            {"n": n, "width": n - 1, "layer": "l", "seed": seed, "step": step}
            | {"error": error, "assembled_error": error, "cancellation": 10.0}
            | {"iterations": 7, "at_limit": False, "limit": 2000, "seconds": 1.0}
            | {"condition": 1e3, "smallest_singular_value": 1e-3}
            for step in steps
            for n, values in errors(step).items()
            for seed, error in enumerate(values)
        ]
    )


NOISE = (1.0, 1.3, 0.8)


@pytest.mark.parametrize(
    ("power", "verdict"), [(1.0, "confirmed"), (0.0, "open"), (-1.0, "not confirmed")]
)
def test_whether_lu_accumulates_errors_is_decided_by_the_slope(power, verdict):
    rows = made(lambda _: {n: [1e-6 * n**power * f for f in NOISE] for n in (100, 1000, 10_000)})
    claim = accuracy_claims.claims(rows)[0]
    assert claim.verdict == verdict
    assert f"n^{power + 1e-9:.2f} (" in claim.evidence.replace("-0.00", "0.00")


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [((10, 12, 9), "confirmed"), ((0.1, 0.12, 0.09), "not confirmed"), ((10, 0.1, 2), "open")],
)
def test_whether_lbfgs_helps_is_decided_system_by_system(factors, verdict):
    """Systems that differ by a factor of 1,000 do not hide a factor of 10 in each."""
    size = np.array([1e-6, 1e-3, 1e-4])
    rows = made(lambda step: {100: size / (1 if step == "LU" else np.array(factors))})
    assert accuracy_claims.claims(rows)[1].verdict == verdict


@pytest.mark.parametrize(
    ("power", "verdict"), [(0.1, "confirmed"), (2.0, "not confirmed"), (0.8, "open")]
)
def test_growth_to_the_papers_larger_target_is_extrapolated(power, verdict):
    """From 36,864 to 90,000 equations n grows by 2.44, its 0.8th power by 2.04."""
    rows = made(lambda _: {n: [1e-6 * n**power * f for f in NOISE] for n in (100, 1000, 10_000)})
    claim = accuracy_claims.claims(rows)[2]
    assert claim.verdict == verdict
    assert f"grows by {2.4414**power:.2f} (" in claim.evidence


@pytest.mark.parametrize("part", [accuracy, excess_layers])
def test_a_page_of_one_task_has_a_table_a_figure_and_open_claims(part, layer):
    arguments = {"share": 20.0} if part is excess_layers else {"limit": 10}
    measure = excess_layers.measure if part is excess_layers else accuracy_steps.measure
    rows = measure(layer=LAYER, seed=SEED, options=(), **arguments)
    assert len(part.PART.summary(rows)) == rows.get("step", pd.Series([0])).nunique()
    assert part.PART.caption_for(rows)
    assert {claim.verdict for claim in part.PART.claims(rows)} == {"open"}
    with style():
        assert image(part.PART.draw(rows), "png")[1:4] == b"PNG"


def test_a_geometric_mean_has_the_t_interval_of_the_logarithms():
    values = [1e-3, 2e-2, 5e-3, 1e-4]
    found = log_means.geometric_mean(values)
    logs = np.log(values)
    low, high = stats.t.interval(0.95, 3, logs.mean(), stats.sem(logs))
    assert (found.low, found.mean, found.high) == pytest.approx(
        tuple(np.exp([low, logs.mean(), high]))
    )
    assert f"{log_means.geometric_mean([2e-3]):.1e}" == "2.0e-03"
    with pytest.raises(ValueError, match=r"math domain|positive"):
        log_means.geometric_mean([1.0, 0.0])


def test_an_exponent_has_the_interval_of_a_regression():
    sizes, values = [1, 1, 2, 4, 8], [1.0, 1.2, 1.9, 4.5, 7.0]
    found = log_means.exponent(sizes, values)
    expected = stats.linregress(np.log(sizes), np.log(values))
    assert found.mean == pytest.approx(expected.slope)
    assert found.half_width == pytest.approx(stats.t.ppf(0.975, 3) * expected.stderr)
    assert log_means.exponent([1, 2], [1, 2]).half_width is None


def test_a_share_of_features_is_added_to_the_equations(layer):
    row = excess_layers.measure(LAYER, SEED, 20.0, ()).iloc[0]
    assert (row["n"], row["excess"]) == (144, 29)
    assert row["error"] < 1e-4
    assert not row["at_limit"]
    assert excess_layers.measure(LAYER, SEED, 0.05, ()).iloc[0]["excess"] == 1


@pytest.mark.parametrize(
    ("power", "verdict"), [(-1.0, "confirmed"), (1.0, "not confirmed"), (0.0, "open")]
)
def test_whether_more_features_help_lbfgs_is_decided_at_each_size(power, verdict):
    shares = (0.05, 0.2, 0.5, 1.0, 2.0)
    rows = pd.DataFrame(
        [
            {"n": n, "share": share, "error": 1e-4 * share**power * f, "at_limit": False}
            | {"iterations": 100 * share**power * f}
            for n in (100, 1000)
            for share in shares
            for f in NOISE
        ]
    )
    assert {claim.verdict for claim in excess_layers.claims(rows)} == {verdict}


def test_the_papers_excess_lies_within_the_shares():
    low, high = (extra / excess_layers.REPORTED["n"] for extra in (80, 120))
    shares = sorted(excess_layers.SHARES["laptop"])
    assert shares[0] < 100 * low < 100 * high < shares[-1]


def test_the_steps_of_the_solver_share_their_runs_with_table_1():
    steps = {
        row.labels["solver and width"]: composition.compose(row.overrides)
        for row in solver_steps.PART.rows("laptop", ())
    }
    table = [
        composition.compose(row.overrides)
        for row in table1.PART.rows("laptop", ())
        if row.labels["features"] == "he_normal" and "target.width=32" in row.overrides
    ]
    for name in ("LU, LBFGS: the paper's", "bnrecon, minimum width", "bnrecon, 1.5 n"):
        assert steps[name] in table
    limits = [config.solver.max_iterations for config in steps.values()]
    assert limits == [1, None, 20_000, None, None]
    assert {tuple(config.seeds) for config in steps.values()} == {(0, 1, 2)}
    assert solver_steps.PART.draw([]) is None
