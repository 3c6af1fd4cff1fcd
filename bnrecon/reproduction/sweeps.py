"""Tasks over combinations of values, and tables with a line a group of rows."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from bnrecon.reproduction.experiment import Task

if TYPE_CHECKING:
    import pandas as pd

__all__ = ["sweep", "table"]


def sweep(
    function: Callable[..., pd.DataFrame],
    name: str,
    over: Mapping[str, Any],
    fixed: Mapping[str, Any] | None = None,
) -> Callable[[str, Sequence[str]], list[Task]]:
    """A part's tasks: ``function`` once for each combination of a scale's values.

    Args:
        function: makes a task's rows.
        name: of a task, with the values' names in braces.
        over: by argument the values that it takes, the last one changing fastest; a number stands
            for those below it. A mapping has them by scale.
        fixed: by argument its one value. A mapping has it by scale.

    >>> widths = {"smoke": (2,), "laptop": (2, 4)}
    >>> tasks = sweep(lambda width, seeds: None, "width {width}", {"width": widths})
    >>> [task.name for task in tasks("laptop", ())]
    ['width 2', 'width 4']
    >>> tasks = sweep(lambda seed, width: None, "seed {seed}", {"seed": 2}, {"width": 8})
    >>> [task.arguments for task in tasks("laptop", ())]
    [{'seed': 0, 'width': 8}, {'seed': 1, 'width': 8}]
    """

    def tasks(scale: str, _options: Sequence[str]) -> list[Task]:
        same = {argument: _at(values, scale) for argument, values in (fixed or {}).items()}
        values = (_at(values, scale) for values in over.values())
        points = itertools.product(*(range(v) if isinstance(v, int) else v for v in values))
        named = (dict(zip(over, point, strict=True)) for point in points)
        return [Task(name.format(**point), function, point | same) for point in named]

    return tasks


def _at(values: Any, scale: str) -> Any:
    return values[scale] if isinstance(values, Mapping) else values


def table(
    rows: pd.DataFrame, by: Sequence[str], **columns: Callable[[pd.DataFrame], Any]
) -> pd.DataFrame:
    """One line a group of rows, each column computed from the group; ``**`` gives it any name.

    >>> import pandas as pd
    >>> rows = pd.DataFrame({"width": [2, 2, 4], "error": [0.1, 0.3, 0.2]})
    >>> table(rows, ["width"], **{"largest error": lambda group: group["error"].max()})
       largest error
    0            0.3
    1            0.2
    """
    import pandas as pd

    groups = (group for _, group in rows.groupby(list(by), sort=True))
    return pd.DataFrame([{name: of(group) for name, of in columns.items()} for group in groups])
