"""`bnrecon status`: progress of a study, seen from another process."""

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_progress import end, kept, pieces, start

from bnrecon.cli import status


@pytest.fixture
def outputs():
    Path("outputs").mkdir()
    return Path("outputs")


def test_without_a_running_study_the_last_one_is_shown(command, outputs):
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


def test_running_study_shows_done_running_failed_and_remaining_tasks(command, outputs):
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
        "about 10 min, if the rest of theorem1 is like its finished tasks",
        "not known for 2 of theorem2: none finished",
    ):
        assert text in out
    assert "resume with" not in out


def test_parts_of_unknown_time_are_listed_in_their_order():
    parts = {f"part{number}": 1 for number in range(9)}
    progress = SimpleNamespace(remaining_by_part=parts, seconds_by_part={}, processes=1)
    lines = list(status._remaining_time(SimpleNamespace(jobs=()), progress))
    assert lines == [f"not known for 1 of {part}: none finished" for part in parts]
