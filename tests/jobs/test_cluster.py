"""Studies computed by processes that outlive the command: cluster=local."""

import dataclasses
import errno
import logging
import os
import re
import signal
import subprocess
from pathlib import Path

import cluster_study
import pytest
from fake_tasks import calls, task_work
from processes import has_ended, start, wait_until

from bnrecon.config.cluster_settings import ClusterSettings
from bnrecon.jobs import cluster, queues, record
from bnrecon.jobs.record import Reports
from bnrecon.jobs.work import Batch, Outcome
from bnrecon.reproduction import commands, engine, request
from bnrecon.runtime import locks
from bnrecon.runtime.errors import RunError, UserError


@pytest.fixture
def made(tmp_path, monkeypatch):
    """Requests parts of the study ``made`` in this process; its folder is ``tmp_path``."""
    cluster_study.register(tmp_path, monkeypatch)

    def read(*words, cluster="local", **flags):
        words = (*words, "scale=smoke", f"cluster={cluster}", f"outputs={tmp_path / 'out'}")
        return request.read("made", words, **flags)

    return read


def run(asked):
    return commands.run_study(cluster_study.STUDY, asked)


def start_command(tmp_path, *words):
    """Start the command in another process."""
    options = ("scale=smoke", "cluster=local", f"outputs={tmp_path / 'out'}")
    return start("made", *words, *options, command="study")


@pytest.mark.process
def test_two_processes_compute_every_task_once(made, tmp_path):
    asked = made("good", "jobs=2")
    outcome = run(asked)
    assert outcome.error is None
    assert [calls(tmp_path, name) for name in "abc"] == [1, 1, 1]
    rows = [cluster_study.rows_of(asked, name)[0] for name in "abc"]
    assert len({row["process"] for row in rows}) == 2
    assert os.getsid(0) not in {row["session"] for row in rows}  # out of reach of Ctrl-C
    [folder] = cluster_study.jobs_folders(asked)
    again = run(asked)
    assert again.text == outcome.text
    assert cluster_study.jobs_folders(asked) == [folder]


@pytest.mark.process
def test_failure_is_reported_once_with_its_log_and_retried_next_time(
    made, tmp_path, caplog, command
):
    asked = made("bad")
    with caplog.at_level(logging.ERROR):
        error = run(asked).error
    assert isinstance(error, RunError)
    assert "2 failed of 3 tasks" in str(error)
    [line] = [text for text in caplog.messages if text.startswith("bad failure: failure of")]
    log = Path(line.partition("see ")[2])
    assert "bad failure failed: " in log.read_text(encoding="utf-8")
    assert [calls(tmp_path, name) for name in ("failure", "mistake", "between")] == [1, 1, 1]
    assert record.states(asked.folder) == []  # all of it has been reported
    run(asked)
    assert [calls(tmp_path, name) for name in ("failure", "mistake", "between")] == [2, 2, 1]


@pytest.mark.process
def test_dead_process_is_named_and_the_tasks_after_it_are_not_tried(made, caplog):
    with caplog.at_level(logging.ERROR):
        error = run(made("dying")).error
    assert "2 failed of 3 tasks" in str(error)
    [killed] = [text for text in caplog.messages if text.startswith("dying killed: ")]
    [after] = [text for text in caplog.messages if text.startswith("dying after: ")]
    assert "was killed" in killed
    assert Path(killed.partition("see ")[2]).exists()
    assert "not tried; " in after


@pytest.mark.process
def test_next_command_waits_for_the_processes_of_a_killed_one(made, tmp_path):
    asked = made("long", "good")
    with start_command(tmp_path, "long", "good") as leader:
        assert wait_until(lambda: calls(tmp_path, "counted"))
        leader.kill()
    assert run(asked).error is None
    assert len(cluster_study.jobs_folders(asked)) == 1
    assert [calls(tmp_path, name) for name in ("counted", "a")] == [1, 1]
    assert cluster_study.rows_of(asked, "counted") == [
        {"total": sum(k * k for k in range(31)), "steps": 30}
    ]


