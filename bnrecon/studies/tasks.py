"""Tasks of parts that compute several kinds of rows."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from bnrecon.reproduction.experiment import Task

Tasks = Callable[[str, Sequence[str]], list[Task]]


def join(*kinds: Tasks) -> Tasks:
    """The tasks of one kind after those of another, as of several sweeps.

    >>> first, second = ((lambda *_, name=name: [Task(name, print)]) for name in "ab")
    >>> [task.name for task in join(first, second)("smoke", ())]
    ['a', 'b']
    """
    return lambda scale, options: [task for kind in kinds for task in kind(scale, options)]
