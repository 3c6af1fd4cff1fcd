"""Comparison of two runs: shipped ones of all versions, and new ones with their sources."""

import dataclasses
import itertools
import re

import pytest
import torch
from repository import RESULTS

from bnrecon.config import composition
from bnrecon.data import load
from bnrecon.reconstruction.source_file import collapse, load_source
from bnrecon.reporting.comparison import compare
from bnrecon.reporting.option_differences import NOT_RECORDED, differing_options
from bnrecon.reporting.predictions import disagreements
from bnrecon.reporting.result import RunResult
from bnrecon.run import main_job
from bnrecon.runtime.errors import UserError
from bnrecon.targets.building import build_target

MLP = ("target=mlp", "target.width=8")
CONFIG = {"data": {"name": "digits"}, "target": {"name": "mlp", "family": "mlp"}}


def read(path):
    return path.parent, RunResult.read(path)


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two runs with one target, one of them with too few features to be exact."""
    outputs = tmp_path_factory.mktemp("outputs")
    common = [f"outputs={outputs}", "scale=smoke", "train.epochs=6", "seeds=[0,1]", *MLP]
    below = ["features.width=12", "features.allow_below_minimum=true"]
    runs = [
        main_job.run(composition.compose([*common, *options]))
        for options in (["features.oversampling=1.5"], below)
    ]
    return [(run.folder, run.result) for run in runs]


def test_any_two_shipped_runs_can_be_compared():
    results = [read(path) for path in RESULTS]
    for first, second in itertools.pairwise(results):
        text = compare(first, second)
        for folder, result in (first, second):
            assert str(folder) in text
            assert f"{result.accuracy}" in text
            assert f"{result.target.accuracy:.2f} (n={result.target.images})" in text


def test_missing_option_of_an_older_result_had_its_default():
    assert differing_options(CONFIG, CONFIG | {"keep_source": True, "threads": None}) == {}
    assert differing_options(CONFIG, CONFIG | {"threads": 2}) == {"threads": (None, 2)}
    assert differing_options(CONFIG | {"color": "red"}, CONFIG) == {"color": ("red", NOT_RECORDED)}


def test_layers_are_listed_in_pairs_with_the_largest_ratio(pair):
    text = compare(*pair)
    one, other = (result for _, result in pair)
    for layer, further in zip(one.seeds[0].layers, other.seeds[0].layers, strict=True):
        line = next(line for line in text.splitlines() if line.startswith(f"{layer.name} "))
        assert {str(layer.width), str(further.width)} <= set(line.split())
    errors = [
        {
            layer.name: max(seed.layers[number].relative_error for seed in result.seeds)
            for number, layer in enumerate(result.seeds[0].layers)
        }
        for result in (one, other)
    ]
    ratios = {name: errors[1][name] / errors[0][name] for name in errors[0]}
    most = max(ratios, key=lambda name: max(ratios[name], 1 / ratios[name]))
    assert f"They differ most in {most}, by a factor of {ratios[most]:.2g}." in text


def test_order_of_the_runs_does_not_change_the_layer_that_differs_most(pair):
    lines = [compare(*runs).splitlines()[-1] for runs in (pair, pair[::-1])]
    assert lines[0] == lines[1]


def test_other_weights_change_results_but_a_moved_file_does_not(pair):
    (folder, result), _ = pair

    def with_weights(path, checksum):
        config = result.config | {"target": result.config["target"] | {"weights": path}}
        target = dataclasses.replace(result.target, checksum=checksum)
        return folder, dataclasses.replace(result, config=config, target=target)

    same = "No option that changes results differs."
    assert same in compare(with_weights("one", "a"), with_weights("moved", "a"))
    assert same not in compare(with_weights("one", "a"), with_weights("other", "b"))


def test_predictions_are_recomputed_from_the_saved_sources(pair):
    by_seed = disagreements(*pair)
    assert list(by_seed) == [0, 1]
    assert any(each.differ for each in by_seed.values())  # too few features: another function
    config = composition.compose(["scale=smoke", "train.epochs=6", *MLP])
    data = load(config.data)
    untrained = build_target(config.target_request, data)
    for seed, each in by_seed.items():
        classes = [
            torch.cat([network(x).argmax(1) for x, _ in data.test_batches(50, torch.device("cpu"))])
            for folder, _ in pair
            for network in [
                collapse(load_source(folder / f"seed-{seed}/source.safetensors", untrained))
            ]
        ]
        assert each.differ == int((classes[0] != classes[1]).sum())
        assert each.images == len(classes[0])
    assert f"seed 0: {by_seed[0].differ} of {by_seed[0].images} (" in compare(*pair, by_seed)


def test_run_without_sources_or_images_is_refused(pair, tmp_path):
    with pytest.raises(UserError, match="has no saved source of seed 0"):
        disagreements(read(RESULTS[0]), read(RESULTS[1]))
    with pytest.raises(UserError, match="tested on different images"):
        disagreements(read(RESULTS[0]), pair[0])
    others = dataclasses.replace(
        pair[0][1], data=dataclasses.replace(pair[0][1].data, checksum="other")
    )
    with pytest.raises(UserError, match="are not those of"):
        disagreements((pair[0][0], others), (pair[1][0], others))
    with pytest.raises(UserError, match="no seed in common"):
        disagreements(pair[0], (tmp_path, dataclasses.replace(pair[1][1], seeds=())))


def test_runs_of_different_networks_show_whole_widths_and_absent_options():
    by_family = {}
    for path in RESULTS:
        folder, result = read(path)
        by_family.setdefault(result.config["target"].get("family"), (folder, result))
    text = compare(by_family["resnet"], by_family["vgg"])
    line = next(line for line in text.splitlines() if line.startswith("layer1.0.conv1 "))
    assert str(by_family["resnet"][1].layers[1].width) in line.split()
    assert re.search(r"^target.depth +18 +no such option$", text, re.MULTILINE)
