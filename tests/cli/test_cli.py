"""The command line: a slip is one line and exit code 2, nothing is begun and nothing left behind."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import bnrecon
from bnrecon.cli import main, sweeps
from bnrecon.config import composition, schema
from bnrecon.reproduction import request, workers
from bnrecon.runtime import files, interruption
from bnrecon.runtime.errors import UserError

ENVIRONMENT = os.environ | {"OMP_NUM_THREADS": "1"}


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    """Every test stands in a folder of its own and leaves signals as they were."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def refused(command, *words, line=""):
    """Run a command that is to be refused in one line, with nothing begun; return the line."""
    before = sorted(Path.cwd().rglob("*"))
    code, out, err = command(*words)
    assert code == 2, err
    assert line in err
    assert err.startswith("bnrecon: ") and len(err.splitlines()) == 1
    assert "Traceback" not in err and "defect" not in err and out == ""
    assert sorted(Path.cwd().rglob("*")) == before
    return err


SLIPS = [
    ("=3", "'=3': an option lacks its name"),
    ("~", "an option lacks its name"),
    ("foo=3", "foo is not an option"),
    ("hydra=3", "must be a string"),
    ("--resolve", "--cfg"),
    ("--cfg", "expected one argument"),
    ("--cfg foo", "invalid choice: 'foo'"),
    ("--config-dir", "expected one argument"),
    ("--config-dir=", "give the folder that holds own yaml files"),
    ("train.seed=9223372036854775808", "at most 1,000,000,000,000"),
    ("train.seed=-1", "0 or above"),
    ("seeds=[9223372036854775808]", "from 0 to 2^63 - 1"),
    ("data.crop_padding=1e12", "must be a whole number"),
    ("data.crop_padding=1000000000000", "must be below 8 for images of 8x8"),
    ("data.workers=1000000000", "data.workers=1000000000: at most"),
    ("data.side=1000000000", "digits images have one size"),
    ("target.groups=[1000]", "at most 256 convolutions"),
    ("target=mlp target.depth=1000000000", "at most 256"),
    ("target.width=1000000000", "at most 1,000,000"),
    ("train.epochs=1000000000000", "at most 1,000,000"),
    ("train.batch_size=1000000000000", "at most 10,000,000"),
    ("train.warmup_epochs=1e300", "at most 1,000,000"),
    ("target.name=a/b", "none of them /"),
    ("target.family=vgg2", "did you mean 'vgg'"),
    ("hydra.sweep.dir= -m", "give a folder's name"),
    ("hydra/launcher=joblib", "add -m"),
    ("hydra/launcher=nothing_such -m", "pip install 'bnrecon[launchers]'"),
    ("features=he_normal,id_cond", "with -m"),
    ("-m features=he_normal,nothing_such", "features=nothing_such"),
    ("data.root=${nothing}", "nothing"),
    ("-m outputs=${nothing}", "nothing"),
    ("imports=[nothing/such]", "importable from here"),
    ("imports=[nothing-such]", "importable from here"),
    ("outputs=null", "must have a value"),
    ("hydra.sweep.dir=null -m", "must have a value"),
]


@pytest.mark.parametrize(("words", "line"), SLIPS, ids=[words for words, _ in SLIPS])
def test_a_slip_is_one_line_and_nothing_is_begun(command, words, line):
    refused(command, "run", *words.split(), line=line)


@pytest.mark.parametrize(
    "value", ["18", "1.5", "null", "true", "[1,2]", "{a: 1}", "", "../x", "größe"]
)
@pytest.mark.parametrize("group", schema.GROUPS)
def test_what_a_group_does_not_have_is_refused_with_what_it_has(command, group, value):
    refused(command, "run", f"{group}={value}", line=f"{group}={value}: ")
    refused(command, "train", f"{group}={value}", line="Allowed: ")


@pytest.mark.parametrize(
    ("target", "line"),
    [
        ("target=mlp", "training mlp of this width takes some 24000.0 GB"),
        ("target=resnet18 data=digits", "training resnet18 of this width takes some"),
        ("target=vgg18_normalization data=digits", "take a smaller width"),
    ],
)
def test_a_target_larger_than_the_memory_is_refused_before_it_is_built(command, target, line):
    for verb in ("run", "train"):
        refused(command, verb, *target.split(), "target.width=1000000", line=line)


