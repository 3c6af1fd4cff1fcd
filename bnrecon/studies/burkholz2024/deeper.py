"""Deeper sources: draws rebuilt against the total width (Burkholz 2024, Theorem 2.5)."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import pandas as pd
import torch

from bnrecon.construction import deep
from bnrecon.reporting.figures import PAGE, PALETTE, Figure, legend_entries, new_figure
from bnrecon.reproduction.parts import Decisions, part, read_text, sweep
from bnrecon.studies.burkholz2024.thresholds import count_rebuilt, draw_shares

SUCCESS = 1e-8  # relative error up to which a target counts as rebuilt
BEYOND = (-1, 0, 1, 2, 4, 8)  # total width minus n + L - 1

NARROW = {"": "", "first": ", c_1 < c0 k²", "last": ", c_(L-1) = c0 < c2"}


@dataclass(frozen=True)
class Setting:
    """A target layer and the depth of its source."""

    outputs: int  # c2 of the target
    inputs: int  # c0 of the target
    taps: int  # k² of its kernel
    layers: int  # L, the depth of the source
    # A counterexample within the theorem's (i) to (iii): "first" lets c_1 fall below c0 k², "last"
    # gives the last hidden layer c0 channels, fewer than c2.
    narrow: str = ""

    @property
    def name(self) -> str:
        """The name in tables."""
        side = round(self.taps**0.5)
        kind = "linear" if self.taps == 1 else f"{side}x{side} kernel first"
        return f"{self.outputs}x{self.inputs}, {kind}{NARROW[self.narrow]}"

    @property
    def equations(self) -> int:
        """The equations, n = c2 c0 k²."""
        return self.outputs * self.inputs * self.taps

    def widths(self, beyond: int) -> tuple[int, ...]:
        """The layers' widths, which sum to n + L - 1 + ``beyond``."""
        total = deep.least_total_width(self.equations, self.layers) + beyond
        fan_in = self.inputs * self.taps
        if self.narrow == "last":
            rest = total - self.outputs
            hidden = deep.balanced_widths(rest, self.inputs, self.layers - 1, fan_in)
            return (*hidden, self.outputs)
        return deep.balanced_widths(total, self.outputs, self.layers, 1 if self.narrow else fan_in)


SETTINGS = (
    *(Setting(4, 4, 1, layers) for layers in (2, 3, 4)),
    *(Setting(3, 2, 9, layers) for layers in (2, 3, 4)),
    *(Setting(4, 3, 9, layers) for layers in (2, 3, 4)),
    Setting(2, 2, 9, 4),
    Setting(2, 2, 9, 4, narrow="first"),
    Setting(10, 3, 1, 3),
    Setting(10, 3, 1, 3, narrow="last"),
)
DRAWS = {"smoke": 2, "laptop": 20, "paper": 100}
STARTS = 8  # search starts per draw
COLOURS = dict(zip((2, 3, 4), PALETTE, strict=False))
MARKERS = {2: "o", 3: "s", 4: "^"}
TEXT = read_text(__file__)


def rates(setting: dict[str, Any], draws: int) -> pd.DataFrame:
    """The share of draws rebuilt by ``solve_deep``, one row per total width around n + L - 1.

    ``setting`` has the fields of ``Setting``, ``draws`` are targets and sources per total width;
    ``low`` and ``high`` are the exact 95% interval of the share.
    """
    layer, rows = Setting(**setting), []
    for beyond in BEYOND:
        widths = layer.widths(beyond)
        if min(widths) < min(layer.outputs, layer.inputs * layer.taps):
            continue  # the product has a lower rank than the target
        errors = [_error(layer, widths, seed) for seed in range(draws)]
        row = {"target": layer.name, "layers": layer.layers, "n": layer.equations}
        row |= {"widths": ", ".join(map(str, widths)), "beyond": beyond}
        weights = deep.draw_deep(layer.inputs, layer.taps, widths, 0)
        row["reachable_dimensions"] = deep.generic_rank(weights)
        rows.append(row | count_rebuilt(errors, SUCCESS) | {"starts": STARTS})
    return pd.DataFrame(rows)


