"""Studies computed by jobs of a real Slurm: cluster=slurm."""

import json
import logging

import cluster_study
import pytest
from fake_tasks import calls
from processes import start, wait_until

from bnrecon.jobs import record
from bnrecon.reproduction import commands, request
from bnrecon.runtime import files
from bnrecon.studies import registry

pytestmark = pytest.mark.slurm
pytest.importorskip("submitit")

SLURM = ("cluster=slurm", "slurm.mem=1500M", "scale=smoke")
STUDY = cluster_study.STUDY


@pytest.fixture
def made(slurm, tmp_path, monkeypatch):
    """Requests parts of the study ``made``; tasks leave their traces in ``tmp_path``."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    cluster_study.register(tmp_path, monkeypatch)

    def read(*words, **flags):
        return request.read("made", [*words, *SLURM, f"outputs={tmp_path / 'out'}"], **flags)

    return read


def job_of(asked):
    """The number of the only submitted job."""
    [submission] = record.submissions(asked.folder)
    [number] = submission.jobs
    return number


def numbers(file):
    [row] = json.loads(file.read_text())["rows"]
    return {name: value for name, value in row.items() if name != "seconds"}


def sum_of(steps):
    return [{"total": sum(k * k for k in range(steps + 1)), "steps": steps}]


def start_command(tmp_path, *words):
    return start("made", *words, *SLURM, f"outputs={tmp_path / 'out'}", command="study")


def test_study_with_a_shared_target_has_the_same_numbers_without_slurm(
    slurm, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    study = registry.find("burkholz2024")
    words = ["excess_layers", "scale=smoke", "data=digits", "target.groups=[2,2]"]
    words += ["train.epochs=1", "threads=1", "device=cpu"]
    rows = {}
    for name, cluster in (("alone", ()), ("jobs", SLURM[:2])):
        asked = request.read(study.name, [*words, *cluster, f"outputs={tmp_path / name}"])
        monkeypatch.setenv("OMP_NUM_THREADS", "1")
        assert commands.run_study(study, asked).error is None
        rows[name] = [numbers(file) for file in sorted(asked.folder.glob("tasks/*/*.json"))]
    assert rows["jobs"] == rows["alone"]
    assert len(rows["jobs"]) == 6
    [folder] = cluster_study.jobs_folders(asked)
    jobs = files.read_json(folder / "submission.json")["jobs"]
    assert len(jobs) == 2  # for the target and for the tasks
    for job in jobs:
        assert wait_until(lambda job=job: slurm.states(job) == {job: "COMPLETED"})


def test_failed_target_is_reported_once_and_its_tasks_are_not_tried(slurm, tmp_path, caplog):
    study = registry.find("burkholz2024")
    words = ["excess_layers", *SLURM, "data=digits", "target.groups=[2,2]", "train.epochs=1"]
    words += ["train.lr=1e30", "device=cpu", f"outputs={tmp_path}"]
    with caplog.at_level(logging.ERROR):
        error = commands.run_study(study, request.read(study.name, words)).error
    assert "6 failed of 6 tasks" in str(error)  # the target is no task
    assert sum("diverged" in text and "not tried" not in text for text in caplog.messages) == 1
    assert sum("not tried: target of " in text for text in caplog.messages) == 6


def test_failures_are_reported_once_and_a_job_out_of_memory_is_named(made, slurm, tmp_path, caplog):
    asked = made("bad", "hungry")
    with caplog.at_level(logging.ERROR):
        error = commands.run_study(STUDY, asked).error
    assert "4 failed of 6 tasks" in str(error)
    told = {name: [t for t in caplog.messages if t.startswith(name)] for name in ("hungry", "bad")}
    assert any("hungry hoarder: job " in text for text in told["hungry"])
    if slurm.limits == "cgroup":  # otherwise accounting does not report it
        assert any("ran out of memory; raise slurm.mem=" in text for text in told["hungry"])
    assert any("hungry last: not tried; job " in text for text in told["hungry"])
    assert len(told["bad"]) == 1  # the mistake's line is the message alone
    names = ("failure", "mistake", "between", "small", "hoarder", "last")
    assert [calls(tmp_path, name) for name in names] == [1, 1, 1, 1, 1, 0]
    assert record.states(asked.folder) == []


def test_requeued_job_ends_at_the_uninterrupted_numbers(made, slurm, tmp_path, monkeypatch):
    """Slurm sends SIGUSR2 before the time limit."""
    monkeypatch.setenv(cluster_study.STEPS, "100")
    asked = made("long", "slurm.time=4", detach=True)
    assert f"bnrecon cancel {STUDY.name}" in commands.run_study(STUDY, asked).text
    number = job_of(asked)
    assert wait_until(lambda: calls(tmp_path, "counted") == 1)
    slurm.call("scancel", "--signal=USR2", number)
    assert wait_until(lambda: calls(tmp_path, "counted") == 2, 240)
    assert commands.run_study(STUDY, made("long", "slurm.time=4")).error is None
    assert cluster_study.rows_of(asked, "counted") == sum_of(100)
    assert len(cluster_study.jobs_folders(asked)) == 1


def test_preempted_job_ends_at_the_uninterrupted_numbers(made, slurm, tmp_path, monkeypatch):
    monkeypatch.setenv(cluster_study.STEPS, "100")
    asked = made("long", "slurm.cpus=2", detach=True)
    commands.run_study(STUDY, asked)
    assert wait_until(lambda: calls(tmp_path, "counted") == 1)
    slurm.call("sbatch", "--partition=urgent", "--cpus-per-task=2", "--wrap=true", "-o/dev/null")
    assert wait_until(lambda: calls(tmp_path, "counted") == 2, 240)
    assert (tmp_path / "counted.checkpoint").exists()
    assert commands.run_study(STUDY, made("long", "slurm.cpus=2")).error is None
    assert cluster_study.rows_of(asked, "counted") == sum_of(100)


def test_job_reaching_its_time_limit_too_often_is_named(made, monkeypatch, caplog):
    """A real time limit of one minute, with Slurm's signal 15 seconds before."""
    monkeypatch.setenv(cluster_study.STEPS, "5000")
    with caplog.at_level(logging.ERROR):
        error = commands.run_study(STUDY, made("long", "slurm.time=1", "slurm.requeues=0")).error
    assert "1 failed of 1 tasks" in str(error)
    assert "reached its time limit too often; raise slurm.time=" in caplog.text


