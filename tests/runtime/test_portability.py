"""bnrecon loads without what Windows lacks, and writes files identically everywhere."""

import ast
import os
import signal
import sys

import pandas as pd
import pytest
from processes import run
from repository import ROOT

from bnrecon.reporting import tables

PACKAGE = ROOT / "bnrecon"
MODULES = ("resource", "fcntl", "pwd", "grp", "termios", "tty", "pty")
SIGNALS = [name for name in dir(signal) if name.startswith("SIG") and "_" not in name]
OF_WINDOWS = {"SIGINT", "SIGTERM", "SIGABRT", "SIGFPE", "SIGILL", "SIGSEGV"}
IMPORT_ALL = """
import builtins, importlib, pkgutil, signal, sys, torch
lacking, signals = sys.argv[1].split(), sys.argv[2].split()
import_module = builtins.__import__

def import_of_windows(name, globals=None, *rest):
    if name in lacking and (globals or {}).get("__name__", "").startswith("bnrecon"):
        raise ModuleNotFoundError(f"Windows has no module named {name}")
    return import_module(name, globals, *rest)

builtins.__import__ = import_of_windows  # other packages use what this system has
for name in signals:
    delattr(signal, name)
import bnrecon
for module in pkgutil.walk_packages(bnrecon.__path__, "bnrecon."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
        print(module.name)
"""


@pytest.mark.process
def test_every_module_loads_without_what_windows_lacks():
    gone = sorted(set(SIGNALS) - OF_WINDOWS)
    assert "SIGKILL" in gone
    done = run([sys.executable, "-P", "-c", IMPORT_ALL, " ".join(MODULES), " ".join(gone)])
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.split()) > 150


def opens_text_without_encoding(node):
    """Whether a call reads or writes text in the system encoding, unlike ``files.write_text``."""
    name = getattr(node.func, "attr", getattr(node.func, "id", ""))
    modes = [a.value for a in node.args if isinstance(a, ast.Constant)]
    binary = any("b" in str(mode) for mode in modes)
    opens = name == "open" and not binary and (isinstance(node.func, ast.Name) or modes)
    reads = name == "read_text" and not node.args
    return (reads or opens) and "encoding" not in {word.arg for word in node.keywords}


def test_text_is_read_as_utf_8_on_every_system():
    calls = [
        f"{path.relative_to(PACKAGE)}:{node.lineno}"
        for path in PACKAGE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and opens_text_without_encoding(node)
    ]
    assert calls == []
    for text in ("open(p)", "open(p, 'w')", "p.open('a')", "p.read_text()"):
        assert opens_text_without_encoding(ast.parse(text).body[0].value)
    for text in ("open(p, 'rb')", "Image.open(p)", "p.read_text(encoding='utf-8')"):
        assert not opens_text_without_encoding(ast.parse(text).body[0].value)


def test_csv_lines_end_alike_on_every_system(monkeypatch):
    monkeypatch.setattr(os, "linesep", "\r\n")
    assert tables.csv(pd.DataFrame({"a": [1, 2]})) == "a\n1\n2\n"
