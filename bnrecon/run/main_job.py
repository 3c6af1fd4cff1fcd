"""The main job: obtain a target, rebuild it from frozen random features, evaluate the source network, write the result."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import math
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bnrecon.config.checks import check_machine
from bnrecon.config.schema import VOLATILE, RunConfig
from bnrecon.construction.activation import FIRST_ACTIVATIONS, check_activation
from bnrecon.data import DataSpec, Images, load
from bnrecon.data.load import refuse_unused_root
from bnrecon.features.drawing import check_skip
from bnrecon.features.register import distribution
from bnrecon.reconstruction.assembly import reconstruct
from bnrecon.reconstruction.collapse import layer_errors
from bnrecon.reconstruction.folding import find_layers
from bnrecon.reconstruction.moments import LayerMoments, gather
from bnrecon.reconstruction.planning import Plan, plan_layers
from bnrecon.reconstruction.report import LayerReport, Reconstruction
from bnrecon.reconstruction.source_file import collapse, load_source, source_layers
from bnrecon.reporting import figures, tables
from bnrecon.run import estimate
from bnrecon.run.evaluation import evaluate_source
from bnrecon.runtime import digests, distributed, files, hardware, locks
from bnrecon.runtime.errors import RunError, UserError
from bnrecon.runtime.own_code import blamed
from bnrecon.runtime.provenance import commit, versions
from bnrecon.solvers import Report, Solution
from bnrecon.solvers.base import AUTO, lookup
from bnrecon.targets.models import FAMILIES, check_options, minimum_width_count, parameter_count
from bnrecon.targets.reparameterization import trained_parameters
from bnrecon.targets.store import Trained, build_target, is_trained, obtain_target, own_code, training_plan

__all__ = ["run", "run_folder", "train_only"]


NAMELESS = ("folder", "imagenet")  # data whose name does not say which images they are


STATISTICS_IMAGES = 1024  # training images that running statistics are taken from


SOURCE_IMAGES = 64  # test images that always go through the real source network


# Operations up to which `evaluate=auto` sends all test images through the real source network: some ten minutes.
SOURCE_FLOPS = {"cpu": 1e14, "cuda": 1e16}


def run_folder(config: RunConfig, data: Images | None = None) -> Path:
    """Where a run lies: named by what differs from the defaults, so that an option added later keeps old runs valid.

    Of a user's own images (``data=folder``, ``imagenet``) the pixels belong to the name, of a user's own code its source.
    """
    content = digests.differences(config, VOLATILE)
    if config.data.name in NAMELESS:
        content["data.pixels"] = (data or load(_spec(config))).checksum()
    content |= _own_code(config)
    name = f"{config.data.name}-{config.target.name}-{config.features.name}-{digests.content_key(content)}"
    return Path(config.outputs) / "runs" / name


def _spec(config: RunConfig) -> DataSpec:
    return DataSpec(**dataclasses.asdict(config.data))


def _own_code(config: RunConfig) -> dict[str, str]:
    """Fingerprints of what a user has registered, by option: a run of other code is another run."""
    found = {"features.code": distribution(config.features.name).code}
    for name in AUTO if config.solver.name == "auto" else (config.solver.name,):
        found["solver.code" if name == config.solver.name else f"solver.{name}.code"] = lookup(name).code
    return own_code(config) | {name: code for name, code in found.items() if code is not None}


def run(config: RunConfig) -> Path:
    """Do the main job and return the run's folder; a run that exists is not run again.

    Raises ``UserError``, ``RunError`` or ``Interrupted``; whatever was finished by then is on disk and will be used.
    """
    distributed.refuse("bnrecon run")
    commit()
    check_names(config)
    refuse_unused_root(_spec(config))
    with hardware.working_threads(config.threads):
        return _found_or_run(config)


def _found_or_run(config: RunConfig) -> Path:
    data = load(_spec(config)) if config.data.name in NAMELESS else None
    folder = run_folder(config, data)
    known = finished(folder)
    if known is None:
        check_machine(config)
        data = data or load(_spec(config))  # before anything is written
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
            print(f"note      {lost}; to have it again, remove {folder / 'result.json'} and rerun the command\n")
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
            texts = tables.texts(result) | {"config.json": tables.as_json(dataclasses.asdict(config))}
            if (folder / "config.json").exists():
                del texts["config.json"]  # what was asked first
            for name, text in texts.items():
                if not files.is_text(folder / name, text):
                    files.write_text(folder / name, text)
            if not figures.is_whole(folder / "layers.png"):
                figures.layer_errors(folder / "layers.png", result)
            for left in folder.glob("seed-*/layer-*.safetensors"):
                left.unlink()
    except (UserError, OSError) as error:  # a finished run is there to be read, whatever can be written
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
    return "none of its source networks is here" if len(lost) == len(config.seeds) > 1 else "; ".join(lost)


def train_only(config: RunConfig) -> Trained:
    """Train the target of a run, or take the trained one, and print how good it is; alone, or with others under torchrun.

    Raises what ``obtain_target`` raises.
    """
    check_names(config)
    check_machine(config)
    refuse_unused_root(_spec(config))
    device = hardware.resolve_device(config.device)
    with hardware.working_threads(config.threads), distributed.joined(device):
        return _train_only(config, device)


def _train_only(config: RunConfig, device: torch.device) -> Trained:
    data = distributed.after_first(lambda: load(_spec(config)))
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
    check_options(**{f.name: getattr(config.target, f.name) for f in dataclasses.fields(config.target) if f.name != "name"})


def _require_same_pixels(config: RunConfig, result: dict[str, Any], folder: Path, data: Images | None) -> None:
    """Raise ``UserError`` where a finished run saw other images than there are now; say where that cannot be known."""
    try:
        data = data or load(dataclasses.replace(_spec(config), download=False))
    except UserError:
        if config.data.root is not None:
            raise
        print(f"note      the {config.data.name} images are not at hand, so that they were not compared with the run's\n")
        return
    if data.checksum() != result["data"]["checksum"]:
        raise UserError(
            f"{folder} was run on other {config.data.name} images ({result['data']['train']} training, {result['data']['test']} test) "
            f"than data.root={config.data.root} holds; give outputs=ANOTHER_FOLDER for these, or remove it"
        )


def finished(folder: Path, mend: bool = False) -> dict[str, Any] | None:
    """A run's result if it counts. ``mend``: name a damaged one and set it aside; the folder's lock must be held."""
    path = folder / "result.json"
    try:
        return tables.read_result(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        if mend:
            files.set_aside(path, error)
        return None


def _run(config: RunConfig, folder: Path, data: Images) -> dict[str, Any]:
    device = hardware.resolve_device(config.device)
    plan = _announce(config, data, device)
    files.write_text(folder / "config.json", tables.as_json(dataclasses.asdict(config)))
    trained = obtain_target(config, data, device)
    print(f"target    test accuracy {trained.about['accuracy']:.2f}% (n={trained.about['images']}), {trained.folder}", flush=True)
    images = data.plain_train_batches(64, device, STATISTICS_IMAGES)
    moments = gather(trained.network, find_layers(trained.network).layers, images)
    rows = [_seed(config, seed, folder, trained, moments, data, device, plan) for seed in config.seeds]
    result = _result(config, data, device, trained, rows)
    tables.write(folder, result)
    figures.layer_errors(folder / "layers.png", result)
    key = _row_key(config, trained, data, device)
    for seed in config.seeds:
        if _whole_row(folder / f"seed-{seed}", key, config.keep_source) is None:
            raise RunError(f"{folder / f'seed-{seed}'}: its files went or changed while the run was at work; rerun the command")
    files.write_json(folder / "result.json", result)
    return tables.read_result(folder / "result.json")


def _width(config: RunConfig) -> dict[str, Any]:
    features = config.features
    return {name: getattr(features, name) for name in ("oversampling", "excess", "width")}


def _announce(config: RunConfig, data: Images, device: torch.device) -> Plan:
    """Refuse what cannot be done, then say what will be, and about how long it takes."""
    network = build_target(config, data).eval()
    plan = plan_layers(
        network, config.features.name, **_width(config), allow_below_minimum=config.features.allow_below_minimum,
        solver=config.solver.name, device=device, skip=config.features.skip,
    )  # fmt: skip
    training = training_plan(config, device)
    with blamed(FAMILIES[config.target.family]):
        places = estimate.pixels(network, data.shape)
    channels, height, width = data.shape
    speed = {dtype: estimate.rate(dtype, device) for dtype in {training.dtype, torch.float32}}
    images = config.train.epochs * data.sizes[0]
    learn = estimate.training_seconds(estimate.multiply_adds(network, places), images, speed[training.dtype])
    solve = len(config.seeds) * estimate.solving_seconds(plan, config.solver.name, device)
    flops = estimate.source_flops(plan, places)
    seen = _source_images(config, flops, data.sizes[1], device)
    test = len(config.seeds) * seen * flops / (0.5 * speed[torch.float32])
    widths = sorted({layer.width for layer in plan.layers})
    span = f"{widths[0]}" if len(widths) == 1 else f"{widths[0]} to {widths[-1]}"
    oversampling = plan.layers[-1].width / plan.layers[-1].found.target.shape.equations
    known = is_trained(config, data, device)
    lines = [
        f"data      {data.name}: {data.sizes[0]} training and {data.sizes[1]} test images of {height}x{width}x{channels}",
        f"target    {config.target.name} of width {config.target.width}: {parameter_count(network):,} parameters; a source of minimum "
        f"width trains {minimum_width_count(network):,} in its convolutions",
        f"source    {config.features.name}, {span} features a layer (oversampling {oversampling:.3g}), solver {config.solver.name}, "
        f"seeds {', '.join(map(str, config.seeds))}",
        f"scale     {config.scale}: {config.train.epochs} epochs, batch {config.train.batch_size}, peak rate {config.train.lr:g}",
        f"device    {hardware.describe(device)}, training in {str(training.dtype).removeprefix('torch.')}",
        f"expect    {'no training (already trained), about' if known else f'about {estimate.duration(learn)} training,'} "
        f"{estimate.duration(solve)} solving, {estimate.duration(test)} testing",
    ]
    if skipped := getattr(network, "skipped_poolings", 0):
        lines.append(f"note      {skipped} poolings are skipped: the image's side is already 1")
    if config.train.warmup_epochs > config.train.epochs / 2:
        lines.append(f"note      warm-up is cut from {config.train.warmup_epochs:g} to half of the {config.train.epochs} epochs")
    lines += [f"note      {note}" for note in plan.notes]
    print("\n".join(lines), flush=True)
    return plan


def _source_images(config: RunConfig, flops: int, images: int, device: torch.device) -> int:
    """How many test images the real source network sees: all, where its collapsed form is another function."""
    nearly = not FIRST_ACTIVATIONS[config.features.activation].exact
    affordable = nearly or flops * images <= SOURCE_FLOPS[device.type]
    everything = config.evaluate == "source" or (config.evaluate == "auto" and affordable)
    return images if everything else min(SOURCE_IMAGES, images)


def _seed(
    config: RunConfig, seed: int, folder: Path, trained: Trained, moments: Mapping[str, LayerMoments], data: Images,
    device: torch.device, plan: Plan,
) -> dict[str, Any]:  # fmt: skip
    """One source network: rebuild, save, reload from the file, evaluate. What was done before is taken up."""
    place = folder / f"seed-{seed}"
    key = _row_key(config, trained, data, device)
    if (row := _finished_seed(config, seed, place, key)) is not None:
        return row
    started = time.monotonic()
    rebuilt = _rebuild(config, seed, place, trained, moments, key)
    path = rebuilt.save(place / "source.safetensors")
    reports, notes = rebuilt.layers, rebuilt.notes
    del rebuilt  # the network evaluated is the one that comes back from the file
    source = load_source(path, trained.network)
    layers = _verified(source, reports, trained)
    flops = estimate.source_flops(plan, estimate.pixels(trained.network, data.shape))
    seen = _source_images(config, flops, data.sizes[1], device)
    solved = time.monotonic() - started
    outcome = evaluate_source(source, collapse(source), trained.network, data, device, seen, f"testing seed {seed}")
    row = {
        "seed": seed, "accuracy": outcome.percent, "images": outcome.images, "source_images": outcome.source_images,
        "largest_logit_difference": outcome.largest_logit_difference,
        "largest_difference_to_target": outcome.largest_difference_to_target,
        "outside_linear_region": sum(layer.outside for layer in source_layers(source).values()),
        "layers": layers, "notes": notes, "key": key, "seconds": time.monotonic() - started, "solving_seconds": solved,
        "trainable_parameters": sum(p.numel() for p in source.parameters() if p.requires_grad),
        "parameters": sum(p.numel() for p in source.parameters()),
    }  # fmt: skip
    files.write_json(place / "result.json", row)
    _remove_layers(place)
    print(tables.seed_line(row), flush=True)
    return row


def _row_key(config: RunConfig, trained: Trained, data: Images, device: torch.device) -> str:
    """What a seed's row depends on, its seed apart: target, pixels, options, own code, kind of device, version."""
    content = digests.differences(config, VOLATILE | {"seeds"}) | _own_code(config)
    content |= {"target": digests.tensor_digest(trained.network.state_dict()), "pixels": data.checksum()}
    content |= {"device": device.type, "version": importlib.metadata.version("bnrecon")}
    return digests.content_key(content)


