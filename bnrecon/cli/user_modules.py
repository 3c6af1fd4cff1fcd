"""A user's own modules, imported for what they register."""

from __future__ import annotations

import importlib
import os
import re
import sys
import traceback
from collections.abc import Iterable
from typing import Any

from bnrecon.runtime.errors import UserError
from bnrecon.runtime.interruption import is_loading

ADVICE = "give a module's name, importable from here, as in imports=[my_targets]"


class WithUserModules:
    """Work of a run: another process imports the user's modules before it looks at any target."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        import_user_modules(state["config"].imports)
        vars(self).update(state)


def import_user_modules(names: Iterable[str]) -> None:
    """Import a user's modules, from the current folder too.

    Raises:
        UserError: for a name that is no module's, and for whatever the module raises, in one line
            with the place.
    """
    for name in names:
        _import(name)


def _import(name: str) -> None:
    module = name.removesuffix(".py").removeprefix("./").replace("/", ".")
    if not re.fullmatch(r"\w+(\.\w+)*", module):
        raise UserError(f"imports={name}: {ADVICE}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(module)
    except BaseException as error:  # the user's own code: anything can come out of it
        if isinstance(error, KeyboardInterrupt) and not is_loading():
            raise  # from the keyboard: while libraries load, none comes from there
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise UserError(f"imports={name}: {error}; {ADVICE}") from None
        raise UserError(f"imports={name}: {type(error).__name__}: {_message(error)}") from None


def _message(error: BaseException) -> str:
    """What went wrong and where, a syntax error at its own place."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}:{error.lineno})"
    last = traceback.extract_tb(error.__traceback__)[-1]
    return f"{error} ({last.filename}:{last.lineno})"
