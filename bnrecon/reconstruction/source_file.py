"""A source network on disk: seed and normalization parameters; frozen weights are drawn again."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from bnrecon.features.drawing import draw
from bnrecon.features.register import distribution
from bnrecon.features.spec import STORAGES
from bnrecon.operators.mapped import disk_room
from bnrecon.reconstruction.affine_map import AffineMap
from bnrecon.reconstruction.arguments import check_module, check_parameters
from bnrecon.reconstruction.attention import pack, reads_projections, unpack
from bnrecon.reconstruction.collapse import collapse_layer
from bnrecon.reconstruction.composition import Composition
from bnrecon.reconstruction.folding import has_other_hooks, run_weight_hooks
from bnrecon.reconstruction.groups import group_number, joined_digest
from bnrecon.reconstruction.kernels import LAYERS, NORMS, Layer, group_shape
from bnrecon.reconstruction.refusal import dtype_name, layer_label
from bnrecon.reconstruction.source_layer import SourceLayer, weight_bytes
from bnrecon.reconstruction.substitution import freeze, share_parameters, substitute, uncompiled
from bnrecon.runtime import files
from bnrecon.runtime.errors import RunError, UserError, require_choice, shorten
from bnrecon.runtime.hardware import available_memory
from bnrecon.runtime.torch_modes import outside_torch_modes

logger = logging.getLogger(__name__)
ROLES = ("first", "second")  # the normalizations of a source layer
NORM_KEYS = ("gamma", "beta", "mean", "variance")  # what a file stores of each


@dataclass(frozen=True)
class LayerRecipe:
    """What one layer's features are drawn from, and the digest that the draw must have.

    Files from before skip connections lack the last two fields.
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
    reach: float | None = None  # bound of intermediate values, with tanh or sigmoid


def source_layers(network: nn.Module) -> dict[str, SourceLayer]:
    """Return the source layers of a network by name."""
    modules = network.named_modules()
    return {name: module for name, module in modules if isinstance(module, SourceLayer)}


@outside_torch_modes
def save(path: Path, network: nn.Module, recipes: list[LayerRecipe], full: bool = False) -> None:
    """Write normalization parameters, everything else that is not drawn, and the recipes.

    γ and β are written in float64, running statistics as the network holds them. With ``full`` the
    whole state dict is written, frozen weights included.

    Raises:
        UserError: with ``full``, frozen weights are not in memory; without it, the source layers
            differ from the recipes; the state dict holds something that is not a tensor.
    """
    layers, state = source_layers(network), network.state_dict()
    if others := [name for name, value in state.items() if not isinstance(value, torch.Tensor)]:
        raise UserError(f"{shorten(others)}: no tensor (get_extra_state); cannot be saved")
    metadata = {"format": 1, "layers": [dataclasses.asdict(recipe) for recipe in recipes]}
    if full:
        if offloaded := [name for name, layer in layers.items() if layer.offloaded]:
            raise UserError(
                f"full=True: the frozen weights of {shorten(offloaded)} are not in memory; rebuild "
                "with storage=memory, or save without full"
            )
        files.write_tensors(path, state, metadata)
        return
    _check_drawn(layers, recipes)
    tensors: dict[str, torch.Tensor] = {}
    for name, layer in layers.items():
        _run_hooks_of(layer)
        norms = (layer.first_norm, layer.second_norm)
        for role, norm, present in zip(ROLES, norms, layer.present_maps(), strict=True):
            keys = (f"{name}|{role}.{key}" for key in NORM_KEYS)
            # The eps of a new layer, as loading makes it: this one's may have been changed.
            eps = type(norm)(1).eps
            tensors |= dict(zip(keys, present.values(eps), strict=True))
    prefixes = _prefixes(layers)
    rest = {k: v for k, v in state.items() if not k.startswith(prefixes)}
    tensors |= {f"rest|{name}": value for name, value in rest.items()}
    files.write_tensors(path, tensors, metadata)


def _run_hooks_of(layer: SourceLayer) -> None:
    """Compute pruned scales, which are outdated between a training step and the next call."""
    for part in layer.modules():
        run_weight_hooks(part)


def _check_drawn(layers: Mapping[str, SourceLayer], recipes: Sequence[LayerRecipe]) -> None:
    """Raise ``UserError`` unless the recipes draw these layers again."""
    names, digests = set(layers), {recipe.name: recipe.digest for recipe in recipes}
    if differing := sorted(names ^ set(digests)):
        labels = shorten(list(map(layer_label, differing)))
        raise UserError(f"{labels}: source layers only when rebuilt, or only now")
    for name, layer in layers.items():
        if layer.frozen_digest() != digests[name]:
            what = "its frozen weights are not those that its seed draws"
            raise UserError(f"{layer_label(name)}: {what}; full=True saves them")


