"""A sweep: one process at a time works on it, and its table shows all its runs."""

import logging
import os
import pickle
import signal
import subprocess
import sys
import time
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from types import SimpleNamespace

import hydra
import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.plugins import Plugins
from hydra.types import RunMode
from omegaconf import open_dict
from processes import ENVIRONMENT

from bnrecon.cli import hydra_app, launcher_options, submitted_jobs, sweeps
from bnrecon.cli.main import make_parsers
from bnrecon.cli.runs import _Job
from bnrecon.config import schema
from bnrecon.runtime import files, interruption
from bnrecon.runtime.errors import UserError

SWEEP = ["-m", "scale=smoke", "target.groups=[1]", "outputs=out", "hydra.sweep.dir=out/sweeps/one"]


def compose_sweep(*overrides):
    """What Hydra hands the callback of a sweep."""
    schema.register_schema()
    with hydra.initialize_config_module("bnrecon.configs", version_base="1.3"):
        return (
            GlobalHydra.instance()
            .config_loader()
            .load_configuration(
                "run",
                [
                    *overrides,
                    "outputs=out",
                    "hydra.sweep.dir=out/sweeps/one",
                    "hydra.mode=MULTIRUN",
                ],
                run_mode=RunMode.MULTIRUN,
            )
        )


def test_an_interruption_during_a_sweep_is_an_exception():
    """A launcher's jobs run in other processes, while this one waits."""
    with interruption.handle_signals():
        with sweeps.watch() as sweep:
            sweeps.SweepCallback().on_multirun_start(compose_sweep())
            assert sweep.folder == Path("out/sweeps/one")
            with pytest.raises(KeyboardInterrupt):
                signal.raise_signal(signal.SIGINT)
        assert not Path("out").exists()  # no job ended


def test_a_sweep_that_cannot_start_fails_by_an_exit():
    """Hydra turns other exceptions of a callback into warnings."""
    Path("out").write_text("")
    with sweeps.watch(), pytest.raises(SystemExit) as leaving:
        sweeps.SweepCallback().on_multirun_start(compose_sweep())
    assert isinstance(leaving.value.code, UserError)
    assert "out is a file" in str(leaving.value.code)


def test_outside_a_watched_command_a_sweep_is_not_tracked():
    sweeps.SweepCallback().on_multirun_start(compose_sweep())
    assert not Path("out").exists()


def test_the_processes_of_joblib_end_with_an_interrupted_sweep():
    from joblib.externals.loky import get_reusable_executor

    executor = get_reusable_executor(max_workers=2)
    pids = {executor.submit(os.getpid).result() for _ in range(4)}
    sleeping = executor.submit(time.sleep, 600)
    while not sleeping.running():
        time.sleep(0.01)
    assert sweeps.Sweep().end_workers() == ""
    assert not any(is_running(pid) for pid in pids)


