"""Giannou et al. 2023: parts at smoke scale, batched training against PyTorch."""

import contextlib
import math
import re

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

from bnrecon.construction.relu_source import relu_network
from bnrecon.construction.sparse_invertibility import predicted_density
from bnrecon.reporting.statistics import proportion_interval
from bnrecon.reproduction.pieces import stored_in
from bnrecon.runtime.errors import Interrupted
from bnrecon.studies import registry
from bnrecon.studies.giannou2023 import batched_training, lemma10, theorem2, theorem3
from bnrecon.studies.giannou2023.batched_training import (
    MOMENTUM,
    SCHEDULES,
    DenseNetworks,
    Optimizer,
    SourceNetworks,
    all_optimizers,
    draw_start,
    evaluate,
    train,
    train_sources,
    train_students,
)
from bnrecon.studies.giannou2023.comparison import (
    TEACHER,
    compare_methods,
    middle_range,
    summarize_panels,
    where_better,
)
from bnrecon.studies.giannou2023.constructive import constructed_error
from bnrecon.studies.giannou2023.figure4_left import constant_gains
from bnrecon.studies.giannou2023.many_digits import solve_in_digits
from bnrecon.studies.giannou2023.teacher import Sizes, draw_samples, draw_source
from bnrecon.studies.giannou2023.theorem1 import random_target

STUDY = registry.find("giannou2023")
TINY = Sizes(512, 128, 256, 2, 2)


def _reference(first, second, normalization):
    """The source as PyTorch writes it."""
    width, side = first.shape
    norms = {"batch": nn.BatchNorm1d, "layer": nn.LayerNorm}[normalization]
    layers = nn.Linear(side, width, bias=False), nn.Linear(width, side, bias=False)
    for layer, weight in zip(layers, (first, second), strict=True):
        layer.weight = nn.Parameter(weight.float(), requires_grad=False)
    return nn.Sequential(layers[0], norms(width), nn.ReLU(), layers[1], norms(side), nn.ReLU())


@pytest.mark.parametrize("normalization", ["batch", "layer"])
def test_batched_training_matches_pytorch_for_every_network(normalization):
    """Two runs, all optimizers: the same test error as nn modules under torch.optim.SGD."""
    samples, optimizers = draw_samples(4, TINY, [0, 1]), all_optimizers(TINY.rates)
    first, second = draw_source(4, 16, 1.0, [0, 1])
    networks = SourceNetworks(first, second, len(optimizers), normalization)
    train(networks, optimizers, samples, TINY.epochs, seed=3)
    errors = evaluate(networks, samples, "test")
    for run in (0, 1):
        for number, optimizer in enumerate(optimizers):
            network = _reference(first[run], second[run], normalization)
            _train_alone(network, optimizer, samples, run)
            with torch.no_grad():
                outputs = network(samples.x["test"][run]).sum(1)
            expected = (outputs - samples.y["test"][run]).square().mean()
            assert errors[run, number].item() == pytest.approx(expected.item(), rel=1e-3)


def _train_alone(network, optimizer, samples, run):
    parameters = [p for p in network.parameters() if p.requires_grad]
    sgd = torch.optim.SGD(parameters, optimizer.learning_rate, momentum=MOMENTUM)
    x, y = samples.x["train"][run], samples.y["train"][run].float()
    generator, step, total = torch.Generator().manual_seed(3), 0, TINY.epochs * 2
    for _ in range(TINY.epochs):
        for chosen in torch.randperm(512, generator=generator).split(256):
            for group in sgd.param_groups:
                group["lr"] = optimizer.learning_rate * SCHEDULES[optimizer.schedule](step / total)
            sgd.zero_grad()
            (network(x[chosen]).sum(1) - y[chosen]).square().mean().backward()
            sgd.step()
            step += 1
    network.eval()


def test_diverged_network_is_infinitely_wrong_and_harms_no_other():
    samples = draw_samples(4, TINY, [0])
    networks = DenseNetworks([0], 4, 2)
    train(networks, [Optimizer(1e6, "constant"), Optimizer(0.01, "constant")], samples, 30)
    errors = evaluate(networks, samples, "test")[0]
    assert math.isinf(errors[0])
    assert errors[1] < samples.y["test"].var()


