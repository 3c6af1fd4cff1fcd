"""The `bnrecon` command: routes words, owns exit codes (0 done, 1 failed, 2 a mistake in what was asked, 130 interrupted)."""

from __future__ import annotations

import hashlib
import importlib
import importlib.metadata
import os
import re
import signal
import sys
import threading
import traceback
from pathlib import Path

HELP = """bnrecon: rebuild trained networks from frozen random convolutions by their normalization parameters alone

usage: bnrecon COMMAND [...]

  run          train a target (or take the trained one), rebuild it, evaluate it, write a table
               bnrecon run                                       the embedded digits, seconds
               bnrecon run target=vgg18 features=he_normal       VGG18 of width 64 on CIFAR-10
               bnrecon run -m features=he_normal,id_cond         a sweep
               bnrecon run --help                                all groups and options
  train        train a target alone, or say which one is there: bnrecon train target=vgg18_normalization target.width=16
  study        run what a paper's tables lack, killed at any time and given again: bnrecon study burkholz2024 scale=laptop
  tables       one table of all finished runs, as Markdown: bnrecon tables [FOLDER]
               a paper's tables, its numbers beside ours:   bnrecon tables study=burkholz2024 scale=laptop
  figures      draw a paper's figures from what was run, and name the files: bnrecon figures study=random_features scale=laptop
  completion   tab completion: eval "$(bnrecon completion bash)" (or zsh, fish)

exit codes: 0 done, 1 failed, 2 a mistake in what was asked, 130 interrupted"""

COMMANDS = ("run", "train", "study", "tables", "figures", "completion")
HYDRA_FLAGS = (
    "--help", "-h", "--hydra-help", "--cfg", "-c", "--resolve", "--package", "-p", "--multirun", "-m", "--config-dir", "-cd",
    "--config-name", "-cn", "--info", "-i",
)  # fmt: skip


def main() -> None:
    """Run one command and leave with its exit code."""
    # Libraries that are interrupted while they load are left half made, and what they then say is of no use: nothing is begun, so leave.
    signal.signal(signal.SIGINT, _leave)
    _main(sys.argv[1:])


def _leave(*_: object) -> None:
    os.write(2, b"bnrecon: interrupted before anything was begun\n")
    os._exit(130)


def _loaded() -> None:
    """From here on an interruption is what it usually is."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGINT) is _leave:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def _main(words: list[str]) -> None:
    if words[:1] == ["-sc"]:  # what a shell asks for while completing
        sys.exit(_complete(words[1:]))
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP)
        sys.exit(0 if words else 2)
    if words[0] == "--version":
        print(importlib.metadata.version("bnrecon"))
        sys.exit(0)
    command, rest = words[0], words[1:]
    if command == "run":
        sys.exit(_run(rest))
    if "=" in command:
        print(f"bnrecon {command}: options come behind a command, as in: bnrecon run {command.lstrip('-')}", file=sys.stderr)
        sys.exit(2)
    if command == "train":
        sys.exit(_train(rest))
    if command == "study":
        sys.exit(_study(rest))
    if command == "tables":
        sys.exit(_tables(rest))
    if command == "figures":
        sys.exit(_figures(rest))
    if command == "completion":
        sys.exit(_install_completion(rest))
    from bnrecon.errors import nearest

    print(f"bnrecon {command}: no such command: {nearest(command, COMMANDS)}; see bnrecon --help", file=sys.stderr)
    sys.exit(2)


def _hydra(task, words: list[str]) -> None:
    """Hand words to Hydra with the project's configs; errors come back as exceptions."""
    import hydra

    from bnrecon import config

    config.register_schema()
    os.environ["HYDRA_FULL_ERROR"] = "1"
    words = [_expanded(word) for word in words]
    # Options first: argparse does not take `target=vgg18 --config-dir=mine features=own` apart.
    overrides = [word for word in words if (not word.startswith("-") and "=" in word) or word.startswith("~")]
    sys.argv = ["bnrecon", *(word for word in words if word not in overrides), *overrides]
    hydra.main(version_base="1.3", config_path="pkg://bnrecon.configs", config_name="run")(task)()


