"""The `bnrecon` command: routes words, owns exit codes (0 done, 1 failed, 2 a mistake in what was asked, 130 interrupted)."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import importlib
import importlib.metadata
import io
import os
import re
import sys
import traceback
from collections.abc import Sequence
from pathlib import Path

from bnrecon.cli import sweeps
from bnrecon.runtime.errors import UserError, nearest
from bnrecon.runtime.interruption import end_with_parent, leave_while_loading, loaded, loading

if __name__ == "__main__":
    from bnrecon.cli.main import main as imported

    imported()


__all__ = ["main"]


HELP = """bnrecon: rebuild trained networks from frozen random convolutions by their normalization parameters alone

usage: bnrecon COMMAND [...]

  run          train a target (or take the trained one), rebuild it, evaluate it, write a table
               bnrecon run                                       the embedded digits, seconds
               bnrecon run target=vgg18 features=he_normal       VGG18 of width 64 on CIFAR-10
               bnrecon run -m features=he_normal,id_cond         a sweep
               bnrecon run --help                                all groups and options
  train        train a target alone, or say which one is there: bnrecon train target=vgg18_normalization target.width=16
  study        run what a paper's tables lack; resumable, rerun it: bnrecon study burkholz2024 scale=laptop
  tables       one table of all finished runs, as Markdown: bnrecon tables [FOLDER]
               a paper's tables, its numbers beside ours:   bnrecon tables burkholz2024 scale=laptop
  figures      draw a paper's figures from what was run, and name the files: bnrecon figures random_features scale=laptop
  completion   tab completion: eval "$(bnrecon completion bash)" (or zsh, fish)

exit codes: 0 done, 1 failed, 2 a mistake in what was asked, 130 interrupted, 141 nobody reads the output any more"""


COMMANDS = ("run", "train", "study", "tables", "figures", "completion")


HYDRA_FLAGS = (
    "--help",
    "-h",
    "--hydra-help",
    "--cfg",
    "-c",
    "--resolve",
    "--package",
    "-p",
    "--multirun",
    "-m",
    "--config-dir",
    "-cd",
    "--config-name",
    "-cn",
    "--info",
    "-i",
)


# What a person can set right by another option or permission; a full disk is none of it.
MISTAKEN = (
    errno.EACCES,
    errno.EPERM,
    errno.EROFS,
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.ELOOP,
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; ``argv`` are the words behind ``bnrecon``, those of the command line by default.

    >>> main(["--version"])
    0.1.0
    0
    """
    leave_while_loading()
    end_with_parent()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(
            stream, io.TextIOWrapper
        ):  # a letter that the terminal does not have is no reason to fail
            stream.reconfigure(errors="backslashreplace")
    try:
        code = _main(list(sys.argv[1:] if argv is None else argv))
        if sys.stdout is not None:
            sys.stdout.flush()
    except ImportError as error:  # a library that does not fit into memory, say
        code = _failure(error)
    except OSError as error:  # of printing: a reader that went, as `head` does, or a full disk
        code = _failure(error)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # Python flushes once more
    return code


def _main(words: list[str]) -> int:
    if words[:1] == ["-sc"]:  # what a shell asks for while completing
        return _complete(words[1:])
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0 if words else 2
    if words[0] == "--version":
        print(importlib.metadata.version("bnrecon"))
        return 0
    command, rest = words[0], words[1:]
    if "=" in command:
        name = command.lstrip("-").partition("=")[0]
        example = "target=vgg18" if name in COMMANDS else command.lstrip("-")
        return _say(f"{command}: options come behind a command, as in: bnrecon run {example}", 2)
    if command not in COMMANDS:
        return _say(
            f"{command}: no such command: {nearest(command, COMMANDS)}; see bnrecon --help", 2
        )
    routes = {"run": _run, "train": _train, "study": _study, "tables": _tables, "figures": _figures}
    return routes.get(command, _install_completion)(rest)


def _hydra(task, words: list[str]) -> None:
    """Hand words to Hydra with the project's configs; errors come back as exceptions."""
    import hydra
    from hydra._internal.utils import get_args_parser

    from bnrecon.config import composition, schema

    schema.register_schema()
    os.environ["HYDRA_FULL_ERROR"] = "1"
    # Options first: argparse does not take `target=vgg18 --config-dir=mine features=own` apart.
    overrides = [
        word for word in words if (not word.startswith("-") and "=" in word) or word.startswith("~")
    ]
    flags = [word for word in words if word not in overrides]
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            given = get_args_parser().parse_args(flags)
    except SystemExit:  # after the whole usage, which nobody asked for
        raise UserError(said.getvalue().strip().rpartition("error: ")[2]) from None
    if given.config_dir == "":
        raise UserError("--config-dir= is empty; give the folder that holds own yaml files")
    sys.argv = ["bnrecon", *flags, "--", *composition.as_overrides(overrides, _sweeping(words))]
    try:
        hydra.main(version_base="1.3", config_path="pkg://bnrecon.configs", config_name="run")(
            task
        )()
    except UnicodeDecodeError as error:  # Hydra does not say of which file
        files = [
            str(file)
            for file in sorted(Path(given.config_dir or ".").rglob("*.yaml"))
            if not _is_text(file)
        ]
        raise UserError(f"{', '.join(files[:3])}: yaml files are UTF-8 ({error.reason})") from None


