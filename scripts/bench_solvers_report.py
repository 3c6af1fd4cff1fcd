"""The table and the pictures of what `bench_solvers.py` measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting import figures, tables
from bnrecon.runtime import files
from bnrecon.runtime.units import format_bytes

# What the others of a section are compared with.
OURS = {"oversampled": "matrix_free", "square": "refined", "contention": "alone"}


def table(rows: list[dict]) -> pd.DataFrame:
    """All rows as one table; ratios are to our solver of the same section and size, if it ran."""
    ours = {
        (row["section"], row["width"], row["oversampling"]): row["seconds"]
        for row in rows
        if row["method"] == OURS.get(row["section"]) and "seconds" in row
    }
    lines = []
    for row in rows:
        reference = ours.get((row["section"], row["width"], row["oversampling"]))
        ratio = "seconds" in row and reference is not None
        lines.append(
            {
                "section": row["section"],
                "n": row.get("n", ""),
                "oversampling": f"{row['c1'] / row['n']:.4g}" if "c1" in row else "",
                "method": row["method"],
                "seconds": f"{row['seconds']:.3g}" if "seconds" in row else "not run",
                "times_ours": f"{row['seconds'] / reference:.2f}" if ratio else "",
                "iterations": row.get("iterations", ""),
                "memory": format_bytes(row["memory"]) if "memory" in row else "",
                "residual": f"{row['residual']:.1e}" if "residual" in row else "",
                "note": row.get("note", ""),
            }
        )
    return pd.DataFrame(lines)


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


def takeover(rows: list[dict]) -> list[str]:
    """From which oversampling of the frontier on the iterations are faster than the LU."""
    points = [row for row in measured(rows, "frontier") if row["residual"] <= 1e-10]
    lu = corrected_lu(rows, points[0]["n"]) if points else None
    if lu is None or not any(row["seconds"] < lu for row in points):
        return []
    faster = min(row["oversampling"] for row in points if row["seconds"] < lu)
    slower = [row["oversampling"] for row in points if row["seconds"] >= lu]
    below = f"the LU at {max(slower)} and below." if slower else "the lowest that was tried."
    return [
        f"n = {points[0]['n']:,}: matrix_free is faster than the corrected LU ({lu:.0f} s) from an "
        f"oversampling of {faster} on, {below}"
    ]


def frontier_picture(rows: list[dict]) -> Figure | None:
    """Seconds against oversampling, with the LU beside it; crosses did not reach the tolerance."""
    points = measured(rows, "frontier")
    if not points:
        return None
    excess, size = [row["c1"] / row["n"] - 1 for row in points], points[0]["n"]
    lu = corrected_lu(rows, size)
    with figures.style():
        figure, axes = figures.new_figure(size=(figures.PAGE, 4))
        label = "matrix_free, bf16 inside where that suffices"
        seconds = [row["seconds"] for row in points]
        axes.loglog(excess, seconds, "o-", color=figures.PALETTE[0], label=label)
        for x, row in zip(excess, points, strict=True):
            if row["residual"] > 1e-10:
                axes.plot(x, row["seconds"], "kx", markersize=10)
        crossing = ""
        if lu is not None:
            label = "refined: LU in float32 of the first n features, corrected"
            axes.axhline(lu, color=figures.PALETTE[3], label=label)
            slower = [row["oversampling"] for row in points if row["seconds"] > lu]
            least = min(row["oversampling"] for row in points)
            crossing = f"; faster than the LU down to {least:g}, the smallest that was tried"
            if slower:
                crossing = f"; slower than the LU from {max(slower):g} down"
        axes.set_xticks(excess, [f"{row['oversampling']:g}" for row in points])
        axes.minorticks_off()
        axes.set_xlabel("oversampling c1/n, spaced by the logarithm of c1/n - 1")
        axes.set_ylabel("seconds to a residual of 1e-10")
        axes.set_title(f"n = {size:,}, {points[0]['device']}{crossing}")
        axes.legend(loc="lower left")
    return figure


def scaling_picture(rows: list[dict]) -> Figure | None:
    """Seconds and memory against n, with the fitted exponents."""
    points = measured(rows, "scaling")
    if len(points) < 2:
        return None
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


def report(rows: list[dict], folder: Path, command: str) -> str:
    """Write the table and the pictures; return what to print."""
    frame = table(rows)
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
    lines += takeover(rows)
    scaling = measured(rows, "scaling")
    if len(scaling) > 2:
        seconds, memory = (
            exponent([(row["n"], row[what]) for row in scaling]) for what in ("seconds", "memory")
        )
        lines.append(
            f"Over the three largest sizes, seconds grow as n^{seconds:.2f} and memory as "
            f"n^{memory:.2f}."
        )
    devices = "; ".join(sorted({f"{row['device']}, torch {row['torch']}" for row in rows}))
    about = "Memory: peak beyond the system itself (float64 factors)."
    lines += ["", f"Command: `{command}`. Device: {devices}. {about}", ""]
    files.write_text(folder / "bench.md", "\n".join(lines))
    files.write_text(folder / "bench.csv", tables.csv(frame))
    for name, figure in (("frontier", frontier_picture(rows)), ("scaling", scaling_picture(rows))):
        for kind in ("png", "svg") if figure is not None else ():
            files.write_bytes(folder / f"{name}.{kind}", figures.image(figure, kind))
    return "\n".join(lines)
