"""What ships and what scripts rely on: names of runs and targets, options, keys, library calls."""

import dataclasses
import inspect
import json
import subprocess
import tomllib
import typing
from pathlib import Path

import pytest
import torch
from places import OUTPUTS, RESULTS, ROOT, SHIPPED
from torch import nn

import bnrecon
from bnrecon.config import composition, schema
from bnrecon.reporting.result import RunResult
from bnrecon.run.naming import run_folder
from bnrecon.runtime import files
from bnrecon.runtime.digests import tensor_digest
from bnrecon.targets.location import target_folder
from bnrecon.targets.store import difference

PUBLIC = json.loads((ROOT / "tests/golden/public.json").read_text(encoding="utf-8"))


class Pixels:
    """Images of which nothing but the checksum is asked for."""

    def __init__(self, checksum):
        self.checksum = lambda: checksum


@pytest.mark.parametrize("name", SHIPPED["runs"])
def test_a_shipped_run_is_found_again_by_its_command(name):
    assert run_folder(composition.compose(SHIPPED["runs"][name])).name == name


@pytest.mark.parametrize("name", SHIPPED["targets"])
def test_a_shipped_target_is_found_again_by_its_command(shipped_outputs, name):
    about = SHIPPED["targets"][name]
    words = [*about["words"], f"outputs={shipped_outputs}"]
    request, images = composition.compose(words).target_request, Pixels(about["pixels"])
    assert target_folder(request, images, torch.device("cpu")).name == name
    stored = files.read_json(OUTPUTS / "targets" / name / "target.json")
    assert difference(stored, request, images) == ""


def test_everything_that_ships_is_known_here():
    line = ["git", "ls-files", "outputs/runs", "outputs/targets"]
    tracked = subprocess.run(line, cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not tracked:
        pytest.skip("not a checkout")
    for kind in ("runs", "targets"):
        names = {Path(path).parent.name for path in tracked if Path(path).parts[1] == kind}
        assert names == set(SHIPPED[kind])


def test_everything_that_ships_can_be_read():
    for name, about in SHIPPED["targets"].items():
        target = files.read_json(OUTPUTS / "targets" / name / "target.json")
        assert target["data_checksum"] == about["pixels"]
        tensors, _ = files.read_tensors(OUTPUTS / "targets" / name / "target.safetensors")
        assert target["weights"] == tensor_digest(tensors)
    for path in RESULTS:
        result = RunResult.read(path).to_json()
        for part, keys in (
            ("result", result),
            ("result.target", result["target"]),
            ("result.source", result["source"]),
        ):
            assert set(PUBLIC[part]) <= set(keys)


def option_names(kind, prefix=""):
    """Dotted names of all options of a dataclass."""
    for name, inner in typing.get_type_hints(kind).items():
        if dataclasses.is_dataclass(inner):
            yield from option_names(inner, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_options_that_scripts_give_are_still_options():
    assert set(PUBLIC["options"]) <= set(option_names(schema.RunConfig))


def test_a_new_result_has_all_keys_that_scripts_read(smallest_outputs):
    result = files.read_json(next(smallest_outputs.glob("runs/*/result.json")))
    parts = {"result": result, "result.layers": result["layers"][0]}
    parts |= {f"result.{name}": result[name] for name in ("target", "source", "data")}
    for part, keys in parts.items():
        assert set(PUBLIC[part]) - {"digest"} <= set(keys), part
    target = files.read_json(next(smallest_outputs.glob("targets/*/target.json")))
    assert set(PUBLIC["target.json"]) - {"digest"} <= set(target)


def test_the_library_call_that_scripts_make_still_works():
    assert set(PUBLIC["library"]) <= set(bnrecon.__all__)
    assert (
        list(inspect.signature(bnrecon.reconstruct).parameters)[: len(PUBLIC["reconstruct"])]
        == PUBLIC["reconstruct"]
    )
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3)).eval()
    rebuilt = bnrecon.reconstruct(
        model, features="he_normal", oversampling=1.5, solver="auto", seed=0
    )
    layer = rebuilt.layers[0]
    assert (layer.name, layer.width, layer.converged) == ("0", 81, True)
    assert layer.relative_error < 1e-10
    assert rebuilt.network(torch.randn(2, 2, 5, 5)).shape == (2, 3, 3, 3)


def test_every_folder_of_code_is_in_the_wheel():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]["packages"]
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "bnrecon").rglob("*.py")}
    assert sorted(listed) == sorted(
        {".".join(folder.parts) for folder in folders} | {"bnrecon.configs", "bnrecon.shipped"}
    )
    for folder in folders:
        assert (ROOT / folder / "__init__.py").exists(), folder
