"""Values that are computed from weights alone, followed from call to call."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

from torch import nn

from bnrecon.reconstruction.kernels import LAYERS
from bnrecon.reconstruction.unpacked import Unpacked

__all__ = ["HARMLESS", "FollowedWeights"]


# What the layers that are rebuilt call.
APPLYING = {
    "conv1d",
    "conv2d",
    "conv3d",
    "conv_transpose1d",
    "conv_transpose2d",
    "conv_transpose3d",
    "linear",
}


# Functions that mix channels by a weight.
MIXING = APPLYING | {
    "addbmm",
    "addmm",
    "addmv",
    "baddbmm",
    "bilinear",
    "bmm",
    "einsum",
    "matmul",
    "mm",
    "multi_head_attention_forward",
    "mv",
    "scaled_dot_product_attention",
    "tensordot",
}


# Functions that take type, device or shape from a tensor, and nothing of its values.
METADATA = {
    "to",
    "type_as",
    "new_zeros",
    "new_ones",
    "new_empty",
    "new_full",
    "new_tensor",
    "zeros_like",
    "ones_like",
    "empty_like",
    "rand_like",
    "randn_like",
    "full_like",
    "expand_as",
    "view_as",
    "reshape_as",
    "getattr",
    "size",
    "dim",
}


# Modules whose own parameters mix no channels.
HARMLESS = (
    Unpacked
    | nn.Embedding
    | nn.EmbeddingBag
    | nn.PReLU
    | nn.LayerNorm
    | nn.GroupNorm
    | nn.RMSNorm
    | nn.modules.batchnorm._NormBase
)


class FollowedWeights:
    """Which values are made of weights alone, and which of those were used outside of a layer."""

    def __init__(self, model: nn.Module):
        modules = dict(model.named_modules())
        self.layers = {name for name, module in modules.items() if isinstance(module, LAYERS)}
        self.watched = self.layers | {
            name for name, module in modules.items() if isinstance(module, HARMLESS)
        }
        self.owners = _owners(model, self.watched)
        # A value made of these parameters and of nothing else.
        self.weights: dict[Hashable, frozenset[str]] = {}
        self.outside: dict[str, str] = {}

    def call(
        self,
        function: str,
        inputs: Sequence[Hashable],
        output: Hashable | None,
        running: str | None = None,
    ) -> None:
        """Record one call.

        Args:
            function: its name.
            inputs: values that go in.
            output: the value that comes out, ``None`` where it is no tensor.
            running: the watched module that makes the call.
        """
        made_of = [self.weights.get(value) for value in inputs]
        names = frozenset().union(*(names for names in made_of if names))
        if function in METADATA or output is None:
            return
        for name in names:
            owners = self.owners.get(name, frozenset())
            if layers := owners & self.layers:
                if running not in owners:
                    reason = f"its {_place(name)[1]} is read outside of the layer, by {function}"
                    self.outside |= dict.fromkeys(layers, reason)
            elif function in MIXING and None in made_of and running not in owners:
                self.outside[name] = f"used by a call of {function}, not by a module"
        applied = running in self.layers and function in APPLYING  # to a constant, as it may be
        if inputs and None not in made_of and not applied:
            self.weights[output] = names


def _owners(model: nn.Module, watched: set[str]) -> dict[str, frozenset[str]]:
    """The watched modules that hold each parameter, by its first name: several for tied weights."""
    first: dict[int, str] = {}
    owners: dict[str, frozenset[str]] = {}
    for name, value in model.named_parameters(remove_duplicate=False):
        known = first.setdefault(id(value), name)
        owners[known] = owners.get(known, frozenset()) | ({_place(name)[0]} & watched)
    return owners


def _place(parameter: str) -> tuple[str, str]:
    """A parameter's module and its name there, also where a parametrization computes it."""
    module, parametrized, rest = parameter.partition(".parametrizations.")
    if parametrized:
        return module, rest.partition(".")[0]
    module, _, name = parameter.rpartition(".")
    return module, name
