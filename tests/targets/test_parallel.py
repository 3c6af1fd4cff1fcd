"""Training in several processes, as torchrun starts them: real ones."""

import json
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from processes import ENVIRONMENT
from safetensors.torch import load_file

from bnrecon.data import DataSpec, load

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]

SCRIPT = """
import sys, torch
from pathlib import Path
from torch import nn
from bnrecon.runtime import distributed, files
from bnrecon.data import DataSpec, load
from bnrecon.runtime.interruption import StopRequest
from bnrecon.targets.plan import TrainingPlan
from bnrecon.targets.spec import TrainSpec
from bnrecon.targets.trainer import train

with distributed.join_processes(torch.device("cpu")):
    torch.manual_seed(0)
    network = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 10))
    plan = TrainingPlan(TrainSpec(epochs=2, warmup_epochs=1), torch.float32)
    folder = Path(sys.argv[1])
    with StopRequest() as stop:
        data = load(DataSpec("digits", crop_padding=1))
        log, _ = train(network, data, plan, torch.device("cpu"), folder / "checkpoint", stop)
    if distributed.rank_and_world_size()[0] == 0:
        about = {"log": log, "processes": distributed.rank_and_world_size()[1]}
        files.write_tensors(folder / "end", network.state_dict(), about)
"""


@pytest.mark.slow
def test_two_processes_train_what_one_trains(tmp_path):
    """Without batch normalization averaged gradients are the whole batch's.

    Its statistics are a process's own.
    """
    (tmp_path / "script.py").write_text(SCRIPT)
    ends, logs = [], []
    for number, start in enumerate(([sys.executable], TORCHRUN)):
        folder = tmp_path / str(number)
        folder.mkdir()
        subprocess.run(
            [*start, str(tmp_path / "script.py"), str(folder)],
            env=ENVIRONMENT,
            check=True,
            timeout=240,
        )
        ends.append(load_file(folder / "end"))
        logs.append(_about(folder / "end")["log"])
        assert _about(folder / "end")["processes"] == number + 1
    for name, value in ends[0].items():
        assert torch.allclose(value, ends[1][name], atol=1e-5), name
    assert [row["accuracy"] for row in logs[0]] == pytest.approx(
        [row["accuracy"] for row in logs[1]], abs=0.2
    )
    assert [row["loss"] for row in logs[0]] == pytest.approx(
        [row["loss"] for row in logs[1]], rel=1e-4
    )


def _about(path):
    from bnrecon.runtime import files

    return files.read_tensors(path)[1]


@pytest.fixture
def tree(tmp_path):
    """ImageNet's folders with three classes of a few small pictures."""
    generator = np.random.default_rng(0)
    for part, count in (("train", 16), ("val", 4)):
        for label in range(3):
            folder = tmp_path / "tree" / part / f"class{label}"
            folder.mkdir(parents=True)
            for number in range(count):
                pixels = generator.random((40, 48, 3)) * 80 + np.eye(3)[label] * 150
                Image.fromarray(pixels.astype("uint8")).save(folder / f"{number}.png")
    return tmp_path / "tree"


def imagenet(tree, outputs, *more):
    return [
        *TORCHRUN,
        "-m",
        "bnrecon.cli",
        "train",
        "experiment=imagenet_condition",
        "target.condition=5413",
        f"data.root={tree}",
        "target.width=8",
        "data.side=64",
        "train.epochs=12",
        "train.batch_size=8",
        "data.workers=1",
        "train.lr=0.01",
        f"outputs={outputs}",
        *more,
    ]