def _expanded(word: str) -> str:
    """``name=~/folder`` with the home folder, which the shell leaves alone there."""
    return re.sub(r"=~(?=/|$)", f"={Path.home()}", word)


def _run(words: list[str]) -> int:
    """Run one job or a sweep. A sweep goes on after a failed job and ends in the worst exit code."""
    from bnrecon import config
    from bnrecon.errors import nearest

    for word in words:
        if word.startswith("--") and "=" in word and not word.startswith("--conf"):
            return _say(f"{word}: options are written without dashes, as in {word.lstrip('-')}", 2)
        if word.startswith("-") and word.partition("=")[0] not in HYDRA_FLAGS:
            return _say(f"{word} is not an option: {nearest(word, HYDRA_FLAGS)}", 2)
    _outcome.clear()
    sweep = hashlib.sha256(" ".join(sorted(words)).encode()).hexdigest()[:10]
    if not any(word.startswith("hydra.sweep.dir=") for word in words):
        words = [*words, f"hydra.sweep.dir=${{outputs}}/sweeps/{sweep}"]
    try:
        _hydra(_job, words)
    except config.CONFIG_ERRORS as error:
        return _say(config.explain(error), 2)
    except SystemExit as leaving:
        return leaving.code if isinstance(leaving.code, int) else 2
    except BaseException as error:
        return _failure(error)
    return _outcome[0] if _outcome else 0


_outcome: list[int] = []  # the exit code of the job or the sweep that ran in this process


def _job(composed) -> None:
    """One job, alone or of a sweep. Its failure is reported here, so that a sweep goes on with the next."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode

    from bnrecon import hardware, store

    # Here and not before: a launcher may have brought the job into another process.
    hardware.keep_freed_memory()
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _terminated)
    hydra = HydraConfig.get()
    sweeping = hydra.mode == RunMode.MULTIRUN
    if sweeping:
        print(f"\n[{hydra.job.num}] {' '.join(hydra.overrides.task)}", flush=True)
    record: dict = {"overrides": list(hydra.overrides.task), "folder": None, "code": 0}
    try:
        record["folder"] = str(_main_job(composed))
    except BaseException as error:
        record["code"] = _failure(error)
    _outcome[:] = [record["code"]]
    if sweeping:
        store.write_json(Path(hydra.sweep.dir) / f"job-{hydra.job.num}.json", record)
        if record["code"] == 130:
            raise SystemExit(130)


def _main_job(composed) -> Path:
    from bnrecon import config

    asked = config.from_hydra(composed)
    for name in asked.imports:
        _import(name)
    from bnrecon.run import require_outputs, run

    _loaded()
    require_outputs(asked)
    return run(asked)


def _train(words: list[str]) -> int:
    """Train a target alone, or take the trained one, and say how good it is."""
    if words[:1] and words[0] in ("-h", "--help"):
        print("usage: bnrecon train [OPTION=VALUE ...]   (the options of bnrecon run; features and solver do not matter)")
        return 0
    if flags := [word for word in words if word.startswith("-")]:
        return _say(
            f"{flags[0]}: bnrecon train takes options alone, as in target.width=16; own yaml files and sweeps are for bnrecon run",
            2,
        )
    from bnrecon import config, hardware

    hardware.keep_freed_memory()
    signal.signal(signal.SIGTERM, _terminated)
    try:
        asked = config.compose([_expanded(word) for word in words])
        for name in asked.imports:
            _import(name)
        from bnrecon.run import require_outputs, train_only

        _loaded()
        require_outputs(asked)
        train_only(asked)
    except config.CONFIG_ERRORS as error:
        return _say(config.explain(error), 2)
    except BaseException as error:
        return _failure(error)
    return 0


def _import(name: str) -> None:
    """Import a user's module, from the current folder too, for what it registers."""
    from bnrecon.errors import UserError

    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(name.removesuffix(".py").removeprefix("./").replace("/", "."))
    except ModuleNotFoundError as error:
        raise UserError(
            f"imports={name}: {error}; give a module's name, importable from here, as in imports=[my_targets]"
        ) from None
    except Exception as error:  # the user's own code: anything can come out of it
        where = traceback.extract_tb(error.__traceback__)[-1]
        raise UserError(f"imports={name}: {type(error).__name__}: {error} ({where.filename}:{where.lineno})") from None


