"""Burkholz 2024, Tables 1 and 2: claims follow from the runs of their cells."""

import itertools
import math
from types import SimpleNamespace

import pytest
from repository import RESULTS

from bnrecon.reporting.result import RunResult
from bnrecon.reporting.statistics import Interval
from bnrecon.reproduction.document import claims_by_part
from bnrecon.studies import registry
from bnrecon.studies.burkholz2024 import epsilon, excess, reconstruction, table1
from bnrecon.studies.burkholz2024.run_tables.row import Cell, Row
from bnrecon.studies.burkholz2024.run_tables.verdicts import Reported

CLAIMS = table1.PART.claims
TARGETS = ("relu", "leaky_relu", "tanh", "sigmoid")


def cell(way, loss=0.0, half_width=0.01, differ=(0, 0, 0), target="relu", width="16"):
    """A finished cell; ``differ`` of 1,000 images by seed, ``None`` where not counted."""
    labels = {"target width": width, "target": target, "features": "he_normal", "solver": way}
    counts = [None if n is None else SimpleNamespace(images=1000, differ=n) for n in differ]
    seeds = [SimpleNamespace(predictions=count) for count in counts]
    interval = Interval(loss, half_width if len(seeds) > 1 else None, len(seeds))
    result = SimpleNamespace(loss=interval, seeds=seeds, layers=(), unconverged=())
    config = SimpleNamespace(train=SimpleNamespace(epochs=30))
    return Cell(Row(labels, (), Reported.printed(94.12, "93.72 ± 0.1")), config, None, result)


def unfinished(of):
    return Cell(of.row, None, None, None)


def both(paper, minimum, width="16"):
    """Cells of both solvers, cycling through the targets."""
    counts = (("paper", paper), ("minimum", minimum))
    return [
        cell(way, differ=differ, target=target, width=width)
        for way, differs in counts
        for target, differ in zip(TARGETS, differs, strict=False)
    ]


@pytest.mark.parametrize("way", ["minimum", "paper"])
@pytest.mark.parametrize(
    ("loss", "half_width", "verdict"),
    [(0.3, 0.05, "confirmed"), (0.35, 0.06, "undecided"), (-0.9, 0.02, "contradicted")],
)
def test_losses_within_the_largest_in_print_are_small(way, loss, half_width, verdict):
    (claim,) = CLAIMS([cell(way, loss, half_width, width="64"), cell(way, width="64")])
    assert claim.verdict == verdict
    assert "±0.40 points" in claim.statement
    ends = f"{min(-0.01, loss - half_width):.2f} to {max(0.01, loss + half_width):.2f}"
    assert f"every interval within {ends} (2 of 16 cells)" in claim.evidence
    assert f"{min(0, loss):.2f} to {max(0, loss):.2f}" in claim.evidence


@pytest.mark.parametrize(
    ("differ", "verdict"),
    [((0,), "confirmed"), ((0, None), "undecided"), ((0, 1), "contradicted")],  # of 1,000 images
)
def test_near_perfect_network_changes_at_most_five_of_10000_predictions(differ, verdict):
    (claim,) = CLAIMS([cell("exact", differ=differ), cell("exact")])
    assert claim.verdict == verdict
    assert "(2 of 16 cells)" in claim.evidence


def test_network_with_the_most_changes_allowed_is_near_perfect(monkeypatch):
    monkeypatch.setattr(reconstruction, "MOST_CHANGED", 10)  # one of 1,000 images
    for differ, verdict in ((1, "confirmed"), (2, "contradicted")):
        (claim,) = CLAIMS([cell("exact", differ=(0, differ))])
        assert claim.verdict == verdict


def test_other_trainings_are_counted_apart():
    targets = ("relu", "relu, 205 epochs", "tanh, 205 epochs", "relu, training seed 1, 205 epochs")
    differ = ((9, 0, 0), *[(0, 0, 0)] * 3)
    (claim,) = CLAIMS([cell("minimum", 0.0, 0.01, *of) for of in zip(differ, targets, strict=True)])
    assert "at most 9 of 3,000 in a cell (relu, 30 epochs, he_normal)" in claim.evidence
    assert "(2 of 16 cells plus 2 on targets trained for 30 epochs)" in claim.evidence


