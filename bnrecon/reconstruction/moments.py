"""Moments of the inputs and outputs of target layers, from which running statistics follow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from bnrecon.construction.two_layer import first_variance
from bnrecon.features.pair import Features
from bnrecon.reconstruction.folding import FoldedLayer
from bnrecon.reconstruction.geometry import Geometry, centre, geometry_of, pad
from bnrecon.reconstruction.images import run_model
from bnrecon.reconstruction.replaced_layer import is_mapped
from bnrecon.reconstruction.substitution import share_parameters
from bnrecon.runtime.hardware import exact_float32
from bnrecon.runtime.malloc import keep_freed_memory
from bnrecon.runtime.torch_modes import one_thread_at_a_time, outside_torch_modes

ZERO = torch.zeros((), dtype=torch.float64, device="cpu")  # added to sums on any device


@dataclass
class LayerMoments:
    """Float64 sums over images and pixels of a layer's padded input x and its output o.

    A source layer's first output A x is linear in x, so its mean is A μ and its variance diag(A Σ
    A^T). These are exactly the statistics that BatchNorm would take from the images, without
    running the wide layer.
    """

    count: int = 0
    input_sum: torch.Tensor = ZERO
    input_products: torch.Tensor = ZERO
    largest_input: torch.Tensor | None = None
    output_count: int = 0
    output_sum: torch.Tensor = ZERO
    output_squares: torch.Tensor = ZERO
    centre_sum: torch.Tensor = ZERO
    centre_products: torch.Tensor = ZERO
    centre_with_output: torch.Tensor = ZERO

    def add(self, x: torch.Tensor, output: torch.Tensor, centred: torch.Tensor) -> None:
        """Add a batch in float64: the padded input x (c0, pixels) and the output (c2, positions).

        The output is the one before folding; ``centred`` (c0, positions) is the input at the
        kernel's centre, which a skip connection reads.
        """
        self.count += x.shape[1]
        self.input_sum = self.input_sum + x.sum(1)
        self.input_products = self.input_products + x @ x.T
        reach, before = x.abs().amax(1), self.largest_input
        self.largest_input = reach if before is None else torch.maximum(before, reach)
        self.output_count += output.shape[1]
        self.output_sum = self.output_sum + output.sum(1)
        self.output_squares = self.output_squares + (output * output).sum(1)
        self.centre_sum = self.centre_sum + centred.sum(1)
        self.centre_products = self.centre_products + centred @ centred.T
        self.centre_with_output = self.centre_with_output + output @ centred.T

    def of_group(self, group: int, groups: int) -> LayerMoments:
        """The moments of one group's inputs and outputs."""
        if groups == 1:
            return self
        sizes = (len(self.input_sum) // groups, len(self.output_sum) // groups)
        inputs, outputs = (slice(group * size, (group + 1) * size) for size in sizes)
        largest = None if self.largest_input is None else self.largest_input[inputs]
        of_input = self.input_sum[inputs], self.input_products[inputs, inputs], largest
        of_output = self.output_sum[outputs], self.output_squares[outputs]
        of_centre = self.centre_sum[inputs], self.centre_products[inputs, inputs]
        together = self.centre_with_output[outputs, inputs]
        count, output_count = self.count, self.output_count
        return LayerMoments(count, *of_input, output_count, *of_output, *of_centre, together)

    def input_sizes(self) -> torch.Tensor:
        """The root mean square of each input, (c0,)."""
        return (self.input_products.diagonal() / self.count).sqrt()

    def is_finite(self) -> bool:
        """Whether all inputs and outputs were finite, as the sums of squares show."""
        squares = (self.input_products, self.output_squares)
        return all(bool(torch.isfinite(sums).all()) for sums in squares)

    def first_output(self, features: Features) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and unbiased variance (c1,) of the first source layer's output A x, in float64."""
        mean = self.input_sum / self.count
        covariance = self.input_products / self.count - torch.outer(mean, mean)
        covariance = covariance * _unbiased(self.count)
        if features.identity:
            copies = features.width // len(mean)
            return mean.repeat(copies), covariance.diagonal().clamp_min(0).repeat(copies)
        means, variances = mean.new_empty(features.width), mean.new_empty(features.width)
        for part, first in features.first_parts(mean.device):
            exact = first.to(mean)
            means[part] = exact @ mean
            variances[part] = first_variance(exact, covariance)
        return means, variances

    def second_output(
        self,
        gain: torch.Tensor,
        bias: torch.Tensor | None,
        outer: torch.Tensor,
        at_output: torch.Tensor,
        skip: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Mean and variance (c2,) of the second normalization's input.

        This is z = (gain ∘ (o - bias) - S x) / outer + ``at_output``, the first shift's part.

        Outputs that are switched off (outer 0) get mean ``at_output`` and variance 1, since nothing
        depends on them.

        Args:
            gain: (c2,), the factor of the target's weight from folding.
            bias: (c2,), the target's before folding.
            outer: (c2,), the second scales.
            at_output: (c2,), see above.
            skip: S (c2, c0), a skip connection added only after the normalization.
        """
        count = self.output_count
        mean = self.output_sum / count
        variance = gain**2 * (self.output_squares / count - mean**2)
        middle = gain * (mean - (0 if bias is None else bias.detach().double()))
        if skip is not None:
            skip = skip.to(mean)
            at_centre = self.centre_sum / count
            spread = self.centre_products / count - torch.outer(at_centre, at_centre)
            together = self.centre_with_output / count - torch.outer(mean, at_centre)
            variance = variance - 2 * gain * (skip * together).sum(1)
            variance = variance + ((skip @ spread) * skip).sum(1)
            middle = middle - skip @ at_centre
        off = outer == 0
        factor = torch.where(off, torch.zeros_like(outer), 1 / torch.where(off, 1, outer))
        variance = torch.where(off, 1, factor**2 * variance.clamp_min(0) * _unbiased(count))
        return factor * middle + at_output, variance


def _unbiased(count: int) -> float:
    return count / max(1, count - 1)


@one_thread_at_a_time
@outside_torch_modes
def gather(
    model: nn.Module, layers: list[FoldedLayer], batches: Iterable[torch.Tensor]
) -> Mapping[str, LayerMoments]:
    """Run images through the target once and collect the moments of every layer's input and output.

    A copy runs, so that the model's state does not change.

    Raises ``UserError`` if the model does not take a batch.
    """
    moments = {layer.name: LayerMoments() for layer in layers}
    running = share_parameters(model)
    for layer in layers:
        hook = partial(_add_call, moments[layer.name], geometry_of(layer.module))
        module = running.get_submodule(layer.name)
        module.register_forward_hook(hook, with_kwargs=True)
    device = layers[0].module.weight.device if layers else torch.device("cpu")
    # Not in inference mode: tensors that a model caches there are unusable afterwards.
    with torch.no_grad(), exact_float32(), keep_freed_memory():
        for batch in batches:
            run_model(running, batch.to(device))
    return moments


def _add_call(
    moments: LayerMoments,
    geometry: Geometry,
    _: nn.Module,
    inputs: tuple,
    named: dict,
    output: torch.Tensor,
) -> None:
    # Detached: a model may turn gradients on.
    x, output = (inputs[0] if inputs else named["input"]).detach(), output.detach()
    if is_mapped(x):
        return
    if not geometry.dims:
        x, output = (part.reshape(-1, part.shape[-1]).T.double() for part in (x, output))
        moments.add(x, output, x)
        return
    if x.ndim == geometry.dims + 1:
        x, output = x[None], output[None]
    sides = output.shape[2:]
    padded = pad(x, geometry, sides)
    maps = (padded, output, centre(padded, geometry, sides, strided=True))
    moments.add(*(each.transpose(0, 1).flatten(1).double() for each in maps))
