"""The main job: statistics of attention, users' targets, and images of one class."""

import math

import pytest
from image_sets import tree
from networks import Composed
from processes import SMALLEST
from torch import nn

from bnrecon.config.composition import compose
from bnrecon.reporting.predictions import disagreements
from bnrecon.run import main_job
from bnrecon.runtime import files
from bnrecon.runtime.errors import UserError
from bnrecon.targets.register import register_target


def attend(self, x):
    """Attend to the rows of an image as a sequence."""
    rows = x[:, 0]
    return self.last(self.attention(rows, rows, rows, need_weights=False)[0].mean(1))


def test_attention_projections_have_the_statistics_of_the_images(tmp_path):
    @register_target("attentive")
    def attentive(shape, classes, width, **_):
        attention = nn.MultiheadAttention(shape[2], 1, batch_first=True)
        return Composed(attend, attention=attention, last=nn.Linear(shape[2], classes))

    options = ("scale=smoke", "train.epochs=1", "target=mlp", "target.family=attentive")
    done = main_job.run(compose([*options, f"outputs={tmp_path}"]))
    tensors, _ = files.read_tensors(done.folder / "seed-0" / "source.safetensors")
    means = {name: value for name, value in tensors.items() if name.endswith("|first.mean")}
    assert {name.partition("|")[0] for name in means} == {
        "last",
        *(f"attention.{part}_proj" for part in ("q", "k", "v", "out")),
    }
    assert all(bool((mean != 0).any()) for mean in means.values())


def test_predictions_of_a_users_target_are_compared(tmp_path):
    @register_target("flat")
    def flat(shape, classes, width, **_):
        return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), classes))

    options = ["scale=smoke", "train.epochs=1", "target=mlp", "target.family=flat", "seeds=[0,1]"]
    runs = []
    for width in ("minimum", "maximum"):
        done = main_job.run(compose([*options, f"features.width={width}", f"outputs={tmp_path}"]))
        runs.append((done.folder, done.result))
    compared = disagreements(*runs, None)
    assert list(compared) == [0, 1]
    assert all(each.images == runs[0][1].target.images for each in compared.values())


def test_images_of_a_single_class_are_refused_before_training(tmp_path):
    images = tree(tmp_path / "images", ("ant",))
    options = [*SMALLEST, "data=folder", f"data.root={images}", f"outputs={tmp_path / 'outputs'}"]
    with pytest.raises(UserError, match="data=folder: all images are of one class, ant"):
        main_job.run(compose(options))
    assert not list((tmp_path / "outputs").rglob("*.safetensors"))
