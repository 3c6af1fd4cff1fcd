"""A source network on disk: seed and normalization parameters; frozen weights are drawn again."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bnrecon.features.drawing import draw
from bnrecon.features.register import distribution
from bnrecon.features.spec import STORAGES
from bnrecon.operators.mapped import disk_room
from bnrecon.reconstruction.affine_map import AffineMap
from bnrecon.reconstruction.arguments import check_module, check_parameters, check_tensors
from bnrecon.reconstruction.attention import pack, reads_projections, unpack
from bnrecon.reconstruction.collapse import collapse_layer
from bnrecon.reconstruction.groups import group_number, joined_digest
from bnrecon.reconstruction.kernels import LAYERS, group_shape
from bnrecon.reconstruction.source_layer import SourceLayer
from bnrecon.reconstruction.storage import held_bytes
from bnrecon.reconstruction.substitution import freeze, substitute, uncompiled
from bnrecon.runtime import files
from bnrecon.runtime.errors import RunError, UserError, nearest, shorten
from bnrecon.runtime.hardware import available_memory
from bnrecon.runtime.torch_modes import outside_torch_modes

__all__ = ["LayerRecipe", "collapse", "load_source", "save", "save_full", "source_layers"]


@dataclass(frozen=True)
class LayerRecipe:
    """What one layer's features are drawn from, and the digest that the draw must have.

    Files written before there were skip connections lack the last two.
    """

    name: str
    norm: str | None
    number: int
    features: str
    seed: int
    strict: bool
    width: int
    activation: str
    digest: str
    skip: str = "none"
    reach: float | None = None  # with tanh or sigmoid, how far intermediate values may go


def source_layers(network: nn.Module) -> dict[str, SourceLayer]:
    """The source layers of a network by name."""
    return {
        name: module for name, module in network.named_modules() if isinstance(module, SourceLayer)
    }


@outside_torch_modes
def save(path: Path, network: nn.Module, recipes: list[LayerRecipe]) -> None:
    """Write normalization parameters, everything else that is not drawn, and the recipes.

    γ and β are written in float64, running statistics as the network holds them.
    """
    layers = source_layers(network)
    tensors: dict[str, torch.Tensor] = {}
    for name, layer in layers.items():
        for role, wanted, norm in zip(
            ("first", "second"),
            layer.present_maps(),
            (layer.first_norm, layer.second_norm),
            strict=True,
        ):
            gamma, beta = wanted.parameters(norm.eps)
            tensors |= {f"{name}|{role}.gamma": gamma, f"{name}|{role}.beta": beta}
            tensors |= {
                f"{name}|{role}.mean": wanted.mean,
                f"{name}|{role}.variance": wanted.variance,
            }
    prefixes = tuple(f"{name}." if name else "" for name in layers)
    rest = {k: v for k, v in network.state_dict().items() if not k.startswith(prefixes)}
    tensors |= {f"rest|{name}": value for name, value in rest.items()}
    files.write_tensors(
        path, tensors, {"format": 1, "layers": [dataclasses.asdict(recipe) for recipe in recipes]}
    )


@outside_torch_modes
def save_full(path: Path, network: nn.Module, recipes: list[LayerRecipe]) -> None:
    """Write the full state dict, frozen weights included, with the recipes beside it.

    Raises ``UserError`` where these are not in memory, and so no part of the state.
    """
    elsewhere = [name for name, layer in source_layers(network).items() if layer.unheld]
    if elsewhere:
        raise UserError(
            f"full=True: the frozen weights of {shorten(elsewhere)} are not in memory; rebuild "
            "with storage=memory, or save without full"
        )
    files.write_tensors(
        path,
        network.state_dict(),
        {"format": 1, "layers": [dataclasses.asdict(recipe) for recipe in recipes]},
    )


@outside_torch_modes
def load_source(path: str | Path, model: nn.Module, storage: str = "auto") -> nn.Module:
    """Rebuild a saved source network: ``model`` gives the architecture, its weights do not matter.

    Frozen weights are drawn again from the seed and compared with the saved digest. Raises
    ``RunError`` where they differ (an orthogonal kind on another machine) or the file holds
    something else, ``UserError`` for a model in half precision, ``ValueError`` where the file is
    damaged, ``FileNotFoundError`` where there is none.

    Args:
        path: of the file.
        model: the architecture.
        storage: of features, as in ``FeatureSpec``.
    """
    check_module(model)
    check_parameters(model)
    check_tensors(model)
    tensors, about = files.read_tensors(Path(path))
    if "layers" not in about:
        raise RunError(f"{path} holds no source network; give a file that rebuilt.save wrote")
    model = unpack(uncompiled(model), substitute, lambda name: _holds_packed(tensors, name))
    modules = dict(model.named_modules())
    replaced: dict[int, nn.Module] = {}
    recipes = [LayerRecipe(**entry) for entry in about["layers"]]
    if any(f"{recipe.name}|first.gamma" not in tensors for recipe in recipes):
        raise RunError(
            f"{path} was written with full=True: its tensors are for load_state_dict of a source "
            "network; save without full to load it here"
        )
    storage = _storage(recipes, modules, storage)
    for recipe in recipes:
        module = modules.get(recipe.name)
        if module is None or (recipe.norm is not None and recipe.norm not in modules):
            raise RunError(f"{path} does not fit this architecture: it has no layer {recipe.name}")
        if reads_projections(modules[recipe.name.rpartition(".")[0]]):
            raise RunError(
                f"{path} does not fit this architecture: the attention around {recipe.name} does "
                "not call it as a layer (it has a forward or hooks of its own)"
            )
        replaced[id(module)] = _rebuild(recipe, module, tensors, path, storage)
        if recipe.norm is not None:
            replaced[id(modules[recipe.norm])] = nn.Identity()
    network = pack(substitute(model, replaced))
    rest = {
        name.removeprefix("rest|"): value
        for name, value in tensors.items()
        if name.startswith("rest|")
    }
    _check_shapes(path, rest, network.state_dict())
    missing, unexpected = network.load_state_dict(rest, strict=False)
    prefixes = tuple(f"{name}." if name else "" for name in source_layers(network))
    if unexpected or any(not name.startswith(prefixes) for name in missing):
        raise RunError(
            f"{path} does not fit this architecture: {', '.join(unexpected[:3] or missing[:3])} …"
        )
    freeze(network)
    return network.eval()


def _check_shapes(
    path: str | Path, given: Mapping[str, torch.Tensor], own: Mapping[str, torch.Tensor]
) -> None:
    """Raise ``RunError`` where a tensor of the file has another shape than the architecture's."""
    for name, value in own.items():
        if name in given and given[name].shape != value.shape:
            raise RunError(
                f"{path} does not fit this architecture: {name} is of shape "
                f"{tuple(value.shape)} there and {tuple(given[name].shape)} in the file"
            )