class SweepTable:
    """A Hydra callback: after a sweep, one table of all its runs, whichever launcher ran them."""

    def __init__(self) -> None:
        pass

    def on_multirun_start(self, config, **_: object) -> None:
        """Forget what an earlier sweep of the same name left."""
        for file in Path(config.hydra.sweep.dir).glob("job-*.json"):
            file.unlink()

    def on_multirun_end(self, config, **_: object) -> None:
        """Write and print the table; remember the worst exit code."""
        from bnrecon import store, tables

        folder = Path(config.hydra.sweep.dir)
        records = [store.read_json(file) for file in sorted(folder.glob("job-*.json"), key=_number)]
        # First: Hydra turns whatever goes wrong in a callback into a warning.
        _outcome[:] = [max((record["code"] for record in records), default=1)]
        results = [store.read_json(Path(record["folder"]) / "result.json") for record in records if record["folder"]]
        if results:
            table = tables.markdown(tables.summary(results))
            store.write_text(folder / "table.md", table + "\n")
            print(f"\n{table}")
        for record in records:
            if record["code"]:
                print(f"failed (exit code {record['code']}): {' '.join(record['overrides'])}", file=sys.stderr)
        print(f"\n{folder}")

    def __getattr__(self, name: str):
        if name.startswith("on_"):
            return lambda *_, **__: None
        raise AttributeError(name)


def _number(path: Path) -> int:
    return int(re.sub(r"\D", "", path.stem))


def _failure(error: BaseException) -> int:
    """Say what went wrong in one line and give the exit code; only a defect of ours shows a traceback."""
    from bnrecon import config
    from bnrecon.errors import Interrupted, RunError, UserError

    if getattr(error, "said_elsewhere", False):  # by the first of several processes
        return 1
    if isinstance(error, config.CONFIG_ERRORS):
        return _say(config.explain(error), 2)
    if isinstance(error, UserError):
        return _say(str(error), 2)
    if isinstance(error, Interrupted):
        return _say(str(error), 130)
    if isinstance(error, KeyboardInterrupt):
        return _say("interrupted; what was finished is kept, the same command goes on from there", 130)
    if isinstance(error, BrokenPipeError):  # whoever read our output, `head` say, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    if isinstance(error, RunError):
        return _say(str(error), 1)
    if isinstance(error, MemoryError) or re.search("out of memory|can't allocate memory", str(error)):
        return _say(
            f"not enough memory ({(str(error).splitlines() or ['an allocation failed'])[0]}); use a smaller width or features=id_cond",
            1,
        )
    if isinstance(error, OSError) and error.strerror:
        return _say(f"{error.strerror}{f': {error.filename}' if error.filename else ''}", 1)
    traceback.print_exception(error)
    return _say("this is a defect in bnrecon; please report it with the lines above", 1)


def _say(line: str, code: int) -> int:
    print(f"bnrecon: {line}", file=sys.stderr, flush=True)
    return code


def _terminated(*_: object) -> None:
    raise KeyboardInterrupt


def _study(words: list[str]) -> int:
    """Run what a study's tables lack, then print them."""
    if not words or "-h" in words or "--help" in words:
        from bnrecon.studies.asked import usage

        print(usage())
        return 0 if words else 2
    return _study_tables(words[0].removeprefix("study="), words[1:], run=True)


def _study_tables(name: str, words: list[str], run: bool, figures: bool = False) -> int:
    from bnrecon import hardware

    hardware.keep_freed_memory()
    signal.signal(signal.SIGTERM, _terminated)
    from bnrecon.errors import UserError

    try:
        from bnrecon.studies.asked import read

        _loaded()
        asked = read(name, [_expanded(word) for word in words])
        if asked.jobs > 1 and not run:
            raise UserError(f"jobs={asked.jobs} is for bnrecon study; tables and figures compute nothing")
        code = _run_study(asked) if run else 0
        text = _written(asked)
        if figures:
            drawn = sorted(
                path
                for path in asked.folder.glob(f"*-{asked.scale}*.png")
                if not asked.parts or path.name.partition("-")[0] in asked.parts
            )
            command = f"bnrecon study {' '.join(asked.alone)}"
            print("\n".join(map(str, drawn)) or f"nothing of this has a picture yet; what has one is drawn by: {command}")
            return code
        print(text)
        print(f"\n{asked.folder}")
        return code
    except BaseException as error:
        return _failure(error)


