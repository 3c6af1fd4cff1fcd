"""The study of Random features for normalization layers: its pieces against brute force, its experiments from the command."""

import dataclasses
import itertools
import math
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats

from bnrecon.cli import main
from bnrecon.features.shapes import LayerShape
from bnrecon.reproduction import experiments
from bnrecon.runtime.errors import RunError
from bnrecon.studies.random_features import (
    conditioning,
    matching_probability,
    singular_values,
    study,
    weight_equivalence,
)
from bnrecon.studies.random_features.conditioning import IDENTIFIED, condition_number
from bnrecon.studies.random_features.feature_matrices import FEATURES, feature_matrix, target_weight


@pytest.mark.parametrize("name", FEATURES.values())
def test_feature_matrices_have_the_width_asked_for(name):
    shape = LayerShape(4, 5)
    matrix = feature_matrix(name, shape, 13, seed=3)
    assert matrix.shape == (20, 13)
    assert torch.equal(matrix, feature_matrix(name, shape, 13, seed=3))
    assert torch.linalg.matrix_rank(matrix) == 13
    if name in ("id_cond", "ortho_cond"):
        torch.testing.assert_close(
            matrix.T @ matrix, torch.eye(13, dtype=torch.float64), atol=1e-6, rtol=0
        )


@pytest.mark.parametrize("name", FEATURES.values())
def test_targets_follow_the_distribution(name):
    target = target_weight(name, 40, 50, seed=1)
    zeros = float((target == 0).double().mean())
    assert (0.45 < zeros < 0.55) if name in ("sparse_he_normal", "er_sign") else zeros == 0
    if name == "er_sign":
        assert set(target.unique().tolist()) == {-1.0, 0.0, 1.0}
    if name in ("orthogonal", "ortho_cond"):
        torch.testing.assert_close(
            target @ target.T, torch.eye(40, dtype=torch.float64), atol=1e-6, rtol=0
        )
    few, many = (target_weight(name, 40, 50, seed=1, hidden=hidden) for hidden in (7, 100))
    if name == "id_cond":
        assert (
            sorted(few.flatten().unique().tolist()) == [0, 1]
            and few.sum() == 7
            and many.sum() == 100
        )
    elif name == "ortho_cond":  # 7 features, of the outer products of orthonormal vectors
        torch.testing.assert_close(
            few.square().sum(), torch.tensor(7.0, dtype=torch.float64), rtol=1e-5, atol=0
        )
    else:
        assert (torch.linalg.matrix_rank(few), torch.linalg.matrix_rank(many)) == (7, 40)


def test_every_distribution_has_targets_of_its_own():
    targets = [target_weight(name, 12, 10, seed=1, hidden=7) for name in FEATURES.values()]
    assert all(not torch.allclose(one, other) for one, other in itertools.combinations(targets, 2))


def test_a_match_is_found_where_one_of_all_permutations_is_one():
    generator = np.random.default_rng(0)
    seen = set()
    for _ in range(60):
        target, mask = generator.random((4, 5)) < 0.4, generator.random((5, 5)) < 0.6
        brute = any(
            all((~target[row] | mask[rows[row]]).all() for row in range(4))
            for rows in itertools.permutations(range(5), 4)
        )
        assert matching_probability.matched(target, mask) == brute
        seen.add(brute)
    assert seen == {True, False}


def test_disjoint_supports_do_not_attain_the_bound_of_theorem_4_2():
    """c2 = 2, p^d = 1/2: 7 of 16 fitting tables have a perfect matching, 0.4375; the bound says 0.5625."""
    tables = list(itertools.product([False, True], repeat=4))
    count = sum((a and d) or (b and c) for a, b, c, d in tables)
    assert count / 16 == 0.4375
    assert matching_probability.bound_4_2(np.array([1, 1]), 0.5, 2) == 0.5625
    target = matching_probability.disjoint(2, 2, 1)
    hits, draws = matching_probability.probability(lambda _: target, 2, 0.5, 4000)
    interval = stats.binomtest(hits, draws).proportion_ci(0.999)
    assert interval.low <= 0.4375 <= interval.high < 0.5625


