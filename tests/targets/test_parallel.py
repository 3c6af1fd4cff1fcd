"""Training in several real processes, started by torchrun."""

import itertools
import json
import signal
import subprocess
import sys

import image_sets
import pytest
import torch
from processes import ENVIRONMENT, run

from bnrecon.data import DataSpec, load
from bnrecon.data.batches import EpochPosition
from bnrecon.runtime import distributed as parallel
from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.interruption import StopRequest
from bnrecon.targets.building import build_target
from bnrecon.targets.spec import TargetRequest, TrainSpec, VggTarget
from bnrecon.targets.step import TrainingPlan
from bnrecon.targets.trainer import Trainer, train

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2", "--standalone"]

# A network with noise is trained to the end, stopped and resumed, once with a folder each; then one
# whose statistics are set before training, and a plain one with a damaged checkpoint. Each process
# writes its network, its dropout masks and its log.
SCRIPT = """
import json, sys, torch
from pathlib import Path
from torch import nn
from bnrecon.data import DataSpec, load
from bnrecon.runtime import distributed, files
from bnrecon.runtime.errors import Interrupted, ReportedElsewhere, RunError
from bnrecon.runtime.interruption import StopRequest
from bnrecon.targets.accuracy import measure_accuracy
from bnrecon.targets.noisy_batchnorm import NoisyBatchNorm2d
from bnrecon.targets.normalization import initialize_statistics
from bnrecon.targets.step import TrainingPlan
from bnrecon.targets.spec import TargetRequest, TrainSpec, VggTarget
from bnrecon.targets.building import build_target
from bnrecon.targets.trainer import train

cpu, folder = torch.device("cpu"), Path(sys.argv[1])
spec = TrainSpec(epochs=2, warmup_epochs=1, test_every=1)

class After(StopRequest):
    looks = 12

    @property
    def reason(self):
        self.looks -= 1
        return None if self.looks > 0 else "a test wants it"

def with_noise(seed):
    torch.manual_seed(seed)
    layers = nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.LeakyReLU(), nn.Dropout(0.5)
    network = nn.Sequential(*layers, nn.Flatten(), nn.Linear(144, 10))
    return NoisyBatchNorm2d.convert(network, virtual_batch=16)

def trained(name, network, checkpoint, stop, initialize=None):
    masks = [torch.ones(1)]
    def note(layer, inputs, output):
        if layer.training:
            masks.append((output[0] != 0).float())
    for layer in network.modules():
        if isinstance(layer, nn.Dropout):
            layer.register_forward_hook(note)
    about = {}
    try:
        plan = TrainingPlan(spec, torch.float32)
        about["log"], _ = train(network, data, plan, cpu, folder / checkpoint, stop, initialize)
        about["tested"] = measure_accuracy(network, data, cpu)
    except (Interrupted, ReportedElsewhere, RunError) as error:
        about["stopped"] = str(error)
    tensors = {f"network.{key}": value for key, value in network.state_dict().items()}
    tensors |= {f"mask.{number:02}": mask for number, mask in enumerate(masks[1:])}
    files.write_tensors(folder / f"{name}{distributed.rank_and_world_size()[0]}", tensors, about)

with distributed.join_processes(cpu):
    images = DataSpec("digits", crop_padding=1, flip=False)
    data = load(images)
    trained("whole", with_noise(0), "none", StopRequest())
    trained("stopped", with_noise(0), "checkpoint", After())
    rank = distributed.rank_and_world_size()[0]
    trained("apart", with_noise(0), "checkpoint" if rank == 0 else "elsewhere", StopRequest())
    trained("resumed", with_noise(5), "checkpoint", StopRequest())
    target = VggTarget(**json.loads(sys.argv[2]))
    network = build_target(TargetRequest(target, spec, images, folder), data)
    set_statistics = lambda network: initialize_statistics(network, target, data, cpu)
    trained("frozen", network, "frozen", StopRequest(), set_statistics)
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Flatten(), nn.Linear(64, 20), nn.Tanh(), nn.Linear(20, 10))
    trained("plain", plain, "broken", StopRequest())
"""
FROZEN = {"name": "vgg", "family": "vgg", "width": 4, "groups": [1, 1]}
FROZEN["initialization"] = "frozen_statistics"