def test_next_command_waits_for_the_jobs_of_a_killed_one(made, tmp_path):
    asked = made("long", "good")
    with start_command(tmp_path, "long", "good") as leader:
        assert wait_until(lambda: calls(tmp_path, "counted"))
        leader.kill()
    assert commands.run_study(STUDY, asked).error is None
    assert len(cluster_study.jobs_folders(asked)) == 1
    assert [calls(tmp_path, name) for name in ("counted", "a")] == [1, 1]
    assert cluster_study.rows_of(asked, "counted") == sum_of(30)


def test_cancelled_jobs_end_and_can_be_resumed(made, slurm, tmp_path, command, monkeypatch):
    monkeypatch.setenv(cluster_study.STEPS, "600")
    asked = made("long", detach=True)
    commands.run_study(STUDY, asked)
    number = job_of(asked)
    assert wait_until(lambda: calls(tmp_path, "counted"))
    [state] = record.states(asked.folder)
    assert (state.running, state.jobs) == (1, {"running": 1})
    code, out, _ = command("cancel", "made", f"outputs={tmp_path / 'out'}")
    assert code == 0
    assert f"1 running (jobs {number}); 0 of 1 tasks are computed" in out
    assert wait_until(lambda: "CANCELLED" in slurm.states(number).get(number, ""))
    assert (tmp_path / "counted.checkpoint").exists()
    code, out, _ = command("cancel", "made", f"outputs={tmp_path / 'out'}")
    assert "no queued or running job of made is known" in out


def test_refusal_by_slurm_is_one_line_and_leaves_no_jobs(made):
    asked = made("good", "slurm.partition=nowhere")
    error = commands.run_study(STUDY, asked).error
    assert str(error) == "Slurm refused the jobs: invalid partition specified: nowhere"
    assert cluster_study.jobs_folders(asked) == []
