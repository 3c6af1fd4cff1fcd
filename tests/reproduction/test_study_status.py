"""Progress of studies, seen from outside: leaders that live, died, or are elsewhere."""

import dataclasses
import re
import shutil
import socket
import subprocess
import sys

import pytest
from fake_progress import end, kept, pieces, start
from processes import has_ended, wait_until
from repository import OUTPUTS

from bnrecon.reproduction import progress, study_status
from bnrecon.reproduction.study_status import leader_is_alive, studies
from bnrecon.studies import registry

KNOWN = {name: registry.find(name).parts for name in registry.STUDIES}


def look(outputs):
    return studies(outputs, outputs, KNOWN)


def read(outputs):
    return progress.read(outputs / "studies" / "giannou2023" / "progress-smoke.jsonl")


def test_every_shipped_study_is_listed_with_its_tasks(shipped_outputs):
    shipped = look(shipped_outputs)
    laptop = [study.study for study in shipped if study.scale == "laptop"]
    assert laptop == list(registry.STUDIES)
    for study in shipped:
        assert (study.shipped, study.state) == (True, "stored")
        stored = list((OUTPUTS / study.study / "tasks").glob(f"*-{study.scale}/*.json"))
        assert study.tasks == len(stored)
        assert 0 < study.parts_begun <= study.parts == len(KNOWN[study.study])


def test_study_runs_with_its_leader_and_ends_after_it(tmp_path):
    work = pieces(theorem1=3)
    with kept(tmp_path, work) as note:
        note(start(work[0]))
        (study,) = look(tmp_path)
        assert (study.state, study.parts_begun) == ("running", 0)
        assert [item.label for item in study.progress.running] == ["theorem1 number 0"]
        note(end(work[0]))
        assert look(tmp_path)[0].parts_begun == 1
    (study,) = look(tmp_path)
    assert (study.state, study.progress.finished, study.progress.total) == ("finished", 1, 3)


def test_study_with_failures_has_failed_and_a_stopped_one_is_interrupted(tmp_path):
    work = pieces(theorem1=1)
    with kept(tmp_path, work) as note:
        note(end(work[0], kind="failed"))
    assert look(tmp_path)[0].state == "failed"
    with pytest.raises(KeyboardInterrupt), kept(tmp_path, work):
        raise KeyboardInterrupt
    assert look(tmp_path)[0].state == "interrupted"


@pytest.fixture
def ended_process():
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


@pytest.mark.process
def test_leader_is_dead_if_its_process_is_or_its_number_was_reused(tmp_path, ended_process):
    with kept(tmp_path, pieces(theorem1=1)):
        stored = read(tmp_path)
    stored = dataclasses.replace(stored, ended=None)
    assert leader_is_alive(stored)
    assert not leader_is_alive(dataclasses.replace(stored, ended="finished"))
    assert not leader_is_alive(dataclasses.replace(stored, pid=ended_process))
    assert not leader_is_alive(dataclasses.replace(stored, pid=-1))
    # Before this process began, another had its number.
    assert not leader_is_alive(dataclasses.replace(stored, started="2020-01-01T00:00:00+00:00"))


@pytest.mark.process
def test_unreaped_leader_is_dead(tmp_path):
    with kept(tmp_path, pieces(theorem1=1)):
        stored = read(tmp_path)
    zombie = subprocess.Popen([sys.executable, "-c", ""], stdout=subprocess.PIPE)
    zombie.stdout.read()  # ends with the process, which is not reaped yet
    stored = dataclasses.replace(stored, ended=None, pid=zombie.pid)
    assert wait_until(lambda: has_ended(zombie.pid))
    assert leader_is_alive(stored) is False
    zombie.wait()


def test_leader_on_another_machine_is_of_unknown_state(tmp_path):
    with kept(tmp_path, pieces(theorem1=1)):
        stored = dataclasses.replace(read(tmp_path), host=f"not-{socket.gethostname()}", ended=None)
    assert leader_is_alive(stored) is None
    assert leader_is_alive(dataclasses.replace(stored, ended="finished")) is False


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: text[:40] + "\n",
        lambda text: "\udcff\n[]\n",
        lambda text: text.replace("+00:00", "").replace("T", " at "),
        lambda text: re.sub(r"20\d\d-[^\"]*", "0001-01-01T00:00:00", text),
        lambda text: re.sub(r'"pid": \d+', '"pid": "x"', text),
        lambda text: re.sub(r'"pid": \d+', '"pid": Infinity', text),
        lambda text: "[" * 100_000 + "\n",
    ],
    ids=["cut", "nonsense", "time", "year", "process", "infinite", "nested"],
)
def test_damaged_progress_file_is_reported(tmp_path, damage):
    with kept(tmp_path, pieces(theorem1=1)):
        pass
    path = tmp_path / "studies" / "giannou2023" / "progress-smoke.jsonl"
    path.write_bytes(damage(path.read_text("utf-8")).encode(errors="surrogateescape"))
    (study,) = look(tmp_path)
    assert (study.state, study.progress) == ("damaged", None)
    assert study.problem


def test_damaged_tasks_set_aside_are_counted(tmp_path):
    shutil.copytree(OUTPUTS / "giannou2023", tmp_path / "studies" / "giannou2023")
    before, *_ = look(tmp_path)
    tasks = sorted((tmp_path / "studies" / "giannou2023" / "tasks").glob("*-laptop/*.json"))
    tasks[0].rename(f"{tasks[0]}.damaged")
    tasks[1].rename(f"{tasks[1]}.damaged-2")
    study, *_ = look(tmp_path)
    assert (study.tasks, study.set_aside) == (before.tasks - 2, 2)


def test_latest_study_is_the_one_that_wrote_last(tmp_path):
    for name in ("giannou2023", "burkholz2024"):
        with kept(tmp_path, [], study=name):
            pass
    listed = look(tmp_path)
    moved = dataclasses.replace(listed[0].progress, updated="2020-01-01T00:00:00+00:00")
    old = dataclasses.replace(listed[0], progress=moved)
    assert study_status.latest([old, listed[1]]) is listed[1]
    assert study_status.latest([]) is None
