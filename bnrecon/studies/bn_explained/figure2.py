"""Figure 2: mu_2 translates a unit's hyperplane, sigma_1 folds it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import nn

from bnrecon.partition import Folds, Slice, partition, rectangle, slice_along
from bnrecon.reporting.figures import PAGE, Figure, new_figure
from bnrecon.reproduction.parts import Decisions, below, part, sweep
from bnrecon.studies.bn_explained import planar

WIDTHS = (8, 8)
UNIT = 0  # k, of layer 2
SHIFTS = (-1.0, -0.5, 0.0, 0.5, 1.0)  # of mu_2,k, in sigma_2,k
REACH = 3.0  # of the windows, in standard deviations of the data and, roughly, of layer 1
LONG = 1e-2  # shorter facets say little about directions
TOLERANCE = 1e-7
SEEDS = {"smoke": 2, "laptop": 20, "paper": 100}
SHOWN = 3  # the picture's network, with the clearest folds of the first four
FACTORS = (0.25, 0.5, 1.0, 2.0, 4.0)  # of sigma_1,i


def adjusted(
    layers: nn.Sequential, shift: float = 0.0, sigma1: float | np.ndarray = 1.0, sigma2: float = 1.0
) -> nn.Sequential:
    """Copy two layers with other statistics.

    ``shift`` is added to mu_2,k of the unit k. ``sigma1``, a number or (8,), and ``sigma2``
    multiply the standard deviations of layers 1 and 2.
    """
    changed = copy.deepcopy(layers)
    changed.get_buffer("1.1.running_mean")[UNIT] += shift
    changed.get_buffer("0.1.running_var").mul_(torch.as_tensor(sigma1) ** 2)
    changed.get_buffer("1.1.running_var").mul_(sigma2**2)
    return changed


def feature_slice(layers: nn.Sequential, points: np.ndarray) -> Slice:
    """The plane of the first two principal components of layer 2's inputs, through their mean."""
    with torch.no_grad():
        features = layers[0](torch.from_numpy(points))
    mean = features.mean(0)
    directions = torch.linalg.svd(features - mean, full_matrices=False)[2][:2]
    return slice_along(mean, directions, rectangle((-REACH, -REACH), (REACH, REACH)))


def unit_line(layers: nn.Sequential, plane: Slice) -> Folds:
    """The unit's hyperplane in a slice of layer 2's input space."""
    return partition(layers[1], plane).folds.of(0, UNIT)


def folded_line(layers: nn.Sequential, plane: Slice) -> Folds:
    """The unit's folded hyperplane in the input space."""
    return partition(layers, plane).folds.of(1, UNIT)


def _directions(folds: Folds) -> np.ndarray:
    """Each segment's direction as an angle (S,) in [0, pi)."""
    along = folds.ends[:, 1] - folds.ends[:, 0]
    return np.arctan2(along[:, 1], along[:, 0]) % np.pi


