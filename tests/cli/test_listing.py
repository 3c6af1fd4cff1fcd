"""`bnrecon ls` and `compare`: listing results, and differences of two runs."""

import json
import shutil
from pathlib import Path

import pytest
from repository import OUTPUTS, RESULTS, SHIPPED

from bnrecon.runtime import files

RUNS = [path.parent.name for path in RESULTS]


@pytest.fixture
def outputs():
    """A few shipped results in the current folder's ``outputs``."""
    shutil.copytree(OUTPUTS / "runs" / RUNS[0], Path("outputs/runs") / RUNS[0])
    shutil.copytree(OUTPUTS / "runs" / RUNS[-1], Path("outputs/runs") / RUNS[-1])
    target = f"targets/{next(iter(SHIPPED['targets']))}"
    shutil.copytree(OUTPUTS / target, Path("outputs") / target)
    shutil.copytree(OUTPUTS / "giannou2023", "outputs/giannou2023")
    return Path("outputs")


def test_shipped_results_are_listed_without_loading_torch(process, shipped_outputs):
    done = process("ls", str(shipped_outputs))
    assert done.returncode == 0
    assert done.stderr.split() == ["False"]  # torch
    lines = [line.split() for line in done.stdout.splitlines() if line]
    first = [words[0] for words in lines]
    assert [name for name in first if name in RUNS] == RUNS
    assert all("finished" in words for words in lines if words[0] in RUNS)
    assert {"giannou2023", "bn_explained"} <= set(first)
    assert f"runs: {len(RUNS)} finished; " in done.stdout


def test_finished_runs_are_compared_without_loading_torch(process, outputs):
    done = process("compare", RUNS[0], RUNS[-1])
    assert done.returncode == 0
    assert done.stderr.split() == ["False"]
    assert RUNS[0] in done.stdout


def test_types_and_folders_are_accepted_in_any_order(command, outputs):
    whole = command("ls")
    assert whole[0] == 0
    assert command("ls", "outputs") == command("ls", "outputs=outputs") == whole
    assert command("ls", f"{outputs.resolve()}") == whole
    for kind in ("runs", "targets", "studies"):
        code, out, err = command("ls", kind, "outputs")
        assert (code, err) == (0, "")
        assert out == command("ls", "outputs", kind)[1]
        assert out.startswith(f"{kind}: ")
        assert out.rstrip() in whole[1]


def test_ls_prints_json_for_scripts(command, outputs):
    code, out, err = command("ls", "--json")
    content = json.loads(out)
    assert (code, err, content["outputs"]) == (0, "", "outputs")
    result = files.read_json(outputs / "runs" / RUNS[0] / "result.json")
    first = content["runs"][0]
    assert (first["name"], first["state"], first["shipped"]) == (RUNS[0], "finished", True)
    assert first["target_accuracy"] == result["target"]["accuracy"]
    assert content["targets"][0]["epochs"] == content["targets"][0]["epochs_done"]
    assert content["studies"][0]["study"] == "giannou2023"
    Path("empty").mkdir()
    assert json.loads(command("ls", "empty", "--json")[1])["runs"] == []


MISTAKES = [
    (["ls", "nowhere"], "'nowhere': no such folder; give the outputs folder of your runs"),
    (["ls", "runz"], "did you mean 'runs'?"),
    (["ls", "a" * 300], "no such folder"),
    (["ls", "a", "b"], "ls a b: give one folder"),
    (["ls", "empty", "studies"], "empty holds no studies; to make some: bnrecon study NAME"),
    (["ls", "outputs/runs"], "outputs/runs contains runs itself; give "),
    (["ls", f"outputs/runs/{RUNS[0]}"], "is a run; give the outputs folder that contains it"),
    (["tables", "burkholtz2024"], "to print a paper's tables: did you mean 'burkholz2024'?"),
    (["compare", RUNS[0]], "compare takes two runs, not 1"),
    (["compare", RUNS[0], RUNS[0]], "are the same run"),
    (["compare", RUNS[0], f"outputs/runs/{RUNS[0]}/"], "are the same run"),
    (["compare", RUNS[0], "c"], f"c: which of {RUNS[0]}, {RUNS[-1]}? Give more of its name"),
    (["compare", RUNS[0], "nothing"], "no run in outputs/runs begins so; see bnrecon ls runs"),
    (["compare", RUNS[0], "a" * 5000], "no run in"),
    (["compare", RUNS[0], RUNS[-1][:-1] + "x"], f"did you mean {RUNS[-1]}?"),
    (["compare", RUNS[0], RUNS[-1], "data.root=x"], "only --predict uses the images"),
    (["compare", RUNS[0], RUNS[-1], "--predict"], "tested on different images"),
]


@pytest.mark.parametrize(("words", "line"), MISTAKES, ids=[" ".join(w)[:60] for w, _ in MISTAKES])
def test_mistake_is_one_line(refused, outputs, words, line):
    Path("file").write_text("")
    Path("empty").mkdir()
    refused(*words, line=line)


def test_missing_outputs_folder_is_refused(refused):
    refused("ls", line="no folder outputs here; give the outputs folder of your runs")


def test_runs_are_compared_by_prefixes_of_their_names(command, outputs):
    keys = [name.rpartition("-")[2] for name in (RUNS[0], RUNS[-1])]
    whole = command("compare", RUNS[0], RUNS[-1])
    assert whole[::2] == (0, "")
    assert command("compare", *keys) == whole
    shutil.move("outputs", "elsewhere")
    folders = [f"elsewhere/runs/{name}" for name in (RUNS[0], RUNS[-1])]
    moved = whole[1].replace("outputs/runs", "elsewhere/runs")
    assert command("compare", *folders)[:2] == (0, moved)
    assert command("compare", *keys, "outputs=elsewhere")[:2] == (0, moved)


def test_shipped_results_are_listed_with_the_users(command, outputs, monkeypatch):
    packaged = Path("package").resolve()
    shutil.move("outputs", packaged)
    monkeypatch.setattr("bnrecon.runtime.shipped.packaged", lambda: packaged)
    assert [RUNS[0] in command("ls", *where)[1] for where in ([], ["runs"])] == [True, True]
    runs = Path("outputs/runs")
    (runs / RUNS[0]).mkdir(parents=True)
    (runs / RUNS[0] / "config.json").write_text('{"seeds": [0, 1]}')
    listed = json.loads(command("ls", "--json")[1])
    states = {run["name"]: run["state"] for run in listed["runs"]}
    assert states == {RUNS[0]: "unfinished", RUNS[-1]: "finished"}
    assert {study["study"] for study in listed["studies"]} == {"giannou2023"}
    code, out, _ = command("compare", RUNS[-1], str(packaged / "runs" / RUNS[0]))
    assert (code, str(packaged / "runs" / RUNS[-1]) in out) == (0, True)
