"""Burkholz 2024, Sect. 3: effects of LU, LBFGS, float32 and a few more features."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
import torch
from repository import OUTPUTS
from scipy import stats
from torch import nn

from bnrecon.config import composition
from bnrecon.features.drawing import draw
from bnrecon.reporting.figures import drawn, image, style
from bnrecon.reproduction import intervals
from bnrecon.reproduction.study import PartRequest
from bnrecon.run.naming import run_folder
from bnrecon.runtime.precision import FLOAT32
from bnrecon.solvers import lbfgs
from bnrecon.studies.burkholz2024 import (
    accuracy,
    excess_layers,
    layers,
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
    monkeypatch.setattr(layers, "obtain", lambda _: (trained, None, torch.device("cpu")))
    return network[0].weight.detach().double()


@pytest.fixture
def few_iterations(monkeypatch):
    """LBFGS stops after 300 iterations."""
    monkeypatch.setattr(lbfgs, "THOROUGH", dataclasses.replace(lbfgs.THOROUGH, iterations=300))


def pair():
    """The layer's frozen pair of 141 features: A (c1, c0), B (c2, c1, kh, kw)."""
    shape = layers.single_layer(LAYER, SEED, None, ()).target.shape
    return [w.double() for w in draw("he_normal", shape, 141, SEED, 0).weights()]


def test_first_step_is_torch_solve_in_float32(layer):
    rows = accuracy.measure(LAYER, SEED, 60, ()).set_index("step")
    part = layers.single_layer(LAYER, SEED, None, ())
    single = part.system.operator.to(FLOAT32).dense()
    x = torch.linalg.solve(single, part.system.rhs.float())
    scales, (first, second) = part.system.scales(x.double()), pair()
    weight = torch.einsum("o,oluv,l,lc->ocuv", scales.outer, second, scales.inner, first)
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


def test_exact_solution_has_rounding_error_in_the_float32_network(layer):
    """Rounding only the scales costs less than u per term, 2^-24 of the cancellation in all."""
    refined = accuracy.measure(LAYER, SEED, 60, ()).set_index("step").loc["refined"]
    part = layers.single_layer(LAYER, SEED, None, ())
    first, second = pair()
    scales = part.system.scales(torch.linalg.solve(part.system.operator.dense(), part.system.rhs))
    sizes = torch.einsum(
        "o,oluv,l,lc->ocuv", scales.outer.abs(), second.abs(), scales.inner.abs(), first.abs()
    )
    cancellation = float(sizes.norm() / layer.norm())
    assert refined["cancellation"] == pytest.approx(cancellation, rel=1e-6)
    assert 1e-9 < refined["assembled_error"] < 4 * 2.0**-24 * cancellation
    assert refined["assembled_error"] > 1e3 * refined["error"]


def made(errors):
    """Rows with these errors by step and n, one per system."""
    return pd.DataFrame(
        [
            {"n": n, "width": n - 1, "layer": "l", "seed": seed, "step": step}
            | {"error": error, "assembled_error": error, "cancellation": 10.0}
            | {"iterations": 7, "at_limit": False, "limit": 2000, "seconds": 1.0}
            | {"condition": 1e3, "smallest_singular_value": 1e-3}
            for step in ("LU", "LU, LBFGS", "refined")
            for n, values in errors(step).items()
            for seed, error in enumerate(values)
        ]
    )


NOISE = (0.1, -0.02, -0.08)  # of the power, by seed


def growing(power):
    """Errors that grow with n, slightly differently in each seed."""
    return made(
        lambda _: {n: [1e-6 * n ** (power + noise) for noise in NOISE] for n in (100, 1000, 10_000)}
    )


@pytest.mark.parametrize(
    ("power", "verdict"), [(1.0, "confirmed"), (0.0, "undecided"), (-1.0, "contradicted")]
)
def test_slope_decides_whether_lu_accumulates_errors(power, verdict):
    claim = accuracy.PART.claims(growing(power))[0]
    assert claim.verdict == verdict
    assert f"p = {power:z.2f} ± 0.23 (n=3)" in claim.evidence


def test_pytorch_lbfgs_defaults_do_not_improve_lu(layer):
    (row,) = accuracy.measure_defaults(LAYER, SEED, ()).to_dict("records")
    lu = accuracy.measure(LAYER, SEED, 60, ()).set_index("step").loc["LU"]
    assert row["step"] == accuracy.DEFAULTS
    assert row["lu_error"] == pytest.approx(lu["error"], rel=1e-6)
    assert row["error"] == pytest.approx(lu["error"], rel=0.1)
    assert row["iterations"] <= 1
    assert not row["at_limit"]


@pytest.mark.parametrize(
    ("factor", "verdict"), [(1.0, "contradicted"), (2.0, "undecided"), (9, "confirmed")]
)
def test_half_the_error_decides_whether_pytorch_defaults_help(factor, verdict):
    both = growing(1.0)
    rows = both[both["step"] == "LU"].assign(step=accuracy.DEFAULTS, lu_error=both["error"])
    rows["error"] /= [factor * (1 + noise) for noise in NOISE] * 3
    claims = accuracy.PART.claims(pd.concat([both, rows]))
    assert [claim.verdict for claim in claims if claim.where == "Beyond Sect. 3.1"] == [verdict]
    assert len(accuracy.PART.claims(both)) == 5  # no claim without measurements