def _apart(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """The angle between two directions, in [0, pi/2]."""
    difference = np.abs(first - second) % np.pi
    return np.minimum(difference, np.pi - difference)


def _by_region(layers: nn.Sequential, folds: Folds) -> dict[bytes, tuple[float, float]]:
    """Direction and length of the facet in each region of layer 1, by the signs of its units."""
    middle = torch.from_numpy(folds.ends.mean(1))
    with torch.no_grad():
        signs = (layers[0](middle) > 0).numpy()
    facets = zip(signs, _directions(folds), folds.lengths(), strict=True)
    return {sign.tobytes(): (angle, length) for sign, angle, length in facets if length > LONG}


def _turns(layers: nn.Sequential, first: Folds, second: Folds) -> np.ndarray:
    """The angles by which facets differ in the regions where both have one."""
    before, after = _by_region(layers, first), _by_region(layers, second)
    shared = [(before[key][0], after[key][0]) for key in before.keys() & after.keys()]
    return _apart(*np.array(shared).reshape(-1, 2).T)


def _gap(first: Folds, second: Folds) -> float:
    """The largest distance from an end in either set of segments to the other set."""
    one, other = (folds.ends.reshape(-1, 2) for folds in (first, second))
    between = [planar.distances_to(one, second.ends), planar.distances_to(other, first.ends)]
    return float(np.concatenate(between).max(initial=0.0))


def _corners(folds: Folds, plane: Slice) -> np.ndarray:
    """The ends of segments inside the window (n, 2)."""
    ends = folds.ends.reshape(-1, 2)
    low, high = plane.window.min(0), plane.window.max(0)
    return ends[((ends > low + 1e-6) & (ends < high - 1e-6)).all(1)]


def check(seed: int) -> pd.DataFrame:
    """One row: what changes in a random network when mu_2,k, sigma_1 or sigma_2 change.

    Angles are in radians, lengths in standard deviations of the data. The shown seed also has the
    rows of its ``picture``.
    """
    points = planar.draw_clusters(seed)
    layers = planar.draw_layers(WIDTHS, "BN", points, seed)
    generator = np.random.Generator(np.random.Philox(key=(seed, 2)))
    factors = 4.0 ** generator.uniform(-1, 1, WIDTHS[0])
    plane = planar.square((0.0, 0.0), REACH)
    row = {"kind": "network", "seed": seed}
    row |= _check_translation(layers, plane, points)
    row |= _check_folding(layers, plane, factors)
    checked = pd.DataFrame([row | _check_scale(layers, plane)])
    return pd.concat([checked, picture(seed)]) if seed == SHOWN else checked


def _check_translation(layers: nn.Sequential, plane: Slice, points: np.ndarray) -> dict[str, float]:
    """For five values of mu_2,k: directions, gaps between the lines, and their corners."""
    inputs = feature_slice(layers, points)
    weight = layers.get_parameter("1.0.weight")[UNIT].detach()
    deviation = float(layers.get_buffer("1.1.running_var")[UNIT]) ** 0.5
    moved = [adjusted(layers, shift=shift * deviation) for shift in SHIFTS]
    normal = (inputs.directions @ weight).numpy()
    length = np.linalg.norm(normal)
    angle = np.arctan2(normal[0], -normal[1]) % np.pi
    lines = [unit_line(network, inputs) for network in moved]
    levels = [float((line.ends[0] @ normal / length).mean()) for line in lines if len(line)]
    expected = [
        shift * deviation / length for shift, line in zip(SHIFTS, lines, strict=True) if len(line)
    ]
    folded = [folded_line(network, plane) for network in moved]
    turned = [_turns(layers, folded[2], other) for other in folded]
    layer1 = partition(layers, plane).folds.of(0)
    return {
        "lines": len(levels),
        "own_turned": float(max(_apart(_directions(line), angle).max(initial=0) for line in lines)),
        "own_gap": float(np.abs(np.subtract(levels, expected)).max()),
        "folded_pairs": int(sum(map(len, turned))) - len(turned[2]),
        "folded_turned": float(np.concatenate(turned).max(initial=0)),
        "speeds": _speeds(layers, folded[2]),
        "off_layer1": max(_off(folds, plane, layer1) for folds in folded),
    }


def _speeds(layers: nn.Sequential, folds: Folds) -> float:
    """The largest over the smallest facet shift, 1 / ||grad||, for one change of mu_2,k."""
    middle = torch.from_numpy(folds.ends.mean(1)).requires_grad_()
    outputs = layers[0](middle) @ layers.get_parameter("1.0.weight")[UNIT]
    sizes = torch.autograd.grad(outputs.sum(), middle)[0].norm(dim=1)
    return float(sizes.max() / sizes.min())


def _off(folds: Folds, plane: Slice, lines: Folds) -> float:
    """How far the corners of a folded line are from layer 1's lines."""
    return float(planar.distances_to(_corners(folds, plane), lines.ends).max(initial=0.0))


def _check_folding(layers: nn.Sequential, plane: Slice, factors: np.ndarray) -> dict[str, float]:
    """Check random factors of all sigma_1, and one factor at a time."""
    before, changed = partition(layers, plane).folds, adjusted(layers, sigma1=factors)
    after = partition(changed, plane).folds
    turned = _turns(layers, before.of(1, UNIT), after.of(1, UNIT))
    pivots, moved = 0, 0.0
    for unit in range(WIDTHS[0]):
        one = np.where(np.arange(WIDTHS[0]) == unit, 4.0, 1.0)
        folds, line = folded_line(adjusted(layers, sigma1=one), plane), before.of(0, unit)
        corners = [_corners(some, plane) for some in (before.of(1, UNIT), folds)]
        # The folds on the unit's line.
        here, there = (ends[planar.distances_to(ends, line.ends) < TOLERANCE] for ends in corners)
        pivots += len(np.unique(here.round(6), axis=0))
        both = [
            planar.distances_to(here, folds.ends),
            planar.distances_to(there, before.of(1, UNIT).ends),
        ]
        moved = max(moved, float(np.concatenate(both).max(initial=0.0)))
    return {
        "layer1_moved": _gap(before.of(0), after.of(0)),
        "regions": len(turned),
        "turned": int((turned > TOLERANCE).sum()),
        "median_turn": float(np.median(turned)) if len(turned) else 0.0,
        "off_layer1_sigma": _off(after.of(1, UNIT), plane, before.of(0)),
        "pivots": pivots,
        "pivots_moved": moved,
    }


def _check_scale(layers: nn.Sequential, plane: Slice) -> dict[str, float]:
    """Check sigma_2, and a common factor of sigma_1, which divides layer 2's inputs."""
    before = partition(layers, plane).folds
    scaled = partition(adjusted(layers, sigma2=3.0), plane).folds
    mean = float(layers.get_buffer("1.1.running_mean")[UNIT])
    common = folded_line(adjusted(layers, sigma1=2.0), plane)
    shifted = folded_line(adjusted(layers, shift=mean), plane)
    return {"own_sigma": _gap(before.of(1), scaled.of(1)), "common": _gap(common, shifted)}


def picture(seed: int) -> pd.DataFrame:
    """The lines of the three panels and the data; the unit i of panel c has the largest |w_2,k|."""
    points = planar.draw_clusters(seed)
    layers = planar.draw_layers(WIDTHS, "BN", points, seed)
    plane, inputs = planar.square((0.0, 0.0), REACH), feature_slice(layers, points)
    deviation = float(layers.get_buffer("1.1.running_var")[UNIT]) ** 0.5
    unit = int(layers.get_parameter("1.0.weight")[UNIT].abs().argmax())
    with torch.no_grad():
        features = inputs.coordinates(layers[0](torch.from_numpy(points)))
    first = partition(layers, plane).folds.of(0)
    rows = planar.point_rows(features, panel="a")
    for panel in ("b", "c"):
        rows += planar.point_rows(points, panel=panel)
        rows += planar.line_rows(first, panel=panel, role="layer 1")
    rows += planar.line_rows(first.of(0, unit), panel="c", role="varied")
    for shift in SHIFTS:
        moved = adjusted(layers, shift=shift * deviation)
        rows += planar.line_rows(unit_line(moved, inputs), panel="a", role="unit", value=shift)
        rows += planar.line_rows(folded_line(moved, plane), panel="b", role="unit", value=shift)
    for factor in FACTORS:
        one = np.where(np.arange(WIDTHS[0]) == unit, factor, 1.0)
        folded = folded_line(adjusted(layers, sigma1=one), plane)
        rows += planar.line_rows(folded, panel="c", role="unit", value=factor)
    return pd.DataFrame(rows)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per statement."""
    checked = rows[rows["kind"] == "network"]
    largest, total = checked.max(numeric_only=True), checked.sum(numeric_only=True)
    pairs, folds = f"{total['folded_pairs']:.0f} pairs of facets", "all folds"
    turn = f"{checked['median_turn'].median():.2f}, in "
    turn += f"{total['turned']:.0f} of {total['regions']:.0f} regions"

    def worst(column: str) -> str:
        return f"{largest[column]:.0e}"

    hyperplane = "direction of the hyperplane in a slice of layer 2's inputs"
    facets = "direction of a facet within a region of layer 1"
    points = f"{total['pivots']:.0f} points where the line meets the hyperplane of unit i"
    lines = [
        ("μ_2,k", hyperplane, worst("own_turned")),
        ("μ_2,k", "its distance from where Eq. 5 puts it", worst("own_gap")),
        ("μ_2,k", f"{facets}, {pairs}", worst("folded_turned")),
        ("μ_2,k", f"distance of {folds} from layer 1's hyperplanes", worst("off_layer1")),
        ("σ_1, random factors", "layer 1's hyperplanes", worst("layer1_moved")),
        ("σ_1, random factors", f"{facets}, median", turn),
        ("σ_1, random factors", f"distance of {folds} from them", worst("off_layer1_sigma")),
        ("σ_1,i, times 4", points, worst("pivots_moved")),
        ("σ_1, all times 2", "the line, to that of 2 μ_2,k", worst("common")),
        ("σ_2, times 3", "layer 2's folded hyperplanes", worst("own_sigma")),
    ]
    return pd.DataFrame(lines, columns=["varied", "what", "largest change or error"])


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the paper's three panels."""
    import matplotlib

    rows = planar.picture_rows(rows, "panel", "role", "value")
    figure, grid = new_figure(1, 3, (PAGE, 2.95))
    titles = ("(a) layer 2's input space", "(b) input space", "(c) input space")
    shifted, scaled = r"BN's $\mu_{2,k}$ plus … $\sigma_{2,k}$", r"BN's $\sigma_{1,i}$ times …"
    window = planar.square((0.0, 0.0), REACH).window
    for axes, panel, title in zip(grid, "abc", titles, strict=True):
        lines = rows[rows["panel"] == panel]
        planar.draw_lines(axes, lines[lines["role"] == "layer 1"], linewidths=0.5)
        planar.draw_lines(axes, lines[lines["role"] == "varied"], colors="black", linestyles="--")
        values = FACTORS if panel == "c" else SHIFTS
        for value, share in zip(values, np.linspace(0, 0.85, len(values)), strict=True):
            unit = lines[(lines["role"] == "unit") & (lines["value"] == value)]
            style = {"colors": [matplotlib.colormaps["viridis"](share)], "label": f"{value:g}"}
            is_measured = value == (1.0 if panel == "c" else 0.0)
            planar.draw_lines(axes, unit, linewidths=1.8 if is_measured else 1.0, **style)
        planar.draw_points(axes, lines[lines["kind"] == "point"], window)
        axes.set_title(title)
        axes.legend(
            title=scaled if panel == "c" else shifted,
            title_fontsize=7,
            loc="upper center",
            bbox_to_anchor=(0.5, -0.01),
            ncols=len(values),
            handlelength=1.0,
            columnspacing=0.9,
        )
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide what the caption and Appendix C say about mu and sigma."""
    checked = rows[rows["kind"] == "network"]
    largest, total = checked.max(numeric_only=True), checked.sum(numeric_only=True)

    def exact(*columns: str) -> bool:
        return bool((largest[list(columns)] < TOLERANCE).all())

    all_turn = bool(total["turned"] == total["regions"])
    sizes: dict[str, Any] = {"networks": len(checked), "width": WIDTHS[0], "seed": SHOWN}
    sizes |= {"largest": largest, "total": total}
    return {
        "Figure 2(a), (b)": exact("own_turned", "own_gap", "folded_turned", "off_layer1"),
        "Figure 2(c)": exact("off_layer1_sigma", "pivots_moved") and all_turn,
        "Appendix C": exact("layer1_moved", "own_sigma"),
    }, sizes | {"median": checked[["speeds", "median_turn"]].median()}


# The shown seed comes first.
ORDER = {scale: [SHOWN, *({*range(count)} - {SHOWN})] for scale, count in SEEDS.items()}
TASKS = sweep(check, "seed {seed}", {"seed": ORDER})
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=below)