def _is_text(file: Path) -> bool:
    try:
        file.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    except OSError:
        pass
    return True


def _sweeping(words: list[str]) -> bool:
    return not {"-m", "--multirun", "hydra.mode=MULTIRUN"}.isdisjoint(words)


def _run(words: list[str]) -> int:
    """Run one job or a sweep. A sweep goes on after a failed job and ends in the worst exit code."""
    from bnrecon.config import explanation

    for word in words:
        if word.startswith("--") and "=" in word and not word.startswith("--conf"):
            return _say(f"{word}: options are written without dashes, as in {word.lstrip('-')}", 2)
        if word.startswith("-") and word.partition("=")[0] not in HYDRA_FLAGS:
            return _say(f"{word} is not an option: {nearest(word, HYDRA_FLAGS)}", 2)
        if word.lstrip("+").startswith("hydra/launcher=") and not _sweeping(words):
            return _say(f"{word}: launchers run sweeps; add -m", 2)
    sweeps.outcome.clear()
    name = hashlib.sha256(" ".join(sorted(words)).encode(errors="backslashreplace")).hexdigest()[
        :10
    ]
    # Hydra makes its folder before anything is checked; the current one is there already.
    for place in ("hydra.run.dir=.", f"hydra.sweep.dir=${{outputs}}/sweeps/{name}"):
        if not any(word.startswith(place.partition("=")[0] + "=") for word in words):
            words = [*words, place]
    try:
        _hydra(_job, words)
    except SystemExit as leaving:
        if isinstance(leaving.code, Exception):
            return _failure(leaving.code)
        return leaving.code if isinstance(leaving.code, int) else 2 if leaving.code else 0
    except KeyboardInterrupt:
        return _say(
            f"interrupted; what was finished is kept, the same command goes on from there{sweeps.end_workers()}",
            130,
        )
    except Exception as error:
        if sweeps.outcome or isinstance(error, UserError | OSError):
            return _failure(error)
        return _say(explanation.explain(error), 2)  # no job was begun
    finally:
        sweeps.release()
    return sweeps.outcome[0] if sweeps.outcome else 0


def _job(composed) -> None:
    """One job, alone or of a sweep. Its failure is reported here, so that a sweep goes on with the next."""
    from hydra.core.hydra_config import HydraConfig
    from hydra.types import RunMode
    from omegaconf import OmegaConf

    from bnrecon.runtime import files, hardware

    # Here and not before: a launcher may have brought the job into another process.
    hardware.keep_freed_memory()
    hydra = HydraConfig.get()
    words = OmegaConf.to_container(hydra.overrides.task, resolve=False)
    sweeping = hydra.mode == RunMode.MULTIRUN
    if sweeping:
        print(f"\n[{hydra.job.num}] {' '.join(words)}", flush=True)
    record: dict = {"overrides": words, "folder": None, "code": 0}
    try:
        record["folder"] = str(_main_job(composed))
    except BaseException as error:
        record["code"] = _failure(error)
    sweeps.outcome[:] = [record["code"]]
    if sweeping:
        files.write_json(Path(hydra.sweep.dir) / f"job-{hydra.job.num}.json", record)
        if record["code"] == 130:
            raise SystemExit(130)


def _main_job(composed) -> Path:
    from bnrecon.config import checks, composition

    asked = composition.from_hydra(composed)
    for name in asked.imports:
        _import(name)
    from bnrecon.run.main_job import check_names, run

    loaded()
    check_names(asked)
    checks.require_folder("outputs", asked.outputs)
    if asked.targets is not None:
        checks.require_folder("targets", asked.targets)
    return run(asked)