@pytest.mark.parametrize("way", ["minimum", "exact"])
def test_unfinished_cell_leaves_a_claim_undecided(way):
    assert CLAIMS([cell(way)])[0].verdict == "confirmed"
    assert CLAIMS([cell(way), unfinished(cell(way))])[0].verdict == "undecided"


def test_single_network_per_cell_decides_no_loss():
    assert CLAIMS([cell("minimum"), cell("minimum", differ=(0,))])[0].verdict == "undecided"


@pytest.mark.parametrize(
    ("paper", "minimum", "verdict"),
    [
        ([(3, 4, 5), (4, 4, 4), (5, 5, 5)], [(1, 1, 1), (1, 1, 1), (1, 1, 1)], "confirmed"),
        ([(9, 9, 9), (1, 1, 1), (1, 1, 1)], [(1, 1, 1), (1, 1, 1), (1, 1, 1)], "undecided"),
        ([(1, 1, 1), (1, 1, 2), (1, 1, 1)], [(5, 5, 5), (5, 5, 6), (5, 5, 6)], "contradicted"),
    ],
)
def test_solvers_are_compared_cell_by_cell(paper, minimum, verdict, monkeypatch):
    *_, part = CLAIMS(both(paper, minimum))
    assert part.verdict == "undecided"  # 3 of a table's 16 cells
    monkeypatch.setattr(reconstruction, "CELLS", 3)
    *_, claim = CLAIMS(both(paper, minimum))
    assert claim.is_beyond
    assert claim.verdict == verdict
    assert "of 10,000 predictions LU" in claim.evidence


@pytest.mark.parametrize(("cells", "verdict"), [(2, "confirmed"), (3, "undecided")])
def test_target_of_another_training_is_no_printed_cell(cells, verdict, monkeypatch):
    monkeypatch.setattr(reconstruction, "CELLS", cells)
    targets = ("relu, 205 epochs", "tanh, 205 epochs", "relu")
    rebuilt = [
        cell(way, differ=(differ,) * 3, target=target)
        for way, differ in (("paper", 9), ("minimum", 1))
        for target in targets
    ]
    *_, claim = CLAIMS(rebuilt)
    assert claim.verdict == verdict


def test_each_width_is_judged_separately_and_one_network_decides_nothing():
    cells = both([(9, 9, 9)] * 3, [(1, 1, 2), (1, 1, 1), (1, 1, 1)])
    cells += both([(7,)], [(2,)], width="64")
    verdicts = [claim.verdict for claim in CLAIMS(cells)]
    smaller = "not at the paper's size"  # the paper's sentence is about problems of its size
    assert verdicts == ["confirmed", smaller, *["undecided"] * 4]  # the third: 3 of 16 cells
    at_its_size = both([(9, 9, 9)] * 3, [(1, 1, 1)] * 3, width="64")
    assert [claim.verdict for claim in CLAIMS(at_its_size)][:2] == ["confirmed"] * 2
    losses, variations, more = CLAIMS(cells)[3:]
    for claim in (losses, variations):
        assert "mean losses 0.00, one seed each, so no verdict (1 of 16 cells)" in claim.evidence
    assert "width 64" in more.evidence
    assert "changes 70.0, bnrecon 20.0; difference over targets 50.0 (n=1)" in more.evidence
    assert "more in 1 of 1" in more.evidence


def test_cell_with_most_changes_is_named():
    """A mean loss of 0.00 may hide them."""
    claim = CLAIMS(both([], [(0, 0, 0), (2, 0, 40), (None, 90, 90)]))[0]
    assert "at most 42 of 3,000 in a cell (leaky_relu, he_normal)" in claim.evidence


def test_cells_without_counted_predictions_are_not_compared():
    cells = both([(None, 1, 1)] * 3, [(1, 1, 1)] * 3)
    assert len(CLAIMS(cells)) == 2
    cells = both([(None, 1, 1), (8, 8, 8), (8, 8, 9), (8, 8, 8)], [(1, 1, 1)] * 4)
    assert CLAIMS(cells)[2].verdict == "undecided"
    assert "(3 of the 4 cells run)" in CLAIMS(cells)[2].evidence


