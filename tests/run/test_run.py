"""The main job: real processes, killed and resumed; results complete, reused and never silently wrong."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file

from bnrecon.runtime import files

SMOKE = ["scale=smoke", "solver=auto"]
CONFIGS = Path(__file__).parents[2] / "configs"
# One thread: two processes that each want all cores wait for each other's threads most of the time.
ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


def start(*words, **options):
    line = [sys.executable, "-m", "bnrecon.cli", "run", *words]
    return subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT, **options
    )


def finish(process, timeout=240):
    out, err = process.communicate(timeout=timeout)
    return process.returncode, out, err


def result_of(out):
    """The last line printed names the run's folder."""
    return files.read_json(Path(out.strip().splitlines()[-1]) / "result.json")


def waited(condition, seconds=120):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.02)
    return False


@pytest.fixture
def smoke(command, tmp_path):
    code, out, err = command("run", *SMOKE, "seeds=[0,1]", f"outputs={tmp_path}")
    assert code == 0, err
    return Path(out.strip().splitlines()[-1]), out


def test_the_result_says_everything(smoke):
    folder, out = smoke
    result = files.read_json(folder / "result.json")
    assert set(result) >= {
        "config",
        "seeds",
        "data",
        "target",
        "source",
        "layers",
        "seconds",
        "device",
        "versions",
        "commit",
    }
    assert result["seeds"] == [0, 1]
    assert result["data"]["name"] == "digits"
    assert len(result["data"]["checksum"]) == 64
    assert result["source"]["accuracy"] == [result["target"]["accuracy"]] * 2
    assert result["source"]["evaluated"]["network"] == "source"
    assert result["source"]["evaluated"]["images"] == 128
    assert result["source"]["evaluated"]["largest_logit_difference"] < 1e-3
    assert result["target"]["parameters"] == 4 * 9 + 3 * 4 * 36 + 4 * 8 + 4 * 10 + 10
    for layer in result["layers"]:
        assert set(layer) >= {
            "name",
            "shape",
            "width",
            "oversampling",
            "relative_error",
            "assembled_error",
            "seconds",
            "converged",
        }
        assert layer["relative_error"] < 1e-8
        assert layer["relative_error"] < layer["assembled_error"] < 1e-5
        assert layer["converged"]
    first_lines = out.splitlines()[:6]
    assert [line.split()[0] for line in first_lines] == [
        "data",
        "target",
        "source",
        "scale",
        "device",
        "expect",
    ]


def test_tables_and_picture_lie_beside_the_result(smoke):
    folder, _ = smoke
    assert {"result.json", "config.json", "table.md", "table.csv", "layers.csv", "layers.png"} <= {
        p.name for p in folder.iterdir()
    }
    frame = pd.read_csv(folder / "table.csv")
    assert frame["reconstructed accuracy"][0].endswith("(n=2)")
    assert len(pd.read_csv(folder / "layers.csv")) == 10
    assert (folder / "layers.png").read_bytes().startswith(b"\x89PNG")


def test_the_saved_source_holds_parameters_not_features(smoke):
    folder, _ = smoke
    tensors = load_file(folder / "seed-0" / "source.safetensors")
    widths = sum(
        layer["width"] for layer in files.read_json(folder / "seed-0" / "result.json")["layers"]
    )
    outputs = sum(len(value) for name, value in tensors.items() if name.endswith("second.gamma"))
    assert sum(value.numel() for value in tensors.values()) == 4 * (widths + outputs)
    assert tensors["classifier|first.gamma"].dtype == torch.float64
    assert not list((folder / "seed-0").glob("layer-*"))


def test_the_same_command_again_does_no_work_and_says_so(smoke, command, tmp_path):
    folder, _ = smoke
    before = (folder / "result.json").stat().st_mtime_ns
    code, out, _ = command("run", *SMOKE, "seeds=[0,1]", f"outputs={tmp_path}")
    assert code == 0
    assert out.startswith("already done")
    assert Path(out.strip().splitlines()[-1]) == folder
    assert (folder / "result.json").stat().st_mtime_ns == before