def test_compiling_without_a_compiler_is_refused(command, monkeypatch):
    monkeypatch.setenv("CXX", "no_such_compiler")
    for verb in ("run", "train"):
        refused(
            command,
            verb,
            "scale=smoke",
            "device=cpu",
            "train.compile=on",
            line="there is no no_such_compiler",
        )


@pytest.fixture
def every_verb(command):
    """The commands that write below outputs."""
    study = {"study": main._study, "figures": main._figures}

    def run(verb, *words):
        if verb in study:
            return said(study[verb], *words)
        return command(verb, *words)

    import contextlib
    import io

    def said(main, *words):
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            code = main(list(words))
        return code, out.getvalue(), err.getvalue()

    return run


VERBS = (
    ("run",),
    ("run", "-m", "features=he_normal,id_cond"),
    ("train",),
    ("study", "random_features", "projection"),
)


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: " ".join(verb[:2]))
@pytest.mark.parametrize(
    ("outputs", "line"),
    [
        pytest.param(
            "/proc/nowhere",
            "cannot be created",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="has no /proc"),
        ),
        ("file", "file is a file"),
        ("file/below", "file is a file"),
        ("a" * 300, "File name too long"),
        ("", "outputs='': give a folder's name"),
        ("''", "outputs='': give a folder's name"),
        ("a\0b", "give a folder's name"),
        ("a\udcffb", "not UTF-8"),
    ],
    ids=["proc", "file", "below", "long", "empty", "quoted", "nul", "bytes"],
)
def test_outputs_that_cannot_be_is_refused_before_anything_is_begun(
    every_verb, verb, outputs, line
):
    Path("file").write_text("")
    refused(every_verb, *verb, "scale=smoke", f"outputs={outputs}", line=line)


STUDIES = [
    ("random_features jobs=²", "jobs=²: how many processes"),
    ("random_features jobs=0", "jobs=0: how many processes"),
    ("random_features jobs=1e3", "jobs=1e3: how many processes"),
    ("random_features jobs=99999999", "this machine carries"),
    ("random_features =3", "lacks its name"),
    ("random_features scale=", "scale=: Allowed"),
    ("random_features scale=none", "Allowed: laptop, paper, smoke"),
    ("random_features outputs=a ++outputs=b", "outputs= is given twice"),
    ("random_features train.compile=on device=cpu", "there is no no_such_compiler"),
    ("burkholz2024 target=18", "did you mean 'vgg18'"),
    ("../x", "study=../x: Allowed"),
    ("", "Allowed: burkholz2024, random_features"),
]


@pytest.mark.parametrize(("words", "line"), STUDIES, ids=[words for words, _ in STUDIES])
def test_a_slip_in_what_is_asked_of_a_study_is_one_line(every_verb, monkeypatch, words, line):
    monkeypatch.setenv("CXX", "no_such_compiler")
    refused(every_verb, "study", *(words.split() or [""]), line=line)


@pytest.mark.parametrize(
    "folder",
    ["nowhere", "../..", "file", "file/below", "a" * 300, "", "a\0b", "\udcff", "-x", "outputs="],
)
def test_tables_of_a_folder_that_is_none_are_refused(command, folder):
    Path("file").write_text("")
    refused(command, "tables", folder)
    refused(command, "tables", "a", "b", line="give one folder")


FOLDERS = [
    "größe",
    "a=b",
    "it's",
    'say "so"',
    "x[1]",
    "a,b",
    "a#b",
    "a b",
    "{a}",
    "(a",
    "a:b",
    "back\\slash",
    "end\\",
    "it's\\'",
    "null_",
]


@pytest.mark.parametrize("name", FOLDERS)
def test_a_folder_is_a_folder_whatever_letters_it_is_made_of(name):
    for prefix in ("", "++"):
        composed = composition.compose(
            [f"{prefix}data.root={name}", f"{prefix}outputs={name}", f"{prefix}targets={name}"]
        )
        assert (composed.data.root, composed.outputs, composed.targets) == (name, name, name)
    assert request.read("random_features", [f"outputs={name}"]).outputs == Path(name)


