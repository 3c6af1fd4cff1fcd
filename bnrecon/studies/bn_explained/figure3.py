"""Figure 3: how many folded hyperplanes pass near each point of the plane and the data."""

from __future__ import annotations

import itertools
from functools import partial

import numpy as np
import pandas as pd
import torch

from bnrecon.partition import counting, partition
from bnrecon.reporting.figures import PAGE, Figure, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reporting.wording import span, spell
from bnrecon.reproduction import intervals
from bnrecon.reproduction.parts import Decisions, join, merge, only, part, read_text, sweep
from bnrecon.studies.bn_explained.planar import SETTINGS, draw_layers, square

TEXT = read_text(__file__)
CENTRE = (1.0, 1.0)  # off the origin, where all folded hyperplanes of zero bias meet
REACH = 2.5  # the window is [-REACH, REACH]²
INNER = (3 - 5**0.5) / 2  # radius of the inner corners: the sides of a pentagram
DEPTH = 11
LAYERS = (1, 7, 11)
RADIUS = 0.1
RIM = 2.0  # window points beyond it are on the rim, which the star does not reach
SAMPLES = 256  # per ball, for the paper's count
EXCESS = 1.25  # a smaller ratio of counts is no focus
Ratios = list[Interval | None]
_shown = partial(spell, absent="none counted")
WIDTH = {"smoke": 64, "laptop": 1024, "paper": 1024}
EXACT_WIDTH = {"smoke": 6, "laptop": 32, "paper": 32}  # the exact partition is feasible
SEEDS = {"smoke": 2, "laptop": 5, "paper": 20}
SIDE = {"smoke": 8, "laptop": 64, "paper": 128}
CHECKED = {"smoke": 10, "laptop": 60, "paper": 200}  # points at which the counts are compared


def draw_star(seed: int, count: int = 50) -> np.ndarray:
    """Points (count, 2), uniform on the outline of a pentagram of radius 1 around ``CENTRE``.

    >>> bool((np.linalg.norm(draw_star(0) - CENTRE, axis=1) <= 1).all())
    True
    """
    corner = np.arange(11)
    radius = np.where(corner % 2, INNER, 1.0)
    angle = np.pi * (0.5 + corner / 5)
    corners = np.stack([radius * np.cos(angle), radius * np.sin(angle)], 1)
    generator = np.random.Generator(np.random.Philox(key=(seed, 2)))
    position = generator.uniform(0, 10, count)
    side = position.astype(int)
    along = (position - side)[:, None]
    return CENTRE + (1 - along) * corners[side] + along * corners[side + 1]


def turned(points: np.ndarray) -> np.ndarray:
    """Points (n, 2) turned about the origin by 90, 180 and 270 degrees: (3 n, 2).

    If the law of a network's weights and biases is invariant under rotations and the network does
    not know the points, as many folded hyperplanes pass near these as near the points, on average.
    """
    quarter = np.array([[0.0, 1.0], [-1.0, 0.0]])
    return np.concatenate([points @ np.linalg.matrix_power(quarter, k) for k in (1, 2, 3)])


def grid(side: int) -> np.ndarray:
    """Centres (side², 2) of the window's cells, row by row from below."""
    line = REACH * ((2 * np.arange(side) + 1) / side - 1)
    return np.stack(np.meshgrid(line, line), -1).reshape(-1, 2)


def _draw(width: int, setting: str, seed: int) -> torch.nn.Module:
    return draw_layers((width,) * DEPTH, setting, draw_star(seed), seed)


def _count(network: torch.nn.Module, points: np.ndarray) -> np.ndarray:
    """Counts by the local affine map at ``LAYERS``: (n, 3)."""
    counts = counting.count_by_local_map(network, torch.from_numpy(points), RADIUS)
    return counts[:, [layer - 1 for layer in LAYERS]]