def is_running(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(
    ("launcher", "numbers", "note"),
    [
        ("submitit_slurm", ["7_0", "7_1"], "jobs go on: 7_1; to cancel them: scancel 7"),
        ("submitit_local", ["81", "82"], "jobs go on: 82; to cancel them: kill 81 82"),
        ("submitit_slurm", ["7"], ""),
        ("basic", [], ""),
    ],
)
def test_submitted_jobs_are_said_to_go_on(monkeypatch, launcher, numbers, note):
    """The first has ended."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setattr(submitted_jobs, "running", lambda jobs, slurm: jobs.keys() - {0})
    jobs = {i: SimpleNamespace(job_id=number) for i, number in enumerate(numbers)}
    found = sweeps.Sweep(launcher=launcher, submitted=jobs).end_workers()
    assert note in found
    assert bool(found) == bool(note)


def test_a_broken_launcher_leaves_the_table_of_the_jobs_that_ended(command, monkeypatch):
    """As joblib's does when one of its processes is killed."""
    name = "hydra._internal.core_plugins.basic_launcher.BasicLauncher"
    launcher = Plugins.instance().class_name_to_class[name]
    launch = launcher.launch

    def break_down(self, job_overrides, initial_job_idx):
        launch(self, job_overrides[:1], initial_job_idx)
        raise BrokenProcessPool("a worker was killed")

    monkeypatch.setattr(launcher, "launch", break_down)
    code, out, err = command("run", *SWEEP, "features=id_cond,orthogonal")
    assert code == 1
    assert "id_cond" in out
    assert "a process of the sweep was killed" in err
    assert "warning: did not end: scale=smoke target.groups=[1]" in err
    assert "features=orthogonal" in err
    assert "defect" not in err


def test_a_sweep_with_damaged_and_missing_records_shows_the_others(command, caplog):
    code, out, err = command("run", *SWEEP, "features=he_normal,he_uniform,orthogonal,id_cond")
    assert code == 0, err
    folder = Path("out/sweeps/one")
    assert (folder / "table.md").read_text(encoding="utf-8") in out
    assert out.splitlines()[-1] == str(folder)
    (folder / "job-0.json").unlink()
    (folder / "job-1.json").write_bytes((folder / "job-1.json").read_bytes()[:-9])
    lost = Path(files.read_json(folder / "job-2.json")["folder"]) / "result.json"
    lost.write_text("{}", encoding="utf-8")
    outcome = sweeps.Sweep(folder).finish()
    first, second, third = outcome.problems
    assert first == f"left out: job 0: {folder / 'job-0.json'} is missing"
    assert f"left out: job 1: {folder / 'job-1.json'} is damaged" in second
    assert f"left out: job 2: {lost} is damaged" in third
    assert outcome.code == 1
    assert outcome.table + "\n" == (folder / "table.md").read_text(encoding="utf-8")
    assert "id_cond" in outcome.table
    assert not any(name in outcome.table for name in ("he_normal", "he_uniform", "orthogonal"))


def test_a_second_process_at_the_same_sweep_waits_and_finds_everything_done(command):
    assert command("run", *SWEEP)[0] == 0
    folder = Path("out/sweeps/one")
    record = (folder / "job-0.json").read_bytes()
    (folder / ".table.md.host-99999999.abcdefg8.part").write_text(
        "left by a killed writer", encoding="utf-8"
    )
    with sweeps.watch():  # the first process, at work
        sweeps.SweepCallback().on_multirun_start(compose_sweep())
        assert not list(folder.glob("job-*"))
        assert not list(folder.glob("*.part"))
        (folder / "job-0.json").write_bytes(record)
        second = subprocess.Popen(
            [sys.executable, "-P", "-m", "bnrecon", "run", *SWEEP],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env=ENVIRONMENT,
        )
        assert "waiting for process" in second.stderr.readline()
        assert (folder / "job-0.json").read_bytes() == record
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    assert out.count("already done") == 1
    assert "he_normal" in (folder / "table.md").read_text(encoding="utf-8")


def test_a_sweep_goes_on_after_a_failed_job_and_ends_in_the_worst_exit_code(command):
    code, out, err = command(
        "run", *SWEEP, "features=he_normal,id_cond", "solver=closed_form", "train.epochs=1"
    )
    assert code == 2, err
    assert err.count("bnrecon: ") == 1
    failed = next(line for line in err.splitlines() if line.startswith("warning: failed"))
    assert failed.startswith("warning: failed (exit code 2): ")
    assert "features=he_normal" in failed
    assert "id_cond" in out
    assert "he_normal" not in out


def test_a_sweep_over_outputs_is_refused(refused):
    refused("run", "-m", "scale=smoke", "outputs=a,b", line="outputs: all jobs of a sweep have one")
    assert not Path("a").exists()


@pytest.mark.parametrize("name", ["job-1.json", "table.md"])
def test_files_of_somebody_else_are_not_taken_for_those_of_a_sweep(refused, name):
    place = Path("mine") / name
    place.parent.mkdir()
    place.write_text("mine")
    words = ("run", "-m", "scale=smoke", "seeds=[0],[1]", "hydra.sweep.dir=mine")
    refused(*words, line="hydra.sweep.dir=mine: has files named as those of a sweep")
    assert place.read_text() == "mine"


def test_the_folder_of_a_sweep_is_named_by_its_options_not_by_how_much_is_shown():
    parser = make_parsers()[1]["run"]
    names = []
    same = (["-m"], ["-m", "-q"], ["--verbose", "-m"], ["-mq"], ["-vm"], ["--multirun"])
    for words in (*same, ["-m", "seeds=[1]"]):
        folders = hydra_app._folders(parser.read(words))
        names += [folder for folder in folders if folder.startswith("hydra.sweep.dir=")]
    assert len(set(names[:-1])) == 1
    assert len(set(names)) == 2


@pytest.mark.parametrize("level", [logging.INFO, logging.WARNING])
def test_a_job_in_a_launchers_process_shows_what_the_command_would(level, capsys):
    """Launchers copy the job, not the logging of the process that started them."""
    job = pickle.loads(pickle.dumps(_Job(level)))
    composed = compose_sweep("hydra.job.num=3", "seeds=[]")
    HydraConfig.instance().set_config(composed)
    with open_dict(composed):
        del composed["hydra"]
    job(composed)
    shown = capsys.readouterr().err
    assert ("[3] " in shown) == (level == logging.INFO)
    assert "bnrecon: seeds=[]: give one or more" in shown
    assert files.read_json(Path("out/sweeps/one/job-3.json"))["code"] == 2


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["run", "hydra/launcher=submitit_slurm"], "launchers run sweeps; add -m"),
        (["train", "hydra/launcher=joblib"], "launchers run sweeps, with bnrecon run -m"),
        (["run", "-m", "hydra.launcher.partition=gpu"], "add -m hydra/launcher=submitit_slurm"),
        (
            ["run", "-m", "hydra/launcher=submitit_slurm", "hydra.launcher.partitio=gpu"],
            "did you mean 'hydra.launcher.partition'?",
        ),
    ],
)
def test_an_option_of_a_launcher_out_of_place_is_refused(refused, words, line):
    if "submitit" in " ".join(words):
        pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    refused(*words, line=line)


