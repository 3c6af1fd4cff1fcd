"""A user's code: its modules, fingerprints that distinguish its results, and its exceptions."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import importlib
import logging
import os
import re
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from bnrecon.runtime.errors import CLEAR_ERRORS, UserError, lacks_memory, nearest

logger = logging.getLogger(__name__)

PACKAGE = Path(__file__).absolute().parent.parent
INSTALLED = {"site-packages", "dist-packages"}
ADVICE = "give a module's name, importable from here, as in imports=[my_targets]"


def unregistered(option: str, name: object, names: Iterable[str]) -> UserError:
    """The error for an unregistered name: the nearest one, and how users register theirs.

    >>> print(unregistered("solver", "refind", ["lu", "refined"]))
    solver=refind: did you mean 'refined'? Allowed: lu, refined; yours: import its module \
(imports=[MODULE])
    """
    yours = "yours: import its module (imports=[MODULE])"
    return UserError(f"{option}={name}: {nearest(name, names)}; {yours}")


def require_name(register: str, name: object) -> None:
    """Refuse a decorator without parentheses, which would register nothing.

    >>> require_name("register_data", len)
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: register_data: write a name, as in @register_data("mine")
    """
    if not isinstance(name, str):
        raise UserError(f'{register}: write a name, as in @{register}("mine")')


class Registered:
    """A function registered under a name for options, and the module that registered it.

    It is the user's unless a module of bnrecon registers it. Create it in a function that the
    module calls, as the code two frames up has to be the module's. (From Python 3.12 on a
    comprehension is no frame.)

    Args:
        what: the name of what is registered, in messages.
        function: the function to call.
        version: replaces the hash of the module's source; change it when the results change.

    >>> Registered("features he_normal", len).user_defined
    True
    """

    def __init__(self, what: str, function: Callable, version: str | None = None) -> None:
        file = Path(sys._getframe(2).f_code.co_filename).absolute()  # the decorator's caller
        self.what, self.function, self.version = what, function, version
        self.user_defined = not file.is_relative_to(PACKAGE)
        self._file = file
        self._home = file if file.parent.name in INSTALLED else file.parent
        self._source: bytes | None = None
        if self.user_defined and version is None and file.is_file():
            self._source = file.read_bytes()  # now: it may change after the import

    def warn_of_replacing(self, former: Registered | None) -> None:
        """Warn if a user's function replaces one of bnrecon, or of another file."""
        if former is None or not self.user_defined:
            return
        if not former.user_defined:
            logger.warning("%s is a name of bnrecon; yours replaces it", self.what)
        elif former._file != self._file and self._file.is_file():  # not a notebook's cell
            logger.warning("%s of %s replaces that of %s", self.what, self._file, former._file)

    def is_user_code(self, filename: str) -> bool:
        """Whether a traceback's file is in the registering module's folder or below."""
        path = Path(filename)
        if path.is_relative_to(PACKAGE) or not path.is_relative_to(self._home):
            return False
        return INSTALLED.isdisjoint(path.relative_to(self._home).parts)  # an environment in it

    @functools.cached_property
    def fingerprint(self) -> str | None:
        """Ten hexadecimal digits that identify its results; ``None`` for bnrecon's functions.

        A hash of ``version``, or of the source of the module that registered the function, as of
        that time (a changed comment is a change). What that module imports or reads does not count.

        Raises:
            UserError: the code was typed in, so that it has no file, and there is no version.

        >>> len(Registered("features mine", len, version="2").fingerprint)
        10
        """
        if not self.user_defined:
            return None
        if self.version is not None:
            content = f"version {self.version}".encode("utf-8", "surrogatepass")
        elif self._source is not None:
            content = self._source
        else:
            raise UserError(
                f"{self.what}: its code is in no file, which would identify its results; register "
                'it with version="1", and change the version when its results change'
            )
        return hashlib.sha256(content).hexdigest()[:10]


@contextlib.contextmanager
def attribute_errors(registered: Registered) -> Iterator[None]:
    """Turn any exception of user code into one line: ``what: ValueError: … (file:line)``.

    bnrecon's errors, a lack of memory, and exceptions of bnrecon's functions pass unchanged.

    Raises:
        UserError: the user's code raised an exception.
    """
    try:
        yield
    except CLEAR_ERRORS:
        raise
    except (Exception, SystemExit) as error:
        if not registered.user_defined or lacks_memory(error):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        lines = [frame for frame in frames if registered.is_user_code(frame.filename)]
        where = f" ({lines[-1].filename}:{lines[-1].lineno})" if lines else ""
        first = " ".join((str(error).splitlines() or [""])[0].split())[:300]
        raise UserError(f"{registered.what}: {type(error).__name__}: {first}{where}") from None


class WithUserModules:
    """Work whose unpickling imports the user's modules, before another process reads a target."""

    def __setstate__(self, state: dict[str, Any]) -> None:
        import_user_modules(state["config"].imports)
        vars(self).update(state)


def import_user_modules(names: Iterable[str]) -> None:
    """Import a user's modules, from the current folder too.

    Raises:
        UserError: there is no module of this name, or it raises an exception; one line with file
            and line number.
    """
    for name in names:
        _import(name)


def _import(name: str) -> None:
    module = name.removesuffix(".py").removeprefix("./").replace("/", ".")
    if not re.fullmatch(r"\w+(\.\w+)*", module):
        raise UserError(f"imports={name}: {ADVICE}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    before = _settings()
    try:
        imported = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # user code may raise anything, or call sys.exit
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise UserError(f"imports={name}: {error}; {ADVICE}") from None
        raise UserError(f"imports={name}: {type(error).__name__}: {_message(error)}") from None
    origin, path = getattr(imported, "__file__", None), module.replace(".", "/")
    for here in filter(Path.is_file, (Path(f"{path}.py"), Path(f"{path}/__init__.py"))):
        if not origin or Path(origin).resolve().parent != here.resolve().parent:
            raise UserError(f"imports={name}: {here} is hidden by {origin or 'Python'}; rename it")
    if changed := [what for what, value in _settings().items() if before[what] != value]:
        del sys.modules[module]  # refuse it again
        raise UserError(f"imports={name}: it changes {' and '.join(changed)} for all of bnrecon")


def _settings() -> dict[str, object]:
    """Settings of torch that a module must not change when it is imported."""
    import torch  # a command without the user's modules starts without it

    return {
        "torch's default dtype": torch.get_default_dtype(),
        "torch's default device": torch.get_default_device(),
        "whether gradients are recorded": torch.is_grad_enabled(),
    }


def _message(error: BaseException) -> str:
    """The error and its position; a syntax error has its own."""
    if isinstance(error, SyntaxError):
        return f"{error.msg} ({error.filename}:{error.lineno})"
    frames = traceback.extract_tb(error.__traceback__)
    last = [frame for frame in frames if not Path(frame.filename).is_relative_to(PACKAGE)][-1]
    return f"{error} ({last.filename}:{last.lineno})"