def test_theorem_4_3_in_print_is_wrong_where_candidates_share_a_degree():
    """One target weight, there with q = 1/2, and k = 2 candidates of density 1/2: matched with 1 - 1/2 · 1/4 = 7/8, not 15/16."""
    assert matching_probability.width_factor_in_print(1, 1, 0.5, 0.5, 1 / 16) == pytest.approx(2)
    cases = itertools.product(
        [False, True], repeat=3
    )  # the target's weight, and the two candidates'
    assert sum(not target or first or second for target, first, second in cases) / 8 == 7 / 8
    assert matching_probability.partitioned(2, 1, 1, 0.5, 0.5) == pytest.approx(7 / 8)
    hits, draws = matching_probability.probability(
        lambda generator: generator.random((1, 1)) < 0.5, 2, 0.5, 4000
    )
    interval = stats.binomtest(hits, draws).proportion_ci(0.999)
    assert interval.low <= 7 / 8 <= interval.high < 15 / 16
    # No matter of rounding k: ten rows of fifty inputs are found in a quarter of the draws, where the theorem says 0.9.
    k = matching_probability.width_factor_in_print(10, 50, 0.2, 0.5, 0.1)
    hits, draws = matching_probability.probability(
        lambda generator: generator.random((10, 50)) < 0.2, 10 * int(np.ceil(k)), 0.5, 60
    )
    assert stats.binomtest(hits, draws).proportion_ci(0.999).high < 0.6


@pytest.mark.parametrize(
    "asked", [(1, 1, 0.5, 0.5, 1 / 16), (3, 4, 0.3, 0.6, 0.2), (2, 6, 0.5, 0.7, 0.3)]
)
def test_the_width_factor_derived_is_what_the_partition_needs(asked):
    """Against a sum over all in-degrees and a simulation with the proof's own division of the candidates."""
    outputs, inputs, sparsity, density, failure = asked
    k = matching_probability.width_factor(*asked)
    none = sum(
        math.comb(inputs, d) * sparsity**d * (1 - sparsity) ** (inputs - d) * (1 - density**d) ** k
        for d in range(inputs + 1)
    )
    assert (1 - none) ** outputs == pytest.approx(1 - failure)
    generator, whole = np.random.default_rng(0), math.ceil(round(k, 9))
    hits = 0
    for _ in range(3000):
        target = generator.random((outputs, 1, inputs)) < sparsity
        candidates = generator.random((outputs, whole, inputs)) < density
        hits += (~target | candidates).all(2).any(1).all()
    interval = stats.binomtest(int(hits), 3000).proportion_ci(0.999)
    assert interval.low <= matching_probability.partitioned(whole, *asked[:4]) <= interval.high


def test_orthogonal_weights_do_not_make_the_columns_of_m_orthogonal():
    """Against the paper's Sect. 2.1; ID cond and Ortho cond do."""
    for name, small in (("orthogonal", False), ("id_cond", True), ("ortho_cond", True)):
        found = singular_values.condition_numbers(feature_matrix(name, LayerShape(10, 10), 100, 0))
        assert (found["off-diagonal"] < 1e-5) == small
        assert (found["condition"] < 1.001) == small
    assert (
        singular_values.condition_numbers(feature_matrix("orthogonal", LayerShape(10, 10), 100, 0))[
            "off-diagonal"
        ]
        > 0.3
    )


@pytest.mark.parametrize(
    "name, excess", [("he_normal", 0), ("orthogonal", 0), ("er_sign", 10), ("ortho_cond", 0)]
)
def test_condition_numbers_of_figure_2_are_those_of_m(name, excess):
    matrix = feature_matrix(name, LayerShape(8, 8), 64 + excess, seed=1)
    assert condition_number(matrix) == pytest.approx(float(torch.linalg.cond(matrix)), rel=1e-3)
    flat = matrix[:, :60] @ matrix[:, :60].T
    assert condition_number(flat) > IDENTIFIED