def test_sizes_of_one_seed_are_no_repetitions():
    """One seed's line over ten sizes has no spread and decides nothing."""
    sizes = [100 * 2**k for k in range(10)]
    rows = made(lambda _: {n: [1e-6 * n] for n in sizes})
    accumulation, *reductions, growth = accuracy.PART.claims(rows)
    assert {claim.verdict for claim in (accumulation, *reductions, growth)} == {"undecided"}
    assert "p = 1.00 (n=1)" in accumulation.evidence
    assert " to " not in growth.evidence.split("grows by")[1].split("extrapolated")[0]


def test_disagreeing_seeds_leave_the_slope_undecided():
    """An interval over all thirty systems would exclude 0."""
    sizes = [100 * 2**k for k in range(10)]
    powers = (1.0, 0.9, -0.2)
    rows = made(lambda _: {n: [1e-6 * (n / 2263) ** p for p in powers] for n in sizes})
    of_lu = rows[rows["step"] == "LU"]
    pooled = stats.linregress(np.log(of_lu["n"]), np.log(of_lu["error"]))
    assert pooled.slope > stats.t.ppf(0.975, 28) * pooled.stderr
    assert accuracy.PART.claims(rows)[0].verdict == "undecided"


@pytest.mark.parametrize(
    ("factors", "verdict"),
    [
        ((10, 12, 9), "confirmed"),
        ((0.1, 0.12, 0.09), "contradicted"),
        ((10, 0.1, 2), "undecided"),
        ((10, 10), "undecided"),
    ],
)
def test_lbfgs_gain_is_decided_system_by_system(factors, verdict):
    """Systems that differ by a factor of 1,000 do not hide a factor of 10 within each."""
    size = np.array([1e-6, 1e-3, 1e-4])[: len(factors)]
    rows = made(lambda step: {100: size / (1 if step == "LU" else np.array(factors))})
    claim = accuracy.PART.claims(rows)[1]
    assert claim.verdict == verdict
    assert claim.evidence.startswith("n = 100: ")


@pytest.mark.parametrize(
    ("power", "verdict"), [(0.1, "confirmed"), (2.0, "undecided"), (0.8, "undecided")]
)
def test_growth_to_the_papers_larger_target_is_extrapolated(power, verdict):
    """From 36,864 to 90,000 equations n grows by 2.44, n^0.8 by 2.04."""
    claim = accuracy.PART.claims(growing(power))[-1]
    assert claim.verdict == verdict
    assert f"grows by {2.4414**power:.2f} (" in claim.evidence


@pytest.mark.parametrize(
    ("solved", "assembled", "verdict"), [(0.1, 2.0, "undecided"), (2.0, 0.1, "confirmed")]
)
def test_growth_is_that_of_the_float32_network(solved, assembled, verdict):
    rows = growing(solved).assign(assembled_error=growing(assembled)["error"])
    assert accuracy.PART.claims(rows)[-1].verdict == verdict


def test_exponent_is_the_slope_of_a_seeds_logarithms():
    rows = pd.DataFrame(
        {
            "seed": [0, 0, 1, 0, 1, 2, 0],
            "size": [1, 2, 3, 4, 5, 7, 8],
            "error": [1.2, 1.9, 3.0, 4.5, 1.0, 2.0, 7.0],
        }
    )
    computed = intervals.exponents(rows, "size", "error")
    expected = [
        stats.linregress(np.log(of_seed["size"]), np.log(of_seed["error"])).slope
        for of_seed in (rows[rows["seed"] == 0], rows[rows["seed"] == 1])
    ]
    assert computed == pytest.approx(expected)


def test_minimum_width_is_a_separate_point(layer, few_iterations):
    rows = pd.concat([excess_layers.measure(LAYER, SEED, s, ()) for s in (None, 0.0, 20.0)])
    assert rows["excess"].tolist() == [-3, 0, 29]  # of 4 outputs
    assert rows["share"].isna().tolist() == [True, False, False]
    assert rows["error"].iloc[0] > 10 * rows["error"].iloc[2]
    table = excess_layers.PART.summary(rows)
    assert table["share of n"].tolist() == ["minimum width", "0%", "20%"]
    assert excess_layers.measure(LAYER, SEED, 0.05, ()).iloc[0]["excess"] == 1
    with style():
        assert image(excess_layers.PART.draw(rows.iloc[:1]), "png")[1:4] == b"PNG"


def solves(power, limited=()):
    """LBFGS's solves at two sizes by share, none at minimum width; ``limited``: stopped."""
    return pd.DataFrame(
        [
            {"n": n, "seed": seed, "share": share if share > 0.05 else None}
            | {"error": 1e-4 * share ** (power + noise), "at_limit": share in limited}
            | {"iterations": round(2000 if share in limited else 90 * share ** (power + noise))}
            for n in (10_000, 100_000)
            for share in (0.05, 0.5, 2.0)
            for seed, noise in enumerate(NOISE)
        ]
    )


