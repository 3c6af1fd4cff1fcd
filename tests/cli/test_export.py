"""`bnrecon export`: finished runs are sent to a tracker."""

import shutil

import pytest

from bnrecon.runtime import extras

pytest.importorskip("tensorboard")


@pytest.fixture
def outputs(two_seed_outputs, tmp_path):
    """A run and its target that no tracker has logged."""
    return shutil.copytree(two_seed_outputs, tmp_path / "outputs")


def only(folder):
    (child,) = folder.iterdir()
    return child


def test_export_sends_runs_and_replaces_earlier_exports(outputs, succeed):
    # 2 epochs and their result; for each of 2 seeds 5 layers, 5 errors and the seed; the result
    rows = 2 + 1 + 2 * (5 + 5 + 1) + 1
    folder = outputs / "trackers" / "tensorboard"
    for _ in range(2):
        out, _ = succeed("export", "tensorboard", str(outputs))
        assert out.splitlines() == [
            f"1 run and 1 target: {rows} rows sent",
            f"tensorboard --logdir {folder}",
        ]
        # A run's options have a separate file for the tab "HParams".
        assert len(list((folder / "targets").rglob("events*"))) == 2


def test_run_is_exported_by_folder_or_name(outputs, command, succeed, tmp_path):
    run, target = only(outputs / "runs"), only(outputs / "targets")
    code, out, _ = command("export", "tensorboard", str(run))
    assert (code, out.splitlines()[0]) == (0, "1 run and 0 targets: 23 rows sent")
    words = (run.name, target.name, run.name, f"outputs={outputs}")
    out, _ = succeed("export", "tensorboard", *words)
    assert out.startswith("1 run and 1 target: 26 rows sent")
    elsewhere = tmp_path / "else where"
    out, _ = succeed("export", "tensorboard", str(run), f"tracker_folder={elsewhere}")
    assert out.splitlines()[1] == f"tensorboard --logdir '{elsewhere}/tensorboard'"
    assert only(elsewhere / "tensorboard" / "runs").name == run.name


def test_damaged_results_are_named_and_skipped(outputs, command):
    (outputs / "runs" / "other").mkdir()
    (outputs / "runs" / "other" / "result.json").write_text('{"seeds": [0')
    (outputs / "runs" / "pipe").mkdir()
    (outputs / "runs" / "pipe" / "result.json").mkdir()
    (outputs / "runs" / "link").mkdir()
    (outputs / "runs" / "link" / "result.json").symlink_to("unmounted.json")
    code, out, err = command("export", "tensorboard", str(outputs))
    assert code == 1
    assert out.startswith("1 run and 1 target: 26 rows sent")
    assert f"left out: {outputs}/runs/other/result.json is damaged" in err
    assert f"left out: {outputs}/runs/pipe/result.json is not a regular file" in err
    assert f"left out: {outputs}/runs/link/result.json is a link that leads nowhere" in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("tensorbord",), "did you mean 'tensorboard'?"),
        (("none",), "Allowed: mlflow, tensorboard, trackio, wandb"),
        (("tensorboard", "nowhere"), "'nowhere': no such folder, and no run or target"),
        (("tensorboard", "tracker_project=a/b"), "tracker_project='a/b'"),
        (("tensorboard", "--all"), "--all is not an option"),
    ],
)
def test_mistake_is_one_line(words, said, refused):
    refused("export", *words, line=said)


def test_failing_tracker_gives_exit_code_1(outputs, command):
    (outputs / "trackers").write_text("not a folder")
    code, _, err = command("export", "tensorboard", str(outputs))
    assert code == 1
    assert "metrics.jsonl failed" in err
    assert "Traceback" not in err


@pytest.mark.parametrize("first", [("export", "wandb"), ("run", "tracker=wandb")])
def test_missing_library_is_reported_first(first, refused, monkeypatch):
    monkeypatch.setattr(extras.importlib.util, "find_spec", lambda name: None)
    line = refused(*first, "outputs=made")
    assert line == "bnrecon: tracker=wandb: wandb is not installed; pip install 'bnrecon[wandb]'\n"


def test_study_sends_its_runs_and_trainings(succeed, tmp_path):
    words = ("burkholz2024", "pooling", "scale=smoke", "data=digits")
    succeed("study", *words, "tracker=tensorboard", f"outputs={tmp_path}")
    folder = tmp_path / "trackers" / "tensorboard"
    for kind in ("runs", "targets"):
        names = {path.name for path in (folder / kind).iterdir()}
        assert names == {path.name for path in (tmp_path / kind).iterdir()}


def test_unfinished_run_has_no_result_to_export(outputs, refused):
    """Its finished seeds have files of the same name."""
    run = only(outputs / "runs")
    (run / "result.json").unlink()
    line = "no finished run or target in this folder; it is an unfinished run; rerun its command"
    refused("export", "tensorboard", str(run), line=line)
    refused("export", "tensorboard", run.name, f"outputs={outputs}", line=line)


def test_what_a_failing_tracker_did_not_get_is_not_counted(outputs, command):
    (outputs / "trackers").write_text("not a folder")
    _, out, err = command("export", "tensorboard", str(outputs))
    assert out.startswith("0 runs and 0 targets: 0 rows sent")
    assert "the export ends here" in err