def _train(words: list[str]) -> int:
    """Train a target alone, or take the trained one, and say how good it is."""
    if words[:1] and words[0] in ("-h", "--help"):
        print(
            "usage: bnrecon train [OPTION=VALUE ...]   (the options of bnrecon run; features and solver do not matter)"
        )
        return 0
    if flags := [word for word in words if word.startswith("-")]:
        return _say(
            f"{flags[0]}: bnrecon train takes options alone, as in target.width=16; own yaml files and sweeps are for bnrecon run",
            2,
        )
    from bnrecon.config import checks, composition
    from bnrecon.runtime import hardware

    hardware.keep_freed_memory()
    try:
        asked = composition.compose(words)
        for name in asked.imports:
            _import(name)
        from bnrecon.run.main_job import train_only

        loaded()
        checks.require_folder(
            *(("outputs", asked.outputs) if asked.targets is None else ("targets", asked.targets))
        )
        train_only(asked)
    except BaseException as error:
        return _failure(error)
    return 0


def _import(name: str) -> None:
    """Import a user's module, from the current folder too, for what it registers."""
    module = name.removesuffix(".py").removeprefix("./").replace("/", ".")
    advice = "give a module's name, importable from here, as in imports=[my_targets]"
    if not re.fullmatch(r"\w+(\.\w+)*", module):
        raise UserError(f"imports={name}: {advice}")
    if "" not in sys.path and os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        importlib.import_module(module)
    except BaseException as error:  # the user's own code: anything can come out of it
        if isinstance(error, KeyboardInterrupt) and not loading():
            raise  # from the keyboard: while libraries load, none comes from there
        if isinstance(error, ModuleNotFoundError) and f"{module}.".startswith(f"{error.name}."):
            raise UserError(f"imports={name}: {error}; {advice}") from None
        last = traceback.extract_tb(error.__traceback__)[-1]
        file, line = (
            (error.filename, error.lineno)
            if isinstance(error, SyntaxError)
            else (last.filename, last.lineno)
        )
        said = error.msg if isinstance(error, SyntaxError) else error
        raise UserError(f"imports={name}: {type(error).__name__}: {said} ({file}:{line})") from None


# What PyTorch, oneDNN and the dynamic loader say where memory does not suffice.
NO_MEMORY = "out of memory|can't allocate memory|could not create a primitive|failed to map segment|[Cc]annot allocate memory"


def _failure(error: BaseException) -> int:
    """Say what went wrong in one line and give the exit code; only a defect of ours shows a traceback."""
    from bnrecon.config import explanation
    from bnrecon.runtime.errors import Interrupted, RunError

    if getattr(error, "said_elsewhere", False):  # by the first of several processes
        return 1
    if isinstance(error, explanation.CONFIG_ERRORS):
        return _say(explanation.explain(error), 2)
    if isinstance(error, UserError):
        return _say(str(error), 2)
    if isinstance(error, Interrupted):
        return _say(str(error), 130)
    if isinstance(error, KeyboardInterrupt):
        return _say(
            "interrupted; what was finished is kept, the same command goes on from there", 130
        )
    if isinstance(error, BrokenPipeError):  # whoever read our output, `head` say, has seen enough
        for stream in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream)
        return 141
    if isinstance(error, RunError):
        return _say(str(error), 1)
    if isinstance(error, MemoryError) or re.search(NO_MEMORY, str(error)):
        return _say(
            f"not enough memory ({(str(error).splitlines() or ['an allocation failed'])[0]}); use a smaller width or features=id_cond",
            1,
        )
    if isinstance(error, OSError) and error.strerror:
        where = f": {error.filename}" if error.filename else ""
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            where += "; what was finished is kept, the same command goes on from there"
        return _say(f"{error.strerror}{where}", 2 if error.errno in MISTAKEN else 1)
    traceback.print_exception(error)
    return _say("this is a defect in bnrecon; please report it with the lines above", 1)


def _say(line: str, code: int) -> int:
    print(f"bnrecon: {' '.join(line.splitlines())}", file=sys.stderr, flush=True)
    return code


def _study(words: list[str]) -> int:
    """Run what a study's tables lack, then print them."""
    if not words or "-h" in words or "--help" in words:
        from bnrecon.studies.registry import usage

        print(usage())
        return 0 if words else 2
    return _study_tables(words[0].removeprefix("study="), words[1:], run=True)


def _study_tables(name: str, words: list[str], run: bool, figures: bool = False) -> int:
    from bnrecon.runtime import hardware

    hardware.keep_freed_memory()
    try:
        from bnrecon.reproduction.request import read
        from bnrecon.studies import registry

        loaded()
        study, asked = registry.find(name), read(name, words)
        if asked.jobs > 1 and not run:
            raise UserError(
                f"jobs={asked.jobs} is for bnrecon study; tables and figures compute nothing"
            )
        code = _run_study(study, asked) if run else 0
        text = _written(study, asked)
        if figures:
            drawn = sorted(
                path
                for path in asked.folder.glob(f"*-{asked.scale}*.png")
                if not asked.parts or path.name.partition("-")[0] in asked.parts
            )
            command = f"bnrecon study {' '.join(asked.alone)}"
            print(
                "\n".join(map(str, drawn))
                or f"nothing of this has a picture yet; what has one is drawn by: {command}"
            )
            return code
        print(text)
        print(f"\n{asked.folder}")
        return code
    except BaseException as error:
        return _failure(error)


