"""Digests that name runs, and files: atomic, checked, read back as they were written."""

from dataclasses import dataclass, field

import pytest
import torch

from bnrecon.runtime import digests, files


@dataclass
class Inner:
    width: int = 3


@dataclass
class Outer:
    name: str
    inner: Inner = field(default_factory=Inner)
    rate: float = 0.1
    place: str = "here"


def test_only_what_differs_from_the_defaults_names_a_run():
    assert digests.differences_from_defaults(Outer("x")) == {"name": "x"}
    assert digests.differences_from_defaults(
        Outer("x", Inner(4), place="there"), frozenset({"place"})
    ) == {
        "name": "x",
        "inner.width": 4,
    }


@dataclass
class Choice:
    name: str = "auto"
    tolerance: float = 1e-10


def test_the_name_counts_even_where_it_is_the_default():
    assert digests.differences_from_defaults(Choice()) == {"name": "auto"}


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "rubbish"])
@pytest.mark.parametrize("kind", ["tensors", "json"])
def test_damage_is_noticed_and_named(tmp_path, kind, damage):
    path = tmp_path / "file"
    if kind == "tensors":
        files.write_tensors(path, {"a": torch.arange(100)}, {"step": 3})
    else:
        files.write_json(path, {"accuracy": [90.5, 90.25], "name": "vgg18"})
    content = bytearray(path.read_bytes())
    if damage == "flipped":
        content[-40] ^= 2
    path.write_bytes(
        {"cut": content[:-9], "flipped": content, "empty": b"", "rubbish": b"\x80\x04rubbish."}[
            damage
        ]
    )
    read = files.read_tensors if kind == "tensors" else files.read_json
    with pytest.raises(ValueError, match="file is damaged"):
        read(path)


def test_a_failed_write_leaves_the_old_file(tmp_path):
    path = tmp_path / "file.json"
    files.write_json(path, {"a": 1})
    with pytest.raises(TypeError):
        files.write_json(path, {"a": object()})
    assert files.read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["file.json"]
