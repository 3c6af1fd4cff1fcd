"""TensorBoard's event files hold the numbers of the run."""

import signal

import pytest
from processes import TWO_SEEDS, finish, start, wait_until

from bnrecon.reporting.result import RunResult
from bnrecon.runtime import files

pytest.importorskip("tensorboard")


def read(folder):
    """Scalars by tag, as (step, value) in file order, and all tags by type."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    tags = events.Tags()
    scalars = {tag: [(e.step, e.value) for e in events.Scalars(tag)] for tag in tags["scalars"]}
    return scalars, tags, events


@pytest.fixture(scope="module")
def tracked(tmp_path_factory):
    """A run of two seeds logged to TensorBoard: its folder, and the trackers'."""
    from bnrecon.config.composition import compose
    from bnrecon.run import main_job

    outputs = tmp_path_factory.mktemp("outputs")
    done = main_job.run(compose([*TWO_SEEDS, "tracker=tensorboard", f"outputs={outputs}"]))
    return done.folder, outputs / "trackers" / "tensorboard"


def test_epochs_match_the_targets_log(tracked):
    _, trackers = tracked
    (target,) = (trackers / "targets").iterdir()
    about = files.read_json(trackers.parents[1] / "targets" / target.name / "target.json")
    scalars, _, _ = read(target)
    for name in ("loss", "accuracy"):
        expected = [(row["epoch"], pytest.approx(row[name])) for row in about["log"]]
        assert scalars[f"epoch/{name}"] == expected
    assert scalars["result/accuracy"][0][1] == pytest.approx(about["accuracy"])


def test_layers_seeds_and_result_match_the_run(tracked):
    folder, trackers = tracked
    result = RunResult.read(folder / "result.json")
    scalars, _, _ = read(trackers / "runs" / folder.name)
    for seed in result.seeds:
        for tag, name in (("residual", "residual"), ("relative_error", "relative_error")):
            assert scalars[f"layer/{tag}/seed-{seed.seed}"] == [
                (number, pytest.approx(getattr(layer, name)))
                for number, layer in enumerate(seed.layers, start=1)
            ]
    assert scalars["seed/accuracy"] == [(s.seed, pytest.approx(s.accuracy)) for s in result.seeds]
    assert scalars["result/accuracy"][0][1] == pytest.approx(result.accuracy.mean)


def test_hyperparameters_omit_the_machines_folders(tracked):
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    folder, trackers = tracked
    _, _, events = read(trackers / "runs" / folder.name)
    content = events.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    options = HParamsPluginData.FromString(content).session_start_info.hparams
    assert options["features.name"].string_value == "he_normal"
    assert options["train.lr"].number_value == pytest.approx(0.1)
    assert not {"outputs", "data.root", "device", "tracker"} & set(options)


def test_rerun_adds_nothing(tracked, succeed):
    _, trackers = tracked
    before = sorted(trackers.rglob("events*"))
    out, err = succeed("run", *TWO_SEEDS, "tracker=tensorboard", f"outputs={trackers.parents[1]}")
    assert "already done" in out
    assert f"tensorboard --logdir {trackers}" in err
    assert sorted(trackers.rglob("events*")) == before


@pytest.mark.process
def test_killed_training_resumes_and_an_export_has_each_epoch_once(succeed, tmp_path):
    options = ("train.epochs=40", "train.checkpoint_seconds=0.2", "threads=1")
    options += ("tracker=tensorboard", f"outputs={tmp_path}")
    for epochs in (10, 20):
        process = start(*options, command="train")

        def reached(epochs=epochs):
            texts = [path.read_text() for path in tmp_path.rglob("metrics.jsonl")]
            return any(f'"epoch": {epochs},' in text or "result" in text for text in texts)

        assert wait_until(reached)
        process.send_signal(signal.SIGKILL)
        finish(process)
    _, err = succeed("train", *options)
    (target,) = (tmp_path / "trackers" / "tensorboard" / "targets").iterdir()
    steps = [step for step, _ in read(target)[0]["epoch/loss"]]
    assert set(steps) <= set(range(1, 41))
    succeed("export", "tensorboard", str(tmp_path))
    scalars, _, _ = read(target)
    assert [step for step, _ in scalars["epoch/loss"]] == list(range(1, 41))
    about = files.read_json(tmp_path / "targets" / target.name / "target.json")
    losses = [pytest.approx(row["loss"]) for row in about["log"]]
    assert [value for _, value in scalars["epoch/loss"]] == losses


def test_tracker_does_not_change_the_result(tracked, two_seed_outputs):
    folder, _ = tracked
    (other,) = two_seed_outputs.glob("runs/*")
    assert other.name == folder.name
    ours, plain = (RunResult.read(path / "result.json") for path in (folder, other))
    assert ours.accuracies == plain.accuracies
    errors = [[layer.relative_error for layer in r.layers] for r in (ours, plain)]
    assert errors[0] == errors[1]
