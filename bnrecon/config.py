"""The typed schema of everything a user can say; beside the command line, the only room that knows Hydra."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib.resources
import os
import re
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import hydra
import yaml
from hydra.core.config_store import ConfigStore
from hydra.core.override_parser.types import Quote, QuotedString
from hydra.errors import HydraException
from omegaconf import MISSING, DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bnrecon import hardware
from bnrecon.errors import UserError, nearest
from bnrecon.targets import reparameterization

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
    "as_overrides",
    "check_machine",
    "compose",
    "explain",
    "from_hydra",
    "register_schema",
    "require_folder",
    "seconds",
    "study",
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
    condition: float | None = None  # train weights behind fixed factors of this condition number (Random features, Table 1)
    density: float | None = None  # train with random masks that keep this share of every weight


@dataclass
class VggTarget(TargetConfig):
    """Groups of 3x3 convolutions, each with BatchNorm, a max-pool after each group, one linear layer."""

    groups: list[int] = field(default_factory=lambda: [2, 3, 4, 4, 4])
    activation: str = "relu"


@dataclass
class NormalizationVggTarget(VggTarget):
    """A VGG of frozen random pairs, trained by its normalizations alone."""

    features: str = "he_normal"  # none: the weights themselves are trained, in the same architecture
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
    width: str | None = None  # c1: a number, `minimum` (n - c2 + 1, Burkholz 2024, Thm 2.2) or `maximum` (n, Thm 2.3)
    allow_below_minimum: bool = False  # fewer features than the theorems ask for: reconstruction will be inexact
    activation: str = "identity"  # after the first source layer: identity, relu, leaky_relu, tanh, sigmoid (Thm 2.4)
    epsilon: float = 1e-3  # with tanh and sigmoid: how far a layer's output may be from the target's
    margin: float = 2.0  # with any activation: inputs may exceed the training images' range by this factor
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
    threads: int | None = None  # of the processor, that PyTorch works with; null: as many as it takes by itself
    outputs: str = "outputs"
    targets: str | None = None  # where trained targets lie; OUTPUTS/targets unless told otherwise
    evaluate: str = "auto"  # source: the real wide network on all test images; collapsed: on 64, its collapsed form on the rest
    keep_source: bool = True  # false: remove the source networks' files once the result is written
    imports: list[str] = field(default_factory=list)  # Python modules that register own targets, features or solvers


# What changes where or how fast a run happens, not what it computes.
VOLATILE = frozenset({
    "scale", "outputs", "data.root", "data.download", "data.workers", "train.time_limit", "train.checkpoint_seconds",
    "target.name", "targets", "keep_source", "device", "threads",
})  # fmt: skip

GROUPS = ("data", "target", "features", "solver", "train", "scale", "experiment")
FOLDERS = ("outputs", "targets", "data.root", "hydra.sweep.dir")

# More than anybody has a use for: what is above is a slip that would take hours or all memory.
LIMITS = {
    "target.width": 10**6, "target.depth": 256, "target.excess": 10**9, "train.epochs": 10**6, "train.batch_size": 10**7,
    "train.warmup_epochs": 10**6, "train.seed": 10**12, "data.crop_padding": 1024, "data.side": 2**14, "data.workers": 1024,
    "train.checkpoint_seconds": 10**9,
}  # fmt: skip
MOST_CONVOLUTIONS = 256


def register_schema() -> None:
    """Put the schema where the yaml files' ``defaults`` find it."""
    cs = ConfigStore.instance()
    cs.store(name="run_schema", node=RunConfig)
    for group, node in (("data", DataConfig), ("features", FeaturesConfig), ("solver", SolverConfig), ("train", TrainConfig)):
        cs.store(group=group, name="schema", node=node)
    for name, node in (
        ("vgg", VggTarget),
        ("vgg_normalization", NormalizationVggTarget),
        ("resnet", ResnetTarget),
        ("mlp", MlpTarget),
        ("custom", CustomTarget),
    ):
        cs.store(group="target", name=f"{name}_schema", node=node)


def from_hydra(composed: DictConfig) -> RunConfig:
    """Turn what Hydra composed into the schema's dataclasses, every value checked.

    Raises ``UserError`` with one line for the first impossible value.
    """
    _reject_unknown(composed, RunConfig, "")
    try:
        config = OmegaConf.to_object(composed)
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from None
    check(config)
    return config