def test_shipped_evidence_matches_the_shipped_runs(shipped_outputs):
    claims = claims_by_part(registry.find("burkholz2024"), shipped_outputs, "laptop")["table1"]
    (evidence,) = (
        claim.evidence
        for claim in claims
        if "changes more predictions" in claim.statement and "width 16" in claim.evidence
    )
    rates = []
    for solver, path in itertools.product(("lu_lbfgs", "auto"), RESULTS):
        result = RunResult.read(path)
        config = result.config
        if (
            path.parent.name.startswith("cifar10-vgg18-")
            and config["solver"]["name"] == solver
            and config["features"]["width"] == "minimum"
            and config["target"]["width"] == 16
            and config.get("source_images") == 256
        ):
            rates.append((solver, sum(seed.predictions.differ for seed in result.seeds) / 3))
    paper, auto = (
        [rate for name, rate in rates if name == solver] for solver in ("lu_lbfgs", "auto")
    )
    assert (len(paper), len(auto)) == (16, 16)
    assert f"changes {sum(paper) / 16:.1f}, bnrecon {sum(auto) / 16:.1f};" in evidence


def small_excess(excess, loss, error=1e-5, channels=16):
    """A cell of part ``excess``; unfinished without a loss."""
    config = SimpleNamespace(features=SimpleNamespace(excess=excess))
    shape, n = (channels, channels, 3, 3), 9 * channels**2
    layer = SimpleNamespace(relative_error=error, equations=n, shape=shape, width=n + excess)
    done = SimpleNamespace(loss=Interval(loss, 0.01, 3), layers=[layer], seeds=[])
    return Cell(Row({}, ()), config, None, None if loss is None else done)


@pytest.mark.parametrize(
    ("losses", "verdict"),
    [((0.0, 0.01), "confirmed"), ((0.0, 0.045), "undecided"), ((0.0, 0.1), "contradicted")]
    + [((0.0, None), "undecided")],
)
def test_lbfgs_with_over_n_features_is_near_perfect_where_every_loss_is_zero(losses, verdict):
    cells = [small_excess(0, 0.5, error=0.1), *map(small_excess, (40, 400), losses)]
    claim, printed = excess.PART.claims(cells)
    assert claim.verdict == printed.verdict == "not at the paper's size"
    large = [small_excess(*pair, channels=64) for pair in zip((40, 400), losses, strict=True)]
    assert excess.PART.claims(large)[0].verdict == verdict
    finished = sum(loss is not None for loss in losses)
    assert f"({finished} of 2 widths from c1 - n = 40 on, n = 2,304)" in claim.evidence
    assert "at most 1.0e-05" in claim.evidence
    assert ": 55 (40 above n): 0.00 ± 0.01 (n=3)." in printed.evidence
    assert "0.00 ± 0.01 (n=3), 55 features above" in printed.number


def smooth(value, difference, unconverged=0):
    """A cell of part ``epsilon``; unfinished without a difference of logits."""
    config = SimpleNamespace(features=SimpleNamespace(activation="tanh", epsilon=value))
    done = SimpleNamespace(
        seeds=[SimpleNamespace(layers=[None] * 4)],
        unconverged=[None] * unconverged,
        evaluation=SimpleNamespace(largest_difference_to_target=difference),
    )
    return Cell(Row({}, ()), config, None, None if difference is None else done)


@pytest.mark.parametrize(
    ("cells", "verdict"),
    [
        ([smooth(1.0, 3.9), smooth(0.1, 0.39)], "confirmed"),
        ([smooth(1.0, 3.9), smooth(0.1, 0.41)], "contradicted"),
        ([smooth(1.0, 3.9), smooth(0.1, 9.0, unconverged=1)], "confirmed"),
        ([smooth(1.0, 3.9), smooth(0.1, None)], "undecided"),
        ([smooth(1.0, math.nan), smooth(0.1, 0.39)], "contradicted"),
        ([smooth(1.0, 3.9), smooth(0.1, math.nan)], "contradicted"),
    ],
)
def test_network_keeps_depth_times_epsilon_where_layers_keep_epsilon(cells, verdict):
    (claim,) = epsilon.PART.claims(cells)
    assert claim.verdict == verdict
    unsettled = any(cell.result and cell.result.unconverged for cell in cells)
    assert ("where some layers exceed it" in claim.evidence) == unsettled
    assert epsilon.PART.claims([smooth(0.1, 9.0, unconverged=1), smooth(1.0, None)]) == []