@pytest.mark.process
def test_detached_jobs_are_listed_cancelled_and_resumed(
    made, tmp_path, command, succeed, monkeypatch
):
    monkeypatch.setenv(cluster_study.STEPS, "600")
    asked = made("long", "good", detach=True)
    text = run(asked).text
    assert f"bnrecon cancel made outputs={tmp_path / 'out'} stops them" in text
    assert wait_until(lambda: calls(tmp_path, "counted"))
    [state] = record.states(asked.folder)
    assert (state.running, state.queued, state.finished, state.failed) == (1, 0, 3, 0)
    assert state.jobs == {"running": 1}
    (tmp_path / "link").symlink_to("out")
    [linked] = record.states(tmp_path / "link" / "studies" / "made")
    assert linked.jobs == {"running": 1}
    [number] = state.submission.jobs
    out, _ = succeed("cancel", "made", f"outputs={tmp_path / 'out'}")
    assert f"1 running (jobs {number}); 3 of 4 tasks are computed" in out
    assert wait_until(lambda: has_ended(int(number)))
    assert (tmp_path / "counted.checkpoint").exists()
    assert record.states(asked.folder) == []
    code, out, _ = command("cancel", "made", f"outputs={tmp_path / 'out'}")
    assert "no queued or running job of made is known" in out


@pytest.mark.process
def test_results_of_detached_jobs_are_collected_later(made, tmp_path, command):
    asked = made("good", "long", detach=True)
    assert run(asked).error is None
    assert wait_until(lambda: not any(s.queued or s.running for s in record.states(asked.folder)))
    assert "its jobs have ended" in command("status", "made", f"outputs={tmp_path / 'out'}")[1]
    assert run(made("good", "long")).error is None
    assert record.submissions(asked.folder) == []
    told = command("status", "made", f"outputs={tmp_path / 'out'}")[1]
    assert told.startswith("made scale=smoke: finished\n")
    assert "4 of 4 done" in told


@pytest.mark.process
def test_ctrl_c_says_what_continues_and_how_to_stop_it(made, tmp_path):
    with start_command(tmp_path, "long") as leader:
        assert wait_until(lambda: calls(tmp_path, "counted"))
        leader.send_signal(signal.SIGINT)
        _, err = leader.communicate(timeout=120)
    assert leader.returncode == 130
    assert "they go on until they are done; bnrecon status outputs=" in err
    assert f"bnrecon cancel made outputs={tmp_path / 'out'} stops them" in err
    asked = made("long")
    assert run(asked).error is None
    assert calls(tmp_path, "counted") == 1


def test_small_tasks_share_a_job_and_long_ones_do_not(tmp_path):
    work = [task_work(tmp_path, name) for name in "abcdef"]
    sizes = [len(taken) for taken in cluster.bundle(work, {"part": 250.0}, 300.0, 10)]
    assert sizes == [2, 2, 2]
    assert len(cluster.bundle(work, {"part": 7200.0}, 300.0, 10)) == 6
    assert len(cluster.bundle(work, {}, 5.0, 10)) == 1
    assert len(cluster.bundle(work, {}, 5.0, 0)) == 6
    assert cluster.bundle([], {}, 5.0, 10) == []


def test_damaged_report_is_ignored(tmp_path):
    reports, outcome = Reports(tmp_path), Outcome("key", "label", "done", "done", 1.0, "log")
    reports.end(outcome)
    assert reports.outcomes(["key", "other"]) == {"key": outcome}
    [path] = (tmp_path / "outcomes").iterdir()
    path.write_text("{}")
    assert reports.outcomes(["key"]) == {}


def test_damaged_record_is_named_and_its_jobs_are_left_alone(tmp_path, caplog):
    batch = Batch(tmp_path, "smoke", "bnrecon study made")
    submission = record.new_submission(batch, "local").with_jobs({"1": ("a",)})
    assert record.submissions(tmp_path) == [submission]
    for text in (
        "",
        "[]",
        '{"digest": 3}',
        submission.folder.joinpath("submission.json").read_text()[2:],
    ):
        (submission.folder / "submission.json").write_text(text)
        caplog.clear()
        assert record.submissions(tmp_path) == []
        assert "submission.json" in caplog.text
    (tmp_path / "jobs" / "a file").write_text("")
    assert record.states(tmp_path) == []


