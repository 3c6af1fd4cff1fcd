"""Which network is trained, how, on which images, and where it is stored."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bnrecon.data.spec import DataSpec
from bnrecon.runtime.digests import differences_from_defaults
from bnrecon.runtime.errors import UserError
from bnrecon.runtime.interruption import parse_duration
from bnrecon.runtime.options import check_fields, option

INITIALIZED_FROM_DATA = ("frozen_statistics", "frozen_scale", "folded_statistics")
INITIALIZATIONS = ("batchnorm", "zero_bias", "random_bias", *INITIALIZED_FROM_DATA)
ACTIVATION_NAMES = ("relu", "leaky_relu", "tanh", "sigmoid", "centred_sigmoid")
MAX_CONVOLUTIONS = 256


@dataclass
class TargetSpec:
    """Options of all target networks; each family has a subclass with its fields."""

    name: str = option(help="name of the network in tables and folder names", file_name=True)
    family: str = option(help="the registered family of networks")
    width: int = option(64, "channels of a layer (a ResNet's first stage)", above=0, at_most=10**6)
    condition: float | None = option(
        None,
        "train weights times fixed factors of this condition number (Random features, Table 1)",
        at_least=1,
        at_most=10**12,  # beyond, rounding of the law loses the smallest factor
    )
    density: float | None = option(
        None, "train with random masks that keep this share of every weight", above=0, at_most=1
    )
    spectrum: str = option(
        "marchenko_pastur",
        "distribution of the factors of target.condition: that of Theorem 2.2 of Random features, "
        "or log-uniform",
        allowed=("marchenko_pastur", "log_uniform"),
    )
    affine: bool = option(True, "BatchNorm learns scales and shifts; false: they stay 1 and 0")
    virtual_batch: float | None = option(
        None,
        "train with BatchNorm statistics as noisy as those of this many images, fewer than a batch "
        "(Batch Normalization Explained, Eq. 13)",
        at_least=2,
    )
    initialization: str = option(
        "batchnorm",
        "batchnorm: keep BatchNorm; zero_bias, random_bias: no BatchNorm; frozen_statistics, "
        "frozen_scale (no means), folded_statistics (into the weights): statistics of the training "
        "images, set once",
        allowed=INITIALIZATIONS,
    )
    weights: str | None = option(
        None, "safetensors file of the network's weights, instead of training it", folder=True
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.initialization != "batchnorm":
            choice = f"initialization={self.initialization}"
            if self.virtual_batch is not None:
                raise UserError(
                    f"virtual_batch={self.virtual_batch:g}, {choice}: give at most one of them"
                )
            if not self.affine:
                raise UserError(f"affine=false, {choice}: leaves no scales; leave affine out")
        if self.initialization == "folded_statistics" and (self.condition or self.density):
            raise UserError(
                "initialization=folded_statistics: is not for weights with fixed factors; "
                "give initialization=frozen_statistics, or leave condition and density out"
            )
        if self.spectrum != "marchenko_pastur" and self.condition is None:
            raise UserError(f"spectrum={self.spectrum}: is only for target.condition; give it too")
        if self.condition is not None and self.density is not None:
            raise UserError(
                f"condition={self.condition:g}, density={self.density:g}: give at most one of them"
            )


@dataclass
class VggTarget(TargetSpec):
    """Groups of 3x3 convolutions with BatchNorm, a max-pool after each group, one linear layer."""

    groups: list[int] = option([2, 3, 4, 4, 4], "number of convolutions before each pooling")
    activation: str = option("relu", "activation after each BatchNorm", allowed=ACTIVATION_NAMES)
    poolings: int | None = option(
        None,
        "number of groups, from the first, that end in a max-pooling; an average pooling takes "
        "what remains; by default all",
        at_least=0,
    )
    norm_position: str = option(
        "before", "BatchNorm before or after the activation", allowed=("before", "after")
    )
    padding: str = option(
        "zeros", "padding of each convolution", allowed=("zeros", "reflect", "replicate")
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.groups or min(self.groups) < 1:
            raise UserError(
                f"groups={self.groups}: give the number of convolutions before each pooling, "
                "as in [2,3,4,4,4]"
            )
        if sum(self.groups) > MAX_CONVOLUTIONS:
            raise UserError(
                f"groups={self.groups}: must be at most {MAX_CONVOLUTIONS} convolutions in all"
            )
        if self.poolings is not None and self.poolings > len(self.groups):
            raise UserError(
                f"poolings={self.poolings}: there are {len(self.groups)} groups of convolutions"
            )


@dataclass
class NormalizationVggTarget(VggTarget):
    """A VGG of frozen random pairs; only the normalizations are trained."""

    features: str = option(
        "he_normal",
        "distribution of the frozen pairs; none: train the weights themselves, same architecture",
    )
    excess: int = option(
        100, "c1 - n: features beyond the number of equations", at_least=0, at_most=10**9
    )
    oversampling: float | None = option(None, "c1 / n, instead of excess", above=0)
    inner: str = option(
        "batchnorm",
        "between the two convolutions of a pair: a normalization, or only a scale; mask: train the "
        "weights that sparse_id_cond features select instead",
        allowed=("batchnorm", "scale", "mask"),
    )
    start: str = option(
        "usual",
        "initial root mean square of a layer's trained parameters: 1 (ones), 1 / sqrt(3 fan-in) as "
        "PyTorch's weights (weights); usual: 1 for scales of dense features, else as weights",
        allowed=("usual", "ones", "weights"),
    )
    step: float = option(
        1.0,
        "relative step: starts are divided by its square root, which multiplies the learning rate "
        "of a layer before a normalization by it",
        above=0,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features == "none" and self.start == "weights":
            self.start = "usual"  # the same network has one name
        if self.inner == "mask" and self.density is not None:
            raise UserError(
                f"density={self.density:g}, inner=mask: give at most one of these masks"
            )
        if self.padding != "zeros":
            raise UserError(f"padding={self.padding}: this target's convolutions have zero padding")
        changed = differences_from_defaults(self)
        normalization_options = ("affine", "virtual_batch", "initialization", "norm_position")
        conflicting = [name for name in normalization_options if name in changed]
        if conflicting and self.features != "none":
            raise UserError(
                f"{conflicting[0]}: a frozen pair keeps its own normalizations; "
                f"leave {conflicting[0]} out, or give features=none"
            )


@dataclass
class ResnetTarget(TargetSpec):
    """torchvision's ResNet-18, ResNet-34 or ResNet-50."""

    depth: int = option(18, "number of layers", allowed=(18, 34, 50))
    stem: str = option(
        "auto",
        "first layers: 3x3 (cifar), 7x7 and pooling (imagenet), or by the images' side (auto)",
        allowed=("auto", "cifar", "imagenet"),
    )


