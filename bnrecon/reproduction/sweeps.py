"""Tasks over combinations of values, tables with a line a group of rows, and some of the lines."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bnrecon.reproduction.experiment import Task

if TYPE_CHECKING:
    import pandas as pd

Tasks = Callable[[str, Sequence[str]], list[Task]]


def sweep(
    function: Callable[..., pd.DataFrame],
    name: str,
    over: Mapping[Any, Any],
    fixed: Mapping[str, Any] | None = None,
) -> Tasks:
    """A part's tasks: ``function`` once for each combination of a scale's values.

    Args:
        function: makes a task's rows.
        name: of a task, with the values' names in braces.
        over: by argument, or by arguments that vary together, the values that it takes: those of
            each scale, or of all scales; a number stands for those below it. The last one changes
            fastest.
        fixed: by argument its one value, of each scale or of all.

    >>> settings = {"smoke": [(2, 1)], "laptop": [(2, 1), (4, 3)]}
    >>> over = {("width", "rank"): settings, "seed": 1}
    >>> tasks = sweep(lambda width, rank, seed: None, "width {width}", over)
    >>> [(task.name, task.arguments["rank"]) for task in tasks("laptop", ())]
    [('width 2', 1), ('width 4', 3)]
    """

    def tasks(scale: str, _options: Sequence[str]) -> list[Task]:
        same = {argument: _at(values, scale) for argument, values in (fixed or {}).items()}
        axes: list[list[Any]] = []
        for names, values in over.items():
            chosen, one = _at(values, scale), isinstance(names, str)
            axis: Sequence[Any] = range(chosen) if isinstance(chosen, int) else chosen
            axes.append([[(names, v)] if one else list(zip(names, v, strict=True)) for v in axis])
        points = (dict(itertools.chain(*point)) for point in itertools.product(*axes))
        return [Task(name.format(**point), function, point | same) for point in points]

    return tasks


def _at(values: Any, scale: str) -> Any:
    return values[scale] if isinstance(values, Mapping) else values


def join(*kinds: Tasks) -> Tasks:
    """The tasks of one kind after those of another, as of several sweeps.

    >>> first, second = ((lambda *_, name=name: [Task(name, print)]) for name in "ab")
    >>> [task.name for task in join(first, second)("smoke", ())]
    ['a', 'b']
    """
    return lambda scale, options: [task for kind in kinds for task in kind(scale, options)]


def table(
    rows: pd.DataFrame,
    by: Sequence[str],
    sort: bool = True,
    /,
    **columns: str | Callable[[pd.DataFrame], Any],
) -> pd.DataFrame:
    """One line a group of rows, each column computed from the group; ``**`` gives it any name.

    Args:
        rows: to be grouped.
        by: columns whose values make a group.
        sort: the groups by these values, else they come as they do in the rows.
        columns: a function of the group, or a column of the rows that is the same in the group.

    >>> import pandas as pd
    >>> rows = pd.DataFrame({"width": [2, 2, 4], "error": [0.1, 0.3, 0.2]})
    >>> table(rows, ["width"], c1="width", **{"largest error": lambda group: group["error"].max()})
       c1  largest error
    0   2            0.3
    1   4            0.2
    """
    import pandas as pd

    def line(group: pd.DataFrame) -> dict[str, Any]:
        cells = columns.items()
        return {name: group[of].iloc[0] if isinstance(of, str) else of(group) for name, of in cells}

    return pd.DataFrame([line(group) for _, group in rows.groupby(list(by), sort=sort)])


def only(column: str, *values: Any) -> Callable[[pd.DataFrame], pd.DataFrame]:
    """For ``Experiment.excerpt``: a table's lines that have one of these values in a column."""
    return lambda lines: lines[lines[column].isin(values)]
