"""A user's registered code: a fingerprint that tells its results apart, and its exceptions."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import logging
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from bnrecon.runtime.bound_values import IndescribableError, ValueDescriber
from bnrecon.runtime.errors import Interrupted, RunError, UserError, nearest
from bnrecon.runtime.source_files import PACKAGE, UserSources

__all__ = ["Registered", "attribute_errors", "unregistered"]

logger = logging.getLogger(__name__)


def unregistered(option: str, name: object, names: Iterable[str]) -> UserError:
    """The error for a name that is not registered: the nearest one, and how a user's own get there.

    >>> print(unregistered("solver", "refind", ["lu", "refined"]))
    solver=refind: did you mean 'refined'? Allowed: lu, refined, and what imports=[MODULE] registers
    """
    return UserError(
        f"{option}={name}: {nearest(name, names)}, and what imports=[MODULE] registers"
    )


class Registered:
    """A function under a name that options accept, and the module that registered it.

    It is the user's own unless a module of bnrecon registers it. Make it in the function that the
    module calls: the caller is found two frames up.

    Args:
        what: what is registered, as messages name it.
        function: what is called.
        version: replaces the fingerprint of the code; change it when the results change.

    >>> Registered("features he_normal", len).user_defined
    True
    """

    def __init__(self, what: str, function: Callable, version: str | None = None) -> None:
        caller = sys._getframe(2)  # what called the decorator
        file = Path(caller.f_code.co_filename).absolute()
        self.what, self.function, self.version = what, function, version
        self.user_defined = not file.is_relative_to(PACKAGE)
        self._sources = UserSources(file)
        # Now, while the files are those that were imported
        if self.user_defined and version is None:
            self._sources.add_module(caller.f_globals, file)

    def warn_of_replacing(self, former: Registered | None) -> None:
        """Warn where what was under the name is bnrecon's own and this is a user's."""
        if self.user_defined and former is not None and not former.user_defined:
            logger.warning("%s is bnrecon's own name; yours takes its place", self.what)

    def is_user_code(self, filename: str) -> bool:
        """Whether a line of a traceback is the user's code."""
        return not filename.startswith("<frozen ") and self._sources.is_user_code(filename)

    @functools.cached_property
    def fingerprint(self) -> str | None:
        """A hash of what the function computes, ten hexadecimal digits; ``None`` for bnrecon's own.

        It covers the source files of the module that registered the function, and of the user's
        modules that it imports, directly or not, as they were at that time; a changed comment is a
        change. It covers the values bound to the function too: arguments of a ``partial``,
        variables of the functions around it, defaults, the state of a callable object. Code without
        a file (typed in) counts as compiled, with everything that it names.

        Installed packages, files and environment variables that the code reads, and modules
        imported by a computed name do not count. With a ``version``, that is all that counts.

        Raises:
            UserError: a bound value cannot be compared between processes, such as a lock.

        >>> len(Registered("features mine", len, version="2").fingerprint)
        10
        """
        if not self.user_defined:
            return None
        if self.version is not None:
            content = f"version {self.version}"
        else:
            try:
                described = ValueDescriber(self._sources).describe(self.function)
            except IndescribableError as error:
                raise UserError(
                    f"{self.what}: its code holds {error}, which cannot be compared between "
                    'processes; register it with version="1", and change the version when what it '
                    "computes changes"
                ) from None
            content = repr((described, sorted(self._sources.digests.items())))
        return hashlib.sha256(content.encode("utf-8", "surrogatepass")).hexdigest()[:10]


@contextlib.contextmanager
def attribute_errors(registered: Registered) -> Iterator[None]:
    """Turn whatever a user's code raises into one line: ``what: ValueError: … (file:line)``.

    bnrecon's own errors, a lack of memory, and what bnrecon's own functions raise, pass.

    Raises:
        UserError: the user's code raised an exception.
    """
    try:
        yield
    except (UserError, RunError, Interrupted, MemoryError):
        raise
    except Exception as error:
        if not registered.user_defined or "out of memory" in str(error):
            raise
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if registered.is_user_code(frame.filename)]
        where = f" ({own[-1].filename}:{own[-1].lineno})" if own else ""
        first = " ".join((str(error).splitlines() or [""])[0].split())[:300]
        raise UserError(f"{registered.what}: {type(error).__name__}: {first}{where}") from None
