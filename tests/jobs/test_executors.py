"""Executors: this process or several; a failed, dead or stopped task affects no other."""

import contextlib
import logging
import os
import pickle
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
import torch
from fake_tasks import calls, die, fail, task_work, train
from processes import ENVIRONMENT, wait_until

from bnrecon.jobs import local_processes
from bnrecon.jobs.computation import InProcess
from bnrecon.jobs.local_processes import LocalProcesses
from bnrecon.jobs.work import Batch, Outcome, Started
from bnrecon.reproduction import engine, progress
from bnrecon.reproduction.request import read
from bnrecon.reproduction.work import TargetWork
from bnrecon.runtime import locks
from bnrecon.runtime.errors import Interrupted, RunError, UserError
from bnrecon.runtime.hardware import processor_count
from bnrecon.studies import registry

CPU = torch.device("cpu")
WHO = ["alone", pytest.param("two", marks=pytest.mark.process)]


@pytest.fixture
def executors(tmp_path):
    locks_folder, log = tmp_path / ".locks", tmp_path / "smoke.log"
    return {
        "alone": lambda: InProcess(locks_folder, log),
        "two": lambda: LocalProcesses(2, locks_folder, log, CPU),
    }


def outcomes(executor, *stages):
    return {event.label: event for event in executor.run(stages) if isinstance(event, Outcome)}


def rows_of(item):
    return item.result().rows[0]


@pytest.mark.parametrize("who", WHO)
def test_each_task_is_computed_once_whatever_its_outcome(who, executors, tmp_path):
    good = [task_work(tmp_path, name) for name in "abc"]
    bad = [task_work(tmp_path, kind, fail, kind=kind) for kind in ("mistake", "failure", "defect")]
    by_label = outcomes(executors[who](), [*bad, *good])
    assert [by_label[f"part {name}"].kind for name in "abc"] == ["done"] * 3
    assert by_label["part mistake"].kind == "mistake"
    assert by_label["part failure"].kind == by_label["part defect"].kind == "failed"
    assert by_label["part failure"].gist == "failure of failure"  # one line
    assert all(item.is_finished() for item in good)
    for name in ("a", "b", "c", "mistake", "failure", "defect"):
        assert calls(tmp_path, name) == 1
    log = Path(by_label["part defect"].log).read_text(encoding="utf-8")
    assert "part defect failed: " in log
    assert "Traceback" in log