def compose(words: Sequence[str]) -> RunConfig:
    """The configuration that ``bnrecon run WORDS`` would run.

    Raises ``UserError`` for words that make none.
    """
    return copy.deepcopy(_composed(tuple(words)))


@functools.lru_cache(maxsize=1024)  # a study asks for each of its cells several times, and Hydra takes a tenth of a second
def _composed(words: tuple[str, ...]) -> RunConfig:
    register_schema()
    with hydra.initialize_config_module("bnrecon.configs", version_base="1.3"):
        try:
            composed = hydra.compose("run", overrides=as_overrides(words))
        except Exception as error:  # Python's own too, where Hydra does not look
            raise UserError(explain(error)) from None
        return from_hydra(composed)


def as_overrides(words: Sequence[str], sweep: bool = False) -> list[str]:
    """Quote folders and the choices of groups, so that Hydra's grammar takes them for plain text.

    ``~`` in front is the home folder. What is quoted already stays. In a ``sweep`` commas part the
    values, and what has quotes or brackets is left to the grammar.

    >>> as_overrides(["data.root=größe", "target=18", "seeds=[0,1]"])
    ["data.root='größe'", "target='18'", 'seeds=[0,1]']
    """
    return [_as_override(word, sweep) for word in words]


def _as_override(word: str, sweep: bool) -> str:
    name, equals, value = word.partition("=")
    if not name.strip("+~"):
        raise UserError(f"{word!r}: an option lacks its name; write name=value, as in target=vgg18")
    if name.lstrip("+") not in (*FOLDERS, *GROUPS) or (sweep and re.search("""[('"]""", value)):
        return word
    quoted = _folder if name.lstrip("+") in FOLDERS else _choice
    return f"{name}{equals}{','.join(map(quoted, value.split(',') if sweep else [value]))}"


def _folder(text: str) -> str:
    """A folder's name between quotes."""
    if text == "null" or re.fullmatch(r"""'([^'\\]|\\.)*'|"([^"\\]|\\.)*"|""", text, re.DOTALL):
        return text
    return QuotedString(re.sub(r"^~(?=/|$)", lambda _: str(Path.home()), text), Quote.single).with_quotes()


def _choice(text: str) -> str:
    """The name of a group's yaml, quoted where the grammar would take it for something else."""
    plain = re.fullmatch(r"[A-Za-z_][\w./@-]*", text, re.ASCII) and text.lower() not in ("null", "true", "false", "nan", "inf")
    return text if plain else _folder(text) if text != "null" else "'null'"


def require_folder(name: str, folder: str) -> None:
    """Raise ``UserError`` where an option's folder is a file, or cannot be created.

    Leaves nothing behind. A folder that is there may be one that is only read.
    """
    _check_folder(name, folder)
    place = Path(folder)
    try:
        while not _is_there(place):
            place = place.parent
        if not place.is_dir():
            raise UserError(f"{name}={folder}: {place} is a file; give a folder")
        if place != Path(folder):
            with tempfile.TemporaryDirectory(dir=place):
                pass
    except OSError as error:
        raise UserError(f"{name}={folder}: cannot be created ({error.strerror}); give another folder") from None


def _is_there(place: Path) -> bool:
    try:
        place.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    return True


def study(name: str) -> dict[str, Any]:
    """A study's yaml: what a paper reports, and which runs stand beside it."""
    text = importlib.resources.files("bnrecon.configs").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return OmegaConf.to_container(OmegaConf.create(text))


def _reject_unknown(node: DictConfig, schema: type, prefix: str) -> None:
    """Raise ``UserError`` for keys that no schema has: Hydra lets `+target.extra=3` past a schema."""
    allowed = [field.name for field in dataclasses.fields(schema)]
    for name in node:
        if name not in allowed:
            full = prefix + str(name)
            raise UserError(f"{full} is not an option: {nearest(full, [prefix + word for word in allowed])}")
        child = node._get_node(name)
        if isinstance(child, DictConfig) and dataclasses.is_dataclass(OmegaConf.get_type(child)):
            _reject_unknown(child, OmegaConf.get_type(child), f"{prefix}{name}.")