def _error(setting: Setting, widths: tuple[int, ...], seed: int) -> float:
    """One draw's relative error, the best of all starts."""
    generator = torch.Generator().manual_seed(10_000 + seed)
    shape = (setting.outputs, setting.inputs * setting.taps)
    target = torch.randn(shape, generator=generator, dtype=torch.float64)
    weights = deep.draw_deep(setting.inputs, setting.taps, widths, seed)
    return deep.solve_deep(target, weights, STARTS, seed=seed).relative_error


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per target and depth: draws rebuilt, and the dimensions reachable at n + L."""
    lines = []
    for (target, layers), group in rows.groupby(["target", "layers"], sort=False):
        line = {"target": target, "L": layers, "n": int(group["n"].iloc[0])}
        at = group[group["beyond"] == 1].iloc[0]
        line["widths at n + L"] = at["widths"]
        line["reachable dimensions at n + L"] = f"{at['reachable_dimensions']} of {at['n']}"
        for beyond in BEYOND:
            counts = group.loc[group["beyond"] == beyond, ["rebuilt", "draws"]].to_numpy()
            offset = f" + L {'-' if beyond < 1 else '+'} {abs(beyond - 1)}".replace(" + 0", "")
            line[f"n{offset}"] = "{} of {}".format(*counts[0]) if len(counts) else ""
        lines.append(line)
    return pd.DataFrame(lines)


def excerpt(table: pd.DataFrame) -> pd.DataFrame:
    """The theorem's case: draws at n + L, for each target's deepest sources."""
    table = table[table["L"] == table.groupby("target")["L"].transform("max")]
    table = table[["target", "L", "n", "reachable dimensions at n + L", "n + L"]]
    return table.rename(columns={"n + L": "rebuilt at n + L"})


def _describe(rows: pd.DataFrame) -> str:
    """Describe what rows at total width n + L say about the theorem, and the search's failures."""
    notes = []
    # Where Theorem 2.2 gives the solution: two layers, total n + 1.
    two = rows[(rows["layers"] == 2) & (rows["beyond"] == 0)]
    draws, failures = int(two["draws"].sum()), int((two["draws"] - two["rebuilt"]).sum())
    if failures:
        notes.append(TEXT.sentence("failing search", failures=failures, draws=draws))
    at = rows[rows["beyond"] == 1]
    full = at[at["reachable_dimensions"] >= at["n"]]
    few = full[full["rebuilt"] < full["draws"] / 2]
    if not few.empty:
        notes.append(TEXT.sentence("open settings", names=_names(few)))
    if not (counterexamples := _counterexamples(rows)).empty:
        notes.append(TEXT.sentence("counterexamples", names=_names(counterexamples)))
    return "".join(f" {note}" for note in notes)


def _names(rows: pd.DataFrame) -> str:
    names = rows["target"] + " (L = " + rows["layers"].astype(str) + ")"
    return "; ".join(names.drop_duplicates())


def _counterexamples(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows at total width n + L that cannot reach n dimensions, and rebuild no draw."""
    at = rows[rows["beyond"] == 1]
    return at[(at["reachable_dimensions"] < at["n"]) & (at["rebuilt"] == 0)]


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide the theorem at its total width."""
    at, refuting = rows[rows["beyond"] == 1], _counterexamples(rows)
    most = int((at["rebuilt"] > at["draws"] / 2).sum())
    pairs = zip(refuting["reachable_dimensions"], refuting["n"], strict=True)
    reached = " and ".join("{} of {}".format(*pair) for pair in pairs)
    note = TEXT.sentence("refuted", settings=len(refuting), reached=reached)
    verdict = "confirmed" if 0 < most == len(at) else "undecided"
    numbers = {"notes": _describe(rows), "most": most, "settings": len(at)}
    numbers |= {"counterexamples": "none" if refuting.empty else note}
    return {"Theorem 2.5": verdict if refuting.empty else "false as stated"}, numbers


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the share of draws rebuilt against total width, a panel per target, a line per depth."""
    names = list(dict.fromkeys(rows["target"]))
    columns = -(-len(names) // 2)
    figure, grid = new_figure(2, columns, (PAGE, 3.8), sharex=True, sharey=True, squeeze=False)
    for axes in grid.flat[len(names) :]:
        axes.set_visible(False)
    for letter, axes, name in zip("abcdefgh", grid.flat, names, strict=False):
        for layers, points in rows[rows["target"] == name].groupby("layers"):
            style: dict[str, Any] = {"marker": MARKERS.get(layers), "color": COLOURS.get(layers)}
            style |= {"markersize": 3, "linewidth": 1, "label": f"L = {layers}"}
            positions = points["beyond"] - 1 + 0.15 * (layers - 3)  # side by side where they agree
            draw_shares(axes, positions, points, **style)
        title = name.replace(", ", ",\n")
        axes.set_title(f"({letter}) {title}")
        axes.axvline(0, color="grey", linewidth=1, linestyle=":")
        axes.tick_params(labelbottom=True)
    for axes in grid.flat[max(0, len(names) - columns) : len(names)]:
        axes.set_xlabel("Σ c_l - (n + L)")
    for row in grid:
        row[0].set_ylabel("share of draws rebuilt")
    labels, handles = zip(*sorted(legend_entries(figure.axes).items()), strict=True)
    draws = " or ".join(map(str, sorted(set(rows["draws"]))))
    figure.legend(
        handles,
        labels,
        title=f"{draws} draws a point,\n95% intervals; dotted:\nn + L (Theorem 2.5)",
        loc="lower right",
    )
    return figure


NAMED = [(dataclasses.asdict(setting), setting.name, setting.layers) for setting in SETTINGS]
OVER = {("setting", "_name", "_layers"): NAMED}
TASKS = sweep(rates, "{_name}, L = {_layers}", OVER, {"draws": DRAWS})
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=excerpt)
