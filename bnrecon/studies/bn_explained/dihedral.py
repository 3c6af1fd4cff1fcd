"""Dihedral angles of a folded hyperplane at a hyperplane of layer 1: by formula, and measured."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from bnrecon.studies.bn_explained.small_networks import SmallNetwork

__all__ = ["Fold", "formula_angles", "measured_angles"]


@dataclass(frozen=True)
class Fold:
    """Two facets of a layer-2 hyperplane that meet at a point of a hyperplane of layer 1.

    Attributes:
        network: its first layer.
        weight: w_2,k (K,).
        unit: i, whose hyperplane the facets meet at.
        point: where they meet (D,).
    """

    network: SmallNetwork
    weight: np.ndarray
    unit: int
    point: np.ndarray


def _angle(one: np.ndarray, other: np.ndarray) -> float:
    """arccos(<a, b> / ||a|| ||b||), accurate for small angles, too; NaN for a zero vector.

    A normal is zero where all ReLUs are off.
    """
    if not (one.any() and other.any()):
        return float("nan")
    one, other = one / np.linalg.norm(one), other / np.linalg.norm(other)
    return float(2 * np.arctan2(np.linalg.norm(one - other), np.linalg.norm(one + other)))


def formula_angles(fold: Fold) -> dict[str, float]:
    """Eq. 24 to 26 from the weights and Q_1 (Eq. 23), and Eq. 26 repaired.

    Repaired it is pi - arccos(<n, n'> / ||n|| ||n'||), without the absolute value, where n and n'
    are the normals W_1' Q_1 w_2,k on both sides.
    """
    layer, unit = fold.network.layers[0], fold.unit
    active = layer.normalize(fold.point[None])[0] >= 0
    normals = []
    for side in (True, False):
        active[unit] = side
        scale = np.where(active, 1.0, fold.network.slope) / layer.deviation
        normals.append((fold.weight * scale) @ layer.weight)
    one, other = (
        min(angle, np.pi - angle)
        for angle in (_angle(normal, layer.weight[unit]) for normal in normals)
    )
    between = _angle(*normals)
    return {
        "eq24": one,
        "eq25": other,
        "eq26": min(between, np.pi - between),
        "repaired": np.pi - between,
    }


def measured_angles(fold: Fold) -> dict[str, float]:
    """The same angles between half-hyperplanes, without Q_1.

    The tangent space of a facet is the null space of the network's gradient, by automatic
    differentiation just beside the point; the edge is its intersection with H_1,i; a facet's
    direction is the unit vector in it, orthogonal to the edge, that points away from it.
    """
    hyperplane = fold.network.layers[0].weight[fold.unit]
    step = 1e-6 * hyperplane / np.linalg.norm(hyperplane)
    directions = []
    for side in (1.0, -1.0):
        gradient = _gradient(fold, fold.point + side * step)
        facet = _null_space(gradient[None])
        edge = _null_space(np.stack([gradient, hyperplane]))
        rest = facet - edge @ (edge.T @ facet)  # of rank one
        direction = np.linalg.svd(rest)[0][:, 0]
        directions.append(direction * side * np.sign(direction @ hyperplane))
    across = _null_space(np.concatenate([hyperplane[None], edge.T]))[:, 0]
    one, other = (
        float(np.arctan2(abs(direction @ step), abs(direction @ across) * np.linalg.norm(step)))
        for direction in directions
    )
    return {"measured24": one, "measured25": other, "measured26": _angle(*directions)}


def _null_space(rows: np.ndarray) -> np.ndarray:
    """An orthonormal basis (D, D - rows) of what is orthogonal to independent rows."""
    return np.linalg.svd(rows)[2][len(rows) :].T


def _gradient(fold: Fold, point: np.ndarray) -> np.ndarray:
    """Of <w, z(x)> at a point, by PyTorch."""
    x = torch.tensor(point, requires_grad=True)
    layer = fold.network.layers[0]
    outputs = torch.nn.functional.batch_norm(
        (torch.from_numpy(layer.weight) @ x)[None],
        torch.from_numpy(layer.mean),
        torch.from_numpy(layer.deviation**2),
        eps=0,
    )
    features = torch.nn.functional.leaky_relu(outputs, fold.network.slope)
    (gradient,) = torch.autograd.grad((features[0] * torch.from_numpy(fold.weight)).sum(), x)
    return gradient.numpy()
