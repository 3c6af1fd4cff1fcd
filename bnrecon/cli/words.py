"""The arguments of a command: names, and options written NAME=VALUE."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from bnrecon.runtime.errors import UserError, nearest
from bnrecon.runtime.shipped import DEFAULT_OUTPUTS, shipped_outputs


def split(words: Sequence[str], options: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """Names, and the values of options.

    An existing path counts as a name, whatever its characters.

    >>> split(["burkholz2024", "outputs=elsewhere"], ("scale", "outputs"))
    (['burkholz2024'], {'outputs': 'elsewhere'})

    Raises:
        UserError: another option, or one given twice.
    """
    names: list[str] = []
    values: dict[str, str] = {}
    for word in words:
        option, equals, value = word.partition("=")
        if not equals or (option not in options and os.path.exists(word)):
            names.append(word)
        elif option not in options:
            raise UserError(f"{word}: {nearest(option, options)}")
        elif option in values:
            raise UserError(f"{option}= is given twice")
        else:
            values[option] = value
    return names, values


def split_studies(words: Sequence[str], options: Sequence[str]) -> tuple[list[str], dict[str, str]]:
    """The same for names of studies, also as ``study=NAME``, or of sweeps.

    Raises:
        UserError: as in ``split``, or there is no such study.
    """
    from bnrecon.studies import registry

    names, values = split([word.removeprefix("study=") for word in words], options)
    # ~NAME of an unknown user stays as it is, and is no folder.
    outputs = Path(os.path.expanduser(values.get("outputs", DEFAULT_OUTPUTS)))
    for name in names:
        if name not in registry.STUDIES and not is_sweep(outputs, name):
            near = nearest(name, registry.STUDIES)
            raise UserError(f"{name}: no such study or sweep in {outputs}; {near}")
    return names, values


def is_sweep(outputs: Path, name: str) -> bool:
    """Whether a name is that of a sweep's folder."""
    return re.fullmatch(r"\w[\w.-]*", name) is not None and (outputs / "sweeps" / name).is_dir()


def outputs_folder(name: str | None, others: Sequence[str] = (), to: str = "list one kind") -> Path:
    """An existing outputs folder by its name; ``None`` stands for the default.

    An error suggests the nearest of ``others``, words that are given ``to`` do something.

    Raises:
        UserError: there is no such folder.
    """
    if name is None:
        if not DEFAULT_OUTPUTS.is_dir() and shipped_outputs(DEFAULT_OUTPUTS) == DEFAULT_OUTPUTS:
            raise UserError(
                f"no folder {DEFAULT_OUTPUTS} here; give the outputs folder of your runs"
            )
        return DEFAULT_OUTPUTS
    folder = os.path.expanduser(name)
    if not os.path.isdir(folder):
        meant = f"; to {to}: {nearest(name, others)}" if others else ""
        advice = f"give the outputs folder of your runs{meant}"
        raise UserError(f"{name[:200]!r}: no such folder; {advice}")
    return Path(folder)
