"""The table and the pictures of what `bench_solvers.py` measured."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from bnrecon.reporting import figures, tables
from bnrecon.runtime import files
from bnrecon.runtime.units import format_bytes

__all__ = ["report"]

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


def takeover(rows: list[dict]) -> list[str]:
    """Which method wins at each oversampling of the frontier."""
    points = [
        row for row in rows if row["section"] == "frontier" and row.get("residual", 1) <= 1e-10
    ]
    if not points:
        return []
    direct = [
        r
        for r in rows
        if r["section"] == "square"
        and r["method"] == "refined"
        and r["n"] == points[0]["n"]
        and "seconds" in r
    ]
    if not direct:
        return []
    lu = direct[0]["seconds"]
    faster = sorted(row["oversampling"] for row in points if row["seconds"] < lu)
    slower = sorted(row["oversampling"] for row in points if row["seconds"] >= lu)
    line = (
        f"n = {points[0]['n']:,}: matrix_free is faster than the corrected LU ({lu:.0f} s) from an "
        f"oversampling of {faster[0]} on"
    )
    return (
        [
            line
            + (f", the LU at {slower[-1]} and below." if slower else ", the lowest that was tried.")
        ]
        if faster
        else []
    )


def exponent(points: list[tuple[float, float]]) -> float:
    """Slope of a straight line through the logarithms."""
    x, y = np.log(np.array(points)).T
    return float(np.polyfit(x, y, 1)[0])


def frontier_picture(rows: list[dict]) -> Figure | None:
    """Seconds against oversampling, with the LU beside it; crosses did not reach the tolerance."""
    points = [row for row in rows if row["section"] == "frontier" and "seconds" in row]
    if not points:
        return None
    excess = [row["c1"] / row["n"] - 1 for row in points]
    size = points[0]["n"]
    with figures.style():
        figure, axes = figures.new_figure(size=(figures.PAGE, 4))
        label = "matrix_free, bf16 inside where that suffices"
        seconds = [row["seconds"] for row in points]
        axes.loglog(excess, seconds, "o-", color=figures.PALETTE[0], label=label)
        for place, row in zip(excess, points, strict=True):
            if row["residual"] > 1e-10:
                axes.plot(place, row["seconds"], "kx", markersize=10)
        for row in rows:
            if row["section"] == "square" and row["method"] == "refined" and row["n"] == size:
                label = "refined: LU in float32 of the first n features, corrected"
                axes.axhline(row["seconds"], color=figures.PALETTE[3], label=label)
        axes.set_xticks(excess, [f"{row['oversampling']:g}" for row in points])
        axes.minorticks_off()
        axes.set_xlabel("oversampling c1/n, spaced by the logarithm of c1/n - 1")
        axes.set_ylabel("seconds to a residual of 1e-10")
        axes.set_title(f"n = {size:,}, {points[0]['device']}{_crossing(points, rows)}")
        axes.legend(loc="lower left")
    return figure


def _crossing(points: list[dict], rows: list[dict]) -> str:
    """Where the iterations begin to take longer than the LU, or that they never did."""
    squares = [
        row["seconds"]
        for row in rows
        if row["section"] == "square"
        and row["method"] == "refined"
        and row["n"] == points[0]["n"]
        and "seconds" in row
    ]
    if not squares:
        return ""
    slower = [row["oversampling"] for row in points if row["seconds"] > squares[0]]
    least = min(row["oversampling"] for row in points)
    if slower:
        return f"; slower than the LU from {max(slower):g} down"
    return f"; faster than the LU down to {least:g}, the smallest that was tried"


def scaling_picture(rows: list[dict]) -> Figure | None:
    """Seconds and memory against n, with the fitted exponents."""
    points = [row for row in rows if row["section"] == "scaling" and "seconds" in row]
    if len(points) < 2:
        return None
    with figures.style():
        figure, both = figures.new_figure(1, 2, (figures.PAGE, 3.2))
        units = ("seconds", "GB beyond the system")
        for letter, axes, what, scale, unit in zip(
            "ab", both, ("seconds", "memory"), (1, 1e-9), units, strict=True
        ):
            axes.set_title(f"({letter})", loc="left")
            pairs = [(row["n"], row[what] * scale) for row in points]
            label = f"n^{exponent(pairs[-3:]):.2f} (the three largest)"
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
            lines.append(
                f"refined, n = {row['n']:,}: {row['seconds'] / row['LU seconds']:.2f} times "
                "its own float32 LU."
            )
    lines += takeover(rows)
    scaling = [row for row in rows if row["section"] == "scaling" and "seconds" in row]
    if len(scaling) > 2:
        seconds = exponent([(row["n"], row["seconds"]) for row in scaling[-3:]])
        memory = exponent([(row["n"], row["memory"]) for row in scaling[-3:]])
        lines.append(
            f"Over the three largest sizes, seconds grow as n^{seconds:.2f} and memory as "
            f"n^{memory:.2f}."
        )
    devices = sorted({f"{row['device']}, torch {row['torch']}" for row in rows})
    lines += [
        "",
        f"Command: `{command}`. Device: {'; '.join(devices)}. Memory: peak beyond the system "
        "itself (float64 factors).",
        "",
    ]
    files.write_text(folder / "bench.md", "\n".join(lines))
    files.write_text(folder / "bench.csv", tables.csv(frame))
    for name, figure in (("frontier", frontier_picture(rows)), ("scaling", scaling_picture(rows))):
        for kind in ("png", "svg") if figure is not None else ():
            files.write_bytes(folder / f"{name}.{kind}", figures.image(figure, kind))
    return "\n".join(lines)
