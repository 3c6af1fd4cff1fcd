"""The report of a built layer: its errors and their causes."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Sequence

import torch

from bnrecon.features.matrix import feature_operator
from bnrecon.features.pair import Features
from bnrecon.reconstruction.collapse import LayerErrors, layer_errors
from bnrecon.reconstruction.folding import FoldedLayer
from bnrecon.reconstruction.geometry import geometry_of
from bnrecon.reconstruction.moments import LayerMoments
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.reconstruction.refusal import dtype_name
from bnrecon.reconstruction.report import LayerReport
from bnrecon.reconstruction.source_layer import SourceLayer
from bnrecon.runtime.errors import RunError
from bnrecon.solvers.diagnosis import numerical_rank
from bnrecon.solvers.report import SolverReport

ASSEMBLED = 1e3  # machine epsilons by which a layer may be off: 1.2e-4 in float32
CHANNEL = 1e3  # layer tolerances by which the weights of one output may be off
PROBES = 64  # random inputs
UNREACHED_PIVOT = (
    "the eliminated system is solved, but recovering the second scales amplifies what is left: "
    "some output is hardly reached at its pivot (near to a pathological target of Burkholz 2024, "
    "Thm 2.2); try a tighter tolerance, or one feature more"
)


def report_layer(
    layer: SourceLayer,
    planned: PlannedLayer,
    solution: SolverReport,
    digest: str,
    moments: LayerMoments | None = None,
) -> LayerReport:
    """Report a layer's errors, computed from its parameters and features.

    ``moments`` give the size of the inputs, by which the weights of an output are weighted. An
    activation that is only nearly linear requires them; its outputs are tested too.

    Raises ``RunError`` if a number overflows in the network's precision.
    """
    target, precision = planned.folded.target, layer.second_norm.weight.dtype
    inputs = None if moments is None else moments.input_sizes()
    errors = layer_errors(layer, target.weight, inputs, None if inputs is None else target.bias)
    finite = all(bool(torch.isfinite(value).all()) for value in layer.held())
    if not finite or not math.isfinite(errors.assembled):
        largest = float(target.weight.abs().max())
        raise RunError(
            f"{planned.label}: its normalization is not finite in {dtype_name(precision)} (weights "
            f"are up to {largest:.0e}); use model.double(), or weights, features and images of a "
            "usual size"
        )
    failure = _failure(planned, errors, precision, inputs is not None, solution.solver)
    if failure is None and solution.converged and not layer.linearized.exact:
        assert moments is not None, "the linear region was chosen from them"
        failure = _over_epsilon(layer, planned, moments)
    if failure is not None and solution.converged:
        solution = dataclasses.replace(solution, diagnosis=failure or solution.diagnosis)
    shape, storage = planned.shape, layer.pairs[0].storage
    convolutions = {"regenerate": "regenerated", "disk": "on disk"}.get(storage, "stored")
    return LayerReport(
        name=planned.name,
        shape=(shape.outputs, shape.inputs, *shape.kernel),
        equations=shape.equations,
        width=planned.width,
        relative_error=errors.exact,
        assembled_error=errors.assembled,
        converged=solution.converged and failure is None,
        redrawn=sum(pair.redrawn for pair in layer.pairs),
        rank=_rank(layer.pairs) if planned.features.strict else None,
        convolutions="implicit" if layer.implicit else convolutions,
        digest=digest,
        solution=solution,
        groups=planned.groups,
        kept=None if planned.features.keep is None else planned.features.kept(planned.width),
        channel_error=errors.assembled_channel,
    )


def _failure(
    planned: PlannedLayer, errors: LayerErrors, precision: torch.dtype, weighed: bool, solver: str
) -> str | None:
    """Say why a solved layer, ``weighed`` by its inputs or not, is off; empty if unknown."""
    tolerance = planned.solver.tolerance
    rounding = max(tolerance, ASSEMBLED * torch.finfo(precision).eps)
    if errors.exact > tolerance:
        return UNREACHED_PIVOT if planned.width < planned.shape.equations else ""
    if errors.assembled > rounding:
        return (
            f"solved to {errors.exact:.0e}, of which rounding to {dtype_name(precision)} leaves "
            f"{errors.assembled:.0e}: large scales cancel; take more features "
            "(oversampling=1.1), or a model in double precision"
        )
    # A small error of the layer may be large for the weights of one output.
    solved = errors.exact_channel <= CHANNEL * tolerance
    if not (solved and errors.assembled_channel <= max(CHANNEL * tolerance, rounding)):
        inputs = ", each times the size of its input on the images" if weighed else ""
        return (
            f"the layer as a whole is rebuilt to {errors.assembled:.0e}; the weights of output "
            f"{errors.channel}{inputs}, are off by {errors.assembled_channel:.0e} of their own "
            f"size, far below that of others; use {'' if solver == 'lu' else 'solver=lu, '}a model "
            "in double precision, or features=id_cond"
        )
    return None


def _over_epsilon(layer: SourceLayer, planned: PlannedLayer, moments: LayerMoments) -> str | None:
    """Say why a layer fails if rounding puts its outputs off by more than epsilon."""
    assert moments.largest_input is not None
    error = output_error(layer, planned.folded, moments.largest_input)
    spec = planned.features
    if error <= spec.epsilon:
        return None
    return (
        f"an output is off by {error:.1e}, epsilon={spec.epsilon:g} is promised: rounding to "
        f"{dtype_name(layer.second_norm.weight.dtype)} leaves too little of what the "
        f"{spec.activation} gives; use model.double(), tanh, or a larger epsilon"
    )


def _rank(pairs: Sequence[Features]) -> int | None:
    """Rank of M, the smallest of any group; ``None`` if M is too large for singular values."""
    if pairs[0].identity or pairs[0].shape.equations > 3000:
        return None
    matrices = (feature_operator(pair, torch.float64, torch.device("cpu")) for pair in pairs)
    return min(map(numerical_rank, matrices))


@torch.no_grad()
def output_error(layer: SourceLayer, target: FoldedLayer, largest: torch.Tensor) -> float:
    """The largest difference of an output from the target layer's in float64, on random inputs.

    They have the kernel's size and are uniform within ±``largest`` (c0,) per channel.
    """
    weight, geometry = target.module.weight, geometry_of(target.module)
    cropped = -min(0, *geometry.pads) if geometry.pads else 0
    # Padding by reflected or wrapped pixels needs an image larger than itself.
    least = 1 + max(geometry.pads, default=0) if geometry.pad_mode != "constant" else 0
    sides = [
        max(least, step * (side - 1) + 1 + 2 * cropped)
        for step, side in zip(geometry.dilation, geometry.kernel, strict=True)
    ]
    shape = (PROBES, len(largest), *sides)
    generator = torch.Generator().manual_seed(0)
    numbers = 2 * torch.rand(shape, dtype=torch.float32, generator=generator) - 1
    probes = numbers.to(weight) * largest.to(weight).reshape(-1, *(1 for _ in sides))
    expected = copy.deepcopy(target.module).double()(probes.double())
    if target.norm is not None:
        expected = copy.deepcopy(target.norm).double()(expected)
    return float((layer(probes).double() - expected).abs().max())
