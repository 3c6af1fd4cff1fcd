"""The main job: obtain a target, rebuild it from frozen random features, evaluate the source network, write the result."""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Any

import torch

from bnrecon.config.checks import check_machine
from bnrecon.config.schema import RunConfig
from bnrecon.construction.activation import check_activation
from bnrecon.data import Images, load
from bnrecon.data.load import refuse_unused_root
from bnrecon.features.drawing import check_skip
from bnrecon.features.register import distribution
from bnrecon.reconstruction.folding import find_layers
from bnrecon.reconstruction.moments import gather
from bnrecon.reporting import figures, tables
from bnrecon.run.announcement import announce
from bnrecon.run.naming import NAMELESS, data_spec, run_folder
from bnrecon.run.seed import finished_or_rebuilt_seed, row_key, whole_row
from bnrecon.runtime import distributed, files, hardware, locks
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.provenance import commit, versions
from bnrecon.solvers.base import lookup
from bnrecon.targets.models import check_options, minimum_width_count, parameter_count
from bnrecon.targets.reparameterization import trained_parameters
from bnrecon.targets.store import Trained, is_trained, obtain_target

__all__ = ["run", "train_only"]

STATISTICS_IMAGES = 1024  # training images that running statistics are taken from


def run(config: RunConfig) -> Path:
    """Do the main job and return the run's folder; a run that exists is not run again.

    Raises ``UserError``, ``RunError`` or ``Interrupted``; whatever was finished by then is on disk and will be used.
    """
    distributed.refuse("bnrecon run")
    commit()
    check_names(config)
    refuse_unused_root(data_spec(config))
    with hardware.working_threads(config.threads):
        return _found_or_run(config)


def _found_or_run(config: RunConfig) -> Path:
    data = load(data_spec(config)) if config.data.name in NAMELESS else None
    folder = run_folder(config, data)
    known = finished(folder)
    if known is None:
        check_machine(config)
        data = data or load(data_spec(config))  # before anything is written
        with locks.exclusive(folder, f"the run {folder.name}"):
            known = finished(folder, mend=True)  # another process may have done it
            result = known or _run(config, folder, data)
            if known is None and not config.keep_source:
                for file in folder.glob("seed-*/source.safetensors"):
                    file.unlink()
    if known is not None:
        result = known
        _require_same_pixels(config, result, folder, data)
        print(f"already done; nothing to do (remove {folder} to run it again)\n")
        if config.keep_source and (lost := _lost_sources(config, folder)):
            again = f"remove {folder / 'result.json'} and rerun the command, or give outputs=ANOTHER_FOLDER"
            print(f"note      {lost}; to make it again, {again}\n")
    _tidy(config, folder, result)
    print(tables.for_reading(result))
    print(f"\n{folder}")
    return folder


def _tidy(config: RunConfig, folder: Path, result: dict[str, Any]) -> None:
    """Write a finished run's tables anew where they are gone or damaged, and remove what killed processes left.

    A folder that cannot be written stays as it is: a finished run is there to be read.
    """
    if not os.access(folder, os.W_OK):
        return
    try:
        with locks.exclusive(folder, f"the run {folder.name}"):
            texts = tables.texts(result) | {
                "config.json": tables.as_json(dataclasses.asdict(config))
            }
            if (folder / "config.json").exists():
                del texts["config.json"]  # what was asked first
            for name, text in texts.items():
                if not files.is_text(folder / name, text):
                    files.write_text(folder / name, text)
            if not figures.is_whole(folder / "layers.png"):
                figures.layer_errors(folder / "layers.png", result)
            for left in folder.glob("seed-*/layer-*.safetensors"):
                left.unlink()
    except (
        UserError,
        OSError,
    ) as error:  # a finished run is there to be read, whatever can be written
        print(f"note      tables beside the result are as they were: {error}", file=sys.stderr)


def _lost_sources(config: RunConfig, folder: Path) -> str:
    """Which source networks of a finished run are not there, or damaged; nothing where all are whole."""
    lost = []
    for seed in config.seeds:
        path = folder / f"seed-{seed}" / "source.safetensors"
        try:
            files.read_tensors(path)
        except FileNotFoundError:
            lost.append(f"the source network of seed {seed} is not here")
        except ValueError as error:
            lost.append(str(error))
    return (
        "none of its source networks is here"
        if len(lost) == len(config.seeds) > 1
        else "; ".join(lost)
    )


def train_only(config: RunConfig) -> Trained:
    """Train the target of a run, or take the trained one, and print how good it is; alone, or with others under torchrun.

    Raises what ``obtain_target`` raises.
    """
    check_names(config)
    check_machine(config)
    refuse_unused_root(data_spec(config))
    device = hardware.resolve_device(config.device)
    with hardware.working_threads(config.threads), distributed.joined(device):
        return _train_only(config, device)


