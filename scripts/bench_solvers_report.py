"""The table and the figure of the measurements of `bench_solvers.py`."""

from __future__ import annotations

from pathlib import Path

from bench_rows import TABLES, cell, write_figure, write_table
from matplotlib.figure import Figure

from bnrecon.reporting import figures

# The method with which a section's others are compared; it is the first of its size.
OURS = {"oversampled": "matrix_free", "square": "refined", "contention": "alone"}


def report(rows: list[dict], folder: Path) -> None:
    """Write the table and the figure, and print the table."""
    ours, ran = {}, [row for row in rows if "seconds" in row]
    for row in rows:
        row["reached"] = row["c1"] / row["n"]
        size = tuple(row[name] for name in ("section", "width", "oversampling"))
        if row["method"] == OURS.get(row["section"]):
            ours[size] = row["seconds"]
        if size in ours and "seconds" in row:
            row["times"] = row["seconds"] / ours[size]
        if "bare" in row:
            row["bare_times"] = row["seconds"] / (row["iterations"] * row["bare"])
            row["bare_milliseconds"] = 1e3 * row["bare"]
    sentences = (cell(row, TABLES["bench"]["sentence"]) for row in rows)
    write_table(folder / "bench.md", rows, comparisons="\n".join(filter(None, sentences)))
    frontier = [row for row in ran if row["section"] == "frontier"]
    refined = {row["n"]: row["seconds"] for row in ran if row["method"] == "refined"}
    if frontier and (lu := refined.get(frontier[0]["n"])):
        write_figure(folder / "frontier", draw_frontier(frontier, lu))


def draw_frontier(points: list[dict], lu: float) -> Figure:
    """Seconds against oversampling, with the LU; crosses did not reach the tolerance."""
    excess = [row["c1"] / row["n"] - 1 for row in points]
    seconds = [row["seconds"] for row in points]
    slower = [row["oversampling"] for row in points if row["seconds"] >= lu]
    crossing = f"; slower than the LU from {max(slower):g} down" if slower else ""
    with figures.style():
        figure, axes = figures.new_figure(size=(figures.PAGE, 4))
        label = "matrix_free, bf16 inside where that suffices"
        axes.loglog(excess, seconds, "o-", color=figures.PALETTE[0], label=label)
        for x, row in zip(excess, points, strict=True):
            if row["residual"] > 1e-10:
                axes.plot(x, row["seconds"], "kx", markersize=10)
        label = "refined: LU in float32 of the first n features, corrected"
        axes.axhline(lu, color=figures.PALETTE[3], label=label)
        axes.set_xticks(excess, [f"{row['oversampling']:g}" for row in points])
        axes.minorticks_off()
        axes.set_xlabel("oversampling c1/n, spaced by the logarithm of c1/n - 1")
        axes.set_ylabel("seconds to a residual of 1e-10")
        axes.set_title(f"n = {points[0]['n']:,}, {points[0]['device']}{crossing}")
        axes.legend(loc="lower left")
    return figure
