"""Tools for a part's module: its tasks, its table, the paper's numbers, and its text.

The text is the Markdown file next to the module, with named numbers that Python computes;
CONTRIBUTING.md has an example. After ``where`` and ``title`` come the caption, of at most 60 words,
and the details, then a section for each claim. A section ``## #name`` without a place is other
evidence for the statement before, for example if too little was computed.
"""

from __future__ import annotations

import functools
import importlib.resources
import itertools
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pandas as pd
import yaml

from bnrecon.reporting.wording import BoundFormatter
from bnrecon.reproduction import page
from bnrecon.reproduction.experiment import Claim, Experiment
from bnrecon.reproduction.request import option_name
from bnrecon.reproduction.study import split_front_matter
from bnrecon.runtime.errors import UserError


@dataclass(frozen=True)
class Task:
    """The smallest unit of work that is computed, stored and resumed separately.

    Args:
        name: its name in progress and messages, unique within its experiment.
        function: called with ``arguments`` by name, and with ``options`` if it has any; returns the
            task's rows: a frame with snake_case columns, whose cells are numbers, words, booleans
            or missing (NaN, None).
        arguments: JSON values; with the experiment's name and what ``options`` change they are the
            task's key.
        options: overrides of the runs whose targets the task trains or reads; ``None`` for a task
            without such runs.
        reads_target: whether it reads the target of the run that ``options`` describe, which can
            then be trained first; false if it trains other networks.
    """

    name: str
    function: Callable[..., pd.DataFrame]
    arguments: Mapping[str, Any] = field(default_factory=dict)
    options: tuple[str, ...] | None = None
    reads_target: bool = False

    def compute(self) -> pd.DataFrame:
        """Do the work and return its rows."""
        options = {} if self.options is None else {"options": self.options}
        return self.function(**self.arguments, **options)


def refuse_compared(options: Sequence[str], compared: Collection[str]) -> None:
    """Raise ``UserError`` for an option that a table's rows or columns vary.

    A group that they vary, as ``data``, stands for its ``name`` and ``family`` too.

    >>> refuse_compared(["train.seed=7"], {"train.seed"})
    Traceback (most recent call last):
    bnrecon.runtime.errors.UserError: train.seed=7: the rows of this table differ by train.seed
    """
    for option in options:
        name = option_name(option)
        group, _, field_name = name.partition(".")
        if name in compared or (group in compared and field_name in ("name", "family")):
            raise UserError(f"{option}: the rows of this table differ by {name}")


Tasks = Callable[[str, Sequence[str]], list[Task]]


def sweep(
    function: Callable[..., pd.DataFrame],
    name: str,
    over: Mapping[Any, Any],
    fixed: Mapping[str, Any] | None = None,
    runs: Any = None,
    compared: Collection[str] = (),
    reads_target: bool = False,
) -> Tasks:
    """A part's tasks: ``function`` once for each combination of a scale's values.

    Args:
        function: makes a task's rows.
        name: the task's name, with the values' names in braces.
        over: the values of each argument, or of arguments that vary together, by scale or for all
            scales; a number n stands for 0 to n - 1. The last one changes fastest. A name that
            begins with _ is only used in the name and in ``runs``, not as an argument.
        fixed: the single value of each argument, by scale or for all.
        runs: the overrides of a task's runs, by scale or for all, with the values' names in braces;
            empty ones are omitted, the user's follow. ``None`` for tasks without runs.
        compared: options that the tasks vary, which are refused.
        reads_target: as in ``Task``.

    >>> settings = {"smoke": [(2, 1)], "laptop": [(2, 1), (4, 3)]}
    >>> over = {("width", "_rank"): settings, "seed": 1}
    >>> tasks = sweep(lambda width, seed: None, "width {width}, rank {_rank}", over)
    >>> [(task.name, task.arguments) for task in tasks("laptop", ())][1]
    ('width 4, rank 3', {'width': 4, 'seed': 0})
    """

    def tasks(scale: str, options: Sequence[str]) -> list[Task]:
        refuse_compared(options, compared)
        overrides = _at(runs, scale)
        same = {argument: _at(values, scale) for argument, values in (fixed or {}).items()}
        axes: list[list[Any]] = []
        for names, values in over.items():
            chosen, one = _at(values, scale), isinstance(names, str)
            axis: Sequence[Any] = range(chosen) if isinstance(chosen, int) else chosen
            axes.append([[(names, v)] if one else list(zip(names, v, strict=True)) for v in axis])
        made = []
        for point in itertools.product(*axes):
            values = dict(itertools.chain(*point))
            arguments = {key: value for key, value in values.items() if not key.startswith("_")}
            filled = filter(None, (override.format(**values) for override in overrides or ()))
            run = None if overrides is None else (*filled, *options)
            made.append(Task(name.format(**values), function, arguments | same, run, reads_target))
        return made

    return tasks


