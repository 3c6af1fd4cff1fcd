"""Values that no run could have, and what this machine lacks."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

from bnrecon.config.schema import (
    MlpTarget,
    NormalizationVggTarget,
    ResnetTarget,
    RunConfig,
    TargetConfig,
    VggTarget,
)
from bnrecon.runtime.errors import UserError, nearest
from bnrecon.runtime.interruption import seconds

__all__ = ["check_machine", "require_folder"]


# More than anybody has a use for: what is above is a slip that would take hours or all memory.
LIMITS = {
    "target.width": 10**6,
    "target.depth": 256,
    "target.excess": 10**9,
    "train.epochs": 10**6,
    "train.batch_size": 10**7,
    "train.warmup_epochs": 10**6,
    "train.seed": 10**12,
    "train.checkpoint_seconds": 10**9,
}


MOST_CONVOLUTIONS = 256


def require_folder(name: str, folder: str) -> None:
    """Raise ``UserError`` where an option's folder is a file, or cannot be created.

    Leaves nothing behind. A folder that is there may be one that is only read.
    """
    _check_folder(name, folder)
    if Path(folder).is_symlink() and not Path(folder).exists():
        raise UserError(f"{name}={folder}: this link leads nowhere; give a folder")
    place, shown = Path(folder), folder if len(folder) <= 200 else f"{folder[:200]}…"
    try:
        while not _is_there(place):
            place = place.parent
        if not place.is_dir():
            raise UserError(f"{name}={shown}: {place} is a file; give a folder")
        if place != Path(folder):
            with tempfile.TemporaryDirectory(dir=place):
                pass
    except OSError as error:
        raise UserError(
            f"{name}={shown}: cannot be created ({error.strerror}); give another folder"
        ) from None


def _is_there(place: Path) -> bool:
    try:
        place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def check(config: RunConfig) -> None:
    """Raise ``UserError`` for a value that no run could have; what needs the data or the layers is checked by the run."""
    positive = {
        "target.width": config.target.width,
        "threads": config.threads,
        "train.epochs": config.train.epochs,
        "train.lr": config.train.lr,
        "train.batch_size": config.train.batch_size,
        "data.train_limit": config.data.train_limit,
        "data.test_limit": config.data.test_limit,
        "data.side": config.data.side,
        "data.workers": config.data.workers,
        "features.oversampling": config.features.oversampling,
        "features.margin": config.features.margin,
        "features.epsilon": config.features.epsilon,
        "solver.tolerance": config.solver.tolerance,
        "solver.max_iterations": config.solver.max_iterations,
        "target.depth": getattr(config.target, "depth", None),
        "target.oversampling": getattr(config.target, "oversampling", None),
        "train.checkpoint_seconds": config.train.checkpoint_seconds,
    }
    for name, value in positive.items():
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{name}={value}: must be above 0")
    from_zero = {
        "train.weight_decay": config.train.weight_decay,
        "train.warmup_epochs": config.train.warmup_epochs,
        "data.crop_padding": config.data.crop_padding,
        "train.seed": config.train.seed,
        "target.excess": getattr(config.target, "excess", 0),
    }
    for name, value in from_zero.items():
        if not 0 <= value < float("inf"):
            raise UserError(f"{name}={value}: must be 0 or above")
    for name, value in (positive | from_zero).items():
        if value is not None and value > LIMITS.get(name, float("inf")):
            raise UserError(f"{name}={value}: must be at most {LIMITS[name]:,}")
    _check_names(config)
    if not 0 <= config.train.momentum < 1:
        raise UserError(f"train.momentum={config.train.momentum}: must be from 0 to below 1")
    if config.train.nesterov and config.train.momentum == 0:
        raise UserError("train.nesterov=true needs train.momentum above 0")
    if (config.target.condition, config.target.density) != (None, None):
        from bnrecon.targets import (
            reparameterization,
        )  # loads torch, which help and completion do without

        reparameterization.check(config.target.condition, config.target.density)
    groups = getattr(config.target, "groups", [1])
    if not groups or min(groups) < 1:
        raise UserError(
            f"target.groups={groups}: give the number of convolutions before each pooling, as in [2,3,4,4,4]"
        )
    if sum(groups) > MOST_CONVOLUTIONS:
        raise UserError(
            f"target.groups={groups}: must be at most {MOST_CONVOLUTIONS} convolutions in all"
        )
    if (
        not config.seeds
        or len(set(config.seeds)) != len(config.seeds)
        or not 0 <= min(config.seeds) <= max(config.seeds) < 2**63
    ):
        raise UserError(
            f"seeds={config.seeds}: give one or more different seeds from 0 to 2^63 - 1, as in seeds=[0,1,2]"
        )
    for name, value, allowed in (
        ("device", config.device, ("auto", "cpu", "cuda")),
        ("evaluate", config.evaluate, ("auto", "source", "collapsed")),
        ("train.precision", config.train.precision, ("auto", "float32", "bfloat16")),
        ("train.compile", config.train.compile, ("auto", "on", "off")),
    ):
        if value not in allowed:
            raise UserError(f"{name}={value}: {nearest(value, allowed)}")
    features = config.features
    chosen = [
        name for name in ("oversampling", "excess", "width") if getattr(features, name) is not None
    ]
    if len(chosen) > 1:
        given = ", ".join(f"features.{name}={getattr(features, name)}" for name in chosen)
        raise UserError(
            f"{given}: give at most one of features.oversampling (c1/n), features.excess (c1-n), features.width (c1); one that "
            f"features={features.name} brings is taken off as in features.{chosen[0]}=null"
        )
    if features.width is not None and not re.fullmatch(
        r"minimum|maximum|0*[1-9]\d*", features.width
    ):
        raise UserError(
            f"features.width={features.width}: give a number of features above 0, minimum or maximum"
        )
    if config.train.time_limit is not None:
        seconds(config.train.time_limit)


def _check_names(config: RunConfig) -> None:
    """Raise ``UserError`` for folders and names that no file can have."""
    for name, folder in (
        ("outputs", config.outputs),
        ("targets", config.targets),
        ("data.root", config.data.root),
    ):
        if folder is not None:
            _check_folder(name, folder)
    for name, word in (
        ("target.name", config.target.name),
        ("data.name", config.data.name),
        ("features.name", config.features.name),
    ):
        if not re.fullmatch(r"[^/\0\ud800-\udfff]{1,60}", word):
            raise UserError(
                f"{name}={word[:80]!r}: this is part of a folder's name; give 1 to 60 characters, none of them /"
            )


def _check_folder(name: str, folder: str) -> None:
    if not folder or "\0" in folder:
        raise UserError(f"{name}={folder!r}: give a folder's name")
    try:
        folder.encode()
    except UnicodeEncodeError:
        raise UserError(
            f"{name}={folder!r}: not UTF-8; rename it, or with PYTHONUTF8=1 have names read as UTF-8"
        ) from None


def _training_memory(target: TargetConfig) -> int:
    """About how many bytes a target takes while it is trained; 0 for a user's own family."""
    trained = 12  # bytes: weight, gradient, momentum
    if isinstance(target, VggTarget):
        weights = sum(target.groups) * 9 * target.width**2
        if isinstance(target, NormalizationVggTarget) and target.features != "none":
            # Frozen: a feature for each equation at least, of a column and nine rows.
            return 4 * weights * 10 * target.width
        return trained * weights
    if isinstance(target, ResnetTarget):
        return trained * 11_000_000 * target.width**2 // 64**2
    return trained * target.depth * target.width**2 if isinstance(target, MlpTarget) else 0


def check_machine(config: RunConfig) -> None:
    """Raise ``UserError`` for what this machine lacks: a GPU, memory for training, a compiler."""
    from bnrecon.runtime import hardware  # loads torch, which help and completion do without

    device = hardware.resolve_device(config.device)
    free, needed = hardware.available_memory(device), _training_memory(config.target)
    if needed > free:
        raise UserError(
            f"target.width={config.target.width}: training {config.target.name} of this width takes some "
            f"{hardware.gigabytes(needed)}, and {hardware.gigabytes(free)} are free; take a smaller width"
        )
    if config.train.compile == "on":
        compiler = os.environ.get("CXX") or "g++"
        if device.type == "cuda" and not hardware.can_compile(device):
            raise UserError(
                "train.compile=on: torch compiles for a GPU of capability 7 or above, with Triton and a C compiler; "
                "install what lacks, or leave it at auto"
            )
        if device.type == "cpu" and shutil.which(compiler) is None:
            raise UserError(
                f"train.compile=on: torch compiles for a processor with a C++ compiler, and there is no {compiler}; install one, "
                "or leave it at auto"
            )
