"""`bnrecon study`, `tables` and `figures`: naming studies, parts and folders."""

import errno
import os
from pathlib import Path

import pytest
from repository import ROOT

from bnrecon.reproduction import engine, pages
from bnrecon.reproduction.experiment import Experiment
from bnrecon.runtime import files
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.studies import registry

MISTAKES = [
    ("random_features jobs=0", "jobs=0: "),
    ("random_features jobs=99999999", "this machine"),
    ("random_features =3", "has no name"),
    ("random_features scale=none", "Allowed: laptop, paper, smoke"),
    ("random_features outputs=a ++outputs=b", "outputs= is given twice"),
    ("random_features imports=[mine]", "imports=[mine]: a study uses only its paper's parts"),
    ("random_features match", "match: did you mean 'matching'?"),
    ("burkholz2024 target=18", "did you mean 'vgg18'"),
    (
        "burkholz2024 thresholds target.width=3",
        "width=3: thresholds has no run that it could change",
    ),
    ("burkholz2024 pruned solver.tolerance=1e-3", "pruned has no run that it could change"),
    ("random_features cluster=slrum", "did you mean 'slurm'"),
    ("random_features cluster=local slurm.mem=8G", "is for cluster=slurm"),
    ("random_features cluster=slurm jobs=2", "slurm.array_parallelism="),
    ("", "Allowed: bn_explained, burkholz2024, giannou2023, random_features"),
]


@pytest.mark.parametrize(("words", "line"), MISTAKES, ids=[words for words, _ in MISTAKES])
def test_mistake_in_a_study_request_is_one_line(refused, words, line):
    refused("study", *(words.split() or [""]), line=line)


@pytest.mark.parametrize(
    "words",
    [
        "burkholz2024 pooling target.groups=[1]",
        "burkholz2024 table1 data=digits",
        "burkholz2024 excess features.excess=400",
        "burkholz2024 rounding evaluate=source",
        "burkholz2024 width100 data=digits",
        "burkholz2024 width100 data.name=digits",
        "burkholz2024 residual target.family=vgg",
        "burkholz2024 residual features.skip=none",
        "burkholz2024 epsilon features.epsilon=0.5",
        "burkholz2024 pruned target.activation=tanh",
        "random_features conditioned target.condition=7",
        "random_features sparse train.seed=7",
        "random_features scales train.seed=7",
        "bn_explained figure10 target.initialization=zero_bias",
        "bn_explained figure10 train.lr=0.1",
        "bn_explained table1 target.affine=false",
        "bn_explained table1 data=digits",
        "bn_explained controlled_noise target.virtual_batch=8",
        "bn_explained controlled_noise train.batch_size=64",
        "bn_explained figure4 target.initialization=zero_bias",
    ],
)
def test_compared_options_of_a_part_cannot_be_set(refused, words):
    option = words.split()[-1]
    line = f"{option}: the rows of this table differ by {option.partition('=')[0]}"
    refused("study", *words.split(), line=line)


@pytest.mark.parametrize(
    "folder",
    ["nowhere", "../..", "file", "file/below", "a" * 300, "", "a\0b", "\udcff", "-x", "outputs="],
)
def test_tables_of_an_invalid_folder_are_refused(refused, folder):
    Path("file").write_text("")
    refused("tables", folder)
    refused("tables", "a", "b", line="give one folder")


def test_make_reproduces_the_tables_of_every_study():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert f"STUDIES := {' '.join(registry.STUDIES)}\n" in makefile
    assert "$(foreach study,$(STUDIES),$(BIN)/bnrecon study $(study) " in makefile


@pytest.mark.parametrize("name", ["study", "tables", "figures"])
def test_help_lists_every_study_with_its_parts(command, name):
    code, out, err = command(name, "--help")
    assert (code, err) == (0, "")
    listed = set(out.split())
    for study in map(registry.find, registry.STUDIES):
        assert f"{study.name}:" in listed
        assert {*study.parts, *study.solvers} <= listed
    assert all(len(line) <= 100 for line in out.splitlines())


@pytest.mark.parametrize(
    "words",
    [
        ["random_features", "projection", "scale=smoke"],
        ["study=random_features", "projection", "scale=smoke"],
        ["projection", "study=random_features", "scale=smoke"],
    ],
)
def test_study_is_named_directly_or_by_option(succeed, words):
    out, err = succeed("tables", *words)
    assert "bnrecon study random_features projection scale=smoke" in out
    assert out.endswith("\n\noutputs/studies/random_features\n")
    out, _ = succeed("figures", *words)
    assert "bnrecon study random_features projection scale=smoke" in out


@pytest.mark.parametrize(("kind", "code"), [(RunError, 1), (UserError, 2)])
def test_tables_of_finished_tasks_are_printed_after_a_failure(command, monkeypatch, kind, code):
    def fail(*_):
        raise kind("projection: one task failed")

    written = []
    write = pages.write
    monkeypatch.setattr(pages, "write", lambda *args: written.append(args) or write(*args))
    monkeypatch.setattr(engine, "compute_missing", fail)
    exit_code, out, err = command("study", "random_features", "projection", "scale=smoke")
    assert exit_code == code
    assert err.splitlines()[-1] == "bnrecon: projection: one task failed"
    assert "bnrecon study random_features projection scale=smoke" in out
    assert out.endswith("\n\noutputs/studies/random_features\n")
    assert len(written) == 1


@pytest.fixture
def finished(succeed):
    """A finished part's folder, and its command's output."""
    out, _ = succeed("study", "giannou2023", "theorem1", "scale=smoke")
    return Path("outputs/studies/giannou2023"), out


REFUSED = "Permission denied: outputs/studies/giannou2023/theorem1-smoke"


@pytest.mark.parametrize(
    ("name", "code", "line"),
    [
        ("tables", 0, f"warning: the files of these tables were not updated ({REFUSED}.md)"),
        ("study", 2, f"bnrecon: {REFUSED}.png"),
    ],
)
def test_tables_are_printed_if_their_files_are_read_only(
    command, finished, monkeypatch, name, code, line
):
    def refuse(path, *_):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))

    monkeypatch.setattr(files, "write_bytes", refuse)
    _, printed = finished
    assert command(name, "giannou2023", "theorem1", "scale=smoke") == (code, printed, f"{line}\n")


@pytest.mark.parametrize("name", ["tables", "study", "figures"])
def test_part_that_cannot_be_shown_is_a_failure(command, finished, monkeypatch, name):
    def fail(*_):
        raise KeyError("width")

    monkeypatch.setattr(Experiment, "make_page", fail)
    code, out, err = command(name, "giannou2023", "theorem1", "scale=smoke")
    assert code == 1
    assert "bnrecon: theorem1 cannot be shown (KeyError: 'width'); see outputs/" in err
    assert out == "" if name == "figures" else "theorem1 cannot be shown" in out
