"""Adapters that write a run's rows to TensorBoard, trackio, wandb, MLflow; imported on use."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import os
import re
import shlex
import shutil
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from bnrecon.config.schema import RunConfig
from bnrecon.runtime.environment import environment
from bnrecon.runtime.extras import require_trackers
from bnrecon.runtime.locks import lock_file
from bnrecon.runtime.tracking import NO_TRACKERS, Log, Plain, Trackers

TRACKIO = "TRACKIO_DIR"  # the environment variable of trackio's folder
PAUSE = 5.0  # seconds between two sessions of trackio, each of which takes 0.1 or 0.2 s
AXES = ("epoch", "layer", "seed")  # step axes in wandb, each for its values
MLFLOW_PARAMS = 100  # largest number per call
WRITE_EVERY = 1.0  # seconds; a killed process would lose wandb's default of 15


def open_trackers(config: RunConfig) -> Trackers:
    """The trackers of ``tracker=``; one that fails is no longer used in this process.

    Raises:
        UserError: a library is missing.
    """
    if not config.tracker:
        return NO_TRACKERS
    return _opened(tuple(config.tracker), config.tracking_folder, config.tracker_project)


def make_trackers(
    names: Sequence[str], folder: Path, project: str, whole: bool = False
) -> Trackers:
    """Trackers by name; see ``Trackers`` for ``whole``.

    Raises:
        UserError: a library is missing.
    """
    require_trackers(names)
    by_name = {"tensorboard": _tensorboard, "trackio": _trackio, "wandb": _wandb, "mlflow": _mlflow}
    views = {
        "tensorboard": f"tensorboard --logdir {shlex.quote(str(folder / 'tensorboard'))}",
        "trackio": f"{TRACKIO}={shlex.quote(str(_trackio_folder(folder)))} trackio show --project "
        f"{shlex.quote(project)}",
        "wandb": f"wandb sync {shlex.quote(str(folder.absolute() / 'wandb'))}/offline-run-*",
    }
    views["mlflow"] = f"mlflow ui --backend-store-uri {shlex.quote(_mlflow_store(folder))}"
    if _wandb_mode() != "offline":
        views["wandb"] = f"wandb's project {project} (WANDB_MODE={_wandb_mode()})"
    openers = {name: functools.partial(by_name[name], folder, project) for name in names}
    return Trackers(openers, folder, [views[name] for name in names], whole)


_opened = functools.lru_cache(make_trackers)


@contextlib.contextmanager
def _tensorboard(
    folder: Path, _project: str, run: str, config: Mapping[str, Plain], anew: bool
) -> Iterator[Log]:
    """Event files in ``FOLDER/tensorboard/runs/NAME``; a resumed run has several."""
    from torch.utils.tensorboard import SummaryWriter

    path = folder / "tensorboard" / run
    if anew and path.exists():
        shutil.rmtree(path)
    writer = SummaryWriter(str(path), flush_secs=5)
    if anew:
        rows = "".join(f"| {name} | {value} |\n" for name, value in config.items())
        writer.add_text("config", f"| option | value |\n|---|---|\n{rows}")

    def log(_row: int, kind: str, step: int, values: Mapping[str, float]) -> None:
        if kind == "result":  # also a row of the tab "HParams"
            writer.add_hparams(dict(config), dict(values), run_name=".")
        else:
            for name, value in values.items():
                writer.add_scalar(name, value, step)

    yield log
    writer.close()


@contextlib.contextmanager
def _trackio(
    folder: Path, project: str, run: str, config: Mapping[str, Plain], anew: bool
) -> Iterator[Log]:
    """The database in ``FOLDER/trackio``, or in ``TRACKIO_DIR``."""
    group, name = run.split("/", 1)
    library = _import_trackio(_trackio_folder(folder))
    options = {"project": project, "group": group, "name": name, "config": dict(config)}
    waiting: list[tuple[int, dict[str, float]]] = []
    due = 0.0
    if anew:
        with contextlib.suppress(ValueError):  # the project does not exist yet
            for entry in library.Api().runs(project):
                if entry.name == name:
                    entry.delete()

    def log(_row: int, _kind: str, step: int, values: Mapping[str, float]) -> None:
        nonlocal due
        waiting.append((step, dict(values)))
        if time.monotonic() >= due:  # in sessions: one can only wait for the end of its thread
            _write_trackio(library, options, waiting)
            due = time.monotonic() + PAUSE

    yield log
    if waiting:
        _write_trackio(library, options, waiting)


def _write_trackio(
    library: ModuleType, options: Mapping[str, Any], rows: list[tuple[int, dict[str, float]]]
) -> None:
    """Write rows in one session; a warning of trackio, which means lost data, is a RuntimeError."""
    plain = {"resume": "allow", "embed": False, "auto_log_gpu": False, "auto_log_cpu": False}
    with warnings.catch_warnings(record=True) as caught, contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("always")
        session = library.init(**options, **plain)
        for step, values in rows:
            session.log(values, step=step)
        library.finish()
    rows.clear()
    for warning in caught:
        if "trackio" in str(warning.message):
            raise RuntimeError(str(warning.message))


def _trackio_folder(folder: Path) -> Path:
    return Path(os.environ.get(TRACKIO) or folder / "trackio").absolute()


def _import_trackio(folder: Path) -> ModuleType:
    """Import the library, which then reads its folder from the environment."""
    with environment(**{TRACKIO: str(folder)}), contextlib.redirect_stdout(io.StringIO()):
        import trackio
        from trackio.utils import TRACKIO_DIR
    if folder != TRACKIO_DIR:
        raise RuntimeError(f"in one process trackio has one folder, and that is {TRACKIO_DIR}")
    return trackio


@contextlib.contextmanager
def _wandb(
    folder: Path, project: str, run: str, config: Mapping[str, Plain], anew: bool
) -> Iterator[Log]:
    """Files in ``FOLDER/wandb``, or a server: ``WANDB_MODE`` decides what is uploaded."""
    if _wandb_mode() == "offline":  # read at import; wandb reports its errors itself
        os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    import wandb

    with tempfile.TemporaryDirectory(dir=folder):
        pass  # raises if wandb would silently use another folder
    group, name = run.split("/", 1)
    identity = re.sub(r"[^\w.-]", "_", name)[-128:]
    if anew:
        for path in (folder / "wandb").glob(f"offline-run-*-{identity}"):
            shutil.rmtree(path)
    session = wandb.init(
        project=project,
        name=name,
        id=identity,
        group=group,
        config=dict(config),
        dir=str(folder.absolute()),
        mode=_wandb_mode(),
        resume=None if anew else "allow",  # None: a server overwrites its run
        reinit="create_new",
        save_code=False,
        settings=wandb.Settings(
            console="off",
            silent=True,
            x_disable_stats=True,
            x_transaction_log_flush_interval=WRITE_EVERY,
        ),
    )
    for axis in AXES:
        session.define_metric(f"{axis}/*", step_metric=axis)

    def log(row: int, kind: str, step: int, values: Mapping[str, float]) -> None:
        if kind == "result":
            session.summary.update(dict(values))
        else:  # a repeated row has the same step
            session.log({kind: step, **values}, step=row, commit=True)

    yield log
    session.finish()


def _wandb_mode() -> Any:
    """The mode of wandb, which wandb checks."""
    return os.environ.get("WANDB_MODE") or "offline"


@contextlib.contextmanager
def _mlflow(
    folder: Path, project: str, run: str, config: Mapping[str, Plain], anew: bool
) -> Iterator[Log]:
    """The database ``FOLDER/mlflow.db``, or the server in ``MLFLOW_TRACKING_URI``."""
    os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")  # read at import
    from mlflow import MlflowClient
    from mlflow.entities import Metric, Param

    logging.getLogger("mlflow").setLevel(logging.WARNING)
    # Only one of several starting processes creates the database and the experiment.
    with lock_file(folder / "mlflow.lock", lambda: "waiting for another process's MLflow"):
        client = MlflowClient(_mlflow_store(folder))
        experiment = client.get_experiment_by_name(project)
        number = experiment.experiment_id if experiment else client.create_experiment(project)
        if experiment and experiment.lifecycle_stage == "deleted":
            client.restore_experiment(number)
    quote = '"' if "'" in run else "'"
    runs = client.search_runs([number], f"attributes.run_name = {quote}{run}{quote}")
    if anew:
        for entry in runs:
            client.delete_run(entry.info.run_id)
    if anew or not runs:
        identity = client.create_run(number, run_name=run).info.run_id
        options = [Param(_mlflow_name(name), str(value)) for name, value in config.items()]
        for start in range(0, len(options), MLFLOW_PARAMS):
            client.log_batch(identity, params=options[start : start + MLFLOW_PARAMS])
    else:
        identity = runs[0].info.run_id
        client.update_run(identity, status="RUNNING")
    status = "KILLED"  # until there is a result

    def log(_row: int, kind: str, step: int, values: Mapping[str, float]) -> None:
        nonlocal status
        now = int(1000 * time.time())
        items = [(_mlflow_name(name), float(value)) for name, value in values.items()]
        client.log_batch(identity, metrics=[Metric(*item, now, step) for item in items])
        status = "FINISHED" if kind == "result" else status

    yield log
    client.set_terminated(identity, status)


def _mlflow_name(name: str) -> str:
    """The name with only the characters that MLflow allows."""
    return re.sub(r"[^\w./ -]", "_", name)


def _mlflow_store(folder: Path) -> str:
    return os.environ.get("MLFLOW_TRACKING_URI") or f"sqlite:///{folder.absolute() / 'mlflow.db'}"
