"""The layers of a source network: two frozen convolutions, each followed by a BatchNorm."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from bnrecon.construction.activation import FIRST_ACTIVATIONS
from bnrecon.features.pair import Features
from bnrecon.features.register import distribution
from bnrecon.features.shapes import LayerShape
from bnrecon.reconstruction import affine_map
from bnrecon.reconstruction.affine_map import AffineMap, norm_values
from bnrecon.reconstruction.collapse import collapsed_bias, present_layer
from bnrecon.reconstruction.composition import Composition
from bnrecon.reconstruction.geometry import centre, identity_output
from bnrecon.reconstruction.groups import joined, joined_digest
from bnrecon.reconstruction.kernels import Layer, apply_kernel, frozen_layer, is_plain, norm_class
from bnrecon.reconstruction.replaced_layer import ReplacedLayer, is_mapped, is_recorded, is_symbolic

# Of one chunk's intermediate map: small enough to stay near the processor's cache.
CHUNK_BYTES = 32 * 2**20
FORWARD_BYTES = 4 * CHUNK_BYTES  # weights, the intermediate map, both normalized
IMPLICIT_FROM = 64 * 2**20  # id_cond weights beyond this size stay implicit: M = I needs no matrix


class SourceLayer(ReplacedLayer):
    """Convolution A (1x1), BatchNorm, activation, convolution B, BatchNorm for one layer.

    It takes geometry, type and device from ``module``, but not the weight. A skip connection of the
    features is added before (``outer``) or after (``inner``) the second BatchNorm. Both weights are
    frozen; ``set_maps`` sets the normalizations. All padding comes before A, so the first
    normalization's shift reaches the border like every other pixel. Without an activation the
    second normalization takes the shift over (``fold_inner_shift``), and the first one's β is 0 and
    frozen. The zeros between the inputs of a transposed convolution also come before A; B convolves
    over them. For a linear layer both are ``nn.Linear``. Each group of a grouped convolution has
    separate features and is a group of A and of B.

    In eval mode the intermediate channels are processed in chunks, so memory is bounded for any
    width. id_cond layers of more than ``IMPLICIT_FROM`` bytes have no weights in memory: since M =
    I, each intermediate channel is one input, scaled and shifted, added to one output at one tap,
    which is computed directly. Regenerated features and those on disk are not in memory either:
    each chunk generates or reads its part.
    """

    first: nn.Linear | nn.Conv2d
    second: nn.Linear | nn.Conv2d
    skip: torch.Tensor
    drawn: torch.Tensor

    def __init__(
        self, pairs: Features | Sequence[Features], module: Layer, activation: str = "identity"
    ):
        super().__init__(module)
        self.pairs = (pairs,) if isinstance(pairs, Features) else tuple(pairs)  # one per group
        features, count, dtype = self.features, len(self.pairs), module.weight.dtype
        stored = count * features.shape.feature_bytes(features.width)
        self.implicit = features.identity and stored > IMPLICIT_FROM
        norm = norm_class(module)
        self.first_norm = norm(count * features.width, dtype=dtype)
        self.second_norm = norm(count * features.shape.outputs, dtype=dtype)
        self.linearized = FIRST_ACTIVATIONS[activation]
        self.activation = self.linearized.module()
        self.inner_shift = activation != "identity"  # the activation's linear region may need it
        self.first_norm.bias.requires_grad_(self.inner_shift)
        self.maps: tuple[AffineMap, AffineMap] | None = None
        self.region = (0.0, math.inf) if self.linearized.one_sided else (-math.inf, math.inf)
        self.composition: Composition | None = None  # computes the layer, if set
        self._seen: list[tuple[int, int]] = []  # the frozen weights, when last compared
        self.outside = 0  # intermediate values outside the region where the activation is linear
        if features.skip != "none":
            skip = joined(pair.skip_weight for pair in self.pairs)
            self.skip = nn.Parameter(self._pointwise(skip.to(dtype, copy=True)), False)
        if not self.implicit and features.in_memory:
            first, second = self._as_kernels(pair.weights() for pair in self.pairs)
            self.first = frozen_layer(first, dtype, count)
            self.second = frozen_layer(second, dtype, count, **self.geometry.movement)
        if self.offloaded:  # nothing else in a state dict tells another seed's
            digest = joined_digest(self.pairs).encode()
            self.register_buffer("drawn", torch.tensor(list(digest), dtype=torch.uint8))
        self.to(module.weight.device).eval()

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        key, errors = f"{prefix}drawn", rest[-1]
        if self.offloaded:
            if not torch.equal(state_dict.get(key, self.drawn).cpu(), self.drawn.cpu()):
                errors.append(f"{prefix[:-1] or 'the model'} was rebuilt from other features")
            state_dict[key] = self.drawn
        super()._load_from_state_dict(state_dict, prefix, *rest)

    @property
    def features(self) -> Features:
        """The features of the first group; all groups have the same size."""
        return self.pairs[0]

    def _pointwise(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix.reshape(*matrix.shape, *(1 for _ in self.geometry.kernel))

    def _as_kernels(
        self, weights: Iterable[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        first, second = map(joined, zip(*weights, strict=True))
        second = second.reshape(*second.shape[:2], *self.geometry.kernel)
        return self._pointwise(first), second

    def set_maps(self, first: AffineMap, second: AffineMap) -> None:
        """Make the layer compute with these affine maps; their statistics are rounded.

        Without an activation, the first map's shift moves to the second.
        """
        precision = self.first_norm.weight.dtype
        first = first.rounded(precision)
        if not self.inner_shift:
            first, second = affine_map.fold_inner_shift(self.pairs, first, second)
        self.maps = first, second.rounded(precision)
        for norm, affine in zip((self.first_norm, self.second_norm), self.maps, strict=True):
            affine_map.write_map(norm, affine)

    def present_maps(self) -> tuple[AffineMap, AffineMap]:
        """The current maps of the normalizations.

        These are the maps that were set or, if parameters changed since, the parameters' maps.
        """
        present, (first, second) = affine_map.present_map, self.maps or (None, None)
        return present(self.first_norm, first), present(self.second_norm, second)

    def _apply_layer(self, x: torch.Tensor) -> torch.Tensor:
        """Both convolutions and normalizations on a padded input."""
        recorded = is_recorded(x) and not self.training
        stored = self.features.in_memory and not self.implicit
        called = self._calls_parts()
        if called and (self.composition is not None or not stored):
            raise RuntimeError(
                "hooks on the parts of a source layer, replaced parts and batch statistics of its "
                "first normalization need both convolutions: storage=memory, uncollapsed"
            )
        two_sides = self.geometry.dims == 2 and self.geometry.groups == 1
        if self.composition is None and two_sides and not recorded:
            # Channels last is 1.1 to 1.6 times as fast on a CPU for so many channels; the output
            # keeps the input's layout, since later code may take a view of it.
            x = x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)  # works in torch.vmap, too
        if self.composition is not None:
            self.require_drawn()
            out = self.composition(self, x)
        elif self.implicit and not self.training:
            out = self._implicit(x)
        elif stored and (self.training or recorded or called):
            out = self.second(self._activated(self.first_norm(self.first(x))))
        else:
            self._require_weights(x)
            blocks = [self._block(x, *block) for block in self._blocks(x)]
            out = blocks[0] if len(blocks) == 1 else torch.cat(blocks, 1)
        if self.features.skip == "none":
            return self.second_norm(out)
        sides = out.shape[2:] if self.geometry.dims else ()
        at_centre, stride = centre(x, self.geometry, sides), self.geometry.stride
        skipped = apply_kernel(at_centre, self.skip, groups=len(self.pairs), stride=stride)
        if self.features.skip == "outer":
            return self.second_norm(out + skipped)
        return self.second_norm(out) + skipped

    def _calls_parts(self) -> bool:
        """Whether to call its parts: some are replaced, have hooks or use batch statistics."""
        hooks = "_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks"
        parts = [part for part in self.children() if part is not self.second_norm]
        hooked = any(getattr(part, name) for part in parts for name in hooks)
        alone = self.first_norm.training and not self.training and self.composition is None
        return hooked or alone or not all(p is self.activation or is_plain(p) for p in parts)

    def _require_weights(self, x: torch.Tensor) -> None:
        """Raise ``RuntimeError`` for what cannot be done without weights in memory."""
        if self.training:
            which, how = "a layer whose features are not in memory", "storage=memory"
            if self.implicit:
                which, how = "an implicit id_cond layer", "smaller layers"
            if not self.inner_shift:
                how += ", train bnrecon.collapse(network, trainable=True)"
            stay = f"rebuild with {how} or stay in eval mode"
            raise RuntimeError(f"{which} has no training mode; {stay}")
        if is_symbolic(x) or torch.compiler.is_exporting():
            raise RuntimeError(
                "features that are not in memory cannot be written into a graph; rebuild with "
                "storage=memory, or take bnrecon.collapse(network)"
            )

    def _blocks(self, x: torch.Tensor) -> Iterator[tuple[slice, list[slice]]]:
        """Yield the groups, and the parts of their features, of one intermediate map at a time."""
        count, width = len(self.pairs), self.features.width
        if is_recorded(x):  # undivided, for a graph of any batch
            yield slice(0, count), [slice(0, width)]
            return
        numbers, shape = len(x) * x.shape[2:].numel(), self.features.shape  # per feature
        if not self.features.in_memory:
            numbers = max(numbers, shape.inputs, shape.outputs * shape.taps)
        room = CHUNK_BYTES // max(1, x.element_size() * numbers)
        step = max(16, room)
        many = max(1, room // min(width, step))
        parts = [slice(start, start + step) for start in range(0, width, step)]
        for start in range(0, count, many):
            yield slice(start, min(start + many, count)), parts

    def _block(self, x: torch.Tensor, groups: slice, parts: list[slice]) -> torch.Tensor:
        """The output of B for some groups, summed over the features' parts."""
        count = groups.stop - groups.start
        if count < len(self.pairs):
            x = x.unflatten(1, (len(self.pairs), -1))[:, groups].flatten(1, 2)
        outputs = (self._convolve_part(x, groups, count, part) for part in parts)
        return functools.reduce(torch.Tensor.add_, outputs)

    def _convolve_part(
        self, x: torch.Tensor, groups: slice, count: int, part: slice
    ) -> torch.Tensor:
        """The part of B's output from some intermediate channels of some groups."""

        def of(values: torch.Tensor) -> torch.Tensor:
            return values.unflatten(0, (len(self.pairs), -1))[groups, part].flatten(0, 1)

        norm = self.first_norm
        gamma, beta, mean, variance = map(of, norm_values(norm, detach=False))
        first, second = self._frozen_part(groups, part)
        hidden = apply_kernel(x, first, groups=count)
        hidden = F.batch_norm(hidden, mean, variance, gamma, beta, training=False, eps=norm.eps)
        return apply_kernel(self._activated(hidden), second, groups=count, **self.geometry.movement)

    def _frozen_part(self, groups: slice, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """The weights of some intermediate channels of some groups, as kernels of A and of B."""
        if not self.features.in_memory:
            held = self.first_norm.weight
            make = Features.part
            if self.features.storage == "regenerate":
                from bnrecon.reconstruction.uncompiled import draw as make
            made = (make(pair, part, held.dtype, held.device) for pair in self.pairs[groups])
            return self._as_kernels(made)
        first, second = (
            layer.weight.unflatten(0, (len(self.pairs), -1))[groups]
            for layer in (self.first, self.second)
        )
        return first[:, part].flatten(0, 1), second.flatten(0, 1)[:, part]

    def _activated(self, hidden: torch.Tensor) -> torch.Tensor:
        """Apply the activation, counting what falls outside its linear region."""
        if isinstance(self.activation, nn.Identity):
            return hidden
        if not (self.training or is_recorded(hidden) or is_mapped(hidden)):
            low, high = self.region
            self.outside += int((hidden < low).sum())
            self.outside += int((hidden > high).sum()) if high < math.inf else 0
        return self.activation(hidden)

    def _implicit(self, x: torch.Tensor) -> torch.Tensor:
        """Sum act(s_l x_j + t_l) over the features l = (i, tap, j) of each output i."""
        norm = self.first_norm
        gamma, beta, mean, variance = norm_values(norm, detach=False)
        scale = gamma * torch.rsqrt(variance + norm.eps)
        activation = None if isinstance(self.activation, nn.Identity) else self._activated
        layer = (self.features.shape, self.geometry, activation)
        return identity_output(x, scale, beta - mean * scale, *layer)

    @property
    def weight(self) -> torch.Tensor:
        """The weight of the one layer that this computes, for code that reads it."""
        self.require_drawn()
        return present_layer(self).weight

    @property
    def bias(self) -> torch.Tensor:
        """The bias of the one layer that this computes."""
        return collapsed_bias(self).to(self.second_norm.weight.dtype)

    def held(self) -> list[torch.Tensor]:
        """Parameters and statistics of both normalizations."""
        return [*norm_values(self.first_norm), *norm_values(self.second_norm)]

    @property
    def offloaded(self) -> int:
        """How many frozen weights are not parameters, being regenerated or on disk."""
        each = self.features.width * self.features.shape.feature_size
        return 0 if self.features.in_memory else len(self.pairs) * each

    def holds_drawn_weights(self) -> bool:
        """Whether the frozen weights in memory equal the drawn ones in the layer's dtype."""
        pairs: list[tuple[torch.Tensor, torch.Tensor]] = []
        if self.features.skip != "none":
            pairs.append((self.skip, joined(pair.skip_weight for pair in self.pairs)))
        if not self.implicit and self.features.in_memory:
            drawn = map(joined, zip(*(pair.weights() for pair in self.pairs), strict=True))
            pairs += zip((self.first.weight, self.second.weight), drawn, strict=True)
        held = ((weight.detach().cpu().flatten(), drawn.flatten()) for weight, drawn in pairs)
        return all(torch.equal(weight, drawn.to(weight.dtype)) for weight, drawn in held)

    def require_drawn(self) -> None:
        """Raise ``RuntimeError`` if frozen weights in memory are not the features any more."""
        if self.implicit or self.offloaded or torch.compiler.is_compiling():
            return
        held = [w for w in (self.first.weight, self.second.weight) if isinstance(w, nn.Parameter)]
        seen = [(w.data_ptr(), w._version) for w in held if not w.is_inference()]
        if not seen or seen != self._seen:
            if not self.holds_drawn_weights():
                raise RuntimeError("frozen weights have changed; only the source follows them")
            if seen and self._seen:  # features in the weights' memory changed with them
                self.composition = self.composition and Composition(self.pairs)
                vars(self).pop("_present", None)
            self._seen = seen or self._seen

    def frozen_digest(self) -> str:
        """SHA-256 of the frozen weights; equals the features' digest while unchanged."""
        return joined_digest(self.pairs) if self.holds_drawn_weights() else "changed"


def holds_weights(name: str) -> bool:
    """Whether features of a distribution hold the weights that were drawn."""
    return name != "sign" and "disk" in distribution(name).storages


def weight_bytes(name: str, shape: LayerShape, width: int, module: Layer) -> int:
    """Bytes of memory that a source layer's frozen weights take on its device.

    CPU memory holds the layer's weights and the drawn float32 ones. In a float32 network these are
    the same tensors, unless those of several groups were concatenated. Signs and patterns are
    formed for the layer alone.

    ``shape`` and ``width`` are those of one group of the target layer.

    >>> shape = LayerShape(8, 8)
    >>> [weight_bytes("he_normal", shape, 96, torch.nn.Linear(8, 8, dtype=kind))
    ...  // (96 * 16) for kind in (torch.float32, torch.float64)]
    [4, 12]
    """
    itemsize, groups = module.weight.itemsize, getattr(module, "groups", 1)
    shared = itemsize == 4 and groups == 1
    drawn = 4 if holds_weights(name) and not shared and module.weight.device.type == "cpu" else 0
    return groups * width * shape.feature_size * (itemsize + drawn)
