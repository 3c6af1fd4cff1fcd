"""The main job: its result, its files, and what it computes again."""

from pathlib import Path

import pandas as pd
import pytest
import torch
from processes import SMALLEST, TWO_SEEDS, folder_of, result_of
from repository import ROOT
from safetensors.torch import load_file

from bnrecon.reporting.result import Predictions, RunResult, SeedRecord
from bnrecon.reporting.run_tables import run_text
from bnrecon.runtime import files
from bnrecon.runtime.digests import tensor_digest

# The result


def test_result_holds_accuracies_and_errors(two_seeds):
    result = files.read_json(two_seeds / "result.json")
    assert result["seeds"] == [0, 1]
    assert result["data"]["name"] == "digits"
    assert len(result["data"]["checksum"]) == 64
    assert result["source"]["accuracy"] == [result["target"]["accuracy"]] * 2
    assert result["source"]["evaluated"]["network"] == "source"
    assert result["source"]["evaluated"]["images"] == 128
    assert result["source"]["evaluated"]["largest_logit_difference"] < 1e-3
    assert result["target"]["parameters"] == 4 * 9 + 3 * 4 * 36 + 4 * 8 + 4 * 10 + 10
    for layer in result["layers"]:
        assert layer["relative_error"] < 1e-8
        assert layer["relative_error"] < layer["assembled_error"] < 1e-5
        assert layer["converged"]


def test_saved_source_holds_parameters_and_no_features(two_seeds):
    tensors = load_file(two_seeds / "seed-0" / "source.safetensors")
    layers = files.read_json(two_seeds / "seed-0" / "result.json")["layers"]
    widths = sum(layer["width"] for layer in layers)
    outputs = sum(len(value) for name, value in tensors.items() if name.endswith("second.gamma"))
    assert sum(value.numel() for value in tensors.values()) == 4 * (widths + outputs)
    assert tensors["classifier|first.gamma"].dtype == torch.float64
    assert not list((two_seeds / "seed-0").glob("layer-*"))


def test_predictions_of_every_seed_are_counted_on_all_test_images(two_seeds):
    result = RunResult.read(two_seeds / "result.json")
    for seed in result.seeds:
        assert seed.predictions == Predictions(128, 0, 0, 0, 128)  # all by the real source
        record = SeedRecord.read(two_seeds / f"seed-{seed.seed}" / "result.json")
        assert record.predictions == seed.predictions
    assert "0 of 128 predictions differ" in run_text(result)


def test_result_records_its_provenance_and_its_targets(two_seeds):
    """Commit, versions, and checksums of the images and the target's weights."""
    result = files.read_json(two_seeds / "result.json")
    folder = Path(result["target"]["folder"])
    about = files.read_json(folder / "target.json")
    weights = load_file(folder / "target.safetensors")
    assert result["target"]["checksum"] == tensor_digest(weights)
    weights["classifier.bias"][0] += 1
    assert result["target"]["checksum"] != tensor_digest(weights)
    assert result["data"]["checksum"] == about["data_checksum"]
    for key in ("commit", "versions"):
        assert result[key] == about[key]
    assert set(result["versions"]) >= {"python", "bnrecon", "torch", "numpy", "scipy"}
    for key in ("device", "precision", "commit"):
        assert result["target"][key] == about[key]


# Computed again or not


@pytest.mark.parametrize("option", [(), ("keep_source=false",)])
def test_repeated_command_does_no_work_and_says_so(two_seeds, succeed, tmp_path, option):
    before = (two_seeds / "result.json").stat().st_mtime_ns
    out, _ = succeed("run", *TWO_SEEDS, *option, f"outputs={tmp_path}")
    assert out.startswith("already done")
    assert folder_of(out) == two_seeds
    assert (two_seeds / "result.json").stat().st_mtime_ns == before
    assert (two_seeds / "seed-0" / "source.safetensors").exists()


@pytest.mark.parametrize("file", ["result.json", "seed-1/result.json", "seed-1/source.safetensors"])
def test_damaged_file_is_named_and_redone(two_seeds, succeed, tmp_path, file):
    wanted = files.read_json(two_seeds / "result.json")
    damaged = two_seeds / file
    damaged.write_bytes(damaged.read_bytes()[:-20])
    if file != "result.json":
        (two_seeds / "result.json").unlink()
    out, err = succeed("run", *TWO_SEEDS, f"outputs={tmp_path}")
    assert f"{damaged} is damaged" in err
    assert damaged.with_name(damaged.name + ".damaged").exists()
    assert result_of(out)["source"] == wanted["source"]


@pytest.mark.parametrize("file", ["target.safetensors", "target.json"])
def test_damaged_target_is_named_and_retrained(two_seeds, succeed, tmp_path, file):
    target = next((tmp_path / "targets").glob("*/target.safetensors"))
    # Copies: a mapped file changes with the file.
    wanted = {name: value.clone() for name, value in load_file(target).items()}
    damaged = target.with_name(file)
    damaged.write_bytes(damaged.read_bytes()[:-3])
    _, err = succeed("run", "scale=smoke", "seeds=[2]", f"outputs={tmp_path}")
    assert f"{damaged} is damaged" in err
    assert all(torch.equal(value, wanted[name]) for name, value in load_file(target).items())


def test_additional_seed_computes_one_seed(two_seeds, succeed, tmp_path):
    before = files.read_json(two_seeds / "result.json")
    out, err = succeed("run", "scale=smoke", "seeds=[0,1,2]", f"outputs={tmp_path}")
    assert err.count("was done before") == 2
    assert result_of(out)["seconds_per_seed"][:2] == before["seconds_per_seed"]
    assert (folder_of(out) / "seed-1" / "source.safetensors").exists()