def _train_only(config: RunConfig, device: torch.device) -> Trained:
    data = distributed.after_first(lambda: load(data_spec(config)))
    known = is_trained(config, data, device)
    trained = obtain_target(config, data, device)
    if distributed.place()[0] > 0:
        return trained
    parameters = trained_parameters(trained.network)
    print(
        f"{config.target.name} of width {config.target.width}: test accuracy {trained.about['accuracy']:.2f}% (n={trained.about['images']}), "
        f"{parameters:,} trainable parameters, {'trained before in' if known else 'trained in'} {trained.about['seconds']:.0f} s"
        f"{f' by {count} processes' if (count := trained.about.get('processes', 1)) > 1 else ''}\n{trained.folder}"
    )
    return trained


def check_names(config: RunConfig) -> None:
    """Raise ``UserError`` for names that no register knows, before any data are read."""
    distribution(config.features.name)
    check_activation(config.features.activation, config.features.skip)
    check_skip(config.features.skip)
    if config.solver.name != "auto":
        lookup(config.solver.name)
    check_options(
        **{
            f.name: getattr(config.target, f.name)
            for f in dataclasses.fields(config.target)
            if f.name != "name"
        }
    )


def _require_same_pixels(
    config: RunConfig, result: dict[str, Any], folder: Path, data: Images | None
) -> None:
    """Raise ``UserError`` where a finished run saw other images than there are now; say where that cannot be known."""
    try:
        data = data or load(dataclasses.replace(data_spec(config), download=False))
    except UserError:
        if config.data.root is not None:
            raise
        print(
            f"note      the {config.data.name} images are not at hand, so that they were not compared with the run's\n"
        )
        return
    if data.checksum() != result["data"]["checksum"]:
        raise UserError(
            f"{folder} was run on other {config.data.name} images ({result['data']['train']} training, {result['data']['test']} test) "
            f"than {'are at hand' if config.data.root is None else f'data.root={config.data.root} holds'}; "
            "give outputs=ANOTHER_FOLDER for these, or remove it"
        )


def finished(folder: Path, mend: bool = False) -> dict[str, Any] | None:
    """A run's result if it counts. ``mend``: name a damaged one and set it aside; the folder's lock must be held."""
    return files.sound(folder / "result.json", tables.read_result, mend)


def _run(config: RunConfig, folder: Path, data: Images) -> dict[str, Any]:
    device = hardware.resolve_device(config.device)
    plan = announce(config, data, device)
    files.write_text(folder / "config.json", tables.as_json(dataclasses.asdict(config)))
    trained = obtain_target(config, data, device)
    print(
        f"target    test accuracy {trained.about['accuracy']:.2f}% (n={trained.about['images']}), {trained.folder}",
        flush=True,
    )
    images = data.plain_train_batches(64, device, STATISTICS_IMAGES)
    moments = gather(trained.network, find_layers(trained.network).layers, images)
    rows = [
        finished_or_rebuilt_seed(config, seed, folder, trained, moments, data, device, plan)
        for seed in config.seeds
    ]
    result = _result(config, data, device, trained, rows)
    tables.write(folder, result)
    figures.layer_errors(folder / "layers.png", result)
    key = row_key(config, trained, data, device)
    for seed in config.seeds:
        if whole_row(folder / f"seed-{seed}", key, config.keep_source) is None:
            raise RunError(
                f"{folder / f'seed-{seed}'}: its files went or changed while the run was at work; rerun the command"
            )
    files.write_json(folder / "result.json", result)
    return tables.read_result(folder / "result.json")


def _result(
    config: RunConfig,
    data: Images,
    device: torch.device,
    trained: Trained,
    rows: list[dict[str, Any]],
) -> dict[str, Any]:
    everything = all(row["source_images"] == row["images"] for row in rows)
    return {
        "config": dataclasses.asdict(config),
        "seeds": config.seeds,
        "data": {
            "name": data.name,
            "train": data.sizes[0],
            "test": data.sizes[1],
            "classes": len(data.classes),
            "checksum": data.checksum(),
        },
        "target": {
            "accuracy": trained.about["accuracy"],
            "images": trained.about["images"],
            "parameters": parameter_count(trained.network),
            "minimum_width_parameters": minimum_width_count(trained.network),
            "seconds": trained.about["seconds"],
            "folder": str(trained.folder),
        },
        "source": {
            "accuracy": [row["accuracy"] for row in rows],
            "evaluated": {
                "network": "source" if everything else "collapsed",
                "images": min(row["source_images"] for row in rows),
                "largest_logit_difference": max(row["largest_logit_difference"] for row in rows),
                "largest_difference_to_target": max(
                    row["largest_difference_to_target"] for row in rows
                ),
                "implicit_layers": sum(
                    layer["convolutions"] == "implicit" for layer in rows[0]["layers"]
                ),
            },
            "trainable_parameters": rows[0]["trainable_parameters"],
            "parameters": rows[0]["parameters"],
            "outside_linear_region": sum(row["outside_linear_region"] for row in rows),
        },
        "layers": [layer | {"seed": row["seed"]} for row in rows for layer in row["layers"]],
        "notes": rows[0]["notes"],
        "seconds": sum(row["seconds"] for row in rows),
        "seconds_per_seed": [row["seconds"] for row in rows],
        "solving_seconds": [row["solving_seconds"] for row in rows],
        "device": hardware.describe(device),
        "versions": versions(),
        "commit": commit(),
    }