def _holds_packed(tensors: Mapping[str, torch.Tensor], name: str) -> bool:
    """Whether an attention was left as it was when the file was written."""
    prefix = f"rest|{name}." if name else "rest|"
    return f"{prefix}in_proj_weight" in tensors or f"{prefix}q_proj_weight" in tensors


def _storage(recipes: list[LayerRecipe], modules: Mapping[str, Any], storage: str) -> str:
    """Where features are; ``auto`` takes memory unless they would fill half of it."""
    if storage not in STORAGES:
        raise UserError(f"storage={storage}: {nearest(storage, STORAGES)}")
    if storage != "auto":
        return storage
    known = [(recipe, modules.get(recipe.name)) for recipe in recipes]
    layers = [(recipe, module) for recipe, module in known if isinstance(module, LAYERS)]
    held = sum(
        held_bytes(recipe.features, group_shape(module), recipe.width, module)
        for recipe, module in layers
    )
    if not layers or 2 * held <= available_memory(layers[0][1].weight.device):
        return "memory"
    size = sum(
        getattr(module, "groups", 1) * group_shape(module).feature_bytes(recipe.width)
        for recipe, module in layers
    )
    ways = set.intersection(*(set(distribution(recipe.features).storages) for recipe in recipes))
    if "regenerate" in ways:
        return "regenerate"
    return "disk" if "disk" in ways and size <= disk_room() else "memory"


def _rebuild(
    recipe: LayerRecipe,
    module: nn.Module,
    tensors: Mapping[str, torch.Tensor],
    path: str | Path,
    storage: str,
) -> SourceLayer:
    if not isinstance(module, LAYERS):
        raise RunError(
            f"{path} does not fit this architecture: layer {recipe.name} is {type(module).__name__}"
        )
    pairs = [
        draw(
            recipe.features,
            group_shape(module),
            recipe.width,
            recipe.seed,
            group_number(recipe.number, group),
            recipe.strict,
            recipe.skip,
            storage,
        )
        for group in range(getattr(module, "groups", 1))
    ]
    if joined_digest(pairs) != recipe.digest:
        reason = (
            "; its shape may be another"
            if distribution(recipe.features).portable
            else (
                f"; {recipe.features} weights pass through a factorization that differs "
                "between machines: save with full=True to move them"
            )
        )
        raise RunError(
            f"{path}: layer {recipe.name} draws other features than it was saved with{reason}"
        )
    layer = SourceLayer(pairs, module, recipe.activation)
    maps = []
    for role, norm in (("first", layer.first_norm), ("second", layer.second_norm)):
        gamma, beta, mean, variance = (
            tensors[f"{recipe.name}|{role}.{key}"].to(module.weight.device)
            for key in ("gamma", "beta", "mean", "variance")
        )
        maps.append(AffineMap.of_parameters(gamma, beta, mean, variance, norm.eps))
    layer.set_maps(*maps)
    if recipe.reach is not None:
        layer.region = (-recipe.reach, recipe.reach)
    layer.folded = recipe.norm is not None
    return layer


@outside_torch_modes
def collapse(network: nn.Module) -> nn.Module:
    """The network with every source layer collapsed into W' = outer ∘ (B diag(inner) A).

    Computed from the float64 scales and the features alone; exact while first activations stay in
    their linear region.
    """
    replaced: dict[int, nn.Module] = {
        id(layer): collapse_layer(layer) for layer in source_layers(network).values()
    }
    return pack(substitute(network, replaced))