SETTINGS = """
partition: gpu
account: mine
gpus: 2
mem: 16G
time: 30m
setup: [module load cuda]
"""


@pytest.fixture
def slurm_options(monkeypatch):
    """The options of Slurm's launcher for a user with a slurm.yaml."""
    pytest.importorskip("hydra_plugins.hydra_submitit_launcher")
    Path("home/bnrecon").mkdir(parents=True)
    Path("home/bnrecon/slurm.yaml").write_text(SETTINGS, encoding="utf-8")
    monkeypatch.setenv("XDG_CONFIG_HOME", "home")

    def compose(*overrides):
        config = compose_sweep("hydra/launcher=submitit_slurm", *overrides)
        launcher_options.set_options(config, local=False)
        return config.hydra.launcher

    return compose


def test_slurms_options_are_the_commands_then_the_users_then_what_suits_runs_that_resume(
    slurm_options,
):
    found = slurm_options("hydra.launcher.partition=other")
    assert (found.partition, found.account, found.gpus_per_node) == ("other", "mine", 2)
    assert (found.timeout_min, found.signal_delay_s, found.max_num_timeout) == (30, 120, 10)
    assert found.additional_parameters == {"requeue": True, "mem": "16G"}
    assert found.setup == ["module load cuda"]
    assert found.name == "bnrecon-one"


def test_memory_and_time_given_in_the_command_replace_the_users(slurm_options):
    found = slurm_options("hydra.launcher.mem_gb=4", "hydra.launcher.timeout_min=4")
    assert found.mem_gb == 4
    assert found.additional_parameters == {"requeue": True}
    assert (found.timeout_min, found.signal_delay_s) == (4, 60)