def check(config: RunConfig) -> None:
    """Raise ``UserError`` for a value that no run could have; what needs the data or the layers is checked by the run."""
    positive = {
        "target.width": config.target.width, "threads": config.threads, "train.epochs": config.train.epochs, "train.lr": config.train.lr,
        "train.batch_size": config.train.batch_size, "data.train_limit": config.data.train_limit,
        "data.test_limit": config.data.test_limit, "data.side": config.data.side, "data.workers": config.data.workers,
        "features.oversampling": config.features.oversampling, "features.margin": config.features.margin,
        "features.epsilon": config.features.epsilon,
        "solver.tolerance": config.solver.tolerance, "solver.max_iterations": config.solver.max_iterations,
        "target.depth": getattr(config.target, "depth", None),
        "target.oversampling": getattr(config.target, "oversampling", None), "train.checkpoint_seconds": config.train.checkpoint_seconds,
    }  # fmt: skip
    for name, value in positive.items():
        if value is not None and not 0 < value < float("inf"):
            raise UserError(f"{name}={value}: must be above 0")
    from_zero = {
        "train.weight_decay": config.train.weight_decay, "train.warmup_epochs": config.train.warmup_epochs,
        "data.crop_padding": config.data.crop_padding, "train.seed": config.train.seed,
        "target.excess": getattr(config.target, "excess", 0),
    }  # fmt: skip
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
    reparameterization.check(config.target.condition, config.target.density)
    groups = getattr(config.target, "groups", [1])
    if not groups or min(groups) < 1:
        raise UserError(f"target.groups={groups}: give the number of convolutions before each pooling, as in [2,3,4,4,4]")
    if sum(groups) > MOST_CONVOLUTIONS:
        raise UserError(f"target.groups={groups}: must be at most {MOST_CONVOLUTIONS} convolutions in all")
    if not config.seeds or len(set(config.seeds)) != len(config.seeds) or not 0 <= min(config.seeds) <= max(config.seeds) < 2**63:
        raise UserError(f"seeds={config.seeds}: give one or more different seeds from 0 to 2^63 - 1, as in seeds=[0,1,2]")
    for name, value, allowed in (
        ("device", config.device, ("auto", "cpu", "cuda")),
        ("evaluate", config.evaluate, ("auto", "source", "collapsed")),
        ("train.precision", config.train.precision, ("auto", "float32", "bfloat16")),
        ("train.compile", config.train.compile, ("auto", "on", "off")),
    ):
        if value not in allowed:
            raise UserError(f"{name}={value}: {nearest(value, allowed)}")
    features = config.features
    chosen = [name for name in ("oversampling", "excess", "width") if getattr(features, name) is not None]
    if len(chosen) > 1:
        given = ", ".join(f"features.{name}={getattr(features, name)}" for name in chosen)
        raise UserError(
            f"{given}: give at most one of features.oversampling (c1/n), features.excess (c1-n), features.width (c1); one that "
            f"features={features.name} brings is taken off as in features.{chosen[0]}=null"
        )
    if features.width is not None and not re.fullmatch(r"minimum|maximum|0*[1-9]\d*", features.width):
        raise UserError(f"features.width={features.width}: give a number of features above 0, minimum or maximum")
    if config.train.time_limit is not None:
        seconds(config.train.time_limit)


def _check_names(config: RunConfig) -> None:
    """Raise ``UserError`` for folders and names that no file can have."""
    for name, folder in (("outputs", config.outputs), ("targets", config.targets), ("data.root", config.data.root)):
        if folder is not None:
            _check_folder(name, folder)
    for name, word in (
        ("target.name", config.target.name),
        ("data.name", config.data.name),
        ("features.name", config.features.name),
    ):
        if not re.fullmatch(r"[^/\0\ud800-\udfff]{1,60}", word):
            raise UserError(f"{name}={word!r}: folders are called so; give 1 to 60 letters without /")


def _check_folder(name: str, folder: str) -> None:
    if not folder or "\0" in folder:
        raise UserError(f"{name}={folder!r}: give a folder's name")
    try:
        folder.encode()
    except UnicodeEncodeError:
        raise UserError(f"{name}={folder!r}: not UTF-8; rename it, or with PYTHONUTF8=1 have names read as UTF-8") from None


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