def count_on_grid(setting: str, width: int, side: int, seed: int = 0) -> pd.DataFrame:
    """One row per cell of the window (kind ``map``), and one per point of the star (``star``)."""
    cells = pd.DataFrame(grid(side), columns=["x", "y"]).round(4)
    counts = _count(_draw(width, setting, seed), grid(side))
    for layer, of_layer in zip(LAYERS, counts.T, strict=True):
        cells[f"layer_{layer}"] = of_layer
    star = pd.DataFrame(draw_star(seed), columns=["x", "y"])
    return pd.concat([cells.assign(kind="map"), star.assign(kind="star")]).assign(setting=setting)


def count_at_star(width: int, side: int, seed: int) -> pd.DataFrame:
    """One row per setting and layer: mean counts.

    ``data``: at the star. ``turned``: at the star turned about the origin by 90, 180, 270 degrees.
    ``window``: over the window. ``rim``: over its rim. ``origin``: at the origin.
    """
    star, cells = draw_star(seed), grid(side)
    rim = np.abs(cells).max(1) > RIM
    rows = []
    for setting in SETTINGS:
        network = _draw(width, setting, seed)
        window = _count(network, cells)
        counts = {
            "data": _count(network, star).mean(0),
            "turned": _count(network, turned(star)).mean(0),
            "window": window.mean(0),
            "rim": window[rim].mean(0),
            "origin": _count(network, np.zeros((1, 2)))[0],
        }
        for index, layer in enumerate(LAYERS):
            row = {"kind": "counts", "setting": setting, "seed": seed, "layer": layer}
            row |= {"width": width, "side": side}
            rows.append(row | {name: float(value[index]) for name, value in counts.items()})
    return pd.DataFrame(rows)


