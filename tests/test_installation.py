"""The installation page, the Dockerfile and pyproject.toml agree."""

import re
import shlex
import tomllib

from repository import ROOT

PAGE = (ROOT / "docs/installation.md").read_text(encoding="utf-8")
DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
LINES = [shlex.split(line, comments=True) for line in re.findall(r"^ {4}(\S.*)$", PAGE, re.M)]


def lines_of(*program):
    return [line for line in LINES if tuple(line[: len(program)]) == program]


def test_page_lists_exactly_the_extras():
    table = PAGE.partition("| extra |")[2].partition("\n\n")[0]
    first = [row.split("|")[1] for row in table.splitlines()[2:]]
    listed = {name for cell in first for name in re.findall(r"`(\w+)`", cell)}
    assert listed == set(PROJECT["optional-dependencies"])
    named = re.findall(r"\[(\w+)\]\"", PAGE)
    assert named
    assert set(named) <= listed


def test_torch_and_torchvision_come_from_the_same_index():
    lines = [line for line in lines_of("pip", "install") if "--index-url" in line]
    assert len(lines) == 2
    assert all({"torch", "torchvision"} <= set(line) for line in lines)
    (installed,) = re.findall(r"pip install .*--index-url.*\\\n(.*) ;;", DOCKERFILE)
    needed = {name for name in PROJECT["dependencies"] if name.startswith("torch")}
    assert set(shlex.split(installed)) == needed


def test_wheel_name_has_this_version():
    named = set(re.findall(r"bnrecon-(\S+)-py3-none-any\.whl", PAGE))
    assert named == {PROJECT["version"]}


def test_image_arguments_match_the_dockerfile():
    arguments = dict(re.findall(r"^ARG (\w+)=(.*)$", DOCKERFILE, re.M))
    passed = re.findall(r"--build-arg (\w+)=([\w.]*)", PAGE + DOCKERFILE)
    assert {name for name, _ in passed} == set(arguments)
    assert {value for name, value in passed if name == "DEVICE"} <= {"cpu", "gpu"}
    assert arguments["DEVICE"] == "cpu"
    pythons = [value for name, value in passed if name == "PYTHON"] + [arguments["PYTHON"]]
    assert set(pythons) <= set(re.findall(r"3\.\d+", PAGE.partition("\n\n")[2][:60]))


def test_image_receives_only_the_wheel():
    kept = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()[1:]
    assert kept == ["*", "!dist", "dist/*", "!dist/bnrecon-*.whl"]
    assert re.findall(r"^COPY (\S+)", DOCKERFILE, re.M) == ["dist/bnrecon-*.whl"]


def test_commands_of_the_page_exist(command):
    for line in lines_of("bnrecon"):
        assert command(line[1], "--help")[0] == 0, line
    assert {line[1] for line in lines_of("make")} <= set(
        re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.M)
    )
