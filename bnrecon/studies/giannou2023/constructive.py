"""Scales and shifts of the source from a teacher or a learnt student (the proof of Theorem 1)."""

from __future__ import annotations

import torch

from bnrecon.construction.random_linear import solve_scales
from bnrecon.studies.giannou2023.teacher import Samples, mean_squared_error


def constructed_error(
    first: torch.Tensor, second: torch.Tensor, weights: torch.Tensor, samples: Samples
) -> dict[str, list[float]]:
    """Rebuild each run's weights and evaluate the source on the test samples, all in float64.

    Solves V diag(γ) W = W*, by the pseudo-inverse if the system is not regular. The shift opens
    every ReLU for the norms seen in training: |γ| ||w|| max ||x||. Inputs are Gaussian here,
    outside the theorem's unit ball. The normalizations' statistics are omitted: scale and shift
    undo any (Proposition 1).

    For W (S, c, d), V (S, d, c) and the teacher's or student's W* (S, d, d), returns each run's
    test error ``mse`` and ``residual`` ||V diag(γ) W - W*|| / ||W*||.
    """
    errors, residuals = [], []
    for run, (w, v, weight) in enumerate(zip(first, second, weights.double(), strict=True)):
        scale = solve_scales(v, w, weight)
        radius = float(samples.x["train"][run].norm(dim=1).max())
        opening = scale.abs() * w.norm(dim=1) * radius
        closing = v @ opening
        outputs = []
        for x in samples.x["test"][run].split(4096):
            hidden = torch.relu(torch.addmm(opening, x.double(), (scale[:, None] * w).T))
            outputs.append(torch.relu(hidden @ v.T - closing).sum(1))
        errors.append(float(mean_squared_error(torch.cat(outputs), samples.y["test"][run])))
        residuals.append(float(((v * scale) @ w - weight).norm() / weight.norm()))
    return {"mse": errors, "residual": residuals}