def test_every_experiment_runs_and_is_drawn(tmp_path, capsys, monkeypatch):
    assert main._study(["random_features", "scale=smoke", f"outputs={tmp_path}"]) == 0
    printed = capsys.readouterr().out
    for name, experiment in study.EXPERIMENTS.items():
        assert experiment.title in printed
        assert (tmp_path / "studies" / "random_features" / f"{name}-smoke.csv").exists()
        assert (tmp_path / "studies" / "random_features" / f"{name}-smoke.png").exists() == (
            experiment.draw is not None
        )
    drawn = {path: path.read_bytes() for path in tmp_path.rglob("*.svg")}
    assert main._tables(["study=random_features", "scale=smoke", f"outputs={tmp_path}"]) == 0
    assert capsys.readouterr().out == printed
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.svg")} == drawn
    assert main._figures(["study=random_features", "scale=smoke", f"outputs={tmp_path}"]) == 0
    assert capsys.readouterr().out.count(".png") == sum(
        experiment.draw is not None for experiment in study.EXPERIMENTS.values()
    )
    assert main._study(["random_features", "exact", "scale=smoke"]) == 2
    assert "exact" in capsys.readouterr().err


def test_processes_share_the_pieces_and_one_may_die(tmp_path):
    line = [
        sys.executable,
        "-m",
        "bnrecon.cli",
        "study",
        "random_features",
        "conditioning",
        "scale=smoke",
        f"outputs={tmp_path}",
    ]
    processes = [
        subprocess.Popen(
            line,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            env=os.environ | {"OMP_NUM_THREADS": "1"},
        )
        for _ in range(3)
    ]
    first = processes.pop()
    first.stderr.readline()  # a piece is done, the next begun
    first.kill()
    first.communicate()
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert [process.returncode for process in processes] == [0, 0], said
    frame = experiments.read(
        tmp_path / "studies" / "random_features" / "conditioning-smoke.csv"
    ).frame
    pieces = conditioning.pieces("smoke")
    assert sorted(frame["piece"].unique()) == sorted(pieces)
    assert not frame.duplicated(["piece", "seed", "solver"]).any()  # nothing done twice
    alone = conditioning.errors(5, 10, "orthogonal", 2)["rmse"]
    np.testing.assert_allclose(
        frame.loc[frame["piece"] == "5, 10, orthogonal", "rmse"], alone, rtol=1e-15
    )  # every digit kept


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) * 2 // 3],
        lambda text: text.splitlines()[0] + "\n",
        lambda text: "\x00\x01",
        lambda text: text.replace(",piece,", ",other,"),
    ],
)
def test_a_damaged_table_is_named_and_the_others_are_shown(tmp_path, capsys, damage):
    words = ["random_features", "matching", "projection", "scale=smoke", f"outputs={tmp_path}"]
    assert main._study(words) == 0
    path = tmp_path / "studies" / "random_features" / "matching-smoke.csv"
    path.write_text(damage(path.read_text()))
    capsys.readouterr()
    assert main._tables(["study=random_features", *words[1:]]) == 2
    printed, error = capsys.readouterr()
    assert (
        str(path) in error
        and "computed again by: bnrecon study" in error
        and "Traceback" not in error
    )
    assert "What too few features leave" in printed and "| He normal" in printed
    assert main._study(words) == 0
    assert "set aside as matching-smoke.csv.damaged and redone" in capsys.readouterr().err
    assert main._tables(["study=random_features", *words[1:]]) == 0


def test_a_table_of_another_version_is_named(tmp_path, capsys):
    words = ["random_features", "matching", "scale=smoke", f"outputs={tmp_path}"]
    assert main._study(words) == 0
    path = tmp_path / "studies" / "random_features" / "matching-smoke.csv"
    rows = experiments.rows(path).rename(columns={"proof": "once"})
    path.write_text(experiments.signed(rows).to_csv(index=False))
    assert main._study(words) == 2
    assert "another version" in capsys.readouterr().err