def _finished_seed(config: RunConfig, seed: int, place: Path, key: str) -> dict[str, Any] | None:
    """A seed's row, if it is of this key and its files are whole; one that a run of other seeds has is taken over."""
    if (row := _whole_row(place, key, config.keep_source, mend=True)) is not None:
        _remove_layers(place)
        return row
    prefix = place.parent.name.rpartition("-")[0]
    for other in sorted(place.parent.parent.iterdir()):
        if other == place.parent or other.name.rpartition("-")[0] != prefix:
            continue
        with contextlib.suppress(OSError):  # removed while it is looked at
            taken = other / f"seed-{seed}"
            if (row := _whole_row(taken, key, config.keep_source)) is None:
                continue
            place.mkdir(parents=True, exist_ok=True)
            if config.keep_source:
                files.write_bytes(place / "source.safetensors", (taken / "source.safetensors").read_bytes())
            files.write_json(place / "result.json", row)
            print(f"seed {row['seed']} was done before, in {other}", file=sys.stderr)
            return row
    return None


def _whole_row(place: Path, key: str, with_source: bool, mend: bool = False) -> dict[str, Any] | None:
    """A seed's row, if it is of this key and all its files are whole; ``mend`` sets damaged ones aside."""
    path = place / "source.safetensors"
    try:
        if with_source:
            files.read_tensors(path)
        path = place / "result.json"
        row = files.read_json(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        if mend:
            files.set_aside(path, error)
        return None
    return row if row.get("key") == key else None


def _remove_layers(place: Path) -> None:
    """Remove the solved layers of a seed that is done."""
    for file in place.glob("layer-*.safetensors"):
        file.unlink()


def _rebuild(
    config: RunConfig, seed: int, place: Path, trained: Trained, moments: Mapping[str, LayerMoments], key: str
) -> Reconstruction:
    solved = {}
    for file in sorted(place.glob("layer-*.safetensors")):
        try:
            tensors, about = files.read_tensors(file)
            if about["key"] == key and about["seed"] == seed:
                solved[about["name"]] = Solution(tensors["scale"], Report(**about["report"]))
        except FileNotFoundError:
            continue  # removed since it was listed
        except (ValueError, KeyError, TypeError) as error:
            named = error if isinstance(error, files.Damaged) else f"{file} was written by another version of bnrecon"
            files.set_aside(file, named)
    if solved:
        print(f"seed {seed}: {len(solved)} layers were solved before", file=sys.stderr)

    def keep(report: LayerReport, solution: Solution) -> None:
        if report.name not in solved:
            name = f"layer-{report.name.replace('.', '_')}.safetensors"
            about = {"name": report.name, "key": key, "seed": seed}
            about |= {"report": dataclasses.asdict(solution.report)}
            files.write_tensors(place / name, {"scale": solution.scale}, about)
            print(tables.layer_line(seed, report), file=sys.stderr, flush=True)

    features = config.features
    return reconstruct(
        trained.network, features.name, solver=config.solver.name, seed=seed, **_width(config),
        allow_below_minimum=features.allow_below_minimum, activation=features.activation, epsilon=features.epsilon,
        margin=features.margin, strict=features.strict, skip=features.skip, moments=moments, tolerance=config.solver.tolerance, max_iterations=config.solver.max_iterations,
        solved=solved, on_layer=keep,
    )  # fmt: skip


def _verified(source: torch.nn.Module, reports: list[LayerReport], trained: Trained) -> list[dict[str, Any]]:
    """The layers' reports with errors recomputed from the file just read, and the frozen weights' digest compared."""
    targets = {found.name: found.target.weight for found in find_layers(trained.network).layers}
    layers = source_layers(source)
    rows = []
    for report in reports:
        layer = layers[report.name]
        if layer.frozen_digest() != report.digest:
            raise RunError(f"layer {report.name}: the frozen weights are not the drawn ones; this is a defect, please report it")
        exact, assembled = layer_errors(layer, targets[report.name])
        if not (math.isfinite(exact) and math.isfinite(assembled)):
            raise RunError(
                f"layer {report.name}: its error is not a number; the target's weights or normalization are not finite"
            )
        rows.append(dataclasses.asdict(report) | {"relative_error": exact, "assembled_error": assembled})
    return rows


def _result(
    config: RunConfig, data: Images, device: torch.device, trained: Trained, rows: list[dict[str, Any]]
) -> dict[str, Any]:
    everything = all(row["source_images"] == row["images"] for row in rows)
    return {
        "config": dataclasses.asdict(config), "seeds": config.seeds,
        "data": {
            "name": data.name, "train": data.sizes[0], "test": data.sizes[1], "classes": len(data.classes), "checksum": data.checksum(),
        },
        "target": {
            "accuracy": trained.about["accuracy"], "images": trained.about["images"],
            "parameters": parameter_count(trained.network), "minimum_width_parameters": minimum_width_count(trained.network),
            "seconds": trained.about["seconds"], "folder": str(trained.folder),
        },
        "source": {
            "accuracy": [row["accuracy"] for row in rows],
            "evaluated": {
                "network": "source" if everything else "collapsed", "images": min(row["source_images"] for row in rows),
                "largest_logit_difference": max(row["largest_logit_difference"] for row in rows),
                "largest_difference_to_target": max(row["largest_difference_to_target"] for row in rows),
                "implicit_layers": sum(layer["convolutions"] == "implicit" for layer in rows[0]["layers"]),
            },
            "trainable_parameters": rows[0]["trainable_parameters"], "parameters": rows[0]["parameters"],
            "outside_linear_region": sum(row["outside_linear_region"] for row in rows),
        },
        "layers": [layer | {"seed": row["seed"]} for row in rows for layer in row["layers"]],
        "notes": rows[0]["notes"], "seconds": sum(row["seconds"] for row in rows), "seconds_per_seed": [row["seconds"] for row in rows],
        "solving_seconds": [row["solving_seconds"] for row in rows],
        "device": hardware.describe(device), "versions": versions(), "commit": commit(),
    }  # fmt: skip
