"""`bnrecon status`: how far a study is, from another process."""

import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from made_progress import end, kept, pieces, start
from processes import ENVIRONMENT

from bnrecon.cli import status
from bnrecon.jobs import record
from bnrecon.jobs.work import Batch


@pytest.fixture
def outputs():
    Path("outputs").mkdir()
    return Path("outputs")


def test_without_a_study_in_progress_it_says_so_and_what_was_last(command, outputs):
    assert command("status") == (0, "No study is in progress in outputs.\n", "")
    with kept(outputs, pieces(theorem1=2), study="burkholz2024"):
        pass
    (earlier,) = (outputs / "studies" / "burkholz2024").glob("progress-*")
    earlier.write_text(re.sub(r"20\d\d-", "2020-", earlier.read_text()))
    work = pieces(theorem1=2)
    with kept(outputs, work) as note:
        note(end(work[0], kind="failed", gist="the matrix\nis singular", log="smoke.log"))
    code, out, err = command("status")
    assert (code, err) == (0, "")
    assert out.startswith("No study is in progress in outputs. The last one:\n\n")
    for text in (
        "giannou2023 scale=smoke: finished, with failures",
        "0 of 2 done, 1 failed, 1 left",
        "theorem1 number 0: the matrix\\nis singular; see smoke.log",
        "resume with  bnrecon study giannou2023 scale=smoke",
    ):
        assert text in out
    assert "burkholz2024" not in out
    assert command("status", "burkholz2024")[1].startswith("burkholz2024 scale=smoke: finished\n")


def test_a_study_in_progress_tells_what_is_done_running_failed_and_left(command, outputs):
    work = pieces(theorem1=6, theorem2=2)
    with kept(outputs, work, processes=2) as note:
        for piece in work[:3]:
            note(start(piece))
            note(end(piece, seconds=600.0))
        note(start(work[3]))
        note(end(work[4], kind="failed", gist="no memory"))
        code, out, err = command("status", "outputs=outputs")
    assert (code, err) == (0, "")
    for text in (
        "giannou2023 scale=smoke: in progress\n",
        "2 processes, led by process ",
        "3 of 8 done, 1 failed, 1 running, 3 left",
        "theorem1 number 3, for ",
        "theorem1 number 4: no memory; see a.log",
        "about 10 min, if the rest of theorem1 is like what is finished of it",
        "not known for 2 of theorem2: none finished",
    ):
        assert text in out
    assert "resume with" not in out


@pytest.mark.process
def test_a_study_whose_process_was_killed_is_not_in_progress(command, outputs):
    code = (
        "import os, signal, sys\nsys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\nfrom made_progress import kept, pieces, start\n"
        "work = pieces(theorem1=2)\n"
        "with kept(Path('outputs'), work) as note:\n"
        "    note(start(work[0]))\n    os.kill(os.getpid(), signal.SIGKILL)"
    )
    folder = str(Path(__file__).parents[1])
    done = subprocess.run([sys.executable, "-c", code, folder], env=ENVIRONMENT, timeout=120)
    assert done.returncode == -signal.SIGKILL
    out = command("status")[1]
    assert out.startswith("No study is in progress in outputs. The last one:")
    for text in (
        "its process ended without reporting",
        "0 of 2 done, 1 begun, 1 left",
        "resume with",
    ):
        assert text in out
    assert "time left" not in out


def test_a_damaged_progress_file_is_named_and_stops_nothing(command, outputs):
    for name in ("giannou2023", "burkholz2024"):
        with kept(outputs, pieces(theorem1=2), study=name):
            pass
    (damaged,) = (outputs / "studies" / "burkholz2024").glob("progress-*")
    damaged.write_text("rubbish\n")
    code, out, err = command("status")
    assert (code, err) == (0, "")
    assert f"burkholz2024 scale=smoke: {damaged} is damaged" in out
    assert "giannou2023 scale=smoke: finished" in out
    assert command("ls", "studies")[0] == 0


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["giannou"], "giannou: no such study or sweep in outputs; did you mean 'giannou2023'?"),
        (["scale=smoke"], "scale=smoke: Allowed: outputs"),
        (["outputs=nowhere"], "no such folder; give the outputs folder of your runs"),
        (["outputs=a", "outputs=b"], "outputs= is given twice"),
        (["--wach"], "did you mean '--watch'?"),
        ([], "no folder outputs here"),
    ],
)
def test_a_mistake_is_one_line(refused, words, line):
    refused("status", *words, line=line)


def test_a_study_of_which_nothing_was_computed_is_told(command, outputs):
    out = command("status", "giannou2023")[1]
    assert out.startswith("giannou2023: no command has left its progress in outputs")


def on_a_cluster(outputs, **counts):
    """What is known of a submission of which so many pieces of work are in each state."""
    batch = Batch(outputs / "studies" / "giannou2023", "smoke", "bnrecon study giannou2023")
    given = record.new_submission(batch, "slurm")
    given.folder.mkdir(parents=True)
    numbers = {"finished": 0, "failed": 0, "running": 0, "queued": 0, "jobs": {}} | counts
    return record.State(given, **numbers)


@pytest.mark.parametrize(
    ("counts", "texts"),
    [
        (
            {"finished": 3, "queued": 5, "jobs": {"running": 1, "queued": 2}},
            ["in progress on a cluster; its command waits", "jobs: 1 running, 2 queued; logs in "],
        ),
        (
            {"finished": 8},
            ["its jobs have ended; its command makes the tables", "jobs: all have ended; logs in "],
        ),
        (
            {"finished": 3, "failed": 5},
            [
                "its jobs have ended, with failures; its command makes",
                "3 finished, 5 failed, 0 run",
            ],
        ),
    ],
)
def test_jobs_without_their_command_are_told_of(command, outputs, monkeypatch, counts, texts):
    with pytest.raises(KeyboardInterrupt), kept(outputs, pieces(theorem1=8), processes=0):
        raise KeyboardInterrupt
    found = on_a_cluster(outputs, **counts)
    monkeypatch.setattr(record, "states", lambda folder, scale: [found])
    out = command("status")[1]
    for text in (*texts, "resume with  bnrecon study giannou2023\n"):
        assert text in out
    assert "0 of 8 done" not in out


def test_jobs_share_the_work_that_is_left(command, outputs, monkeypatch):
    found = on_a_cluster(outputs, finished=3, queued=5, jobs={"running": 4})
    monkeypatch.setattr(record, "states", lambda folder, scale: [found])
    work = pieces(theorem1=11)
    with kept(outputs, work, processes=0) as note:
        for piece in work[:3]:
            note(end(piece, seconds=600.0))
        out = command("status")[1]
    assert "about 20 min, if the rest of theorem1 is like what is finished of it" in out


def test_watching_ends_with_the_study(command, outputs, monkeypatch):
    work = pieces(theorem1=2)
    keeper = kept(outputs, work)
    note = keeper.__enter__()
    looks = iter([lambda: note(end(work[0])), lambda: keeper.__exit__(None, None, None)])
    monkeypatch.setattr(status.time, "sleep", lambda seconds: next(looks)())
    code, out, err = command("status", "--watch")
    assert (code, err) == (0, "")
    shown = [out.index(text) for text in ("0 of 2 done", "1 of 2 done", "No study is in progress")]
    assert shown == sorted(shown)
    assert "\x1b" not in out


def test_watching_is_ended_by_ctrl_c_without_a_complaint(command, outputs, monkeypatch):
    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(status.time, "sleep", interrupt)
    with kept(outputs, pieces(theorem1=2)):
        code, _, err = command("status", "--watch")
    assert (code, err) == (0, "")
