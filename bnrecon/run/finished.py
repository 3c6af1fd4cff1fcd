"""Finished runs: reading the result, checking it against the images, writing its tables."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
from pathlib import Path

from bnrecon.config.composition import option_names
from bnrecon.config.schema import VOLATILE, RunConfig
from bnrecon.data import Images, load
from bnrecon.reporting import figures
from bnrecon.reporting.option_differences import NOT_RECORDED, differing_options
from bnrecon.reporting.result import RunResult
from bnrecon.reporting.run_tables import table_files
from bnrecon.run.layer_checkpoint import solved_layers
from bnrecon.run.seed_files import read_seed
from bnrecon.runtime import files, locks
from bnrecon.runtime.digests import json_values, tensor_digest
from bnrecon.runtime.errors import UserError
from bnrecon.targets.store import read_stored

logger = logging.getLogger(__name__)


def read_result(
    folder: Path, config: RunConfig, quarantine_damaged: bool = False
) -> RunResult | None:
    """The result of a run; ``None`` if it is missing or damaged.

    With ``quarantine_damaged`` a damaged file is reported and moved away; lock the folder first.
    """
    path = folder / "result.json"
    return files.read_if_valid(path, lambda path: read(path, config), quarantine_damaged)


def read(path: Path, config: RunConfig) -> RunResult:
    """Read a result, and check that it belongs to this run.

    Raises:
        Damaged: it is damaged, or belongs to a run with other options.
        FileNotFoundError: there is none.
    """
    result = RunResult.read(path)
    options = json_values(dataclasses.asdict(config))
    for name, (stored, asked) in differing_options(result.config, options).items():
        if name not in VOLATILE and stored != NOT_RECORDED:
            raise files.Damaged(f"{path} is of another run, with {name}={stored}, not {asked}")
    return result


def write_config(config: RunConfig, folder: Path) -> None:
    """Write the run's configuration as readable JSON."""
    text = json.dumps(dataclasses.asdict(config), indent=1, ensure_ascii=False)
    files.write_text(folder / "config.json", text + "\n")


def restore_tables(config: RunConfig, folder: Path, result: RunResult) -> None:
    """Rewrite a finished run's tables if they are missing, old or damaged; a figure if missing.

    Solved layers that killed processes left behind are removed. A read-only folder stays as it is:
    a finished run only needs to be read.
    """
    if not os.access(folder, os.W_OK):
        return
    try:
        with locks.lock_folder(folder, f"the run {folder.name}"):
            if not (folder / "config.json").exists():  # the first request's is kept
                write_config(config, folder)
            for name, text in table_files(result).items():
                if not files.has_text(folder / name, text):
                    files.write_text(folder / name, text)
            if not (folder / "layers.png").exists():
                draw_layers(folder, result)
            for seed_folder in folder.glob("seed-*"):
                for leftover in solved_layers(seed_folder):
                    leftover.unlink()
    except (UserError, OSError) as error:
        logger.warning("the tables beside the result were not updated: %s", error)


def draw_layers(folder: Path, result: RunResult) -> None:
    """Write the figure of the layers' errors."""
    picture = figures.image(figures.layer_errors(result), "png")
    files.write_bytes(folder / "layers.png", picture)


def notes_on(config: RunConfig, result: RunResult, folder: Path, data: Images | None) -> list[str]:
    """Notes for the user about a run that was finished earlier.

    Raises:
        UserError: the images differ, or the target in ``targets``; ``data.root`` cannot be read.
    """
    notes = [f"already done; nothing to do (remove {folder} to run it again)"]
    notes += _check_images(config, result, folder, data)
    if config.targets is not None:
        _check_target(Path(config.targets), result, folder)
    notes += _source_notes(result, folder) if config.keep_source else []
    if config.device != "auto" and not result.device.startswith(config.device.partition(":")[0]):
        notes.append(f"note      computed on {result.device}, not on device={config.device}")
    return notes


def _check_images(
    config: RunConfig, result: RunResult, folder: Path, data: Images | None
) -> list[str]:
    """Compare the images with the run's; return a note if there are none to compare."""
    root = config.data.root
    try:
        with option_names("data"):
            data = data or load(dataclasses.replace(config.data, download=False))
    except UserError:
        if root is not None:
            raise
        return [
            f"note      the {config.data.name} images are not on this machine, "
            "so they were not compared with those of the run"
        ]
    if data.checksum() == result.data.checksum:
        return []
    others = "those on this machine" if root is None else f"those in data.root={root}"
    raise UserError(
        f"{folder} was run on other {config.data.name} images ({result.data.train} to train on, "
        f"{result.data.test} to test on) than {others}; give outputs=ANOTHER_FOLDER, or remove it"
    )


def _check_target(store: Path, result: RunResult, folder: Path) -> None:
    """Compare the target in a requested folder with the run's."""
    name = Path(result.target.folder).name
    try:
        weights, _ = read_stored(store / name)
        same = tensor_digest(weights) == result.target.checksum
    except (OSError, ValueError):
        same = False
    if not same:
        raise UserError(
            f"{folder} was run on another target than targets={store} has or would train; give "
            "outputs=ANOTHER_FOLDER, or remove it"
        )


def _source_notes(result: RunResult, folder: Path) -> list[str]:
    """A note if source networks of a finished run are missing, damaged or from another run."""
    lost = []
    for seed in result.seeds:
        record = read_seed(folder / f"seed-{seed.seed}", None, with_source=True)
        if record is None or record.result() != seed:
            lost.append(str(seed.seed))
    again = f"to make them again, remove {folder / 'result.json'} and rerun the command"
    return [f"note      no source network of seeds {', '.join(lost)}; {again}"] if lost else []
