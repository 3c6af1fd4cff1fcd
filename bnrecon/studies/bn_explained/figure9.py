"""Figure 9: hyperplanes coloured by their total least squares error."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import kendalltau, spearmanr
from torch import nn

from bnrecon.partition import Folds, partition, set_statistics
from bnrecon.reporting.figures import PAGE, PALETTE, Figure, new_figure
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reporting.wording import span
from bnrecon.reproduction.parts import Decisions, below, part, sweep
from bnrecon.studies.bn_explained import planar

WIDTHS = (16, 16, 16, 16)
POINTS, STEPS, RATE = 100, 300, 0.01
SEEDS = {"smoke": 3, "laptop": 20, "paper": 100}
STATES = ("random weights", "trained")
SHOWN = (1, 4)  # layers of the picture
REACH = 2.0  # of the picture's window, in standard deviations of the data


def draw_moons(seed: int, count: int = POINTS) -> tuple[np.ndarray, np.ndarray]:
    """Two half circles with noise: points (count, 2) of mean 0 and variance 1, and labels 0, 1."""
    generator = np.random.Generator(np.random.Philox(key=(seed, 0)))
    labels = np.arange(count) % 2
    angle = np.pi * (generator.uniform(size=count) + labels)
    points = np.stack([np.cos(angle) + labels, np.sin(angle) + labels / 2], 1)
    points += 0.1 * generator.normal(size=(count, 2))
    return (points - points.mean(0)) / points.std(0), labels


def train(layers: nn.Sequential, points: np.ndarray, labels: np.ndarray, seed: int) -> float:
    """Train the layers' weights with a linear output; return the training accuracy.

    Full-batch Adam on the cross-entropy; gamma = 1 and beta = 0 stay. Afterwards, the statistics
    are those of all points.
    """
    inputs, targets = torch.from_numpy(points), torch.from_numpy(labels).double()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        width = len(layers.get_parameter(f"{len(layers) - 1}.0.weight"))
        output = nn.Linear(width, 1, dtype=torch.float64)
    network = nn.Sequential(layers, output).train()
    optimizer = torch.optim.Adam(network.parameters(), RATE)
    for _ in range(STEPS):
        optimizer.zero_grad()
        outputs = network(inputs)[:, 0]
        nn.functional.binary_cross_entropy_with_logits(outputs, targets).backward()
        optimizer.step()
    set_statistics(network.eval(), inputs)
    with torch.no_grad():
        return float(((network(inputs)[:, 0] > 0) == (targets > 0)).double().mean())


def measure_units(layers: nn.Sequential, points: np.ndarray, folds: Folds) -> pd.DataFrame:
    """One row per unit: its error and the data's mean squared distances to it.

    ``tls``: sigma² / ||w||². ``own``: the distance in the layer's input space to the hyperplane
    (Eq. 7, 8). ``plane``: that in the network's input space to the folded hyperplane (Eq. 12).
    Every folded hyperplane meets the data's convex hull, so a window that extends beyond it by its
    diameter has the nearest point of each.
    """
    rows, features = [], torch.from_numpy(points)
    for index, layer in enumerate(layers):
        mean = layers.get_buffer(f"{index}.1.running_mean")
        variance = layers.get_buffer(f"{index}.1.running_var")
        with torch.no_grad():
            weight = layers.get_parameter(f"{index}.0.weight")
            size = weight.norm(dim=1)
            gaps = ((features @ weight.T - mean) / size).square().mean(0)
            errors = variance / size**2
            features = layer(features)
        for unit in range(len(size)):
            folded = planar.distances_to(points, folds.of(index, unit).ends)
            row = {"layer": index + 1, "unit": unit + 1, "tls": float(errors[unit])}
            row |= {"own": float(gaps[unit]), "plane": float(np.square(folded).mean())}
            rows.append(row)
    return pd.DataFrame(rows)


def _networks(seed: int) -> tuple[np.ndarray, dict[str, nn.Sequential], float]:
    """The data, and a network before and after training with its accuracy."""
    points, labels = draw_moons(seed)
    networks = {state: planar.draw_layers(WIDTHS, "BN", points, seed) for state in STATES}
    return points, networks, train(networks["trained"], points, labels, seed)


def _all_folds(layers: nn.Sequential, points: np.ndarray) -> Folds:
    """Folds in a window that extends beyond the data's hull by its diameter."""
    return partition(layers, planar.square((0.0, 0.0), 5 * np.abs(points).max())).folds


