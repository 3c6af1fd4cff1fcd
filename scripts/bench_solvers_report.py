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
    ours = {
        (row["section"], row["width"], row["oversampling"]): row["seconds"]
        for row in rows
        if row["method"] == OURS.get(row["section"]) and "seconds" in row
    }
    lines = []
    for row in rows:
        lines.append(row | {"reached": row["c1"] / row["n"]})
        reference = ours.get((row["section"], row["width"], row["oversampling"]))
        if "seconds" in row and reference is not None:
            lines[-1]["times"] = row["seconds"] / reference
    frame = bench_rows.table(lines, COLUMNS)
    return frame.assign(seconds=frame["seconds"].replace("", "not run"))


def measured(rows: list[dict], section: str) -> list[dict]:
    """The rows of a section that were run."""
    return [row for row in rows if row["section"] == section and "seconds" in row]


def corrected_lu(rows: list[dict], n: int) -> float | None:
    """Seconds of the corrected LU of a size."""
    square = (r for r in measured(rows, "square") if r["method"] == "refined" and r["n"] == n)
    return next((row["seconds"] for row in square), None)


def exponent(points: list[tuple[float, float]]) -> float:
    """Slope of a straight line through the logarithms of the three largest."""
    x, y = np.log(np.array(points[-3:])).T
    return float(np.polyfit(x, y, 1)[0])


def takeover(points: list[dict], lu: float) -> tuple[list[float], list[float]]:
    """At which oversampling of the frontier the iterations are faster than the LU, and slower."""
    return (
        [row["oversampling"] for row in points if row["seconds"] < lu],
        [row["oversampling"] for row in points if row["seconds"] >= lu],
    )


def draw_frontier(points: list[dict], lu: float) -> Figure:
    """Seconds against oversampling, with the LU beside it; crosses did not reach the tolerance."""
    excess = [row["c1"] / row["n"] - 1 for row in points]
    slower = takeover(points, lu)[1]
    crossing = f"; slower than the LU from {max(slower):g} down" if slower else ""
    with figures.style():
        figure, axes = figures.new_figure(size=(figures.PAGE, 4))
        label = "matrix_free, bf16 inside where that suffices"
        seconds = [row["seconds"] for row in points]
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
            pairs = [(row["n"], row[what] * scale) for row in points]
            label = f"n^{exponent(pairs):.2f} (the three largest)"
            axes.loglog(*zip(*pairs, strict=True), "o-", color=figures.PALETTE[0], label=label)
            axes.set_xlabel("equations n")
            axes.set_ylabel(unit)
            axes.legend()
        figure.suptitle(f"matrix_free, oversampling 1.5, to 1e-10, {points[0]['device']}")
    return figure


def report(rows: list[dict], folder: Path) -> str:
    """Write the table and the pictures; return what to print."""
    frame, pictures = table(rows), {}
    lines = [tables.markdown(frame), ""]
    for row in rows:
        if "bare" in row:
            share = row["seconds"] / (row["iterations"] * row["bare"])
            lines.append(
                f"{row['method']} takes {share:.2f} times the bare {row['arithmetic']} products of "
                f"its {row['iterations']} iterations "
                f"({1e3 * row['bare']:.1f} ms a pair, timed right after it)."
            )
        if "LU seconds" in row and row["method"] == "refined":
            share = row["seconds"] / row["LU seconds"]
            lines.append(f"refined, n = {row['n']:,}: {share:.2f} times its own float32 LU.")
    frontier, scaling = measured(rows, "frontier"), measured(rows, "scaling")
    lu = corrected_lu(rows, frontier[0]["n"]) if frontier else None
    if lu is not None:
        pictures["frontier"] = draw_frontier(frontier, lu)
        faster, slower = takeover([row for row in frontier if row["residual"] <= 1e-10], lu)
        if faster and slower:
            lines.append(
                f"n = {frontier[0]['n']:,}: matrix_free is faster than the corrected LU "
                f"({lu:.0f} s) from an oversampling of {min(faster)} on, the LU at {max(slower)} "
                "and below."
            )
    if len(scaling) > 2:
        pictures["scaling"] = draw_scaling(scaling)
        seconds, memory = (
            exponent([(row["n"], row[what]) for row in scaling]) for what in ("seconds", "memory")
        )
        lines.append(
            f"Over the three largest sizes, seconds grow as n^{seconds:.2f} and memory as "
            f"n^{memory:.2f}."
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
    for name, figure in pictures.items():
        for kind in ("png", "svg"):
            files.write_bytes(folder / f"{name}.{kind}", figures.image(figure, kind))
    return "\n".join(lines)