def test_runs_have_their_own_teachers_samples_sources_and_starts():
    samples = draw_samples(3, TINY, [0, 1])
    drawn = [samples.teachers, *samples.x.values(), *draw_source(3, 9, 1.0, [0, 1])]
    for first, second in (*drawn, draw_start([0, 1], 3)):
        assert not torch.equal(first, second)


def test_error_is_the_mean_over_samples_of_chunks_that_differ_in_size():
    samples = draw_samples(3, Sizes(8, 8, 5000, 1, 1), [0])
    network = DenseNetworks([0], 3, 1)
    with torch.no_grad():
        outputs = network(samples.x["test"])[:, 0].double()
    expected = (outputs - samples.y["test"]).square().mean().item()
    assert evaluate(network, samples, "test").item() == pytest.approx(expected, rel=1e-6)


def test_constructed_source_is_the_network_of_theorem_1():
    """Its error is that of real modules whose normalizations hold random statistics."""
    samples = draw_samples(4, TINY, [0])
    first, second = draw_source(4, 16, 1.0, [0])
    constructed = constructed_error(first, second, samples.teachers, samples)
    assert constructed["mse"][0] < 1e-20
    assert constructed["residual"][0] < 1e-10
    teacher = nn.Sequential(nn.Linear(4, 4, bias=False, dtype=torch.float64), nn.ReLU())
    with torch.no_grad():
        teacher[0].weight.copy_(samples.teachers[0])
    x = samples.x["test"][0].double()
    rebuilt = relu_network(teacher, radius=float(x.norm(dim=1).max()))
    outputs = rebuilt.network(x).sum(1)
    assert (outputs - samples.y["test"][0]).square().mean() < 1e-20


def test_constructed_source_fails_with_too_few_scales():
    rows = compare_methods(5, 15, "smoke").query("method == 'teacher'")
    assert (rows["mse"] > 1e-3).all()
    assert (rows["residual"] > 0.1).all()


def test_frozen_weights_have_the_requested_density():
    first, second = draw_source(20, 400, 0.05, [0])
    for weight in (first, second):
        assert float((weight != 0).double().mean()) == pytest.approx(0.05, abs=0.01)


@pytest.mark.parametrize("width", [2, 60])
def test_units_without_weights_are_not_trained(width):
    """Without them the errors are the same; of 60 units one is used, of 2 none."""
    samples, optimizers = draw_samples(4, TINY, [0, 1]), all_optimizers(TINY.rates)
    first, second = draw_source(4, width, 0.05, [0, 1])
    trained = train_sources(first, second, samples, TINY)
    networks = SourceNetworks(first[:1], second[:1], len(optimizers))
    train(networks, optimizers, samples.of_run(0), TINY.epochs)
    expected = evaluate(networks, samples.of_run(0), "test")[0].tolist()
    assert [row["mse"] for row in trained.tried] == pytest.approx(expected, rel=1e-4)
    used = (first[0] != 0).any(1) & (second[0] != 0).any(0)
    assert trained.parameters[0]["scales.0"].shape[-1] == used.sum() == (width == 60)


def test_middle_range_excludes_the_extreme_runs():
    assert middle_range(pd.Series([5.0, 1e9, 2.0, 1e-9, 3.0])) == (3.0, 2.0, 5.0)


def _compared(errors, side=5):
    """Rows of a comparison: errors by method, one per run."""
    return pd.DataFrame(
        [
            {"side": side, "width": side**2, "method": method, "run": run, "mse": mse}
            | {"variance": 1.0, "learning_rate": 0.1, "schedule": "cosine"}
            for method, per_run in errors.items()
            for run, mse in enumerate(per_run)
        ]
    )


def _both_panels(errors):
    """Two teacher widths, and two source widths of the second."""
    second = _compared(errors, TEACHER["paper"])
    return pd.concat([_compared(errors), second, second.assign(width=30)])


def test_no_panel_by_source_width_before_its_teacher_is_computed():
    errors = {"baseline": [1.0], "teacher": [2.0], "student": [3.0]}
    lines = summarize_panels(pd.concat([_compared(errors), _compared(errors, 10)]))
    assert list(lines["teacher width d"]) == [5, 10]
    assert list(summarize_panels(_both_panels(errors))["source width"]) == [25, 30, 625]