def test_another_option_is_another_run_with_the_same_target(smoke, command, tmp_path):
    folder, _ = smoke
    code, out, _ = command("run", *SMOKE, "seeds=[0]", "features=id_cond", f"outputs={tmp_path}")
    assert code == 0
    other = Path(out.strip().splitlines()[-1])
    assert other != folder
    assert "already trained" in out
    assert len(list((tmp_path / "targets").iterdir())) == 1


@pytest.mark.parametrize("file", ["result.json", "seed-1/result.json", "seed-1/source.safetensors"])
def test_a_damaged_file_is_named_and_redone(smoke, command, tmp_path, file):
    folder, _ = smoke
    wanted = files.read_json(folder / "result.json")
    damaged = folder / file
    damaged.write_bytes(damaged.read_bytes()[:-20])
    if file != "result.json":
        (folder / "result.json").unlink()
    code, out, err = command("run", *SMOKE, "seeds=[0,1]", f"outputs={tmp_path}")
    assert code == 0
    assert f"{damaged} is damaged" in err
    assert damaged.with_name(damaged.name + ".damaged").exists()
    assert result_of(out)["source"] == wanted["source"]


@pytest.mark.parametrize("file", ["target.safetensors", "target.json"])
def test_a_damaged_target_is_named_and_trained_again(smoke, command, tmp_path, file):
    target = next((tmp_path / "targets").glob("*/target.safetensors"))
    wanted = {
        name: value.clone() for name, value in load_file(target).items()
    }  # a mapped file changes with the file
    damaged = target.with_name(file)
    damaged.write_bytes(damaged.read_bytes()[:-3])
    code, out, err = command("run", *SMOKE, "seeds=[2]", f"outputs={tmp_path}")
    assert code == 0
    assert f"{damaged} is damaged" in err
    assert all(torch.equal(value, wanted[name]) for name, value in load_file(target).items())


def test_a_sweep_goes_on_after_a_failed_job_and_ends_in_one_table(command, tmp_path):
    code, out, err = command(
        "run",
        "-m",
        *SMOKE,
        "features=he_normal,id_cond",
        "solver=closed_form",
        f"outputs={tmp_path}",
    )
    assert code == 2
    assert "whose M is orthogonal" in err
    assert "failed (exit code 2): " in err
    folder = Path(out.strip().splitlines()[-1])
    table = (folder / "table.md").read_text()
    assert "id_cond" in table
    assert table in out
    assert json.loads((folder / "job-0.json").read_text())["code"] == 2


def test_id_cond_is_planned_where_he_normal_does_not_fit(command, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "bnrecon.reconstruction.planning.available_memory", lambda device: 60 * 10**6
    )
    words = ["scale=smoke", "target=mlp", "target.width=128", "data=digits", f"outputs={tmp_path}"]
    code, _, err = command("run", *words, "features=he_normal")
    assert code == 2
    assert "features take" in err
    monkeypatch.setattr("bnrecon.reconstruction.planning.IMPLICIT_FROM", 0)
    monkeypatch.setattr("bnrecon.reconstruction.source_layer.IMPLICIT_FROM", 0)
    code, out, err = command("run", *words, "features=id_cond")
    assert code == 0, err
    assert "layers implicit" in out


def test_other_images_under_the_same_name_are_not_taken_for_done(command, tmp_path):
    from test_data import tree

    classes = (
        "airplane",
        "automobile",
        "bird",
        "cat",
        "deer",
        "dog",
        "frog",
        "horse",
        "ship",
        "truck",
    )
    for seed in (0, 1):
        tree(tmp_path / str(seed), classes, train=3, test=1, side=32, seed=seed)
    words = [
        "scale=smoke",
        "data=cifar10",
        "target.groups=[1]",
        "train.batch_size=8",
        f"outputs={tmp_path / 'out'}",
    ]
    assert command("run", *words, f"data.root={tmp_path / '0'}")[0] == 0
    assert command("run", *words, f"data.root={tmp_path / '0'}")[1].startswith("already done")
    code, _, err = command("run", *words, f"data.root={tmp_path / '1'}")
    assert code == 2
    assert "was run on other cifar10 images" in err