def test_seeds_of_other_options_are_not_reused(two_seeds, command, tmp_path):
    options = ("scale=smoke", "seeds=[0]", "evaluate=collapsed", f"outputs={tmp_path}")
    assert "was done before" not in command("run", *options)[2]


def test_keep_source_false_stores_no_sources(succeed, stored_targets, tmp_path):
    options = ["run", "scale=smoke", stored_targets, f"outputs={tmp_path}"]
    out, _ = succeed(*options, "keep_source=false")
    assert not list(tmp_path.glob("runs/*/seed-*/source.safetensors"))
    again, _ = succeed(*options)  # the same run: the option changes no number
    assert "already done" in again
    assert folder_of(again) == folder_of(out)


def test_target_is_trained_separately_and_reused(succeed, tmp_path):
    out, err = succeed("train", *SMALLEST, f"outputs={tmp_path / 'one'}")
    assert "trained in" in out
    assert not (tmp_path / "one" / "runs").exists()
    out, _ = succeed("train", *SMALLEST, f"outputs={tmp_path / 'one'}")
    assert "trained before" in out
    targets = f"targets={tmp_path / 'one' / 'targets'}"
    _, err = succeed("run", *SMALLEST, f"outputs={tmp_path / 'two'}", targets)
    assert "already trained" in err
    assert not (tmp_path / "two" / "targets").exists()


# Options


def run_with(succeed, tmp_path, *options):
    out, _ = succeed("run", "scale=smoke", *options, f"outputs={tmp_path}")
    return result_of(out)


@pytest.mark.parametrize(
    ("option", "width"),
    [
        ("features.width=minimum", lambda n, c2: n - c2 + 1),
        ("features.excess=10", lambda n, c2: n + 10),
        ("features.oversampling=1.2", lambda n, c2: -(-12 * n // 10)),
        ("features.skip=outer features.width=minimum", lambda n, c2: n - c2),
    ],
)
def test_layer_has_the_requested_width(succeed, stored_targets, tmp_path, option, width):
    result = run_with(succeed, tmp_path, *option.split(), stored_targets)
    layer = result["layers"][1]
    assert layer["width"] == width(layer["equations"], layer["shape"][0])
    assert result["source"]["evaluated"]["largest_difference_to_target"] < 0.05
    assert result["source"]["accuracy"][0] == result["target"]["accuracy"]


@pytest.mark.parametrize(
    ("option", "network", "images", "difference"),
    [
        ("evaluate=collapsed", "collapsed", 64, 1e-2),
        (
            "features.activation=tanh",
            "source",
            128,
            1e-2,
        ),  # nearly linear: all images by the source
        ("features.activation=relu features.margin=4", "source", 128, 0.05),
        ("target=mlp data=digits", "source", 128, 0.05),
        ("target=resnet18 target.width=1 data=digits", "source", 128, 0.05),
    ],
)
def test_images_pass_the_real_source_network(
    succeed, stored_targets, tmp_path, option, network, images, difference
):
    result = run_with(succeed, tmp_path, *option.split(), stored_targets)
    evaluated = result["source"]["evaluated"]
    assert (evaluated["network"], evaluated["images"]) == (network, images)
    assert evaluated["largest_difference_to_target"] < difference
    assert result["source"]["accuracy"][0] == result["target"]["accuracy"]


@pytest.mark.parametrize(
    "yaml", sorted((ROOT / "configs/experiment").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_experiment_runs_at_smoke_scale(succeed, tmp_path, yaml):
    """On a few embedded digits, to detect experiments that cannot run at all."""
    small = (
        "scale=smoke",
        "data=digits",
        "target.width=2",
        "target.weights=null",
        "train.epochs=1",
    )
    small += ("target.depth=18",) * (yaml.stem in ("imagenet_condition", "imagenet_initialization"))
    images = ("data.train_limit=64", "data.test_limit=64", "train.batch_size=32")
    succeed("run", f"experiment={yaml.stem}", *small, *images, f"outputs={tmp_path}")
    results = [RunResult.read(path) for path in tmp_path.glob("runs/*/result.json")]
    assert results
    for result in results:
        assert result.config["scale"] == "smoke"
        assert all(layer.relative_error < 1e-8 for layer in result.layers)


# Diagnoses


def test_reason_for_missing_convergence_is_printed_and_stored(succeed, stored_targets, tmp_path):
    """Strict sparse features of a grey image: half of the first layer's are zero."""
    strict = ("features=sparse_he_normal", "features.strict=true", "features.oversampling=1.5")
    options = (*strict, stored_targets)
    out, err = succeed("run", "scale=smoke", *options, f"outputs={tmp_path}")
    diagnosis = "25 of 54 features are"
    assert f"not converged: features.conv1_1: {diagnosis}" in out
    assert f"NOT CONVERGED {diagnosis}" in err
    assert "auto chose matrix_free for 5 of 5 layers: oversampling 1.5: about 114" in out
    first, *others = result_of(out)["layers"]
    assert first["rank"] < first["equations"]
    assert not first["converged"]
    assert others[0]["rank"] == others[0]["equations"]
    layers = pd.read_csv(folder_of(out) / "layers.csv")
    assert layers["diagnosis"][0].startswith(diagnosis)
    assert set(layers["norm"][1:]) <= {
        "near the minimum norm of the scales",
        "near the minimum norm of the scales times their columns' norms",
    }


def test_batch_of_one_image_is_refused_where_it_cannot_be_normalized(command, tmp_path):
    options = ("scale=smoke", "target=mlp", "train.batch_size=1", f"outputs={tmp_path}")
    code, _, err = command("run", *options)
    assert code == 2
    assert "train.batch_size=1: " in err
