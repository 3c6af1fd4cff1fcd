"""Proposition 3: does every mini-batch have inputs on both sides of the decision boundary?"""

from __future__ import annotations

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from bnrecon.reporting.figures import PAGE, PALETTE, Figure, draw_legend, new_figure
from bnrecon.reporting.wording import span
from bnrecon.reproduction.parts import Decisions, join, only, part, sweep
from bnrecon.studies.bn_explained import small_networks as small

WIDTHS = {"smoke": (1, 8), "laptop": (1, 2, 4, 16, 64, 256), "paper": (1, 2, 4, 16, 64, 256)}
BATCHES = {"smoke": (2, 8), "laptop": (2, 4, 8, 16, 64), "paper": (2, 4, 8, 16, 64)}
NETWORKS = {"smoke": 10, "laptop": 400, "paper": 2000}
DEPTHS = (2, 4)  # L; the last layer has no normalization
SLOPE = small.SLOPES["leaky ReLU"]


def is_one_sided(outputs: np.ndarray) -> bool:
    """Whether all outputs <w_L, z> of a mini-batch have one sign, so that Proposition 3 fails.

    >>> is_one_sided(np.array([0.1, 2.0])), is_one_sided(np.array([-0.1, 2.0]))
    (True, False)
    """
    return bool((outputs > 0).all() or (outputs < 0).all())


def counterexample() -> pd.DataFrame:
    """One row: mini-batch (1, -1), (-1, 1), W_1 = I, w_2 = (1, 1); all outputs are positive.

    Its mean is 0 and its deviation 1: h is the mini-batch itself.
    """
    points = np.array([[1.0, -1.0], [-1.0, 1.0]])
    h = (points - points.mean(0)) / points.std(0)
    outputs = small.activate(h, SLOPE) @ np.ones(2)
    row = {"kind": "counterexample", "depth": 2, "width": 2, "batch": 2, "networks": 1}
    row |= {"one_sided": int(is_one_sided(outputs)), "smallest_output": float(outputs.min())}
    return pd.DataFrame([row])


def count_one_sided(depth: int, width: int, batch: int, networks: int) -> pd.DataFrame:
    """One row: random networks, each with the statistics of its own mini-batch of digits."""
    images = small.digit_vectors()
    one_sided = 0
    for seed in range(networks):
        generator = np.random.Generator(np.random.Philox(seed))
        points = images[generator.choice(len(images), batch, replace=False)]
        network = small.draw_network(points, (width,) * (depth - 1), SLOPE, generator)
        one_sided += is_one_sided(network(points) @ generator.normal(size=width))
    row = {"kind": "random", "depth": depth, "width": width, "batch": batch}
    return pd.DataFrame([row | {"networks": networks, "one_sided": one_sided}])


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per depth and width, one column per size of the mini-batch."""
    lines = []
    random = rows[rows["kind"] == "random"]
    for (depth, width), group in random.groupby(["depth", "width"], sort=True):
        line = {"layers L": depth, "width": width, "networks": int(group["networks"].iloc[0])}
        for row in group.sort_values("batch").itertuples():
            line[f"one-sided, B = {row.batch}"] = f"{100 * row.one_sided / row.networks:.1f}%"
        lines.append(line)
    for row in rows[rows["kind"] == "counterexample"].itertuples():
        line = {"layers L": row.depth, "width": row.width, "networks": "counterexample"}
        line[f"one-sided, B = {row.batch}"] = "yes" if row.one_sided else "no"
        lines.append(line)
    return pd.DataFrame(lines).fillna("")


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the share of one-sided mini-batches with 95% intervals by size, a panel per depth."""
    figure, panels = new_figure(1, len(DEPTHS), (PAGE, 2.6), sharey=True)
    for depth, axes in zip(DEPTHS, panels, strict=True):
        random = rows[(rows["kind"] == "random") & (rows["depth"] == depth)]
        by_width = random.groupby("width")
        styles = zip(by_width, PALETTE, "os^vDX", strict=False)
        for position, ((width, group), colour, marker) in enumerate(styles):
            share = group["one_sided"] / group["networks"]
            tests = (binomtest(row.one_sided, row.networks) for row in group.itertuples())
            low, high = np.array([test.proportion_ci(method="wilson") for test in tests]).T
            axes.errorbar(
                group["batch"] * 1.06 ** (position - (len(by_width) - 1) / 2),
                100 * share,
                100 * np.array([share - low, high - share]).clip(0),
                fmt=f"{marker}-",
                markersize=3,
                linewidth=0.8,
                color=colour,
                label=f"width {width}",
            )
        axes.set_xscale("log", base=2)
        batches = sorted(random["batch"].unique())
        axes.set_xticks(batches, [f"{batch}" for batch in batches])
        axes.set_yscale("symlog", linthresh=0.2)
        axes.yaxis.set_major_formatter("{x:g}")
        axes.set(ylim=(-0.02, 100), xlabel="size B of the mini-batch", title=f"L = {depth}")
    panels[0].set_ylabel("mini-batches on one side, %")
    draw_legend(figure, 6)
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide Proposition 3, and where it holds."""
    random = rows[rows["kind"] == "random"]
    if random["width"].nunique() < 2:  # too little to decide
        return {}, {}
    wide, narrow = random[random["width"] > 1], random[random["width"] == 1]
    largest = wide[wide["batch"] == wide["batch"].max()]
    example = rows[rows["kind"] == "counterexample"]
    shares = wide[wide["batch"] == wide["batch"].min()].eval("100 * one_sided / networks")
    numbers = {
        "fewest": wide["batch"].min(),
        "most": span(shares, ".0f"),
        "failing": int(wide["one_sided"].sum()),
        "batch": largest["batch"].max(),
        "share": span(largest.eval("100 * one_sided / networks"), ".1f"),
        "single": int(narrow["one_sided"].sum()),
        "narrow": narrow["networks"].sum(),
    }
    failing = numbers["failing"] + example["one_sided"].sum()
    return {
        "Proposition 3": "needs a condition" if failing else True,
        "Proposition 3, repaired": numbers["single"] == 0 if len(narrow) else "undecided",
    }, numbers


NAME = "L = {depth}, width {width}, B = {batch}"
OVER = {"depth": DEPTHS, "width": WIDTHS, "batch": BATCHES}
TASKS = join(
    sweep(counterexample, "counterexample", {}),
    sweep(count_one_sided, NAME, OVER, {"networks": NETWORKS}),
)
UNUSED = ["networks", "one-sided, B = 4", "one-sided, B = 16"]
ROWS, EXCERPT = only("networks", *NETWORKS.values()), only("width", 1, 2, 16, drop=UNUSED)
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=lambda table: EXCERPT(ROWS(table)))