def test_better_method_is_better_in_every_run():
    """Runs share their teacher, so they are compared one by one."""
    paired = {"baseline": [1.0, 10.0, 100.0], "student": [0.9, 9.0, 90.0]}
    assert where_better(_compared(paired), "side", "student", "baseline") == [5]
    paired["student"][1] = 11.0
    assert where_better(_compared(paired), "side", "student", "baseline") == []


def test_figure_5a_is_judged_in_shares_of_the_variance():
    """A distance of 1e-9 is not far, however large relative to an error of 1e-14."""

    def verdict(small, large):
        rows = [
            _compared(dict(zip(("baseline", "student", "dense", "teacher"), e, strict=True)), side)
            for side, e in ((5, small), (30, large))
        ]
        dimensions, theorem_3 = STUDY.part("figure5a").claims(pd.concat(rows))
        assert theorem_3.verdict == "undecided"
        return dimensions.verdict

    far, close = ([0.3], [1.0], [1e-14], [1.0]), ([0.1], [0.055], [0.05], [0.001])
    assert verdict(far, close) == "confirmed"
    assert verdict(([0.3], [1e-9], [1e-14], [1.0]), close) == "contradicted"
    assert verdict(far, ([0.1], [0.08], [0.05], [0.001])) == "contradicted"


def test_figure_5b_needs_large_losses_and_a_factor_of_two():
    def verdicts(baseline, student):
        errors = {"baseline": [baseline], "teacher": [student], "student": [student]}
        return [claim.verdict for claim in STUDY.part("figure5b").claims(_both_panels(errors))]

    assert verdicts(0.2, 1.0) == ["confirmed"] * 3
    assert verdicts(0.005, 1.0) == ["contradicted", "confirmed", "confirmed"]
    assert verdicts(0.6, 1.0) == ["confirmed", "contradicted", "confirmed"]
    assert verdicts(1.0, 0.6) == ["confirmed", "contradicted", "contradicted"]


def test_run_without_a_winner_does_not_decide_figure_5_bottom_left():
    """For example where a source of small width computes nothing by any method."""

    def verdict(baseline):
        errors = {"baseline": baseline, "teacher": [5.0, 5, 5], "student": [5.0, 6, 6]}
        return STUDY.part("figure5b").claims(_both_panels(errors))[2]

    assert verdict([1.0, 1, 5]).verdict == "confirmed"
    assert re.search(r"in 2 of 3 runs at d = 5 \(ties,[^)]*: 1\)", verdict([1.0, 1, 5]).evidence)
    assert verdict([1.0, 5, 5]).verdict == "contradicted"
    assert verdict([1.0, 1, 6]).verdict == "contradicted"
    assert verdict([1.0, 1, math.nan]).verdict == "contradicted"


def test_figure_4_right_is_not_decided_by_widths_at_which_runs_disagree():
    def verdict(*errors, least=0.5):
        """Of two runs at widths below, at and above d²; SGD's errors are ``least`` or 1."""
        rows = [
            _compared({"baseline": [least, 1.0], "teacher": e, "student": e, "dense": [0.1, 0.1]})
            for e in errors
        ]
        widths = [row.assign(width=width) for row, width in zip(rows, (16, 25, 36), strict=True)]
        (claim,) = STUDY.part("figure4_right").claims(pd.concat(widths))
        return claim.verdict

    worse, better, mixed = [2.0, 2.0], [1e-3, 1e-3], [2.0, 0.5]
    assert verdict(worse, mixed, better) == "confirmed"
    assert verdict(worse, mixed, better, least=0.009) == "contradicted"
    assert verdict(better, mixed, worse) == verdict(worse, worse, worse) == "contradicted"
    assert verdict(mixed, better, better) == verdict(worse, worse, mixed) == "undecided"


def test_layer_norm_is_judged_run_by_run():
    def claim(layer):
        errors = {"batch": [1.0, 2.0, 4.0], "layer": layer}
        rows = _compared(errors).rename(columns={"method": "normalization"})
        return STUDY.part("layer_norm").claims(rows)[0]

    assert claim([1.1, 2.1, 4.1]).verdict == "confirmed"
    assert claim([1.1, 2.1, 3.9]).verdict == "undecided"
    assert claim([0.9, 1.9, 40.0]).verdict == "contradicted"
    assert "In 1 of 3 runs" in claim([0.9, 1.9, 40.0]).evidence


