"""Pictures of tables whose rows are steps of one quantity."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path

from bnrecon.config import composition
from bnrecon.reporting.figures import canvas
from bnrecon.reporting.statistics import mean_interval
from bnrecon.reproduction.cells import Cell
from bnrecon.runtime import files

__all__ = ["PICTURES", "write"]


# What stands on the horizontal axis, and whether it is a logarithm.
PICTURES = {
    "excess": ("excess features a layer, c1 - n", False),
    "epsilon": ("epsilon asked for (Thm 2.4)", True),
}


def write(table: str, cells: Sequence[Cell], path: Path) -> None:
    """Loss of accuracy and layer errors against the quantity that the rows step through, for each kind of run."""
    label, logarithmic = PICTURES[table]
    kinds: dict[str, list[tuple[float, Cell]]] = {}
    for cell in cells:
        asked = composition.compose(cell.words)
        if cell.result is None or (
            table == "epsilon" and asked.features.activation in ("identity", "relu", "leaky_relu")
        ):
            continue
        name, value = (
            (asked.solver.name, asked.features.excess)
            if table == "excess"
            else (asked.features.activation, asked.features.epsilon)
        )
        kinds.setdefault(name, []).append((value, cell))
    if not kinds:
        return
    picture = io.BytesIO()
    with canvas(picture, path.suffix[1:], 1, 2, figsize=(9, 3.8)) as (figure, (left, right)):
        for (name, points), colour in zip(
            kinds.items(), ("#4c72b0", "#c44e52", "#55a868", "#dd8452"), strict=False
        ):
            values = [value for value, _ in points]
            losses = [mean_interval(cell.losses()) for _, cell in points]
            left.errorbar(
                values,
                [loss.mean for loss in losses],
                [loss.half_width or 0 for loss in losses],
                marker="o",
                capsize=3,
                color=colour,
                label=name,
            )
            if table == "epsilon":
                differences = [
                    cell.result["source"]["evaluated"]["largest_difference_to_target"]
                    for _, cell in points
                ]
                right.loglog(values, differences, marker="o", color=colour, label=name)
                continue
            errors = [
                sorted(layer["relative_error"] for layer in cell.result["layers"])
                for _, cell in points
            ]
            right.semilogy(
                values,
                [row[-1] for row in errors],
                marker="o",
                color=colour,
                label=f"{name}, worst layer",
            )
            right.semilogy(
                values,
                [row[len(row) // 2] for row in errors],
                marker=".",
                linestyle="--",
                color=colour,
                label=f"{name}, median layer",
            )
        right.set_ylabel(
            "largest difference of a logit" if table == "epsilon" else "relative error of a layer"
        )
        if logarithmic:
            left.set_xscale("log")
        else:
            for axes in (left, right):
                axes.set_xscale("symlog", linthresh=40)
                axes.set_xticks(sorted({value for points in kinds.values() for value, _ in points}))
                axes.xaxis.set_major_formatter("{x:g}")
                axes.minorticks_off()
        left.axhline(0, color="grey", linewidth=1, linestyle=":")
        left.set_ylabel("target minus rebuilt accuracy, %\n(below 0: rebuilt is better)")
        for axes in (left, right):
            axes.set_xlabel(label)
            axes.legend(fontsize=8)
    files.write_bytes(path, picture.getvalue())