def _prefixes(layers: Mapping[str, SourceLayer]) -> tuple[str, ...]:
    return tuple(f"{name}." if name else "" for name in layers)


@outside_torch_modes
def load_source(path: str | Path, model: nn.Module, storage: str = "auto") -> nn.Module:
    """Rebuild a saved source network: ``model`` gives the architecture, its weights are ignored.

    Frozen weights are drawn again from the seed and compared with the saved digest. Raises
    ``RunError`` if they differ (orthogonal features on another machine) or the file holds something
    else, ``UserError`` for a model in half precision, ``ValueError`` if the file is damaged,
    ``FileNotFoundError`` if there is none.

    Args:
        path: the file.
        model: the architecture.
        storage: where features are stored, as in ``FeatureSpec``.
    """
    check_module(model)
    check_parameters(model)
    require_choice("storage=", storage, STORAGES)
    tensors, metadata = files.read_tensors(Path(path))
    if "layers" not in metadata:
        raise RunError(f"{path} holds no source network; give a file that rebuilt.save wrote")
    model = unpack(uncompiled(model), lambda name: _holds_packed(tensors, name))
    modules = dict(model.named_modules())
    replaced: dict[int, nn.Module] = {}
    recipes = [LayerRecipe(**entry) for entry in metadata["layers"]]
    if any(f"{recipe.name}|first.gamma" not in tensors for recipe in recipes):
        raise RunError(
            f"{path} was written with full=True: its tensors are for load_state_dict of a source "
            "network; save without full to load it here"
        )
    misfit = f"{path} does not fit this architecture"
    layers = [(recipe, _layer_of(recipe, modules, misfit)) for recipe in recipes]
    storage = _storage(layers, storage)
    for recipe, module in layers:
        replaced[id(module)] = _rebuild(recipe, module, tensors, path, storage)
        if recipe.norm is not None:
            replaced[id(modules[recipe.norm])] = nn.Identity()
    network = pack(substitute(model, replaced))
    of_layers = {f"{r.name}|{role}.{key}" for r in recipes for role in ROLES for key in NORM_KEYS}
    others = (key for key in tensors if key.startswith("rest|") and key not in of_layers)
    rest = {key.removeprefix("rest|"): tensors[key] for key in others}
    for name, value in network.state_dict().items():
        if name in rest and rest[name].shape != value.shape:
            raise RunError(
                f"{misfit}: {name} is of shape {tuple(value.shape)} there and "
                f"{tuple(rest[name].shape)} in the file"
            )
    missing, unexpected = network.load_state_dict(rest, strict=False)
    prefixes = _prefixes(source_layers(network))
    if unexpected or any(not name.startswith(prefixes) for name in missing):
        raise RunError(f"{misfit}: {', '.join(unexpected[:3] or missing[:3])} …")
    freeze(network)
    return network.eval()


def _layer_of(recipe: LayerRecipe, modules: Mapping[str, nn.Module], misfit: str) -> Layer:
    """Return a recipe's layer; raise ``RunError`` if the architecture lacks it."""
    module = modules.get(recipe.name)
    if module is None or (recipe.norm is not None and recipe.norm not in modules):
        raise RunError(f"{misfit}: it has no layer {recipe.name}")
    if recipe.norm is not None and not isinstance(modules[recipe.norm], (*NORMS, nn.Identity)):
        kind = type(modules[recipe.norm]).__name__
        raise RunError(f"{misfit}: {recipe.norm} is {kind}, where a BatchNorm was")
    if reads_projections(modules[recipe.name.rpartition(".")[0]]):
        raise RunError(
            f"{misfit}: the attention around {recipe.name} does not call it as a layer (it "
            "overrides forward or has hooks)"
        )
    if not isinstance(module, LAYERS):
        raise RunError(f"{misfit}: layer {recipe.name} is {type(module).__name__}")
    return module


def _holds_packed(tensors: Mapping[str, torch.Tensor], name: str) -> bool:
    """Whether an attention was still packed when the file was written."""
    prefix = f"rest|{name}." if name else "rest|"
    return f"{prefix}in_proj_weight" in tensors or f"{prefix}q_proj_weight" in tensors