@dataclass
class Resnet9Target(TargetSpec):
    """The ResNet-9 of the DAWNBench competition on CIFAR-10."""


@dataclass
class DropoutResnetTarget(TargetSpec):
    """The residual network of "Batch Normalization Explained", Appendix D."""

    depth: int = option(2, "residual blocks of each width", above=0, at_most=64)


@dataclass
class DropoutCnnTarget(TargetSpec):
    """The convolutional network of "Batch Normalization Explained", Appendix D."""

    width: int = option(96, "channels of its first stage", above=0, at_most=10**6)


@dataclass
class MlpTarget(TargetSpec):
    """Hidden linear layers with BatchNorm."""

    depth: int = option(2, "number of hidden layers", above=0, at_most=256)
    activation: str = option("relu", "activation after each BatchNorm", allowed=ACTIVATION_NAMES)


@dataclass
class CustomTarget(TargetSpec):
    """A family registered by a user: its builder is called with ``width`` and these options."""

    options: dict[str, Any] = option({}, "keyword arguments of the builder function")


# By the name before `_schema`, on which yaml files of targets build.
TARGETS: dict[str, type[TargetSpec]] = {
    "vgg": VggTarget,
    "vgg_normalization": NormalizationVggTarget,
    "resnet": ResnetTarget,
    "resnet9": Resnet9Target,
    "dropout_resnet": DropoutResnetTarget,
    "dropout_cnn": DropoutCnnTarget,
    "mlp": MlpTarget,
    "custom": CustomTarget,
}


@dataclass
class TrainSpec:
    """How the target is trained; the defaults are those of Burkholz 2024, Sect. 3.2."""

    epochs: int = option(205, "epochs, warm-up included", above=0, at_most=10**6)
    lr: float = option(0.1, "peak learning rate", above=0)
    momentum: float = option(0.9, "momentum of SGD", at_least=0, below=1)
    weight_decay: float = option(5e-4, "weight decay", at_least=0)
    norm_decay: float | None = option(
        None, "weight decay of normalizations' parameters; by default weight_decay", at_least=0
    )
    nesterov: bool = option(False, "Nesterov's momentum")
    batch_size: int = option(128, "images per step", above=0, at_most=10**7)
    warmup_epochs: float = option(
        5,
        "epochs of linear warm-up, at most half of all; a cosine to 0 follows",
        at_least=0,
        at_most=10**6,
    )
    # PyTorch's generator on a CPU uses 32 bits: with 2**32 it would be the training of 0.
    seed: int = option(0, "seed of initial weights, batches and crops", at_least=0, below=2**32)
    precision: str = option(
        "auto",
        "precision of training; auto: bfloat16 where the device is fast at it",
        allowed=("auto", "float32", "bfloat16"),
    )
    compile: str = option(
        "auto", "use torch.compile; auto: on a GPU", allowed=("auto", "on", "off")
    )
    time_limit: str | None = option(
        None, "stop at a checkpoint after this time, as in 90s, 30m, 2h"
    )
    checkpoint_seconds: float = option(60, "seconds between checkpoints", above=0, at_most=10**9)
    test_every: int | None = option(
        None,
        "test each time after this many epochs and log the accuracies (makes another target)",
        at_least=1,
    )

    def __post_init__(self) -> None:
        check_fields(self)
        if self.test_every is not None and self.test_every > self.epochs:
            raise UserError(f"test_every={self.test_every}: must be at most epochs={self.epochs}")
        if self.nesterov and self.momentum == 0:
            raise UserError("nesterov=true: needs a momentum above 0")
        if self.time_limit is not None:
            parse_duration(self.time_limit)


@dataclass
class TargetRequest:
    """A target to load or to train: what its weights depend on, and the store."""

    target: TargetSpec  # the network
    train: TrainSpec  # how it is trained
    data: DataSpec  # the images it is trained on
    store: Path  # the folder of trained targets, each in its own subfolder

    def __post_init__(self) -> None:
        pairs = isinstance(self.target, NormalizationVggTarget) and self.target.features != "none"
        if pairs and self.train.norm_decay is not None:
            raise UserError(
                f"train.norm_decay={self.train.norm_decay:g}: a network of frozen pairs trains "
                "nothing but normalizations; give train.weight_decay"
            )