@pytest.mark.process
def test_processes_share_threads_leave_the_session_and_run_stage_by_stage(executors, tmp_path):
    first, second = ([task_work(tmp_path, name) for name in names] for names in ("ab", "cd"))
    order = [(type(event), event.key) for event in executors["two"]().run([first, second])]
    ended = max(order.index((Outcome, item.key)) for item in first)
    began = min(order.index((Started, item.key)) for item in second)
    assert ended < began
    rows = [rows_of(item) for item in (*first, *second)]
    threads = min(torch.get_num_threads(), processor_count())
    assert {row["threads"] for row in rows} == {max(1, threads // 2)}
    assert os.getpid() not in {row["process"] for row in rows}
    assert all(row["session"] == row["process"] for row in rows)  # out of reach of Ctrl-C


def test_processes_share_the_processors_that_were_granted(executors, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 64)
    monkeypatch.setattr(local_processes.hardware, "processor_count", lambda: 6)
    assert executors["two"]()._threads == 3


@pytest.mark.process
def test_each_process_has_its_gpu(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    work = [task_work(tmp_path, name) for name in "abcd"]
    executor = LocalProcesses(2, tmp_path, tmp_path / "smoke.log", torch.device("cuda"))
    outcomes(executor, work)
    by_process = {}
    for item in work:
        by_process.setdefault(rows_of(item)["process"], set()).add(rows_of(item)["gpu"])
    assert sorted(by_process.values()) in ([{"3"}], [{"5"}], [{"3"}, {"5"}])
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    gpu = torch.device("cuda")
    assert [local_processes.gpu_name(number, gpu) for number in (0, 1)] == ["0", "1"]
    assert local_processes.gpu_name(0, CPU) is None


@pytest.mark.process
def test_killed_process_loses_only_its_task(executors, tmp_path):
    work = [task_work(tmp_path, "dies", die), *(task_work(tmp_path, name) for name in "abc")]
    by_label = outcomes(executors["two"](), work)
    assert by_label["part dies"].kind == "failed"
    assert "its process was killed" in by_label["part dies"].gist
    assert [by_label[f"part {name}"].kind for name in "abc"] == ["done"] * 3
    assert calls(tmp_path, "dies") == 1


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_full_disk_truncates_only_the_log(tmp_path, capfd):
    work = [task_work(tmp_path, "bad", fail, kind="defect"), task_work(tmp_path, "good")]
    by_label = outcomes(InProcess(tmp_path / ".locks", Path("/dev/full")), work)
    assert [by_label[f"part {name}"].kind for name in ("bad", "good")] == ["failed", "done"]
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("who", WHO)
def test_task_of_another_command_comes_last_and_is_not_recomputed(who, executors, tmp_path):
    held, free = task_work(tmp_path, "held"), task_work(tmp_path, "free")
    with contextlib.ExitStack() as stack:
        assert stack.enter_context(locks.lock_work(held.key, tmp_path / ".locks"))
        for event in executors[who]().run([[held, free]]):
            if isinstance(event, Outcome) and event.key == free.key:
                held.compute()  # like the other command
                stack.close()
        assert calls(tmp_path, "held") == 1
        assert calls(tmp_path, "free") == 1


@pytest.mark.process
def test_processes_stop_at_a_checkpoint_when_their_iterator_closes(executors, tmp_path):
    events = executors["two"]().run([[task_work(tmp_path, "long", train)]])
    next(events)
    assert wait_until(lambda: calls(tmp_path, "long") == 1)
    pid = int((tmp_path / "long.called").read_text())
    events.close()
    assert (tmp_path / "long.checkpoint").read_text() == "SIGTERM was received"
    assert not psutil.pid_exists(pid)


@pytest.mark.process
def test_time_limit_in_another_process_stops_the_study(executors, tmp_path, monkeypatch):
    work = [task_work(tmp_path, "long", train)]
    events = executors["two"]().run([work])
    next(events)
    assert wait_until(lambda: calls(tmp_path, "long") == 1)
    os.kill(int((tmp_path / "long.called").read_text()), signal.SIGTERM)
    with pytest.raises(Interrupted):
        next(events)


LEADER = """
import sys
from pathlib import Path
import torch
from fake_tasks import task_work, train
from bnrecon.jobs.local_processes import LocalProcesses
if __name__ == "__main__":
    folder = Path(sys.argv[1])
    work = [task_work(folder, name, train) for name in ("one", "two")]
    executor = LocalProcesses(2, folder, folder / "smoke.log", torch.device("cpu"))
    try:
        for event in executor.run([work]):
            pass
    except KeyboardInterrupt:
        sys.exit(130)
"""


@pytest.mark.process
@pytest.mark.skipif(sys.platform == "win32", reason="sends signals")
@pytest.mark.parametrize("sent", [signal.SIGKILL, signal.SIGINT])
def test_no_process_remains_and_each_saves_its_checkpoint(sent, tmp_path):
    """Whether the leading process is killed or interrupted; no code in the folder is executed."""
    (tmp_path / "random.py").write_text("open('executed', 'w')\n")
    (tmp_path / "leader.py").write_text(LEADER)
    path = os.pathsep.join([str(Path(__file__).parents[1]), *sys.path])
    line = [sys.executable, "-P", str(tmp_path / "leader.py"), str(tmp_path)]
    environment = ENVIRONMENT | {"PYTHONPATH": path}
    with subprocess.Popen(
        line, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True
    ) as leader:
        names = ("one", "two")
        assert wait_until(lambda: all(calls(tmp_path, name) for name in names))
        workers = [int((tmp_path / f"{name}.called").read_text()) for name in names]
        leader.send_signal(sent)
        said = leader.communicate(timeout=120)[1]
    if sent == signal.SIGINT:
        assert said == ""  # no warning of leaked semaphores
    assert leader.returncode == (130 if sent == signal.SIGINT else -signal.SIGKILL)
    assert wait_until(lambda: not any(map(psutil.pid_exists, workers)))
    for name in names:
        assert (tmp_path / f"{name}.checkpoint").read_text() == "SIGTERM was received"
    assert not (tmp_path / "executed").exists()


def test_jobs_beyond_cores_memory_or_gpus_are_refused(monkeypatch):
    monkeypatch.setattr(local_processes.hardware, "processor_count", lambda: 4)
    monkeypatch.setattr(local_processes.hardware, "available_memory", lambda device: 10**11)
    local_processes.require_room(4, CPU)
    with pytest.raises(UserError, match=r"jobs=5: this machine has room for 4 \(4 cores, 100.0 GB"):
        local_processes.require_room(5, CPU)
    with pytest.raises(UserError, match=r"jobs=100000: this machine has room for 4 "):
        local_processes.require_room(100000, CPU)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(UserError, match=r"jobs=2: this machine has room for 1 .* 1 GPU\)"):
        local_processes.require_room(2, torch.device("cuda"))
    monkeypatch.setattr(local_processes.hardware, "processor_count", lambda: 1)
    local_processes.require_room(2, CPU)
    monkeypatch.setattr(local_processes.hardware, "available_memory", lambda device: 5 * 10**8)
    local_processes.require_room(1, CPU)
    with pytest.raises(UserError, match=r"jobs=2: this machine has room for 1 "):
        local_processes.require_room(2, CPU)


@pytest.mark.parametrize("name", registry.STUDIES)
def test_all_work_of_a_study_can_be_pickled(name, tmp_path):
    request = read(name, ["scale=smoke", f"outputs={tmp_path}"])
    work = [item for part in engine.plan(registry.find(name), request) for item in part.work]
    again = pickle.loads(pickle.dumps(work))
    assert [item.key for item in again] == [item.key for item in work]
    assert [item.label for item in again] == [item.label for item in work]


@pytest.mark.parametrize("who", WHO)
def test_progress_file_records_successes_and_failures(who, executors, tmp_path, caplog):
    batch = Batch(tmp_path / "paper", "smoke", "bnrecon study paper")
    work = [task_work(tmp_path, "a"), task_work(tmp_path, "b", fail, kind="failure")]
    with (
        caplog.at_level(logging.INFO),
        pytest.raises(RunError, match="1 failed of 2 tasks") as raised,
    ):
        engine.compute_missing(work, executors[who](), batch)
    stored = progress.read(batch.progress)
    assert (stored.total, stored.finished, stored.ended) == (2, 1, "failed")
    assert [(failure.label, failure.message) for failure in stored.failed] == [
        ("part b", "failure of b")
    ]
    assert stored.running == ()
    assert stored.remaining_by_part == {}
    assert len(stored.seconds_by_part["part"]) == 1
    assert caplog.text.count("failure of b; see ") == 1
    name = {"alone": "smoke.log", "two": "smoke-process-*.log"}[who]
    details = str(tmp_path / "paper" / name)
    assert f"details go to {details}" in caplog.text
    assert str(raised.value).endswith(details)
    assert stored.failed[0].log in caplog.text
    engine.compute_missing(work[:1], executors[who](), batch)  # already computed
    assert calls(tmp_path, "a") == 1


def test_progress_file_records_running_tasks_and_interruption(executors, tmp_path):
    batch = Batch(tmp_path / "paper", "smoke", "bnrecon study paper")
    work = [task_work(tmp_path, "a"), task_work(tmp_path, "b")]
    with (
        contextlib.suppress(KeyboardInterrupt),
        progress.keep(batch, InProcess(tmp_path, tmp_path / "log"), work) as kept,
    ):
        kept.note(Started(work[0].key))
        now = progress.read(batch.progress)
        assert [(item.label, item.part) for item in now.running] == [("part a", "part")]
        assert now.remaining_by_part == {"part": 2}
        assert (now.pid, now.ended) == (os.getpid(), None)
        raise KeyboardInterrupt
    assert progress.read(batch.progress).ended == "interrupted"


@pytest.mark.skipif(sys.platform == "win32", reason="has no limits of files")
def test_full_disk_truncates_only_the_progress_file(tmp_path):
    import resource

    batch, item = Batch(tmp_path, "smoke", "again"), task_work(tmp_path, "a")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))
    try:  # an error on exit would replace one of the block
        with progress.keep(batch, InProcess(tmp_path, tmp_path / "log"), [item]) as kept:
            for _ in range(20):
                kept.note(Started(item.key))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert batch.progress.stat().st_size == 600
    assert progress.read(batch.progress).total == 1


def test_empty_progress_file_counts_as_missing(tmp_path):
    path = tmp_path / "progress-smoke.jsonl"
    for text in ("", '{"study": '):
        path.write_text(text)
        with pytest.raises(FileNotFoundError):
            progress.read(path)


@pytest.mark.process
def test_shared_targets_are_trained_first_and_once(tmp_path, caplog):
    options = ["scale=smoke", f"outputs={tmp_path}", "layers", "jobs=2"]
    study = registry.find("burkholz2024")
    request = read(study.name, [*options, "data=digits"])
    (part,) = engine.plan(study, request)
    batch = request.batch
    executor = LocalProcesses(2, batch.locks_folder, batch.log, CPU)
    with caplog.at_level(logging.INFO):
        engine.compute_missing(part.work, executor, batch)
    lines = [line for line in caplog.messages if line.startswith(("target of ", "layers "))]
    expected = 1 if len(part.work) > 1 else 0
    assert [line.startswith("target of ") for line in lines] == [True] * expected + [False] * len(
        part.work
    )
    assert len(list((tmp_path / "targets").iterdir())) == 1


@pytest.mark.process
def test_tasks_of_a_diverged_target_are_not_tried(tmp_path):
    options = ["scale=smoke", f"outputs={tmp_path}", "layers", "data=digits", "train.lr=1e30"]
    study = registry.find("burkholz2024")
    request = read(study.name, options)
    (part,) = engine.plan(study, request)
    target = TargetWork(part.work[0], part.work[0].target)
    executor = LocalProcesses(2, tmp_path / ".locks", tmp_path / "smoke.log", CPU)
    by_label = outcomes(executor, [target], part.work[:1])
    assert by_label[target.label].kind == "failed"
    assert "diverged" in by_label[target.label].gist
    lost = by_label[part.work[0].label]
    assert lost.gist == f"not tried: {target.label} failed ({by_label[target.label].gist})"
    assert lost.log == by_label[target.label].log