def _storage(layers: Sequence[tuple[LayerRecipe, Layer]], storage: str) -> str:
    """Choose where features are; ``auto`` takes memory unless they would fill half of it."""
    if storage != "auto":
        return storage
    sized = [(r.features, group_shape(module), r.width, module) for r, module in layers]
    held = sum(weight_bytes(*each) for each in sized)
    if not sized or 2 * held <= available_memory(layers[0][1].weight.device):
        return "memory"
    groups = [getattr(module, "groups", 1) for _, module in layers]
    sizes = [shape.feature_bytes(width) for _, shape, width, _ in sized]
    size = sum(count * each for count, each in zip(groups, sizes, strict=True))
    ways = set.intersection(*(set(distribution(r.features).storages) for r, _ in layers))
    if "regenerate" in ways:
        return "regenerate"
    return "disk" if "disk" in ways and size <= disk_room() else "memory"


def _rebuild(
    recipe: LayerRecipe,
    module: Layer,
    tensors: Mapping[str, torch.Tensor],
    path: str | Path,
    storage: str,
) -> SourceLayer:
    kind, shape, device = recipe.features, group_shape(module), module.weight.device
    numbers = [group_number(recipe.number, i) for i in range(getattr(module, "groups", 1))]
    drawn_with = (recipe.strict, recipe.skip, storage)
    pairs = [draw(kind, shape, recipe.width, recipe.seed, i, *drawn_with) for i in numbers]
    if joined_digest(pairs) != recipe.digest:
        reason = "its shape may differ"
        if distribution(kind).registered.user_defined:
            reason = f"its shape, or the code of features {kind}, differs"
        if not distribution(kind).portable:
            reason = (
                f"{kind} weights pass through a factorization that differs between machines and "
                "versions: save with full=True to move them"
            )
        raise RunError(
            f"{path}: layer {recipe.name} draws other features than it was saved with; {reason}"
        )
    layer = SourceLayer(pairs, module, recipe.activation)
    maps = []
    for role, norm in zip(ROLES, (layer.first_norm, layer.second_norm), strict=True):
        values = [tensors[f"{recipe.name}|{role}.{key}"].to(device) for key in NORM_KEYS]
        maps.append(AffineMap.of_values(values, norm.eps))
    layer.set_maps(*maps)
    if recipe.reach is not None:
        layer.region = (-recipe.reach, recipe.reach)
    layer.folded = recipe.norm is not None
    return layer


@outside_torch_modes
def collapse(network: nn.Module, trainable: bool = False) -> nn.Module:
    """Merge A, γ and B of every source layer back into one layer, W' = outer ∘ (B diag(inner) A).

    Only the float64 scales and the drawn weights are used; exact while an activation between A and
    B stays in its linear region. Raises ``UserError`` if a layer's frozen weights differ from its
    features (in float32 both may share memory, and change together) or, unless ``trainable``, if it
    has hooks, which would be lost; if ``trainable``, for a network in half precision.

    With ``trainable``, the layers compose B diag(inner) A from the source's scales at every call: a
    training step takes a few times as long as the target's. Values, gradients and running
    statistics equal the source's up to rounding, in eval and in training mode. Parameters and
    buffers are shared with ``network`` under the same names: training changes both, and
    ``rebuilt.save`` saves the result. Move or convert ``network`` before, not afterwards. A warning
    names layers with an activation between their convolutions, which are not collapsed.

    >>> import bnrecon
    >>> rebuilt = bnrecon.reconstruct(nn.Linear(3, 2).eval())
    >>> network = bnrecon.collapse(rebuilt.network, trainable=True)
    >>> network.first_norm.weight is rebuilt.network.first_norm.weight
    True
    """
    check_module(network)
    layers = source_layers(network)
    for name, layer in layers.items():
        if not layer.holds_drawn_weights():
            raise UserError(
                f"{layer_label(name)}: its frozen weights are not those that were drawn"
            )
    if not trainable:
        for name, layer in layers.items():
            if any(map(has_other_hooks, layer.modules())):
                raise UserError(f"{layer_label(name)}: hooks would be lost; remove them first")
            _run_hooks_of(layer)
        return pack(
            substitute(network, {id(layer): collapse_layer(layer) for layer in layers.values()})
        )
    shared = share_parameters(network, network.buffers())
    nonlinear = []
    for name, layer in source_layers(shared).items():
        if layer.inner_shift:
            nonlinear.append(name or "the layer")
            continue
        if (dtype := layer.first_norm.weight.dtype) not in (torch.float32, torch.float64):
            raise UserError(
                f"{layer_label(name)}: {dtype_name(dtype)}; collapse with trainable=True works in "
                "float32 or float64: give the network as it was before it was converted"
            )
        layer.composition = Composition(layer.pairs)
        # Now, as the first call may be one that is recorded, or in inference mode
        layer.require_drawn()
        layer.composition.hold(layer.first_norm.weight)
    if nonlinear:
        logger.warning(
            "%s: an activation between the convolutions; not collapsed, so training is not faster",
            shorten(nonlinear),
        )
    return shared
