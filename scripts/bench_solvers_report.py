"""The table and the pictures of what `bench_solvers.py` measured."""

from __future__ import annotations

from pathlib import Path

import bench_rows
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting import figures, tables
from bnrecon.runtime import files

# What the others of a section are compared with.
OURS = {"oversampled": "matrix_free", "square": "refined", "contention": "alone"}
COLUMNS = {
    "section": "{section}",
    "n": "{n}",
    "oversampling": "{reached:.4g}",
    "method": "{method}",
    "seconds": "{seconds:.3g}",
    "times_ours": "{times:.2f}",
    "iterations": "{iterations}",
    "memory": "{memory}",
    "residual": "{residual:.1e}",
    "note": "{note}",
}


def table(rows: list[dict]) -> pd.DataFrame:
    """All rows as one table; ratios are to our solver of the same section and size, if it ran."""
    size = ("section", "width", "oversampling")
    ours = {
        tuple(row[name] for name in size): row.get("seconds")
        for row in rows
        if row["method"] == OURS.get(row["section"])
    }
    lines = []
    for row in rows:
        lines.append(row | {"reached": row["c1"] / row["n"]})
        if "seconds" in row and (reference := ours.get(tuple(row[name] for name in size))):
            lines[-1]["times"] = row["seconds"] / reference
    frame = bench_rows.table(lines, COLUMNS)
    return frame.assign(seconds=frame["seconds"].replace("", "not run"))


def exponent(rows: list[dict], what: str) -> float:
    """Slope of a straight line through the logarithms of the three largest."""
    n, values = (np.log([row[name] for row in rows[-3:]]) for name in ("n", what))
    return float(np.polyfit(n, values, 1)[0])


def draw_frontier(points: list[dict], lu: float) -> Figure:
    """Seconds against oversampling, with the LU beside it; crosses did not reach the tolerance."""
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


def draw_scaling(points: list[dict]) -> Figure:
    """Seconds and memory against n, with the fitted exponents."""
    with figures.style():
        figure, both = figures.new_figure(1, 2, (figures.PAGE, 3.2))
        panels = (("a", "seconds", 1, "seconds"), ("b", "memory", 1e-9, "GB beyond the system"))
        for axes, (letter, what, scale, unit) in zip(both, panels, strict=True):
            axes.set_title(f"({letter})", loc="left")
            n, values = [row["n"] for row in points], [row[what] * scale for row in points]
            label = f"n^{exponent(points, what):.2f} (the three largest)"
            axes.loglog(n, values, "o-", color=figures.PALETTE[0], label=label)
            axes.set_xlabel("equations n")
            axes.set_ylabel(unit)
            axes.legend()
        figure.suptitle(f"matrix_free, oversampling 1.5, to 1e-10, {points[0]['device']}")
    return figure


def report(rows: list[dict], folder: Path) -> str:
    """Write the table and the pictures; return what to print."""
    frame, ran = table(rows), [row for row in rows if "seconds" in row]
    frontier, scaling = (
        [row for row in ran if row["section"] == section] for section in ("frontier", "scaling")
    )
    refined = {row["n"]: row for row in ran if row["method"] == "refined"}
    lines = [tables.markdown(frame), ""]
    for row in ran:
        if "bare" in row:
            lines.append(
                f"{row['method']} takes {row['seconds'] / (row['iterations'] * row['bare']):.2f} "
                f"times the bare {row['arithmetic']} products of its {row['iterations']} "
                f"iterations ({1e3 * row['bare']:.1f} ms a pair, timed right after it)."
            )
    for n, row in refined.items():
        share = row["seconds"] / row["LU seconds"]
        lines.append(f"refined, n = {n:,}: {share:.2f} times its own float32 LU.")
    if frontier and (n := frontier[0]["n"]) in refined:
        lu = refined[n]["seconds"]
        bench_rows.write_figure(folder / "frontier", draw_frontier(frontier, lu))
        reached = [row for row in frontier if row["residual"] <= 1e-10]
        faster = [row["oversampling"] for row in reached if row["seconds"] < lu]
        slower = [row["oversampling"] for row in reached if row["seconds"] >= lu]
        if faster and slower:
            lines.append(
                f"n = {n:,}: matrix_free is faster than the corrected LU ({lu:.0f} s) from an "
                f"oversampling of {min(faster)} on, the LU at {max(slower)} and below."
            )
    if len(scaling) > 2:
        bench_rows.write_figure(folder / "scaling", draw_scaling(scaling))
        lines.append(
            f"Over the three largest sizes, seconds grow as n^{exponent(scaling, 'seconds'):.2f} "
            f"and memory as n^{exponent(scaling, 'memory'):.2f}."
        )
    devices = "; ".join(sorted({f"{row['device']}, torch {row['torch']}" for row in rows}))
    lines += [
        "",
        f"Command: `python scripts/bench_solvers.py`. Device: {devices}. "
        "Memory: peak beyond the system itself (float64 factors).",
        "",
    ]
    files.write_text(folder / "bench.md", "\n".join(lines))
    files.write_text(folder / "bench.csv", tables.csv(frame))
    return "\n".join(lines)