def _run_study(study, asked) -> int:
    """Run what is missing, tables before experiments; the exit code. What is done by then is written whatever stops it."""
    from bnrecon.config import checks, composition
    from bnrecon.reproduction import running
    from bnrecon.reproduction.workers import require_room, workers
    from bnrecon.runtime import distributed
    from bnrecon.runtime.errors import RunError

    distributed.refuse("bnrecon study")
    require_room(asked.jobs)
    cells = [
        cell
        for table in running.collect(study, asked.scale, asked.parts, asked.options).values()
        for cell in table
    ]
    checks.check_machine(composition.compose(asked.options))
    asked.folder.mkdir(parents=True, exist_ok=True)  # before anything is computed
    code = 0
    with workers(asked.alone, asked.jobs, asked.folder / f"{asked.scale}-workers.log"):
        for do in (
            lambda: running.run_missing(cells, asked.folder / f"{asked.scale}.log"),
            lambda: running.run_experiments(
                study, asked.scale, asked.folder, asked.parts, asked.options
            ),
        ):
            try:
                do()
            except (RunError, UserError) as error:
                code = max(_failure(error), code) if code != 1 else 1
            except BaseException:
                _written(study, asked)
                raise
    return code


def _written(study, asked) -> str:
    """A study's tables, of what is done; both solvers' columns, whichever was asked for."""
    from bnrecon.reproduction import running

    parts = [part for part in asked.parts if part not in running.SOLVERS]
    found = running.collect(study, asked.scale, parts, asked.options)
    return running.write_tables(study, asked.scale, found, asked.folder, asked.parts, asked.options)


def _named_study(words: list[str]) -> tuple[str, list[str]] | None:
    """The study that is named, first or as ``study=NAME``, and the other words."""
    from bnrecon.studies.registry import STUDIES

    named = next((word for word in words if word.startswith("study=")), None)
    if named is None and words[:1] and words[0] in STUDIES:
        named = words[0]
    if named is None:
        return None
    rest = list(words)
    rest.remove(named)
    return named.removeprefix("study="), rest


def _tables(words: list[str]) -> int:
    if named := _named_study(words):
        return _study_tables(*named, run=False)
    if words[:1] in (["-h"], ["--help"]):
        from bnrecon.studies.registry import usage

        print(
            f"usage: bnrecon tables [FOLDER]   (FOLDER is what outputs= was, outputs by default)\n{usage()}"
        )
        return 0
    if len(words) > 1 or any(word.startswith("-") for word in words):
        return _say(
            f"tables {' '.join(words)}: give one folder, or a study's name; bnrecon tables --help says more",
            2,
        )
    from bnrecon.config import composition
    from bnrecon.reporting import tables

    word = words[0] if words else "outputs"
    try:
        folder = Path(composition.compose([word]).outputs if word.startswith("outputs=") else word)
        if not word or not folder.is_dir():
            raise UserError(f"{word!r}: no such folder; give the one that outputs= was")
        next(folder.iterdir(), None)  # whether it can be read
        if not (results := tables.collect(folder)):
            raise UserError(
                f"no finished runs in {folder}; make one with: bnrecon run outputs={folder}"
            )
        print(tables.markdown(tables.summary(results)))
    except BaseException as error:
        return _failure(error)
    return 0


def _figures(words: list[str]) -> int:
    """Draw a study's pictures from what was run, and name them."""
    named = _named_study(words)
    if not named:
        if words and words[0] not in ("-h", "--help"):
            return _say(
                f"figures {' '.join(words)}: say of which study, as in: bnrecon figures random_features",
                2,
            )
        from bnrecon.studies.registry import usage

        print(usage())
        return 0 if words else 2
    return _study_tables(*named, run=False, figures=True)


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
        print(
            "\n".join(command for command in COMMANDS if command.startswith(prefix))
        )  # fish wants lines
        return 0
    if given[1] != "run":
        return 0
    os.environ["COMP_LINE"] = re.sub(r"^(\s*\S+)\s+run\b", r"\1", line)
    try:
        _hydra(lambda _: None, ["-sc", *words])
    except (
        Exception
    ):  # a half-typed line often cannot be composed; a prompt is no place for its traceback
        return 1
    return 0