def test_what_is_quoted_already_and_null_and_the_home_folder_stay_what_they_are(monkeypatch):
    monkeypatch.setenv("HOME", "/home/it's")
    composed = composition.compose(["data.root=null", "outputs='a b'", "targets=~/x"])
    assert (composed.data.root, composed.outputs, composed.targets) == (None, "a b", "/home/it's/x")
    assert composition.as_overrides(["data.root=ä,b", "features=he_normal,18"], sweep=True) == [
        "data.root='ä','b'",
        "features=he_normal,'18'",
    ]


def test_a_run_lies_in_a_folder_of_odd_letters_and_its_table_is_found(command):
    name = "größe, it's [1]=#"
    code, out, err = command("run", "scale=smoke", "target.groups=[1]", f"outputs={name}")
    assert code == 0, err
    assert Path(out.splitlines()[-1]).parent == Path(name) / "runs"
    assert command("tables", name)[0] == 0
    assert command("tables", f"outputs={name}")[0] == 0
    assert [place.name for place in Path.cwd().iterdir()] == [name]


YAMLS = {
    "syntax": (
        b"defaults: [custom_schema, _self_]\nname: [a\nfamily: x\n",
        "syntax.yaml: line 3, column 7: expected ',' or ']'",
    ),
    "twice": (b"name: a\nname: b\n", "twice.yaml: line 2, column 1: found duplicate key"),
    "tag": (b"name: !!python/object/apply:os.system ['true']\n", "tag.yaml: line 1, column 7"),
    "nul": (b"name: a\0b\n", "nul.yaml: character 8"),
    "bytes": ("name: größe\n".encode("latin-1"), "bytes.yaml: yaml files are UTF-8"),
    "lost": (
        b"defaults: [nothing_such, _self_]\n",
        "target/lost.yaml names target/nothing_such in its defaults",
    ),
    "mapping": (b"defaults: {a: 1}\n", "defaults must be a list"),
    "circle": (b"defaults: [circle]\n", "name each other in a circle"),
    "list": (b"- a\n", "In 'target/list'"),
}


@pytest.mark.parametrize("name", YAMLS)
def test_an_own_yaml_that_cannot_be_read_is_named_in_one_line(command, name):
    content, line = YAMLS[name]
    Path("own/target").mkdir(parents=True)
    Path(f"own/target/{name}.yaml").write_bytes(content)
    refused(command, "run", "--config-dir=own", f"target={name}", line=line)


def test_a_yaml_that_is_a_folder_and_a_folder_of_yamls_that_is_none(command):
    Path("own/target/mine.yaml").mkdir(parents=True)
    refused(command, "run", "--config-dir=own", "target=mine", line="target=mine: ")
    refused(command, "run", "--config-dir=nowhere", line="not found")
    refused(command, "run", "--config-dir=own/target/mine.yaml/x", line="not found")


MODULES = {
    "raise SystemExit('enough')": "SystemExit: enough",
    "raise KeyboardInterrupt": "KeyboardInterrupt",
    "x = [1\ny = 2": "SyntaxError: '[' was never closed",
    "1 / 0": "ZeroDivisionError: division by zero",
    "raise ValueError('first\\nsecond')": "ValueError: first second",
    "import nothing_such_at_all": "ModuleNotFoundError: No module named 'nothing_such_at_all'",
}


@pytest.mark.parametrize("source", MODULES)
def test_what_a_users_module_does_at_import_is_said_with_its_line(command, monkeypatch, source):
    name = f"users_{list(MODULES).index(source)}"
    Path(f"{name}.py").write_text(f"\n{source}\n")
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    monkeypatch.setattr(sys, "path", [*sys.path])
    interruption.leave_while_loading()  # as the command does before anything is loaded
    said = refused(command, "run", f"imports=[{name}]", line=MODULES[source])
    assert f"{name}.py:2)" in said
    sys.modules.pop(name, None)


def test_an_interruption_during_a_sweep_is_a_usual_one(command):
    """A launcher's jobs run in other processes, while this one waits."""
    interruption.leave_while_loading()
    assert interruption.loading()
    composed = composed_sweep("features=he_normal,id_cond")
    sweeps.SweepTable().on_multirun_start(composed)
    try:
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    finally:
        sweeps.release()
    assert not Path("out").exists()  # no job was begun


def composed_sweep(*words):
    import hydra
    from hydra.core.global_hydra import GlobalHydra
    from hydra.types import RunMode

    schema.register_schema()
    with hydra.initialize_config_module("bnrecon.configs", version_base="1.3"):
        loader = GlobalHydra.instance().config_loader()
        given = [
            *words,
            "outputs=out",
            "hydra.sweep.dir=${outputs}/sweeps/one",
            "hydra.mode=MULTIRUN",
        ]
        return loader.load_configuration("run", given, run_mode=RunMode.MULTIRUN)