@pytest.mark.parametrize(
    ("power", "verdict"), [(-1.0, "confirmed"), (1.0, "contradicted"), (0.0, "undecided")]
)
def test_gain_from_more_features_is_decided_at_each_size(power, verdict):
    claims = excess_layers.PART.claims(solves(power))
    assert [claim.verdict for claim in claims] == [verdict] * 4
    assert ["n = 100,000" in claim.evidence for claim in claims] == [False, True] * 2


def test_gain_is_split_into_fixed_second_scales_and_more_features():
    """Paired by seed: a factor of 4 from the minimum width to n features, of 5 from there on."""
    rows = solves(-1.0)
    none, few = rows[rows["share"].isna()], rows[rows["share"] == 0.5]
    few = few.assign(error=none["error"].to_numpy() / 20)
    equal = none.assign(share=0.0, error=none["error"] / 4)
    claim = excess_layers.PART.claims(pd.concat([none, few, equal]))[0]
    assert "by a factor of 20 (20 to 20) (3 paired" in claim.evidence
    assert "a factor of 4 (4 to 4), the features beyond n one of 5 (5 to 5)" in claim.evidence


def test_iterations_at_the_limit_are_lower_bounds():
    """They may confirm that fewer are needed, but never contradict it."""
    claim = excess_layers.PART.claims(solves(-1.0, limited=(0.05,)))[2]
    assert claim.verdict == "confirmed"
    whole = solves(-1.0)
    assert excess_layers.PART.claims(whole)[2].verdict == "confirmed"
    cut = excess_layers.PART.claims(solves(-1.0, (0.05, 0.5)))[2]
    assert cut.verdict == "undecided"
    assert "the limit of 2,000 iterations stopped 3 of 3 solves at 0.5%" in cut.evidence
    assert excess_layers.PART.claims(whole[whole["share"] == 0.5]) == []
    later = whole.assign(iterations=5000 - whole["iterations"])
    assert excess_layers.PART.claims(later)[2].verdict == "contradicted"
    limited = later.assign(at_limit=later["share"].isna())
    assert excess_layers.PART.claims(limited)[2].verdict == "undecided"


def test_single_solve_stopped_by_the_limit_leaves_the_speed_undecided():
    rows = solves(-1.0)
    rows["at_limit"] = (rows["share"] == 0.5) & (rows["seed"] == 0)
    assert excess_layers.PART.claims(rows)[2].verdict == "undecided"


def test_papers_bounds_count_from_the_minimum_width():
    """Fewer than 80 or 120 beyond 64² 9 - 64 + 1 features, at n = 64² 9."""
    n = 64 * 64 * 9
    bounds = [100 * (n - 64 + 1 + extra - n) / n for extra in (80, 120)]
    assert pytest.approx(bounds) == excess_layers.BOUNDS
    assert [round(bound, 2) for bound in bounds] == [0.05, 0.15]
    shares = excess_layers.SHARES["laptop"]
    assert None in shares
    assert any(bounds[0] < share < bounds[1] for share in shares if share)
    assert max(share for share in shares if share) > bounds[1]


def test_solver_steps_differ_only_in_solver_and_width():
    rows = solver_steps.PART.rows("laptop", ())
    steps = [composition.compose(row.overrides) for row in rows]
    solvers = ["lu_lbfgs_defaults", "lu_lbfgs", "lu_lbfgs", "auto", "auto"]
    assert [config.solver.name for config in steps] == solvers + solvers[:1] + solvers[2:]
    assert [config.solver.max_iterations for config in steps] == [None, 1] + [None] * 7
    widths = [config.features.width for config in steps]
    assert widths == ["minimum"] * 4 + [None] + ["minimum"] * 3 + [None]
    grid = [composition.compose(row.overrides) for row in table1.PART.rows("laptop", ())]
    names = {run_folder(config).name for config in grid}
    shared = [run_folder(config).name in names for config in steps]
    assert shared == [False, False, True, True, True, False, True, True, False]
    assert [tuple(config.seeds) for config in steps] == [(0, 1, 2)] * 5 + [(0,)] * 4
    assert [config.train.epochs for config in steps] == [30] * 5 + [205] * 4
    minimum = ["n - c2 + 1" in row.labels["solver and width"] for row in rows]
    assert minimum == [width == "minimum" for width in widths]
    assert len({row.labels["target width"] for row in rows}) == 2
    narrower = solver_steps.PART.rows("laptop", ("target.width=8",))
    assert [row.labels["target width"] for row in narrower] == ["8"] * 5


def test_titles_of_the_figure_of_solver_steps_do_not_overlap():
    work = solver_steps.PART.plan_work(
        PartRequest("solver_steps", "laptop", (f"outputs={OUTPUTS}",), OUTPUTS, OUTPUTS)
    )
    cells = [one.cell() for one in work]
    figure = drawn(lambda: solver_steps.PART.draw(cells), "")
    boxes = [axes._left_title.get_window_extent() for axes in figure.axes]
    for left, right in zip(boxes[::2], boxes[1::2], strict=True):
        assert left.x1 < right.x0