def test_command_of_a_request_names_its_cluster_but_a_job_does_not(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    words = ["cluster=slurm", "slurm.mem=8G", "minutes_per_job=.5", "device=cpu"]
    asked = request.read("random_features", words)
    assert asked.executor.cluster.settings == ClusterSettings(mem="8G")
    assert asked.command.endswith("device=cpu cluster=slurm minutes_per_job=.5 slurm.mem=8G")
    assert asked.executor.cluster.minutes_per_job == 0.5
    assert asked.words_without_executor == ["random_features", "scale=laptop", "device=cpu"]


def test_missing_cluster_is_one_line(made, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    asked = made(cluster="slurm")
    with pytest.raises(UserError, match=r"sbatch, .* not found; .* cluster=local"):
        run(asked)


def test_job_runs_without_locks_on_file_systems_without_them(tmp_path, monkeypatch):
    def refused(*_, **__):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr(locks.filelock.FileLock, "acquire", refused)
    with pytest.raises(UserError, match="without file locks"), locks.lock_file(tmp_path / "a"):
        pass
    with locks.lock_file(tmp_path / "a", required=False) as held:
        assert held
    with locks.disabled(), locks.lock_folder(tmp_path / "b", "it"):
        assert (tmp_path / "b").is_dir()


class OneArrayTaken:
    """A queue that takes one array and refuses the next, like a limit on jobs."""

    name, grace = "a queue", 0.0

    def __init__(self):
        self.taken = []

    def submit(self, jobs, name, after):
        if self.taken:
            raise UserError("refused: too many jobs")
        self.taken = [f"7_{number}" for number in range(len(jobs))]
        return self.taken


def test_accepted_jobs_are_recorded_when_later_ones_are_refused(made, monkeypatch, caplog):
    monkeypatch.setattr(cluster, "open_queue", lambda *_: OneArrayTaken())
    monkeypatch.setattr(cluster, "MOST_JOBS", 1)
    asked = made("good", "jobs=2")
    with caplog.at_level(logging.WARNING):
        error = run(asked).error
    assert "refused: too many jobs" in str(error)
    assert "1 job given to a queue: 7" in caplog.text
    [submission] = record.submissions(asked.folder)
    assert list(submission.jobs) == ["7_0"]


def test_jobs_that_cannot_be_recorded_are_cancelled(made, monkeypatch):
    queue, cancelled = OneArrayTaken(), []
    queue.cancel = cancelled.append

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(cluster, "open_queue", lambda *_: queue)
    monkeypatch.setattr(record.Submission, "with_jobs", full)
    with pytest.raises(OSError, match="No space left"):
        run(made("good", "jobs=2"))
    assert cancelled == [queue.taken]


@pytest.mark.process
def test_started_processes_are_ended_when_another_cannot_start(made, tmp_path, monkeypatch):
    begin, begun = subprocess.Popen, []

    def begin_one(words, **settings):
        if "bnrecon.jobs.job" in words:
            if begun:
                raise BlockingIOError(11, "Resource temporarily unavailable")
            begun.append(begin(words, **settings))
            return begun[0]
        return begin(words, **settings)

    monkeypatch.setattr(queues.subprocess, "Popen", begin_one)
    asked = made("good", "jobs=2")
    error = run(asked).error
    assert isinstance(error, UserError)
    assert "process 2 of 2 cannot be started (Resource temporarily unavailable)" in str(error)
    assert wait_until(lambda: has_ended(begun[0].pid))
    assert record.submissions(asked.folder) == []
    assert [calls(tmp_path, name) for name in "abc"] == [0, 0, 0]


def test_processes_of_another_machine_are_not_taken_for_ended(made, command, tmp_path):
    asked = made("good")
    [item, *_] = engine.plan(cluster_study.STUDY, asked)[0].work
    empty = dataclasses.replace(record.new_submission(asked.batch, "local"), host="elsewhere")
    elsewhere = empty.with_jobs({"1": (item.key,)})
    message = f"processes of elsewhere .* remove {elsewhere.folder}"
    assert re.search(message, str(run(asked).error))
    [state] = record.states(asked.folder)
    assert re.search(message, state.problem)
    assert (state.queued, state.failed) == (1, 0)
    code, _, err = command("cancel", "made", f"outputs={tmp_path / 'out'}")
    assert code == 2
    assert re.search(message, err)
    elsewhere.reports.end(Outcome(item.key, "a", "failed", "x", 1.0, "log"))
    elsewhere.collect([item.key])
    assert record.states(asked.folder) == []  # it does not block forever