def _run_study(asked) -> int:
    """Run what is missing, tables before experiments; the exit code. What is done by then is written whatever stops it."""
    from bnrecon import parallel
    from bnrecon.errors import RunError, UserError
    from bnrecon.studies import running
    from bnrecon.studies.workers import end_with_parent, workers

    end_with_parent()
    parallel.refuse("bnrecon study")
    cells = [cell for table in running.collect(asked.name, asked.scale, asked.parts, asked.options).values() for cell in table]
    try:
        asked.folder.mkdir(parents=True, exist_ok=True)  # before anything is computed
    except OSError as error:
        raise UserError(f"outputs={asked.outputs}: cannot be created ({error.strerror})") from None
    code = 0
    with workers(asked.alone, asked.jobs, asked.folder / f"{asked.scale}-workers.log"):
        for do in (
            lambda: running.run_missing(cells, asked.folder / f"{asked.scale}.log"),
            lambda: running.run_experiments(asked.name, asked.scale, asked.folder, asked.parts, asked.options),
        ):
            try:
                do()
            except (RunError, UserError) as error:
                code = max(_failure(error), code) if code != 1 else 1
            except BaseException:
                _written(asked)
                raise
    return code


def _written(asked) -> str:
    """A study's tables, of what is done; both solvers' columns, whichever was asked for."""
    from bnrecon.studies import running

    parts = [part for part in asked.parts if part not in running.SOLVERS]
    found = running.collect(asked.name, asked.scale, parts, asked.options)
    return running.write_tables(asked.name, asked.scale, found, asked.folder, asked.parts, asked.options)


def _tables(words: list[str]) -> int:
    from bnrecon import tables

    if named := [word for word in words if word.startswith("study=")]:
        rest = [word for word in words if word not in named]
        return _study_tables(named[0].removeprefix("study="), rest, run=False)
    if any(word.startswith("-") for word in words) or len(words) > 1:
        from bnrecon.studies.asked import usage

        print(f"usage: bnrecon tables [FOLDER]   (FOLDER is what outputs= was, outputs by default)\n{usage()}")
        return 0 if words and words[0] in ("-h", "--help") else 2
    folder = Path(words[0].removeprefix("outputs=") if words else "outputs")
    results = tables.collect(folder)
    if not results:
        return _say(f"no finished runs in {folder}; make one with: bnrecon run outputs={folder}", 2)
    print(tables.markdown(tables.summary(results)))
    return 0


def _figures(words: list[str]) -> int:
    """Draw a study's pictures from what was run, and name them."""
    named = [word for word in words if word.startswith("study=")]
    if not named:
        from bnrecon.studies.asked import usage

        print(usage())
        return 0 if words and words[0] in ("-h", "--help") else 2
    return _study_tables(named[0].removeprefix("study="), [word for word in words if word not in named], run=False, figures=True)


def _install_completion(words: list[str]) -> int:
    if len(words) != 1 or words[0] not in ("bash", "zsh", "fish"):
        print('usage: eval "$(bnrecon completion bash)"   (or zsh, fish)')
        return 2
    _hydra(lambda _: None, ["-sc", f"install={words[0]}"])
    return 0


def _complete(words: list[str]) -> int:
    """Complete the command itself here; after `run`, let Hydra complete as if `run` were not there."""
    line = os.environ.get("COMP_LINE", "")
    given = line.split()
    if len(given) < 2 or (len(given) == 2 and not line.endswith(" ")):
        prefix = given[1] if len(given) == 2 else ""
        print("\n".join(command for command in COMMANDS if command.startswith(prefix)))  # fish wants lines
        return 0
    if given[1] != "run":
        return 0
    os.environ["COMP_LINE"] = re.sub(r"^(\s*\S+)\s+run\b", r"\1", line)
    try:
        _hydra(lambda _: None, ["-sc", *words])
    except Exception:  # a half-typed line often cannot be composed; a prompt is no place for its traceback
        return 1
    return 0


if __name__ == "__main__":
    main()
