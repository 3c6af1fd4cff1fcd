"""Real processes, killed, stopped and restarted, give the same numbers."""

import signal

import pytest
from processes import finish, result_of, start, wait_until

LONG_ENOUGH = ("train.epochs=12", "target.width=6", "train.checkpoint_seconds=0.1", "threads=1")


def same_numbers(first, second):
    assert first["target"]["accuracy"] == second["target"]["accuracy"]
    assert first["source"]["accuracy"] == second["source"]["accuracy"]
    for a, b in zip(first["layers"], second["layers"], strict=True):
        assert a["relative_error"] == b["relative_error"]
        assert a["digest"] == b["digest"]


@pytest.mark.process
def test_run_killed_anywhere_ends_with_the_same_numbers(succeed, tmp_path):
    """SIGKILL during training, during the layers and between seeds."""
    options = [*LONG_ENOUGH, "seeds=[0,1]"]
    whole, err = succeed("run", *options, f"outputs={tmp_path / 'whole'}")
    outputs = tmp_path / "killed"
    for pattern in (
        "targets/*/checkpoint.safetensors",
        "runs/*/seed-0/layer-*",
        "runs/*/seed-0/result.json",
    ):
        process = start(*options, f"outputs={outputs}")
        assert wait_until(lambda pattern=pattern: list(outputs.glob(pattern)))
        process.send_signal(signal.SIGKILL)
        finish(process)
    out, _ = succeed("run", *options, f"outputs={outputs}")
    same_numbers(result_of(out), result_of(whole))
    assert not list(outputs.rglob("*.damaged"))


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_at_a_checkpoint_with_exit_code_130(succeed, tmp_path, number):
    options = [*LONG_ENOUGH, "seeds=[0]", f"outputs={tmp_path}"]
    process = start(*options)
    assert wait_until(lambda: list(tmp_path.glob("targets/*/checkpoint.safetensors")))
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == 130
    assert "training is saved at step" in err
    assert "Traceback" not in err
    _, err = succeed("run", *options)
    assert "resuming at step" in err


def test_time_limit_stops_at_a_checkpoint(command, tmp_path):
    code, _, err = command("run", "train.epochs=200", "train.time_limit=1", f"outputs={tmp_path}")
    assert code == 130
    assert "the time limit of 1 s was reached" in err
    assert list(tmp_path.glob("targets/*/checkpoint.safetensors"))
    assert not list(tmp_path.glob("runs/*/result.json"))


@pytest.mark.process
def test_processes_sharing_a_target_train_it_once(command, tmp_path):
    options = ["train.epochs=60", "target.width=6", "seeds=[0]", f"outputs={tmp_path}"]
    first = start(*options, "features=he_normal")
    assert wait_until(lambda: list(tmp_path.glob("targets/*/.holder")))
    code, _, err = command("run", *options, "features=id_cond")
    assert code == finish(first)[0] == 0, err
    assert f"waiting for process {first.pid}" in err
    assert "to finish training vgg_small" in err
    assert len(list(tmp_path.glob("targets/*/target.safetensors"))) == 1