@pytest.fixture(scope="module")
def in_two_processes(tmp_path_factory):
    """What each of two processes ends with: tensors and log by training and rank; file names."""
    folder = tmp_path_factory.mktemp("parallel")
    (folder / "script.py").write_text(SCRIPT)
    (folder / "broken").write_bytes(b"not a checkpoint")
    done = run([*TORCHRUN, str(folder / "script.py"), str(folder), json.dumps(FROZEN)])
    assert done.returncode == 0, done.stderr
    trainings = ("whole", "stopped", "apart", "resumed", "frozen", "plain")
    ends = {
        name: files.read_tensors(folder / name)
        for name in map("".join, itertools.product(trainings, "01"))
    }
    return ends | {"files": [path.name for path in folder.iterdir()]}


def _named(tensors, prefix):
    return {name: value for name, value in tensors.items() if name.startswith(prefix)}


def test_two_processes_train_like_one(in_two_processes, digits, tmp_path):
    """Without BatchNorm, whose statistics are per process, averaged gradients are the batch's."""
    torch.manual_seed(0)
    layers = torch.nn.Linear(64, 20), torch.nn.Tanh(), torch.nn.Linear(20, 10)
    network = torch.nn.Sequential(torch.nn.Flatten(), *layers)
    plan = TrainingPlan(TrainSpec(epochs=2, warmup_epochs=1, test_every=1), torch.float32)
    log, _ = train(network, digits, plan, torch.device("cpu"), tmp_path / "none", StopRequest())
    for rank in (0, 1):
        tensors, about = in_two_processes[f"plain{rank}"]
        for name, value in network.state_dict().items():
            assert torch.allclose(value, tensors[f"network.{name}"], atol=1e-5), name
        for key, close in (("accuracy", {"abs": 0.2}), ("loss", {"rel": 1e-4})):
            logged = [row[key] for row in about["log"]]
            assert logged == pytest.approx([row[key] for row in log], **close)


def test_processes_with_different_checkpoints_end_before_training(in_two_processes):
    for rank in (0, 1):
        tensors, about = in_two_processes[f"apart{rank}"]
        assert about.keys() == {"stopped"}
        assert "must be a folder that all share" in about["stopped"]
        assert not _named(tensors, "mask.")  # no step was taken
    assert "elsewhere" not in in_two_processes["files"]


def test_damaged_checkpoint_is_set_aside_once(in_two_processes):
    names = in_two_processes["files"]
    assert len([name for name in names if name.startswith("broken") and "damaged" in name]) == 1


def test_two_processes_draw_different_noise_and_resume_it(in_two_processes):
    whole, stopped, resumed = (
        [list(_named(in_two_processes[f"{name}{rank}"][0], "mask.").values()) for rank in (0, 1)]
        for name in ("whole", "stopped", "resumed")
    )
    assert len(whole[0]) == len(whole[1]) == 22
    for masks in zip(*whole, strict=True):
        assert 0.3 < (masks[0] != masks[1]).float().mean() < 0.7  # one half if independent
    for rank in (0, 1):
        assert [len(stopped[rank]), len(resumed[rank])] == [16, 6]
        halves = [*stopped[rank], *resumed[rank]]
        assert all(torch.equal(*masks) for masks in zip(whole[rank], halves, strict=True))


def test_two_processes_with_noise_resume_to_the_same_numbers(in_two_processes):
    """Weights, the log with test accuracies, and the first process's running statistics."""
    tensors, about = in_two_processes["whole0"]
    resumed, resumed_about = in_two_processes["resumed0"]
    assert "at step 16 of 22" in in_two_processes["stopped0"][1]["stopped"]
    for name, value in _named(tensors, "network.").items():
        assert torch.equal(value, resumed[name]), name
        if "running" not in name:
            assert torch.equal(value, in_two_processes["whole1"][0][name]), name
    assert [row["epoch"] for row in about["log"]] == [1, 2]
    assert about["log"][-1]["test_accuracy"] == about["tested"] > 20
    assert about["log"] == in_two_processes["whole1"][1]["log"]
    for row, again in zip(about["log"], resumed_about["log"], strict=True):
        assert row == pytest.approx(again, rel=1e-12)  # the loss is summed in another order