def _at(values: Any, scale: str) -> Any:
    return values[scale] if isinstance(values, Mapping) else values


def join(*kinds: Tasks) -> Tasks:
    """Concatenate tasks, for example of several sweeps.

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
    """One line per group of rows, each column computed from the group; ``**`` allows any name.

    Args:
        rows: the rows to group.
        by: columns whose values define a group.
        sort: whether to sort the groups by these values; else they are in the order of the rows.
        columns: a function of the group, or a column of the rows that is constant in the group.

    >>> rows = pd.DataFrame({"width": [2, 2, 4], "error": [0.1, 0.3, 0.2]})
    >>> table(rows, ["width"], c1="width", **{"largest error": lambda group: group["error"].max()})
       c1  largest error
    0   2            0.3
    1   4            0.2
    """

    def line(group: pd.DataFrame) -> dict[str, Any]:
        cells = columns.items()
        return {name: group[of].iloc[0] if isinstance(of, str) else of(group) for name, of in cells}

    return pd.DataFrame([line(group) for _, group in rows.groupby(list(by), sort=sort)])


def only(column: str = "", *values: Any, drop: Sequence[str] = ()) -> page.Excerpt:
    """For ``Experiment.excerpt``: lines with given values in a column; ``drop`` omits columns."""
    return lambda lines: lines[lines[column].isin(values) if column else slice(None)].drop(
        columns=[*drop], errors="ignore"
    )


def below(lines: pd.DataFrame) -> pd.DataFrame:
    """For ``Experiment.excerpt``: no lines; the claims suffice, the table is in the details."""
    return lines[[]]


@functools.cache
def read_reported(package: str) -> dict[str, Any]:
    """The numbers that a paper reports, by entry: the ``reported.yaml`` in its folder.

    ``where`` is the position of each entry's numbers in the paper.
    """
    path = importlib.resources.files(package) / "reported.yaml"
    return yaml.safe_load(path.read_text(encoding="utf-8"))


# The verdicts by claim, and the numbers that caption and evidence name; or a list of decisions,
# each a claim's name, verdict and numbers. A name may occur several times.
Decision = tuple[str, bool | str, Mapping[str, Any]]  # one of such a list
Decisions = tuple[Mapping[str, bool | str], Mapping[str, Any]] | list[Decision]
WORDS = {True: "confirmed", False: "contradicted"}


@dataclass(frozen=True)
class Statement:
    """A claim of the paper without its verdict; ``evidence`` names the numbers behind it.

    ``finding`` is the claim in a line, with its most telling number: the line that begins with
    ``=``. A decision whose numbers have ``finding=False`` is not listed among the findings.
    """

    where: str
    statement: str
    evidence: str
    finding: str = ""

    def decide(self, verdict: bool | str, numbers: Mapping[str, Any]) -> Claim:
        """The claim with its verdict; ``True`` is *confirmed*, ``False`` *contradicted*.

        >>> claim = Statement("Theorem 1", "It holds.", "{n} of {n}.").decide(True, {"n": 3})
        >>> claim.verdict, claim.evidence
        ('confirmed', '3 of 3.')
        """
        word = verdict if isinstance(verdict, str) else WORDS[bool(verdict)]
        texts = (self.where, self.statement, self.evidence)
        where, statement, evidence = (_fill(text, numbers) for text in texts)
        listed = self.finding if numbers.get("finding", True) else ""
        short, _, number = _fill(listed, numbers).partition(" | ")
        return Claim(where, statement, word, evidence, short, number)


@dataclass(frozen=True)
class PartText:
    """The content of a part's Markdown file."""

    where: str  # the part's position in the paper
    title: str  # what is shown
    caption: str  # with ``{names}`` for numbers
    statements: Mapping[str, Statement]  # the claims by name, and optional sentences of captions

    def sentence(self, name: str, **numbers: Any) -> str:
        """The text below a heading that is not a claim: an optional sentence of captions."""
        return _fill(self.statements[name].statement, numbers)

    def claims(self, decisions: Decisions) -> list[Claim]:
        """The decided claims, in the order of the file or of the list of decisions.

        Raises:
            ValueError: the file lacks the claim of a decision.
        """
        if isinstance(decisions, list):
            return [self.claims(({name: word}, numbers))[0] for name, word, numbers in decisions]
        verdicts, numbers = decisions
        if unknown := verdicts.keys() - self.statements.keys():
            raise ValueError(f"{self.where}: its text has no claim named {sorted(unknown)}")
        return [
            statement.decide(verdicts[name], numbers)
            for name, statement in self.statements.items()
            if name in verdicts
        ]