def test_outputs_that_are_no_folder_are_refused(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("mine")
    for command in (main._study, lambda words: main._tables([f"study={words[0]}", *words[1:]])):
        assert command(["random_features", "matching", "scale=smoke", f"outputs={file}"]) == 2
        assert str(file) in (error := capsys.readouterr().err) and len(error.splitlines()) == 1
    assert file.read_text() == "mine"


def test_jobs_share_a_study_and_end_with_the_command(tmp_path):
    """The command is killed when a worker has done a piece: its workers go too, and given again it finishes the rest."""
    log = tmp_path / "studies" / "random_features" / "smoke-workers.log"
    line = [
        sys.executable,
        "-m",
        "bnrecon.cli",
        "study",
        "random_features",
        "conditioned",
        "scale=smoke",
        "jobs=2",
    ]
    line.append(f"outputs={tmp_path}")
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    process = subprocess.Popen(
        line,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
    )
    waited = time.monotonic() + 120
    while not log.exists() and time.monotonic() < waited:
        time.sleep(0.05)
    process.send_signal(
        signal.SIGSTOP
    )  # so that the worker, which has to start first, finds something left
    while " seed " not in log.read_text() and time.monotonic() < waited:
        time.sleep(0.05)
    assert " seed " in log.read_text()
    process.kill()
    process.wait()
    with pytest.raises(ProcessLookupError):  # nobody of its group is left
        while time.monotonic() < waited:
            os.killpg(process.pid, 0)
            time.sleep(0.1)
    again = subprocess.run(
        line, capture_output=True, text=True, env=environment, timeout=240, check=False
    )
    assert again.returncode == 0, again.stderr
    frame = experiments.read(
        tmp_path / "studies" / "random_features" / "conditioned-smoke.csv"
    ).frame
    assert sorted(frame["piece"]) == sorted(study.EXPERIMENTS["conditioned"].pieces("smoke", ()))


def test_jobs_are_a_number_of_processes_of_a_study(capsys):
    for command, words in (
        (main._study, ["random_features", "jobs=none"]),
        (main._tables, ["study=random_features", "jobs=2"]),
    ):
        assert command(words) == 2
        assert "jobs=" in capsys.readouterr().err


def test_a_piece_that_fails_is_named_and_the_others_go_on(tmp_path):
    def fails():
        raise RunError("it diverged")

    pieces = {
        name: lambda name=name: pd.DataFrame([{"value": name}]) for name in ("first", "third")
    }
    broken = experiments.Experiment(
        "", "", "", lambda scale, words: {"second": fails} | pieces, lambda frame: frame
    )
    path = tmp_path / "table.csv"
    with pytest.raises(RunError, match="second: it diverged"):
        experiments.compute_missing(broken, "table", "smoke", path, ())
    assert experiments.read(path).pieces == {"first", "third"}
    mended = dataclasses.replace(
        broken, pieces=lambda scale, words: {"second": pieces["first"]} | pieces
    )
    experiments.compute_missing(mended, "table", "smoke", path, ())
    assert sorted(experiments.read(path).pieces) == ["first", "second", "third"]


@pytest.mark.parametrize(
    "words, said",
    [
        (["matching", "target.typo=7"], "typo"),
        (["conditioned", "target.typo=7"], "typo"),
        (
            ["conditioned", "target.condition=7"],
            "target.condition=7: that is what is compared here",
        ),
        (["sparse", "train.seed=7"], "train.seed=7: that is what is compared here"),
        (["matching", "scale=smoke"], "scale= is given twice"),
        (
            ["matching", "target.width=8"],
            "matching runs and trains nothing that an option could change",
        ),
    ],
)
@pytest.mark.parametrize(
    "command", [main._study, lambda words: main._tables([f"study={words[0]}", *words[1:]])]
)
def test_an_option_that_does_nothing_is_a_mistake(tmp_path, capsys, command, words, said):
    assert command(["random_features", *words, "scale=smoke", f"outputs={tmp_path}"]) == 2
    error = capsys.readouterr().err.strip()
    assert said in error and "\n" not in error
    assert not list(tmp_path.rglob("*.csv"))


@pytest.mark.parametrize("pairs", ["as they stand", "collapsed"])
def test_training_id_cond_scales_is_training_the_weights(pairs):
    """Theorem 3.1: the same losses and gradients at every step, in float64 to rounding."""
    frame = weight_equivalence.trained_together(torch.float64, 15)
    assert frame[f"gradients apart, {pairs}"].max() < 1e-11
    assert (frame["loss, weights"] - frame[f"loss, {pairs}"]).abs().max() < 1e-12
    assert frame["loss, weights"].iloc[-1] < frame["loss, weights"].iloc[0]
    assert (
        frame["gradients apart, as they stand"].max() > 0
    )  # two convolutions: not the same computation