def test_lemma_10_counts_the_entries_of_the_set():
    rows = lemma10.compare_sets(3, sets=20, draws=20_000, seed=0)
    assert rows["violated"].tolist() == [0, 0, 0, 0]
    single = lemma10.sparse.product_zero_probability((1, 0, 0), 0.3)
    assert single == pytest.approx(1 - 0.3**2)


def test_schedule_selected_by_one_run_is_undecided():
    part = STUDY.part("figure4_left")
    errors = {"baseline": [1.0], "teacher": [1e-20], "student": [0.1]}
    assert [claim.verdict for claim in part.claims(_compared(errors))] == [
        "confirmed",
        "confirmed",
        "undecided",
    ]


def test_schedule_is_decided_where_all_runs_tried_every_setting():
    """A schedule's rate is selected on validation samples; divergent settings are excluded."""
    tried = [
        ("constant", 0.1, [(1.0, 0.4), (1.0, 0.4), (1.0, 0.4)]),
        ("constant", 0.01, [(0.4, 0.5), (0.4, 0.5), (0.4, 0.5)]),
        ("cosine", 0.1, [(0.1, 0.1), (math.nan, math.nan), (0.1, 0.1)]),
        ("cosine", 0.01, [(0.3, 0.2), (0.3, 0.21), (0.3, 0.22)]),
    ]
    names = ["schedule", "learning_rate", "validation", "mse"]
    rows = [
        dict(
            zip(names, (schedule, rate, *errors), strict=True),
            side=5,
            run=run,
            method="tried",
            variance=1.0,
        )
        for schedule, rate, runs in tried
        for run, errors in enumerate(runs)
    ]
    gain = constant_gains(pd.DataFrame(rows))[5]
    assert (gain.mean, gain.n) == (pytest.approx(-29.0), 3)
    methods = {"baseline": [1.0] * 3, "teacher": [1e-20] * 3, "student": [0.1] * 3}
    compared = pd.concat([_compared(methods), pd.DataFrame(rows)])
    part = STUDY.part("figure4_left")
    assert part.claims(compared)[-1].verdict == "contradicted"
    better = compared["schedule"].replace({"cosine": "constant", "constant": "cosine"})
    other_width = compared.assign(side=10, width=100, schedule=better)
    assert part.claims(other_width)[-1].verdict == "confirmed"
    both = pd.concat([compared, other_width])  # "the best" fails at one width
    assert part.claims(both)[-1].verdict == "contradicted"
    diverged = other_width.assign(validation=other_width["validation"].where(better != "constant"))
    assert part.claims(diverged)[-1].verdict == "undecided"


def test_runs_share_one_selected_setting(tmp_path, monkeypatch):
    sizes = Sizes(512, 128, 256, 2, 2, selecting=2)
    samples = draw_samples(4, sizes, [0, 1])
    first, second = draw_source(4, 16, 1.0, [0, 1])
    with contextlib.suppress(Interrupted), stored_in(tmp_path):
        trained = train_sources(first, second, samples, sizes)
        raise Interrupted("stopped")
    monkeypatch.setattr(batched_training, "train", lambda *_: 1 / 0)
    with stored_in(tmp_path):
        assert train_sources(first, second, samples, sizes).tried == trained.tried
    tried = pd.DataFrame(trained.tried)
    settings = tried.groupby(["learning_rate", "schedule"])["validation"].mean()
    rate, schedule = settings.idxmin()
    assert trained.chosen == Optimizer(rate, schedule)
    same = tried[(tried["learning_rate"] == rate) & (tried["schedule"] == schedule)]
    assert same["mse"].tolist() == trained.errors


def test_runs_that_do_not_select_change_only_rounding():
    """Run after run gives the same as training all runs' networks together."""
    samples = draw_samples(4, TINY, [0, 1])
    first, second = draw_source(4, 16, 1.0, [0, 1])
    trained = train_sources(first, second, samples, TINY)
    optimizers = all_optimizers(TINY.rates)
    networks = SourceNetworks(first, second, len(optimizers))
    train(networks, optimizers, samples, TINY.epochs)
    whole = evaluate(networks, samples, "test")[:, optimizers.index(trained.chosen)]
    assert trained.errors == pytest.approx(whole.tolist(), rel=1e-4)
    students, weights = train_students(4, [0, 1], samples, TINY)
    outputs = torch.relu(samples.x["test"].double() @ weights.double().mT).sum(-1)
    errors = (outputs - samples.y["test"]).square().mean(-1)
    assert students.errors == pytest.approx(errors.tolist(), rel=1e-4)


