"""Load a stored target by name: the network of its ``target.json``, with its weights."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from torch import nn

from bnrecon.data import DataSpec, load
from bnrecon.reporting.result import from_stored
from bnrecon.runtime.errors import UserError, nearest
from bnrecon.runtime.shipped import shipped_folder
from bnrecon.runtime.torch_modes import outside_torch_modes
from bnrecon.targets.building import build_target
from bnrecon.targets.location import ABOUT, WEIGHTS
from bnrecon.targets.register import check_family
from bnrecon.targets.spec import TARGETS, CustomTarget, TargetRequest, TrainSpec
from bnrecon.targets.store import read_stored

# Image shape and number of classes, if the data set's name determines them.
SHAPES = {
    "digits": ((1, 8, 8), 10),
    "cifar10": ((3, 32, 32), 10),
    "cifar100": ((3, 32, 32), 100),
    "svhn": ((3, 32, 32), 10),
}


@outside_torch_modes
def load_target(
    name: str, outputs: str | Path | None = None, root: str | Path | None = None
) -> nn.Module:
    """Load a trained target by the name of its folder, in eval mode on the CPU.

    ``bnrecon ls targets`` lists the names. Normalize images by the training images' channel means
    and standard deviations, as ``bnrecon.data.load`` does. With a run's ``source.safetensors``,
    ``bnrecon.load_source(path, load_target(name, outputs))`` is its source.

    Args:
        name: as in ``cifar10-vgg18-1a99b1df98``; without the hash if it is then unique.
        outputs: the folder with your targets; by default those that ship with a checkout.
        root: the folder with the images, of which only the shape is used; not needed for digits,
            cifar10, cifar100 and svhn.

    Raises:
        UserError: there is no such target, or it has no weights: a wheel has none.
        ValueError: its files are damaged.

    >>> network = load_target("cifar10-resnet18-362414581f")
    >>> sum(parameter.numel() for parameter in network.parameters())
    176402
    """
    store = (shipped_folder() if outputs is None else Path(outputs)) / "targets"
    names = sorted(path.parent.name for path in store.glob(f"*/{ABOUT}"))
    chosen = [each for each in names if name in (each, each.rpartition("-")[0])]
    if len(chosen) != 1:
        several = f"is the name of {len(chosen)} targets: {', '.join(chosen)}"
        missing = f"is not in {store}: {nearest(name, names)}; give outputs=FOLDER for your own"
        raise UserError(f"target {name} {several if chosen else missing}")
    folder = store / chosen[0]
    if not (folder / WEIGHTS).is_file():
        advice = "a checkout has those that ship: give outputs=CHECKOUT/outputs"
        raise UserError(f"{folder} has no weights ({WEIGHTS}); {advice}")
    weights, about = read_stored(folder)
    request = target_request(about["config"], None if root is None else str(root))
    data: Any = request.data
    if data.name in SHAPES:
        shape, classes = SHAPES[data.name]
        data = SimpleNamespace(shape=shape, classes=range(classes))
    else:
        data = load(data)
    network = build_target(request, data)
    for entry, tensor in network.state_dict(keep_vars=True).items():
        if entry in weights:  # their dtype, not torch's default; tied weights stay tied
            tensor.data = tensor.data.to(weights[entry].dtype)
    network.load_state_dict(weights)
    return network.eval()


def target_request(config: Mapping[str, Any], root: str | None = None) -> TargetRequest:
    """The target and images of a stored configuration."""
    family = config["target"]["family"]
    check_family(family)
    data = config["data"] if root is None else {**config["data"], "root": root}
    target = from_stored(TARGETS.get(family, CustomTarget), config["target"])
    train, images = from_stored(TrainSpec, config["train"]), from_stored(DataSpec, data)
    return TargetRequest(target, train, images, Path())
