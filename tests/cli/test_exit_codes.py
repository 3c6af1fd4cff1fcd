"""Every exception has an exit code and one line; only a defect shows a traceback."""

import errno

import pytest
from hydra.errors import MissingConfigException
from omegaconf.errors import ConfigKeyError

from bnrecon.cli import exit_codes, output
from bnrecon.runtime.errors import Interrupted, ReportedElsewhere, RunError, UserError
from bnrecon.runtime.files import Damaged


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (UserError("width=0: must be above 0"), 2, "width=0: must be above 0"),
        (RunError("training diverged"), 1, "training diverged"),
        (Interrupted("stopped"), 130, "stopped"),
        (KeyboardInterrupt(), 130, "interrupted; what was finished is kept"),
        (ReportedElsewhere("training diverged"), 1, None),
        (BrokenPipeError(errno.EPIPE, "Broken pipe"), 141, None),
        (MemoryError(), 1, "not enough memory (an allocation failed)"),
        (RuntimeError("CUDA out of memory. Tried\nmore"), 1, "(CUDA out of memory. Tried)"),
        (ImportError("x.so: failed to map segment"), 1, "not enough memory (x.so"),
        (OSError(errno.ENOSPC, "No space left", "/x"), 1, "/x; what was finished is kept"),
        (PermissionError(errno.EACCES, "Permission denied", "/x"), 2, "Permission denied: /x"),
        (ConfigKeyError("Key 'a' not in 'RunConfig'"), 2, "a is not an option"),
        (MissingConfigException("no run.yaml"), 2, "no run.yaml"),
        (Damaged("result.json is damaged"), 1, "result.json is damaged"),
        (SystemExit("bad"), 1, "sys.exit('bad') was called"),
        (ZeroDivisionError("division by zero"), 1, "this is a defect in bnrecon"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, BaseException) else None,
)
def test_exception_has_an_exit_code_and_one_line(error, code, line, capsys):
    exit_code, text = exit_codes.describe(error)
    assert exit_code == code
    assert (text is None) == (line is None)
    assert line is None or line in text


def test_only_a_defect_shows_a_traceback(capsys):
    for error, lines in ((UserError("one\ntwo"), 1), (ValueError("a mistake of ours"), 2)):
        with output.log_to_stderr():
            exit_codes.report(error)
        printed = capsys.readouterr().err
        assert printed.startswith("bnrecon: ")
        assert len(printed.splitlines()) == lines
    assert "ValueError: a mistake of ours" in printed


def test_error_reported_by_another_process_is_not_repeated(capsys):
    with output.log_to_stderr():
        assert exit_codes.report(ReportedElsewhere("training diverged")) == 1
    assert capsys.readouterr().err == ""