def compare_counts(width: int, exact: bool, points: int) -> pd.DataFrame:
    """One row per setting and layer: counts summed over points, half on the star, half anywhere.

    ``local``: by the local affine map. ``sampled``: units that change sign among samples of the
    ball, as in the paper. ``expected``: what sampling would find if the ball were not folded.
    ``units``, ``facets``: of the exact partition. ``deviation``: sum of absolute differences of
    ``local`` to ``units``, or to ``sampled``.
    """
    generator = np.random.Generator(np.random.Philox(key=(0, 3)))
    anywhere = generator.uniform(-REACH, REACH, (points - points // 2, 2))
    around = np.concatenate([draw_star(0)[: points // 2], anywhere])
    inputs = torch.from_numpy(around)
    rows = []
    for setting in SETTINGS:
        network = _draw(width, setting, 0)
        distances = counting.fold_distances(network, inputs)
        sampled = counting.count_by_sampling(network, inputs, RADIUS, samples=SAMPLES)
        folds = partition(network, square((0, 0), REACH + RADIUS)).folds if exact else None
        for layer in LAYERS:
            near = distances[layer - 1].numpy()
            local = (near <= RADIUS).sum(1)
            seen = sampled[:, layer - 1]
            row = {"kind": "comparison", "setting": setting, "layer": layer, "width": width}
            row |= {"points": len(around), "local": int(local.sum()), "sampled": int(seen.sum())}
            row["expected"] = float(counting.detection_probability(near, RADIUS, 2, SAMPLES).sum())
            if folds is not None:
                of_layer = folds.of(layer - 1)
                seen = counting.count_in_slice(of_layer, around, RADIUS)
                facets = counting.count_in_slice(of_layer, around, RADIUS, facets=True)
                row |= {"units": int(seen.sum()), "facets": int(facets.sum())}
            rows.append(row | {"deviation": int(np.abs(local - seen).sum())})
    return pd.DataFrame(rows)


SIZE = {"width": WIDTH, "side": SIDE}
COMPARISON = "comparison, width {width}"
BOTH = {scale: ((WIDTH[scale], False), (EXACT_WIDTH[scale], True)) for scale in WIDTH}
TASKS = join(
    sweep(count_on_grid, "map, {setting}", {"setting": SETTINGS}, SIZE),
    sweep(count_at_star, "star, seed {seed}", {"seed": SEEDS}, SIZE),
    sweep(compare_counts, COMPARISON, {("width", "exact"): BOTH}, {"points": CHECKED}),
)


def _select(rows: pd.DataFrame, kind: str, setting: str, layer: int) -> pd.DataFrame:
    rows = rows[(rows["kind"] == kind) & (rows["setting"] == setting)]
    return rows[rows["layer"] == layer] if len(rows) else rows


def _ratio(counts: pd.DataFrame, above: str, below: str) -> Interval | None:
    """The ratio of two mean counts, paired by seed; ``None`` if nothing was counted below.

    The interval is that of r + (a - r b) / mean(b), linearized at the ratio r of the means.
    """
    if counts[below].sum() == 0:
        return None
    ratio = counts[above].sum() / counts[below].sum()
    rests = (counts[above] - ratio * counts[below]) / counts[below].mean()
    return mean_interval(list(ratio + rests))


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per setting and layer."""
    lines = []
    for setting, layer in itertools.product(SETTINGS, LAYERS):
        line = {"setting": setting, "layer": layer}
        counts = _select(rows, "counts", setting, layer)
        if not counts.empty:
            line["mean count"] = f"{counts['window'].mean():.1f}"
            line["at the data, to mean"] = _shown(_ratio(counts, "data", "window"))
            line["at the data, to rotated data"] = _shown(_ratio(counts, "data", "turned"))
            line["on the rim, to mean"] = _shown(_ratio(counts, "rim", "window"))
        for row in _select(rows, "comparison", setting, layer).to_dict("records"):
            local, width = row["local"], f"width {int(row['width'])}"
            line[f"local map to sampled, {width}"] = _quotient(local, row["sampled"])
            if row.get("units", np.nan) >= 0:
                line[f"local map to exact, {width}"] = _quotient(local, row["units"])
                line[f"facets a unit, {width}"] = _quotient(row["facets"], row["units"])
        lines.append(line)
    return pd.DataFrame(lines).fillna("")


def _quotient(above: float, below: float) -> str:
    return f"{above / below:.2f}" if below else f"{above:g} to 0" if above else "none"


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the paper's panels: the data, and a row of maps per setting."""
    figure, axes = new_figure(3, 4, (PAGE, 5.4), squeeze=False)
    drawn = rows.reindex(columns=["kind", "setting", "x", "y", *(f"layer_{n}" for n in LAYERS)])
    maps, star = (drawn[drawn["kind"] == kind] for kind in ("map", "star"))
    star = star.drop_duplicates(["x", "y"])  # the same in every setting
    for axis, setting, line in zip(axes[:, 0], SETTINGS, axes[:, 1:], strict=True):
        axis.plot(star["x"], star["y"], "k.", markersize=2)
        axis.set_ylabel(setting)
        for panel, layer in zip(line, LAYERS, strict=True):
            cells = maps[maps["setting"] == setting].sort_values(["y", "x"])
            side = round(len(cells) ** 0.5)
            if side:
                counts = cells[f"layer_{layer}"].to_numpy(float).reshape(side, side)
                extent = (-REACH, REACH, -REACH, REACH)
                panel.imshow(np.log1p(counts), extent=extent, origin="lower", cmap="Blues")
                panel.set_title(f"{counts.min():.0f} to {counts.max():.0f}", loc="right", pad=2)
    for panel in axes.flat:
        panel.set(xlim=(-REACH, REACH), ylim=(-REACH, REACH), xticks=[], yticks=[], aspect="equal")
        panel.grid(False)
        panel.spines[["top", "right"]].set_visible(True)
    for panel, title in zip(axes[-1], ("data", *(f"layer {n}" for n in LAYERS)), strict=True):
        panel.set_xlabel(title)
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide the three conclusions of Section 3.3, and check the count."""
    counts, compared = (rows[rows["kind"] == kind] for kind in ("counts", "comparison"))
    finished = ((_conclude, counts), (_compare_ways, compared))
    width = f", width {int(counts['width'].iloc[0])}" if len(counts) else ""
    size = {"depth": DEPTH, "width": width, "radius": RADIUS, "reach": REACH}
    size |= {"excess": EXCESS, "limit": RIM, "samples": SAMPLES, "exact": ""}
    return merge(({}, size), *(conclude(some) for conclude, some in finished if len(some)))


def _conclude(rows: pd.DataFrame) -> Decisions:
    zero, random, norm = SETTINGS

    def all_layers(setting: str, above: str, below: str) -> Ratios:
        layers = [_select(rows, "counts", setting, layer) for layer in LAYERS]
        return [_ratio(group, above, below) for group in layers]

    focus = {setting: all_layers(setting, "data", "turned") for setting in (zero, norm)}
    counts = rows.set_index(["setting", "layer"])
    through, units = counts.loc[[zero], "origin"].min(), counts["width"].iloc[0]
    central = intervals.decide(one and EXCESS - one for one in focus[zero])
    rim = [gain for layer in LAYERS for gain in _more_on_rim(rows, layer)]
    others = [*all_layers(zero, "rim", "window"), *all_layers(norm, "rim", "window")]
    return {
        "Figure 3, (i)": intervals.decide(one and one - EXCESS for one in focus[norm]),
        "Figure 3, (ii)": intervals.decide(rim),
        "Figure 3, (iii)": "contradicted" if through < units else central,
    }, {
        "focus": {setting: _list(ratios) for setting, ratios in focus.items()},
        "rim": _list(all_layers(random, "rim", "window")),
        "others": span((one.mean for one in others if one), ".2f", absent="none counted"),
        "through": through,
        "units": units,
    }


def _more_on_rim(rows: pd.DataFrame, layer: int) -> Ratios:
    """The rim's count over the mean with random bias, minus the others', paired by seed."""
    counts = rows[(rows["kind"] == "counts") & (rows["layer"] == layer)].set_index("seed")
    if (counts["window"] == 0).any():
        return [None]
    share = counts["rim"] / counts["window"]
    zero, random, norm = (share[counts["setting"] == setting] for setting in SETTINGS)
    return [mean_interval(list(random - other)) for other in (zero, norm)]


def _compare_ways(compared: pd.DataFrame) -> Decisions:
    """Compare sampling the ball with the local map, and that with the exact partition."""
    wide = compared[compared["width"] == compared["width"].max()]
    share = wide["sampled"].sum() / wide["local"].sum()
    exact = ""
    small = compared.dropna(subset=["units"]) if "units" in compared else compared[:0]
    if len(small):
        units, last = small["units"].sum(), small[small["layer"] == LAYERS[-1]]
        norm = last[last["setting"] == SETTINGS[-1]]
        exact = " " + TEXT.sentence(
            "exact partition",
            width=int(small["width"].iloc[0]),
            share=100 * small["local"].sum() / units,
            facets=norm["facets"].sum() / norm["units"].sum(),
            layer=LAYERS[-1],
            off=100 * small["deviation"].sum() / units,
        )
    numbers = {"samples": SAMPLES, "share": 100 * share, "exact": exact}
    return {"Sect. 3.3, counting in 2D": bool(share > 0.9)}, numbers


def _list(ratios: Ratios) -> str:
    shown = ", ".join(_shown(ratio).partition(" (")[0] for ratio in ratios)
    return shown + "".join(f" (n={ratio.n})" for ratio in ratios[:1] if ratio)


ENDS = only("layer", LAYERS[0], LAYERS[-1], drop=["mean count", "at the data, to mean"])
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=lambda table: ENDS(table.iloc[:, :6]))