def seconds(text: str) -> float:
    """Read a length of time: ``90`` or ``90s``, ``30m``, ``2h``.

    >>> seconds("30m")
    1800.0
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([smh]?)", text.strip())
    if match is None:
        raise UserError(f"train.time_limit={text}: give seconds, or a number followed by s, m or h, as in 30m")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def explain(error: BaseException) -> str:
    """Say in one line what an error of Hydra, OmegaConf or yaml means, with the nearest right word."""
    causes = [error]
    while causes[-1].__cause__ is not None:
        causes.append(causes[-1].__cause__)
    if isinstance(error, RecursionError):
        return "the defaults of yaml files name each other in a circle; look into your own ones"
    if isinstance(causes[-1], yaml.YAMLError):
        return _about_yaml(causes[-1])
    text = "\n".join(str(cause) for cause in causes)
    if match := re.search(r"Key '([^']+)' (?:is )?not in '(\w+)'", text):
        full = re.search(r"full_key: (\S+)", text) or re.search(r"(?:override|appending) '?\+?([\w.]+)", text)
        where = full[1] if full else match[1]
        prefix = where.rpartition(".")[0]
        node = next((c for c in _schema_classes() if c.__name__ == match[2]), None)
        allowed = [f.name for f in dataclasses.fields(node)] if node else []
        allowed = [f"{prefix}.{name}" if prefix else name for name in allowed]
        return f"{where} is not an option: {nearest(where, allowed if prefix else _top_level())}"
    if match := re.search(
        r"Could not find '(.*?)'\s+Available options in '([^']+)':\s+(.*?)(?:Config search path|$)", text, re.DOTALL
    ):
        group, given = match[2], match[1].removeprefix(f"{match[2]}/")
        options = [word for word in match[3].split() if "/" not in word and not word.endswith("schema")]
        hint = "own yaml files are found with --config-dir"
        if group == "hydra/launcher":
            hint = "others come with: pip install 'bnrecon[launchers]'"
        elif "," in given:
            hint = "several are a sweep, with -m"
        return f"{group}={given}: {nearest(given, options)}; {hint}"
    if match := re.search(r"In '([^']+)': Could not load '([^']+)'", text):
        return f"{match[1]}.yaml names {match[2]} in its defaults, and there is no {match[2]}.yaml"
    if (match := re.search(r"Could not (?:override|delete) '([^']*)'", text)) and "No match in the defaults list" in text:
        return f"{match[1]} is not an option: {nearest(match[1], _top_level())}"
    if match := re.search(r"Value '(.*?)' of type '\w+' could not be converted to (\w+)", text, re.DOTALL):
        key = re.search(r"full_key: (\S+)", text) or re.search(r"override '?([\w.]+)=", text)
        return f"{key[1] if key else 'an option'}={match[1]}: must be {_ARTICLES.get(match[2], match[2])}"
    if match := re.search(r"Error merging override (\S+)\n.*is not a valid bool", text, re.DOTALL):
        return f"{match[1]}: must be true or false"
    if match := re.search(r"Error merging override (\S+)\n.*is not a ListConfig, list or tuple", text, re.DOTALL):
        return f"{match[1]}: must be a list, as in [0,1,2]"
    if match := re.search(r"Error merging override (\S+)\n.*is not Optional", text, re.DOTALL):
        return f"{match[1]}: must have a value"
    if "missing mandatory value" in text and (match := re.search(r"full_key: (\S+)", text)):
        return f"{match[1]} has no value: choose a complete yaml (the *_schema ones are what own yaml files build on)"
    if "missing EQUAL" in text:
        return "an option lacks its value: write name=value without spaces, as in target=vgg18"
    if re.search("mismatched input|token recognition|LexerNoViableAlt|no viable|extraneous input", text):
        where = re.search(r"LexerNoViableAltException: (.*)", text) or re.search(r"input '([^']*)'", text)
        return f"could not read {where[1] if where else _first(text)!r}; write options as name=value, lists as [1,2], and quote what the shell would take"
    return _first(text) or type(error).__name__


def _about_yaml(error: yaml.YAMLError) -> str:
    """File, line and column of a yaml error, and what is wrong there."""
    if mark := getattr(error, "problem_mark", None):
        return f"{mark.name}: line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    if isinstance(error, yaml.reader.ReaderError):
        return f"{error.name}: character {error.position + 1}: {error.reason}"
    return _first(str(error))


def _top_level() -> set[str]:
    return {*GROUPS, *(f.name for f in dataclasses.fields(RunConfig))}


_ARTICLES = {"Integer": "a whole number", "Float": "a number", "Boolean": "true or false", "String": "a word"}


def _first(text: str) -> str:
    return " ".join(re.sub(r"See https://\S+ for details", "", text.split("\n\n")[0]).split())[:300]


def _schema_classes() -> list[type]:
    return [
        RunConfig, DataConfig, TargetConfig, VggTarget, NormalizationVggTarget, ResnetTarget, MlpTarget, CustomTarget, FeaturesConfig, SolverConfig,
        TrainConfig,
    ]  # fmt: skip


CONFIG_ERRORS = (HydraException, OmegaConfBaseException)
