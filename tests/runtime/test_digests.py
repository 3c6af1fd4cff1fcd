"""Digests that name runs, and atomic writes."""

from dataclasses import dataclass, field

import pytest

from bnrecon.runtime import digests, files
from bnrecon.solvers.spec import SolverSpec


@dataclass
class Inner:
    width: int = 3


@dataclass
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    rate: float = 0.1
    store: str = "here"


def test_only_differences_from_defaults_name_a_run():
    assert digests.differences_from_defaults(Outer("x")) == {"name": "x"}
    assert digests.differences_from_defaults(
        Outer("x", Inner(4), store="there"), frozenset({"store"})
    ) == {
        "name": "x",
        "inner.width": 4,
    }


def test_name_counts_even_if_it_is_the_default():
    assert digests.differences_from_defaults(SolverSpec()) == {"name": "auto"}


def test_failed_write_keeps_the_old_file(tmp_path):
    path = tmp_path / "file.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})
    assert files.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]