@pytest.mark.slow
def test_the_imagenet_experiment_stops_and_goes_on_under_torchrun(tree, tmp_path):
    """SIGTERM reaches the processes, which save first, not their workers that read images."""
    line = imagenet(tree, tmp_path)
    process = subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    said = []
    for text in process.stderr:
        said.append(text)
        if text.startswith("epoch 2/12"):
            process.send_signal(signal.SIGTERM)
            break
    said += process.stderr.read()
    process.wait(120)
    said = "".join(said)
    assert said.count("training is saved at step") == 1, said
    assert "defect" not in said
    assert list(tmp_path.glob("targets/*/checkpoint.safetensors"))
    assert not list(tmp_path.glob("targets/*/target.json"))

    done = subprocess.run(line, capture_output=True, text=True, env=ENVIRONMENT, timeout=400)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("resuming at step") == 1
    assert "by 2 processes" in done.stdout
    assert done.stdout.count("test accuracy") == 1
    about = json.loads(next(tmp_path.glob("targets/*/target.json")).read_text())
    assert about["processes"] == 2
    assert about["config"]["target"]["condition"] == 5413


def test_a_mistake_is_said_once(tmp_path):
    done = subprocess.run(
        imagenet(tmp_path / "nowhere", tmp_path),
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=200,
    )
    assert done.returncode != 0
    assert done.stderr.count("no such folder") == 1
    assert "defect" not in done.stderr


def test_a_damaged_checkpoint_is_set_aside_once(tmp_path):
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "checkpoint").write_bytes(b"not a checkpoint")
    done = subprocess.run(
        [*TORCHRUN, str(tmp_path / "script.py"), str(tmp_path)],
        capture_output=True,
        text=True,
        env=ENVIRONMENT,
        timeout=200,
    )
    assert done.returncode == 0, done.stderr
    assert len(list(tmp_path.glob("checkpoint*damaged*"))) == 1
    assert (tmp_path / "end").exists()


@pytest.mark.parametrize(
    "words", [["run", "scale=smoke"], ["study", "burkholz2024", "scale=smoke"]]
)
def test_what_one_process_does_is_refused_under_torchrun(words, monkeypatch, tmp_path, capsys):
    from bnrecon.cli.main import main

    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("LOCAL_RANK", "0")
    assert main([*words, f"outputs={tmp_path}"]) == 2
    assert "torchrun is for bnrecon train" in capsys.readouterr().err


def test_a_batch_that_cannot_be_shared_is_refused(monkeypatch, digits):
    from bnrecon.runtime import distributed as parallel
    from bnrecon.runtime.errors import UserError
    from bnrecon.targets.plan import TrainingPlan
    from bnrecon.targets.spec import TrainSpec
    from bnrecon.targets.trainer import Trainer

    monkeypatch.setattr(parallel, "rank_and_world_size", lambda: (0, 3))
    with pytest.raises(UserError, match="cannot be shared evenly by 3"):
        Trainer(
            torch.nn.Linear(1, 1),
            digits,
            TrainingPlan(TrainSpec(epochs=1), torch.float32),
            torch.device("cpu"),
        )


def test_the_shares_of_a_batch_make_the_batch(digits):
    cpu = torch.device("cpu")
    whole = next(iter(digits.train_batches(12, 3, 1, cpu, start=2)))
    parts = [
        next(iter(digits.train_batches(12, 3, 1, cpu, 2, share=(rank, 3)))) for rank in range(3)
    ]
    for position in (0, 1):
        together = torch.stack([part[position] for part in parts], 1).flatten(0, 1)
        assert torch.equal(together, whole[position])


def test_the_shares_of_streamed_images_make_the_batch(tree):
    streamed = load(DataSpec("imagenet", root=str(tree), side=32, workers=1))
    cpu = torch.device("cpu")
    whole = list(streamed.train_batches(12, 3, 1, cpu, start=1))
    parts = [list(streamed.train_batches(12, 3, 1, cpu, 1, share=(rank, 2))) for rank in range(2)]
    assert len(whole) == len(parts[0]) == len(parts[1]) == 3
    for number, batch in enumerate(whole):
        for position in (0, 1):
            together = torch.stack([part[number][position] for part in parts], 1).flatten(0, 1)
            assert torch.equal(together, batch[position])