def test_the_processes_of_joblib_end_with_an_interrupted_sweep():
    from joblib.externals.loky import get_reusable_executor

    executor = get_reusable_executor(max_workers=2)
    pids = {executor.submit(os.getpid).result() for _ in range(4)}
    sleeping = executor.submit(time.sleep, 600)
    assert waited(sleeping.running)
    assert sweeps.end_workers() == ""
    assert all(gone(pid) for pid in pids)


def test_jobs_that_were_submitted_are_said_to_go_on(monkeypatch):
    monkeypatch.setattr(sweeps, "_launcher", ["submitit_slurm"])
    assert "scancel JOB" in sweeps.end_workers()


def gone(pid):
    """Whether a process has ended; one that nobody has waited for yet has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except (FileNotFoundError, ProcessLookupError):
        return True


def waited(condition, seconds=90):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    return condition()


def worker_of(process):
    """The pid of a study's second process, once it is there."""
    for pid in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        try:
            if workers.START in Path(f"/proc/{pid}/cmdline").read_text().split("\0"):
                return int(pid)
        except FileNotFoundError:
            pass
    return None


@pytest.mark.skipif(sys.platform != "linux", reason="processes are found in /proc")
@pytest.mark.parametrize("later", [0, 1])
def test_no_worker_is_left_when_its_parent_is_killed_and_none_runs_the_current_folder(later):
    """The current folder's tqdm.py would be taken for the library if it were on a worker's path."""
    Path("tqdm.py").write_text("open('executed', 'w')\n")
    words = ["study", "random_features", "conditioning", "scale=smoke", "jobs=2", "outputs=out"]
    line = [sys.executable, "-P", "-m", "bnrecon.cli", *words]
    with subprocess.Popen(
        line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=ENVIRONMENT
    ) as parent:
        worker = waited(lambda: worker_of(parent))
        time.sleep(later)
        assert parent.poll() is None and not gone(worker)
        parent.kill()
    assert waited(lambda: gone(worker))
    assert not Path("executed").exists()
    if not later:  # it went while it loaded, and did not come to its work first
        said = next(Path("out").rglob("smoke-workers.log")).read_bytes()
        assert said in (b"", b"bnrecon: interrupted before anything was begun\n")


def test_a_worker_takes_the_same_package_and_nothing_of_the_current_folder():
    Path("bnrecon").mkdir()
    for name in ("bnrecon/__init__.py", "tqdm.py", "torch.py"):
        Path(name).write_text("open('executed', 'w')\n")
    line = [sys.executable, "-P", "-c", workers.START, bnrecon.__file__, "study", "--help"]
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    assert "usage: bnrecon study" in done.stdout
    assert not Path("executed").exists()


def test_more_processes_than_cores_or_memory_carry_are_refused(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    monkeypatch.setattr(workers.hardware, "available_memory", lambda device: 10**11)
    workers.require_room(4)
    with pytest.raises(
        UserError, match=r"jobs=5: this machine carries 4 \(4 cores, 100.0 GB of memory free"
    ):
        workers.require_room(5)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0}, raising=False)
    workers.require_room(2)
    monkeypatch.setattr(workers.hardware, "available_memory", lambda device: 5 * 10**8)
    workers.require_room(1)
    with pytest.raises(UserError, match="jobs=2: this machine carries 1 "):
        workers.require_room(2)


def shell(line, **environment):
    """Run a shell's line in which $BNRECON is the command."""
    command = f"{sys.executable} -P -m bnrecon.cli"
    return subprocess.run(
        ["bash", "-c", line],
        capture_output=True,
        text=True,
        timeout=120,
        env=ENVIRONMENT | {"BNRECON": command} | environment,
    )


def test_a_reader_that_has_seen_enough_is_no_error():
    done = shell("""
        for words in --help "run --help"; do
            $BNRECON $words | sleep 0  # is gone before anything is printed
            echo ${PIPESTATUS[0]}
        done
        $BNRECON --help > /dev/full
        echo $?
    """)
    assert done.stdout.split() == ["141", "141", "1"]
    assert (
        done.stderr
        == "bnrecon: No space left on device; what was finished is kept, the same command goes on from there\n"
    )


