"""What is reported of a layer that was built: its errors, and what they are due to."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import torch

from bnrecon.features.matrix import feature_operator
from bnrecon.features.pair import Features
from bnrecon.reconstruction.collapse import layer_errors
from bnrecon.reconstruction.moments import LayerMoments
from bnrecon.reconstruction.output_error import output_error
from bnrecon.reconstruction.plan import PlannedLayer
from bnrecon.reconstruction.report import LayerReport
from bnrecon.reconstruction.source_layer import SourceLayer
from bnrecon.runtime.errors import RunError
from bnrecon.solvers.base import SolverReport

__all__ = ["report_layer"]

# Units of rounding by which a layer may be off in the network's precision: 1.2e-4 in float32.
ASSEMBLED = 1e3

# Tolerances of the whole layer by which the weights of one output may be off.
CHANNEL = 1e3

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
    """The report of a layer, its errors computed from what it holds.

    Args:
        layer: the source layer, its normalizations set.
        planned: what was planned of it.
        solution: what the solver reports.
        digest: the digest of its features.
        moments: of its inputs, by whose size the weights of an output are weighed; needed for an
            activation that is only nearly linear, whose outputs are tried besides.

    Raises:
        RunError: a number overflows in the network's precision.
    """
    inputs = None if moments is None else moments.input_sizes()
    report = _errors(layer, planned, solution, digest, inputs)
    if layer.linearized.exact:
        return report
    assert moments is not None, "the linear region was chosen from them"
    return _within_epsilon(layer, planned, moments, report)


def _errors(
    layer: SourceLayer,
    planned: PlannedLayer,
    solution: SolverReport,
    digest: str,
    inputs: torch.Tensor | None,
) -> LayerReport:
    precision = layer.second_norm.weight.dtype
    target = planned.found.target
    errors = layer_errors(layer, target.weight, inputs, None if inputs is None else target.bias)
    exact, assembled = errors.exact, errors.assembled
    if not layer.is_finite() or not math.isfinite(assembled):
        largest = float(planned.found.target.weight.abs().max())
        raise RunError(
            f"{planned.label}: its normalization is not finite in {_name(precision)} (weights are "
            f"up to {largest:.0e}); use model.double(), or weights and images of a usual size"
        )
    tolerance = planned.solver.tolerance
    rounding = max(tolerance, ASSEMBLED * torch.finfo(precision).eps)
    # One output's share of a layer's error may be large beside its own weights.
    solved = errors.exact_channel <= CHANNEL * tolerance
    channels = solved and errors.assembled_channel <= max(CHANNEL * tolerance, rounding)
    diagnosis = solution.diagnosis
    if solution.converged and exact > tolerance:
        if planned.width < planned.shape.equations:
            diagnosis = UNREACHED_PIVOT
    elif solution.converged and assembled > rounding:
        diagnosis = (
            f"solved to {exact:.0e}, of which rounding to {_name(precision)} leaves "
            f"{assembled:.0e}: large scales cancel; take more features (oversampling=1.1), or a "
            "model in double precision"
        )
    elif solution.converged and not channels:
        weighed = "" if inputs is None else ", each times the size of its input on the images"
        diagnosis = (
            f"the layer as a whole is rebuilt to {assembled:.0e}; the weights of output "
            f"{errors.channel}{weighed}, are off by {errors.assembled_channel:.0e} of their own "
            "size, far below that of others; use solver=lu, a model in double precision, or "
            "features=id_cond"
        )
    shape = planned.shape
    return LayerReport(
        name=planned.name,
        shape=(shape.outputs, shape.inputs, *shape.kernel),
        equations=shape.equations,
        width=planned.width,
        relative_error=exact,
        assembled_error=assembled,
        converged=solution.converged and exact <= tolerance and assembled <= rounding and channels,
        redrawn=sum(pair.redrawn for pair in layer.pairs),
        rank=_rank(layer.pairs) if planned.features.strict else None,
        convolutions=_convolutions(layer),
        digest=digest,
        solution=dataclasses.replace(solution, diagnosis=diagnosis),
        groups=planned.groups,
        kept=None if planned.features.keep is None else planned.features.kept(planned.width),
        channel_error=errors.assembled_channel,
    )


def _within_epsilon(
    layer: SourceLayer, planned: PlannedLayer, moments: LayerMoments, report: LayerReport
) -> LayerReport:
    """The report, not converged where the layer's own outputs are off by more than epsilon.

    Theorem 2.4 bounds the error in exact arithmetic. A sigmoid's values lie around 1/2, and what
    is left of them without it is the less, the smaller epsilon: rounding may be far above it.
    """
    assert moments.largest_input is not None
    error = output_error(layer, planned.found, moments.largest_input)
    spec = planned.features
    if error <= spec.epsilon or not report.converged:
        return report
    diagnosis = (
        f"an output is off by {error:.1e}, epsilon={spec.epsilon:g} is promised: rounding to "
        f"{_name(layer.second_norm.weight.dtype)} leaves too little of what the {spec.activation} "
        "gives; use model.double(), tanh, or a larger epsilon"
    )
    solution = dataclasses.replace(report.solution, diagnosis=diagnosis)
    return dataclasses.replace(report, converged=False, solution=solution)


def _convolutions(layer: SourceLayer) -> str:
    if layer.implicit:
        return "implicit"
    return {"regenerate": "regenerated", "disk": "on disk"}.get(layer.pairs[0].storage, "stored")


def _name(precision: torch.dtype) -> str:
    return str(precision).removeprefix("torch.")


def _rank(pairs: Sequence[Features]) -> int | None:
    """Rank of M, the smallest of the groups' where M is small enough for singular values."""
    if pairs[0].identity or pairs[0].shape.equations > 3000:
        return None
    matrices = (feature_operator(pair, torch.float64, torch.device("cpu")) for pair in pairs)
    return min(int(torch.linalg.matrix_rank(matrix.dense())) for matrix in matrices)