def test_clopper_pearson_bound_has_its_coverage():
    """At the bound, this many successes or more have a probability of 5%."""
    bound, _ = proportion_interval(392, 400, 0.9)
    at_least = sum(math.comb(400, k) * bound**k * (1 - bound) ** (400 - k) for k in range(392, 401))
    assert at_least == pytest.approx(0.05)
    assert proportion_interval(0, 10, 0.9)[0] == 0


def test_lemma_9_is_tried_on_singular_products_without_a_zero_column():
    row = theorem3.invertible(5, 0.5, 300, 300).iloc[0]
    assert row["draws"] - row["invertible"] - row["with_zero_column"] > 0
    assert row["numerical_agrees"] == 300


def test_nothing_compared_decides_nothing():
    """Large d have no numerical rank, large blocks no many digits, and one width no other."""
    assert theorem3.decide_lemma_9(theorem3.invertible(6, 0.6, 2, numerical=0))[1] == "undecided"
    chain = {"side": 16, "block": 4, "depth": 2, "functional_error": 1e-12}
    verdicts, _ = theorem2.decide(pd.DataFrame([chain | {"digits_error": math.nan}]))
    assert verdicts["layers"] == "undecided"
    errors = {name: [1.0] for name in ("baseline", "teacher", "student", "dense")}
    (claim,) = STUDY.part("figure4_right").claims(_compared(errors, 25))
    assert claim.verdict == "undecided"


def test_theorem_holds_beyond_float64():
    """At d = 12, k = 1 float64 fails, a hundred digits do not."""
    target = random_target(12, 1, 0)
    assert max(s.relative_error for s in theorem2._chain(target, 1).segments) > 1e-6
    exact, rounded = solve_in_digits(target[0].weight.detach(), 1, 0, 100)
    assert exact < 1e-60
    assert rounded > exact


def test_chain_in_digits_is_the_same_chain():
    """Where float64 suffices both give the same scales: rounded ones have float64's error."""
    target = random_target(6, 1, 1)
    exact, rounded = solve_in_digits(target[0].weight.detach(), 3, 1, 50)
    assert exact < 1e-30
    assert 1e-17 < rounded < 1e-12


def test_crossing_of_one_half_is_interpolated():
    densities, shares = np.array([0.1, 0.2, 0.3]), np.array([0.0, 0.25, 0.75])
    assert theorem3.crossing(densities, shares) == pytest.approx(0.25)
    assert math.isnan(theorem3.crossing(densities, shares / 2))


@pytest.mark.parametrize(
    ("counts", "verdict"),
    [
        ({6: (10, 10), 8: (10, 10)}, "undecided"),  # too few draws for 1 - 1/d to be shown
        ({16: (400, 400), 64: (397, 400)}, "undecided"),
        ({16: (400, 400), 64: (400, 400)}, "confirmed"),
        ({16: (400, 400), 64: (380, 400)}, "contradicted"),
    ],
)
def test_missing_evidence_does_not_contradict_theorem_3(counts, verdict):
    rows = pd.DataFrame(
        {
            "side": side,
            "density": predicted_density(side, "theorem"),
            "invertible": invertible,
            "draws": draws,
        }
        for side, (invertible, draws) in counts.items()
    )
    assert theorem3.decide_theorem_3(rows.round({"density": 6}))[1] == verdict


@pytest.mark.parametrize(
    ("at_1", "at_2", "verdict"),
    [(40, 80, "undecided"), (50, 50, "undecided"), (51, 0, "needs a correction")],
)
def test_step_4_of_theorem_3_is_decided_at_the_printed_density(at_1, at_2, verdict):
    """It needs a correction if over half of the draws at C = 1 are singular, in any size."""
    rows = [
        {"side": 8, "multiple": c, "invertible": 100 - singular, "draws": 100, "with_zero_line": 0}
        for c, singular in ((1, 0), (1, at_1), (2, at_2), (3, 0))
    ]
    assert theorem3.decide_step_4(pd.DataFrame(rows))[1] == verdict
