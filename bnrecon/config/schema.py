"""The typed schema of everything a user can say."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING

__all__ = [
    "VOLATILE",
    "CustomTarget",
    "DataConfig",
    "FeaturesConfig",
    "MlpTarget",
    "NormalizationVggTarget",
    "ResnetTarget",
    "RunConfig",
    "SolverConfig",
    "TargetConfig",
    "TrainConfig",
    "VggTarget",
    "register_schema",
    "schema_classes",
]


@dataclass
class DataConfig:
    """Which images, from where."""

    name: str = MISSING  # digits, cifar10, cifar100, folder, imagenet
    root: str | None = None  # the folder the files are in
    download: bool = True
    train_limit: int | None = None  # take only so many images
    test_limit: int | None = None
    side: int | None = None  # resize to this side
    crop_padding: int = 4
    flip: bool = True
    workers: int = 4


@dataclass
class TargetConfig:
    """What all target networks share. ``family`` is a name in the register of builders."""

    name: str = MISSING  # what tables and folders call it
    family: str = MISSING
    width: int = 64
    condition: float | None = (
        None  # train weights behind fixed factors of this condition number (Random features, Table 1)
    )
    density: float | None = None  # train with random masks that keep this share of every weight


@dataclass
class VggTarget(TargetConfig):
    """Groups of 3x3 convolutions, each with BatchNorm, a max-pool after each group, one linear layer."""

    groups: list[int] = field(default_factory=lambda: [2, 3, 4, 4, 4])
    activation: str = "relu"


@dataclass
class NormalizationVggTarget(VggTarget):
    """A VGG of frozen random pairs, trained by its normalizations alone."""

    features: str = (
        "he_normal"  # none: the weights themselves are trained, in the same architecture
    )
    excess: int = 100  # c1 - n, features beyond the number of equations
    oversampling: float | None = None  # c1 / n, in the place of excess
    inner: str = "batchnorm"  # between the two convolutions of a pair: batchnorm, or scale alone


@dataclass
class ResnetTarget(TargetConfig):
    """torchvision's ResNet-18 or ResNet-50."""

    depth: int = 18
    stem: str = "auto"  # cifar, imagenet


@dataclass
class MlpTarget(TargetConfig):
    """Hidden linear layers with BatchNorm."""

    depth: int = 2
    activation: str = "relu"


@dataclass
class CustomTarget(TargetConfig):
    """A user's own registered family: its builder is given ``width`` and these options."""

    options: dict[str, Any] = field(default_factory=dict)


@dataclass
class FeaturesConfig:
    """The frozen random pair for each layer. At most one of ``oversampling``, ``excess`` and ``width``."""

    name: str = MISSING  # he_normal, he_uniform, orthogonal, sparse_he_normal, id_cond, ortho_cond
    oversampling: float | None = None  # c1 / n
    excess: int | None = None  # c1 - n
    width: str | None = (
        None  # c1: a number, `minimum` (n - c2 + 1, Burkholz 2024, Thm 2.2) or `maximum` (n, Thm 2.3)
    )
    allow_below_minimum: bool = (
        False  # fewer features than the theorems ask for: reconstruction will be inexact
    )
    activation: str = "identity"  # after the first source layer: identity, relu, leaky_relu, tanh, sigmoid (Thm 2.4)
    epsilon: float = (
        1e-3  # with tanh and sigmoid: how far a layer's output may be from the target's
    )
    margin: float = (
        2.0  # with any activation: inputs may exceed the training images' range by this factor
    )
    skip: str = "none"  # a frozen skip connection beside each pair, inner or outer: where the second normalization stands (Eq. 3)
    strict: bool = False  # keep wholly zero features of sparse distributions


@dataclass
class SolverConfig:
    """How M gamma = vec(W) is solved."""

    name: str = MISSING  # auto, matrix_free, minimum_norm, lu, refined, closed_form, least_squares, lbfgs, lu_lbfgs, svd_lbfgs, svd_lu_lbfgs
    tolerance: float = 1e-10  # relative residual at which a layer counts as converged
    max_iterations: int | None = None


@dataclass
class TrainConfig:
    """How the target is trained; the defaults are Burkholz 2024's."""

    epochs: int = 205  # warm-up included
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 5e-4
    nesterov: bool = False
    batch_size: int = 128
    warmup_epochs: float = 5
    seed: int = 0
    precision: str = "auto"  # bfloat16 where the device is fast at it, else float32
    compile: str = "auto"  # torch.compile: auto (on a GPU), on, off
    time_limit: str | None = None  # stop at a checkpoint after so long: 90, 90s, 30m, 2h
    checkpoint_seconds: float = 60


@dataclass
class RunConfig:
    """One run of the main job."""

    data: DataConfig = field(default_factory=DataConfig)
    target: TargetConfig = field(default_factory=TargetConfig)
    features: FeaturesConfig = field(default_factory=FeaturesConfig)
    solver: SolverConfig = field(default_factory=SolverConfig)
    train: TrainConfig = field(default_factory=TrainConfig)
    scale: str = "laptop"
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])  # one source network each
    device: str = "auto"
    threads: int | None = (
        None  # of the processor, that PyTorch works with; null: as many as it takes by itself
    )
    outputs: str = "outputs"
    targets: str | None = None  # where trained targets lie; OUTPUTS/targets unless told otherwise
    evaluate: str = "auto"  # source: the real wide network on all test images; collapsed: on 64, its collapsed form on the rest
    keep_source: bool = True  # false: remove the source networks' files once the result is written
    imports: list[str] = field(
        default_factory=list
    )  # Python modules that register own targets, features or solvers


# What changes where or how fast a run happens, not what it computes.
VOLATILE = frozenset(
    {
        "scale",
        "outputs",
        "data.root",
        "data.download",
        "data.workers",
        "train.time_limit",
        "train.checkpoint_seconds",
        "target.name",
        "targets",
        "keep_source",
        "device",
        "threads",
    }
)


GROUPS = ("data", "target", "features", "solver", "train", "scale", "experiment")


def register_schema() -> None:
    """Put the schema where the yaml files' ``defaults`` find it."""
    cs = ConfigStore.instance()
    cs.store(name="run_schema", node=RunConfig)
    for group, node in (
        ("data", DataConfig),
        ("features", FeaturesConfig),
        ("solver", SolverConfig),
        ("train", TrainConfig),
    ):
        cs.store(group=group, name="schema", node=node)
    for name, node in (
        ("vgg", VggTarget),
        ("vgg_normalization", NormalizationVggTarget),
        ("resnet", ResnetTarget),
        ("mlp", MlpTarget),
        ("custom", CustomTarget),
    ):
        cs.store(group="target", name=f"{name}_schema", node=node)


def schema_classes() -> list[type]:
    """All dataclasses of the schema."""
    return [
        RunConfig,
        DataConfig,
        TargetConfig,
        VggTarget,
        NormalizationVggTarget,
        ResnetTarget,
        MlpTarget,
        CustomTarget,
        FeaturesConfig,
        SolverConfig,
        TrainConfig,
    ]