def test_a_terminal_without_a_letter_shows_its_number(command):
    words = ["run", "scale=smoke", "target.groups=[1]", "seeds=[0,1]", "outputs=out"]
    assert command(*words)[0] == 0
    done = shell("$BNRECON tables out", LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
    assert done.returncode == 0, done.stderr
    assert r"\xb1 0.00 (n=2)" in done.stdout


SWEEP = ["-m", "scale=smoke", "target.groups=[1]", "outputs=out", "hydra.sweep.dir=out/sweeps/one"]


def test_a_sweep_with_damaged_and_missing_records_has_its_table_of_the_others(command, capsys):
    code, out, err = command("run", *SWEEP, "features=he_normal,he_uniform,orthogonal,id_cond")
    assert code == 0, err
    folder = Path("out/sweeps/one")
    assert (folder / "table.md").read_text(encoding="utf-8") in out
    (folder / "job-0.json").unlink()
    (folder / "job-1.json").write_bytes((folder / "job-1.json").read_bytes()[:-9])
    lost = Path(files.read_json(folder / "job-2.json")["folder"]) / "result.json"
    lost.write_text("{}", encoding="utf-8")
    sweeps.SweepTable().on_multirun_end(composed_sweep())
    said = capsys.readouterr().err
    assert f"left out: job 0: {folder / 'job-0.json'} is missing" in said
    assert f"left out: job 1: {folder / 'job-1.json'} is damaged" in said
    assert f"left out: job 2: {lost} is damaged" in said
    assert sweeps.outcome == [1]
    table = (folder / "table.md").read_text(encoding="utf-8")
    assert "id_cond" in table
    assert not any(name in table for name in ("he_normal", "he_uniform", "orthogonal"))


def test_a_second_process_at_the_same_sweep_waits_and_finds_everything_done(command):
    assert command("run", *SWEEP)[0] == 0
    folder = Path("out/sweeps/one")
    record = (folder / "job-0.json").read_bytes()
    (folder / ".table.md.x.part").write_text("left by a killed writer", encoding="utf-8")
    sweeps.SweepTable().on_multirun_start(composed_sweep())  # the first process, at work
    try:
        assert not list(folder.glob("job-*")) and not list(folder.glob("*.part"))
        (folder / "job-0.json").write_bytes(record)
        line = [sys.executable, "-P", "-m", "bnrecon.cli", "run", *SWEEP]
        second = subprocess.Popen(
            line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=ENVIRONMENT
        )
        assert "waiting for process" in second.stderr.readline()
        assert (folder / "job-0.json").read_bytes() == record
    finally:
        sweeps.release()
    out, err = second.communicate(timeout=120)
    assert second.returncode == 0, err
    assert out.count("already done") == 1
    assert "he_normal" in (folder / "table.md").read_text(encoding="utf-8")


def test_the_worst_exit_code_of_a_sweep_is_that_of_the_command_started_as_a_module():
    done = shell(
        f"$BNRECON run {' '.join(SWEEP[:-1])} features=he_normal,id_cond solver=closed_form hydra.sweep.dir=out/s"
    )
    assert done.returncode == 2, done.stderr
    assert "failed (exit code 2): " in done.stderr


@pytest.mark.parametrize(
    "words",
    [["--help"], ["run", "--help"], ["run", "--cfg", "job"], ["train", "--help"], ["run=3"]],
    ids=" ".join,
)
def test_help_and_slips_are_answered_without_loading_torch(words):
    code = (
        f"import sys; sys.argv = ['bnrecon', *{words!r}]\nfrom bnrecon.cli.main import main\nmain()\nassert"
        " not {'torch', 'pandas', 'scipy'} & set(sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=120, env=ENVIRONMENT
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("verb", ["tables", "figures"])
def test_a_study_is_named_by_its_name_or_by_study(verb, capsys):
    asked = {"tables": main._tables, "figures": main._figures}[verb]
    for name in ("random_features", "study=random_features"):
        assert asked([name, "projection", "scale=smoke"]) == 0
    printed = capsys.readouterr().out
    said = (
        "not run: bnrecon study random_features projection"
        if verb == "tables"
        else "nothing of this has a picture yet"
    )
    assert printed.count(said) == 2