def measure(seed: int) -> pd.DataFrame:
    """One row per layer before and after training; for the first seed, also its ``picture``.

    ``rank``: Spearman's correlation of the units' errors and their distances in the input space.
    ``disordered``: the share of pairs of units that these two order differently.
    ``spread``: the largest over the smallest ratio of distance to error.
    ``eq8``: the largest relative difference of the errors and the distances in the layer's space.
    """
    rows = []
    points, networks, accuracy = _networks(seed)
    for state, layers in networks.items():
        units = measure_units(layers, points, _all_folds(layers, points))
        for layer, group in units.groupby("layer"):
            row = {"kind": "network", "state": state, "seed": seed, "layer": layer}
            row |= {"rank": float(spearmanr(group["tls"], group["plane"]).statistic)}
            concordance = float(kendalltau(group["tls"], group["plane"]).statistic)
            ratios, off = group["plane"] / group["tls"], (group["own"] / group["tls"] - 1).abs()
            row |= {"disordered": (1 - concordance) / 2}
            row |= {"spread": float(ratios.max() / ratios.min()), "eq8": float(off.max())}
            rows.append(row | ({"accuracy": accuracy} if state == "trained" else {}))
    measured = pd.DataFrame(rows)
    return pd.concat([measured, picture(seed)]) if seed == 0 else measured


def picture(seed: int) -> pd.DataFrame:
    """The trained network of one seed: data, lines of two layers, and their units."""
    points, networks, _ = _networks(seed)
    layers = networks["trained"]
    units = measure_units(layers, points, _all_folds(layers, points))
    errors = units.set_index(["layer", "unit"])["tls"]
    folds = partition(layers, planar.square((0.0, 0.0), REACH)).folds
    rows = planar.point_rows(points)
    for layer in SHOWN:
        lines = planar.line_rows(folds.of(layer - 1))
        rows += [line | {"tls": float(errors[layer, line["unit"]])} for line in lines]
    return pd.concat([pd.DataFrame(rows), units[units["layer"].isin(SHOWN)].assign(kind="unit")])


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per layer, before and after training."""
    lines = []
    networks = rows[rows["kind"] == "network"]
    for (state, layer), group in networks.groupby(["state", "layer"], sort=False):
        rank = mean_interval(group["rank"].tolist())
        line = {"weights": state, "layer": f"{layer:.0f}"}
        line["Eq. 8, relative error"] = f"{group['eq8'].max():.0e}"
        line |= {"rank correlation with the distance in the input space": rank}
        line["smallest correlation"] = f"{group['rank'].min():.2f}"
        line["pairs in another order"] = f"{group['disordered'].mean():.0%}"
        lines.append(line | {"spread of the ratio": f"{group['spread'].median():.1f}"})
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the paper's two planes, and the errors against the distances in the input space."""
    import matplotlib
    from matplotlib.colors import ListedColormap

    colours = ListedColormap(matplotlib.colormaps["viridis"](np.linspace(0.15, 0.8, 256)))
    rows = planar.picture_rows(rows, "layer", "tls", "plane")
    figure, grid = new_figure(1, 3, (PAGE, 3.0))
    lines, points, units = (rows[rows["kind"] == kind] for kind in ("line", "point", "unit"))
    scatter = grid[2]
    for axes, layer, mark, colour in zip(grid, SHOWN, "ox", PALETTE, strict=False):
        # The best fitting hyperplanes on top.
        folds = lines[lines["layer"] == layer].sort_values("tls", ascending=False)
        errors = units[units["layer"] == layer]
        style = {"colors": None, "array": folds["tls"], "cmap": colours}
        shown = planar.draw_lines(axes, folds, linewidths=1.0, **style)
        planar.draw_points(axes, points, planar.square((0.0, 0.0), REACH).window)
        axes.set_title("layer 1, hyperplanes" if layer == 1 else f"layer {layer}, folded")
        bar = axes.inset_axes((0, -0.08, 1, 0.04))
        figure.colorbar(shown, cax=bar, orientation="horizontal", label="σ² / ‖w‖²")
        scatter.plot(errors["tls"], errors["plane"], mark, color=colour, label=f"layer {layer}")
    largest = units[["tls", "plane"]].max().max()
    scatter.plot([0, largest], [0, largest], color="0.6", linewidth=0.7, zorder=1)
    scatter.set(xlabel="σ² / ‖w‖²", ylabel="mean squared distance, input space", box_aspect=1)
    scatter.set_title("units of both layers")
    scatter.legend()
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Does sigma² / ||w||² measure how well hyperplanes fit the data?"""
    networks = rows[rows["kind"] == "network"]
    deep = networks[networks["layer"] > 1].groupby(["layer", "state"], sort=False)
    ranks = [mean_interval(group["rank"].tolist()) for _, group in deep]
    disordered = deep["disordered"].mean()
    numbers: dict[str, Any] = {"width": WIDTHS[0], "points": POINTS, "steps": STEPS, "rate": RATE}
    numbers |= {"accuracy": networks["accuracy"].mean(), "seeds": networks["seed"].nunique()}
    numbers |= {"worst": networks["eq8"].max(), "ranks": span([r.mean for r in ranks], ".2f")}
    numbers |= {"disordered": [disordered.min(), disordered.max()]}
    closer = bool(ranks) and all(rank.sign > 0 for rank in ranks)
    return {
        "Eq. 8, Figure 9": bool(numbers["worst"] < 1e-9),
        "deeper": closer or "undecided",
        "proportional": bool(networks["spread"].max() < 1 + 1e-9) or "needs a condition",
    }, numbers


TASKS = sweep(measure, "seed {seed}", {"seed": SEEDS})
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=below)