def merge(*decisions: Decisions) -> tuple[dict[str, bool | str], dict[str, Any]]:
    """Merge decisions.

    >>> merge(({"Theorem 1": True}, {"n": 3}), ({"Theorem 2": "undecided"}, {}))
    ({'Theorem 1': True, 'Theorem 2': 'undecided'}, {'n': 3})
    """
    verdicts: dict[str, bool | str] = {}
    numbers: dict[str, Any] = {}
    for piece in decisions:
        if isinstance(piece, list):
            raise TypeError("decisions that come one by one are joined as lists are")
        verdicts |= piece[0]
        numbers |= piece[1]
    return verdicts, numbers


def read_text(module: str) -> PartText:
    """Read the text next to a module, given the module's ``__file__``.

    Raises:
        ValueError: its front matter lacks ``where:`` or ``title:``, or two claims share a name.
    """
    path = Path(module).with_suffix(".md")
    try:
        front_matter, content = split_front_matter(path.read_text(encoding="utf-8"), str(path))
        where, title = front_matter["where"], front_matter["title"]
    except (KeyError, TypeError, yaml.YAMLError) as error:
        raise ValueError(f"{path}: its front matter is not where: and title: ({error})") from error
    caption, *sections = re.split(r"^## ", content, flags=re.MULTILINE)
    statements = _statements(sections)
    if len(statements) < len(sections):
        raise ValueError(f"{path}: two claims have one name; write ## Place #name")
    return PartText(where, title, _joined(caption), statements)


def _statements(sections: Iterable[str]) -> dict[str, Statement]:
    statements: dict[str, Statement] = {}
    before = Statement("", "", "")
    for section in sections:
        heading, _, body = section.partition("\n")
        finding = ""
        if body.startswith("= "):
            finding, _, body = body.removeprefix("= ").partition("\n")
        statement, _, evidence = f"\n{body}".partition("\n>")
        where, _, name = f" {heading.strip()}".partition(" #")
        where = where.strip()
        words = _joined(statement) or before.statement
        before = Statement(where or before.where, words, _joined(evidence), finding)
        statements[name or where] = before
    return statements


def _fill(text: str, numbers: Mapping[str, Any]) -> str:
    """Fill in the text's named numbers; raise ``ValueError`` for a missing one."""
    try:
        return BoundFormatter().vformat(text, (), numbers)
    except (KeyError, IndexError) as error:
        beginning = " ".join(text.split()[:6])
        raise ValueError(f"the text {beginning!r} ... names {error}, and no such number") from error


def _joined(text: str) -> str:
    """Join the lines of each paragraph; the paragraphs of a caption stay separate."""
    paragraphs = re.split(r"\n\s*\n", text.strip())
    lines = (" ".join(paragraph.replace("\n>", "\n").split()) for paragraph in paragraphs)
    return "\n\n".join(filter(None, lines))


def part(
    module: str,
    tasks: Callable,
    summary: Callable,
    draw: Callable | None = None,
    decide: Callable[[pd.DataFrame], Decisions] | None = None,
    numbers: Callable[[pd.DataFrame], Mapping[str, Any] | str] | None = None,
    **options: Any,
) -> Experiment:
    """Make an experiment whose position, title, caption and claims are in the module's text file.

    ``module`` is its ``__file__``. ``decide`` gives the claims' verdicts by name, and the numbers
    that they and the caption name; ``numbers`` those of the caption if they are others, or a text
    that replaces the caption while its rows are missing. The other arguments are those of
    ``Experiment``.
    """
    text = read_text(module)
    caption: Any = text.caption
    if "{" in text.caption:
        compute = numbers or (lambda rows: merge(decide(rows))[1] if decide else {})

        def caption(rows: pd.DataFrame) -> str:
            named = compute(rows)
            return named if isinstance(named, str) else _fill(text.caption, named)

    claims = None if decide is None else lambda rows: text.claims(decide(rows))
    return Experiment(
        text.where, text.title, tasks, summary, caption, draw, claims=claims, **options
    )