def test_two_processes_freeze_the_statistics_of_all_training_images(in_two_processes, digits):
    (first, about), (second, _) = in_two_processes["frozen0"], in_two_processes["frozen1"]
    assert first.keys() == second.keys()
    assert all(torch.equal(value, second[name]) for name, value in first.items())
    assert about["log"][-1]["loss"] < about["log"][0]["loss"]

    request = TargetRequest(VggTarget(**FROZEN), TrainSpec(), DataSpec("digits"), None)
    network = build_target(request, digits)
    convolution = next(m for m in network.modules() if isinstance(m, torch.nn.Conv2d))
    images = next(digits.plain_train_batches(10**4, torch.device("cpu"), 10**4))
    assert len(images) == digits.sizes[0]
    with torch.no_grad():
        variance, mean = torch.var_mean(convolution(images), (0, 2, 3), correction=0)
    statistics = (first[f"network.features.norm1_1.running_{name}"] for name in ("mean", "var"))
    for value, expected in zip(statistics, (mean, variance), strict=True):
        assert torch.allclose(value, expected, rtol=1e-4, atol=1e-6)


def test_noise_differs_by_process_step_and_seed(monkeypatch, digits):
    seeds = []
    for rank, seed in itertools.product(range(3), range(2)):
        monkeypatch.setattr(parallel, "rank_and_world_size", lambda rank=rank: (rank, 3))
        plan = TrainingPlan(TrainSpec(batch_size=120, seed=seed), torch.float32)
        trainer = Trainer(torch.nn.Linear(1, 1), digits, plan, torch.device("cpu"))
        for trainer.step in range(5):
            seeds.append(trainer._noise_seed())
    assert len(set(seeds)) == 30


@pytest.fixture
def tree(tmp_path):
    """ImageNet's folders with three classes of a few small images."""
    classes = ("ant", "bee", "cow")
    return image_sets.tree(tmp_path / "tree", classes, train=16, test=4, side=48, tests="val")


@pytest.mark.process
def test_imagenet_experiment_stops_and_resumes_under_torchrun(tree, tmp_path):
    """SIGTERM reaches the training processes, which save first, not their image readers."""
    words = ("experiment=imagenet_condition", "target.condition=5413", "target.width=8")
    words += ("data.side=64", "train.epochs=12", "train.batch_size=8", "data.workers=1")
    words += ("train.lr=0.01", f"data.root={tree}", f"outputs={tmp_path}")
    line = [*TORCHRUN, "-m", "bnrecon", "train", *words]
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

    done = run(line)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("resuming at step") == 1
    assert "by 2 processes" in done.stdout
    assert done.stdout.count("test accuracy") == 1
    about = json.loads(next(tmp_path.glob("targets/*/target.json")).read_text())
    assert about["processes"] == 2
    assert about["config"]["target"]["condition"] == 5413


@pytest.mark.parametrize(("images", "processes"), [(None, 3), (101, 2), (2, 4)])
def test_unshareable_batch_is_refused(monkeypatch, images, processes):
    """A network would weigh the images unequally; also those of an only, incomplete batch."""
    monkeypatch.setattr(parallel, "rank_and_world_size", lambda: (0, processes))
    plan, data = TrainingPlan(TrainSpec(), torch.float32), DataSpec("digits", train_limit=images)
    with pytest.raises(UserError, match=f"shared evenly by {processes} .*batch_size or data.train"):
        Trainer(torch.nn.Linear(1, 1), load(data), plan, torch.device("cpu"))


def test_shares_of_a_batch_make_the_batch(digits, tree):
    streamed = load(DataSpec("imagenet", root=str(tree), side=32, workers=1))
    cpu = torch.device("cpu")
    for data, processes in ((digits, 3), (streamed, 2)):
        whole = list(data.train_batches(EpochPosition(12, 3, 1, 1), cpu))
        shares = [EpochPosition(12, 3, 1, 1, (rank, processes)) for rank in range(processes)]
        parts = zip(*(data.train_batches(at, cpu) for at in shares), strict=True)
        assert len(whole) == data.batches(12) - 1
        for batch, shared in zip(whole, parts, strict=True):
            for position in (0, 1):
                together = torch.stack([part[position] for part in shared], 1).flatten(0, 1)
                assert torch.equal(together, batch[position])