def test_tables_collects_all_runs(smoke, command, tmp_path):
    code, out, _ = command("tables", str(tmp_path))
    assert code == 0
    assert "vgg_small (4)" in out
    assert command("tables", str(tmp_path / "nothing"))[0] == 2


@pytest.mark.parametrize("solver", ["lu", "refined", "lu_lbfgs", "lbfgs", "matrix_free"])
def test_every_solver_runs_from_the_command_line(command, tmp_path, solver):
    words = ["scale=smoke", f"solver={solver}", "target.groups=[1]", f"outputs={tmp_path}"]
    code, out, err = command("run", *words)
    assert code == 0, err
    assert {layer["solver"] for layer in result_of(out)["layers"]} == {solver}


@pytest.mark.parametrize(
    "words",
    [
        "features.width=minimum",
        "features.width=maximum",
        "features.excess=10",
        "features.oversampling=1.2",
        "evaluate=collapsed",
        "features.activation=relu features.margin=4",
        "features=sparse_he_normal features.strict=true",
        "target=mlp",
        "target=resnet18 data=digits target.width=1",
        "features=id_cond features.width=minimum",
    ],
)
def test_options_change_what_is_run(command, tmp_path, words):
    code, out, err = command("run", "scale=smoke", *words.split(), f"outputs={tmp_path}")
    assert code == 0, err
    result = result_of(out)
    layer = result["layers"][1]
    n, c2 = layer["equations"], layer["shape"][0]
    if "width=minimum" in words:
        assert layer["width"] == n - c2 + 1
    if "excess=10" in words:
        assert layer["width"] == n + 10
    if "collapsed" in words:
        assert result["source"]["evaluated"]["network"] == "collapsed"
        assert result["source"]["evaluated"]["images"] == 64
    if "strict" in words:
        # One grey channel: half of the first layer's features are dead, too many for its rank.
        assert layer["rank"] == n
        assert result["layers"][0]["rank"] < result["layers"][0]["equations"]
        assert not result["layers"][0]["converged"]
        return
    if "oversampling=1.2" in words:
        assert layer["width"] == -(-12 * n // 10)
    if "width=maximum" in words:
        assert layer["width"] == n
    assert result["source"]["evaluated"]["largest_difference_to_target"] < 0.05
    assert result["source"]["accuracy"][0] == result["target"]["accuracy"]


@pytest.mark.parametrize(
    "yaml", sorted((CONFIGS / "experiment").glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_experiment_runs_at_smoke_scale(command, tmp_path, yaml):
    """On the embedded digits: an experiment that cannot run at all is found here."""
    code, out, err = command(
        "run",
        f"experiment={yaml.stem}",
        "scale=smoke",
        "target.width=4",
        "data=digits",
        f"outputs={tmp_path}",
    )
    assert code == 0, err
    results = list(tmp_path.glob("runs/*/result.json"))
    assert results
    for path in results:
        result = files.read_json(path)
        assert result["config"]["scale"] == "smoke"
        assert all(layer["relative_error"] < 1e-8 for layer in result["layers"])


def reference(tmp_path, *words):
    code, out, err = finish(start(*words, f"outputs={tmp_path / 'whole'}"))
    assert code == 0, err
    return result_of(out)


def same_numbers(first, second):
    assert first["target"]["accuracy"] == second["target"]["accuracy"]
    assert first["source"]["accuracy"] == second["source"]["accuracy"]
    for a, b in zip(first["layers"], second["layers"], strict=True):
        assert a["relative_error"] == b["relative_error"]
        assert a["digest"] == b["digest"]


def test_a_run_killed_anywhere_ends_with_the_same_numbers(tmp_path):
    """SIGKILL in the middle of training, in the middle of the layers and between seeds."""
    words = ["train.epochs=12", "target.width=6", "seeds=[0,1]", "train.checkpoint_seconds=0.1"]
    whole = reference(tmp_path, *words)
    outputs = tmp_path / "killed"
    for pattern in (
        "targets/*/checkpoint.safetensors",
        "runs/*/seed-0/layer-*",
        "runs/*/seed-0/result.json",
    ):
        process = start(*words, f"outputs={outputs}")
        assert waited(lambda pattern=pattern: list(outputs.glob(pattern)))
        process.send_signal(signal.SIGKILL)
        finish(process)
    code, out, err = finish(start(*words, f"outputs={outputs}"))
    assert code == 0, err
    same_numbers(result_of(out), whole)
    assert not list(outputs.rglob("*.damaged"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_at_a_checkpoint_with_exit_code_130(tmp_path, number):
    words = ["train.epochs=12", "target.width=6", "seeds=[0]", "train.checkpoint_seconds=0.1"]
    process = start(*words, f"outputs={tmp_path}")
    assert waited(lambda: list(tmp_path.glob("targets/*/checkpoint.safetensors")))
    process.send_signal(number)
    code, _, err = finish(process)
    assert code == 130
    assert "training is saved at step" in err
    assert "Traceback" not in err
    code, _, err = finish(start(*words, f"outputs={tmp_path}"))
    assert code == 0
    assert "resuming at step" in err


def test_a_time_limit_stops_at_a_checkpoint(command, tmp_path):
    words = ["run", "train.epochs=200", "train.time_limit=1", f"outputs={tmp_path}"]
    code, _, err = command(*words)
    assert code == 130
    assert "the time limit of 1 s was reached" in err
    assert list(tmp_path.glob("targets/*/checkpoint.safetensors"))
    assert not list(tmp_path.glob("runs/*/result.json"))


def test_processes_that_need_one_target_train_it_once(tmp_path):
    words = ["train.epochs=200", "target.width=6", "seeds=[0]", f"outputs={tmp_path}"]
    first = start(*words, "features=he_normal")
    assert waited(lambda: list(tmp_path.glob("targets/*/.holder")))
    second = start(*words, "features=id_cond")
    (code_1, _, _), (code_2, _, err) = finish(first), finish(second)
    assert code_1 == code_2 == 0
    assert f"waiting for process {first.pid}" in err
    assert "to finish training vgg_small" in err
    assert len(list(tmp_path.glob("targets/*/target.safetensors"))) == 1


def test_a_diverging_training_is_a_failed_run(command, tmp_path):
    code, _, err = command("run", "train.lr=1e30", "train.epochs=3", f"outputs={tmp_path}")
    assert code == 1
    assert "diverged" in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.glob("runs/*/result.json"))


def test_what_stands_in_the_way_of_a_layer_is_printed_and_kept(command, tmp_path):
    """Strict sparse features of a grey image: half of the first layer's are dead."""
    code, out, err = command(
        "run",
        "scale=smoke",
        "features=sparse_he_normal",
        "features.strict=true",
        f"outputs={tmp_path}",
    )
    assert code == 0, err
    said = "not converged: features.conv1_1: 25 of 54 features are wholly zero; rank 29 of 36 equations"
    assert said in out
    assert "NOT CONVERGED 25 of 54" in err
    assert (
        "auto picked matrix_free for 5 of 5 layers: oversampling 1.5: about 114 iterations" in out
    )
    layers = pd.read_csv(Path(out.strip().splitlines()[-1]) / "layers.csv")
    assert layers["diagnosis"][0].startswith("25 of 54")
    assert set(layers["norm"][1:]) <= {
        "near the minimum norm of the scales",
        "near the minimum norm of the scales times their columns' norms",
    }


def test_sources_are_not_kept_where_that_is_not_wanted(command, tmp_path):
    words = ["run", *SMOKE, f"outputs={tmp_path}"]
    code, out, err = command(*words, "keep_source=false")
    assert code == 0, err
    assert not list(tmp_path.glob("runs/*/seed-*/source.safetensors"))
    code, again, _ = command(*words)  # the same run: what is kept does not change what is computed
    assert code == 0
    assert "already done" in again
    assert again.splitlines()[-1] == out.splitlines()[-1]


def test_a_target_is_trained_alone_and_taken_from_where_it_lies(command, tmp_path):
    code, out, err = command("train", *SMOKE, f"outputs={tmp_path / 'one'}")
    assert code == 0, err
    assert "trained in" in out
    assert not (tmp_path / "one" / "runs").exists()
    code, out, _ = command("train", *SMOKE, f"outputs={tmp_path / 'one'}")
    assert code == 0
    assert "trained before" in out
    code, out, err = command(
        "run", *SMOKE, f"outputs={tmp_path / 'two'}", f"targets={tmp_path / 'one' / 'targets'}"
    )
    assert code == 0, err
    assert "already trained" in out
    assert not (tmp_path / "two" / "targets").exists()
    code, _, err = command("train", "target.widht=3")
    assert code == 2
    assert "target.width" in err


@pytest.mark.parametrize("skip", ["inner", "outer"])
def test_a_network_of_residual_blocks_is_run_and_reloaded(command, tmp_path, skip):
    code, out, err = command(
        "run", *SMOKE, f"features.skip={skip}", "features.width=minimum", f"outputs={tmp_path}"
    )
    assert code == 0, err
    result = result_of(out)
    layer = result["layers"][1]
    assert layer["width"] == layer["equations"] - layer["shape"][0] + (skip == "inner")
    assert result["source"]["accuracy"] == [result["target"]["accuracy"]]


def test_a_nearly_linear_layer_sends_all_images_through_the_real_source(command, tmp_path):
    code, out, err = command("run", *SMOKE, "features.activation=tanh", f"outputs={tmp_path}")
    assert code == 0, err
    evaluated = result_of(out)["source"]["evaluated"]
    assert evaluated["network"] == "source"
    assert evaluated["largest_difference_to_target"] < 1e-2


def test_a_slice_of_time_is_used_and_gone_on_from(tmp_path):
    """Make gpu-slice, on a processor: stopped when its time is over, everything finished kept."""
    script = Path(__file__).parents[2] / "scripts" / "gpu_slice.py"
    words = [
        "--device",
        "cpu",
        "--scale",
        "smoke",
        "--outputs",
        str(tmp_path),
        "--data",
        str(tmp_path),
    ]

    def slice_of(minutes):
        line = [sys.executable, str(script), *words, "--minutes", str(minutes)]
        return subprocess.run(
            line, capture_output=True, text=True, env=ENVIRONMENT, timeout=120, check=False
        )

    nothing = slice_of(0.5)  # less than what saving may take
    assert nothing.returncode == 0
    assert "the time is over before: study exact" in nothing.stdout
    stopped = slice_of(0.83)
    assert stopped.returncode == 0
    assert "the time is over during: study exact" in stopped.stdout
    assert (
        "bnrecon: interrupted" in stopped.stderr
    )  # while it loaded, or later: that is the machine's speed


@pytest.mark.parametrize("words", [["run"], ["train"], ["study", "random_features", "matching"]])
def test_an_interruption_while_libraries_load_is_one_line(tmp_path, words):
    """SIGINT at the first sign of life, when torch is not there yet."""
    line = [
        sys.executable,
        "-c",
        f"import sys; print(flush=True); sys.argv[1:] = {[*words, 'scale=smoke', f'outputs={tmp_path}']!r}; from bnrecon.cli.main import main; sys.exit(main())",
    ]
    process = subprocess.Popen(
        line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    process.stdout.readline()
    time.sleep(0.8)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 130, err
    assert "interrupted" in err and "Traceback" not in err
