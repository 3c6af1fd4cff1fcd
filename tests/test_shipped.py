"""Shipped results and public names that scripts rely on stay as they are."""

import dataclasses
import inspect
import json
import subprocess
import tomllib
import typing
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from repository import OUTPUTS, RESULTS, ROOT, SHIPPED
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


@pytest.mark.parametrize("name", SHIPPED["runs"])
def test_shipped_run_keeps_its_name(name):
    assert run_folder(composition.compose(SHIPPED["runs"][name])).name == name


@pytest.mark.parametrize("name", SHIPPED["targets"])
def test_shipped_target_keeps_its_name(shipped_outputs, name):
    about = SHIPPED["targets"][name]
    words = [*about["words"], f"outputs={shipped_outputs}"]
    request = composition.compose(words).target_request
    images = SimpleNamespace(checksum=lambda: about["pixels"])
    assert target_folder(request, images, torch.device("cpu")).name == name
    stored = files.read_json(OUTPUTS / "targets" / name / "target.json")
    assert difference(stored, request, images) == ""


def test_everything_shipped_is_listed_in_the_golden_file():
    line = ["git", "ls-files", "outputs/runs", "outputs/targets"]
    tracked = subprocess.run(line, cwd=ROOT, capture_output=True, text=True).stdout.split()
    if not tracked:
        pytest.skip("not a checkout")
    for kind in ("runs", "targets"):
        names = {Path(path).parent.name for path in tracked if Path(path).parts[1] == kind}
        assert names == set(SHIPPED[kind])


def test_everything_shipped_can_be_read():
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


def test_options_used_by_scripts_still_exist():
    assert set(PUBLIC["options"]) <= set(option_names(schema.RunConfig))


def test_new_result_has_all_keys_that_scripts_read(smallest_outputs):
    result = files.read_json(next(smallest_outputs.glob("runs/*/result.json")))
    parts = {"result": result, "result.layers": result["layers"][0]}
    parts |= {f"result.{name}": result[name] for name in ("target", "source", "data")}
    for part, keys in parts.items():
        assert set(PUBLIC[part]) - {"digest"} <= set(keys), part
    target = files.read_json(next(smallest_outputs.glob("targets/*/target.json")))
    assert set(PUBLIC["target.json"]) - {"digest"} <= set(target)


def test_library_call_of_scripts_still_works():
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


def test_every_package_folder_is_in_the_wheel():
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"][
        "setuptools"
    ]["packages"]
    folders = {path.parent.relative_to(ROOT) for path in (ROOT / "bnrecon").rglob("*.py")}
    assert sorted(listed) == sorted(
        {".".join(folder.parts) for folder in folders} | {"bnrecon.configs", "bnrecon.shipped"}
    )
    for folder in folders:
        assert (ROOT / folder / "__init__.py").exists(), folder
