"""One source network of a run: rebuilt, saved, read back, evaluated; or taken from what was done before."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.metadata
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bnrecon.config.schema import VOLATILE, RunConfig
from bnrecon.data import Images
from bnrecon.reconstruction.assembly import reconstruct
from bnrecon.reconstruction.collapse import layer_errors
from bnrecon.reconstruction.folding import find_layers
from bnrecon.reconstruction.moments import LayerMoments
from bnrecon.reconstruction.planning import Plan
from bnrecon.reconstruction.report import LayerReport, Reconstruction
from bnrecon.reconstruction.source_file import collapse, load_source, source_layers
from bnrecon.reporting import tables
from bnrecon.run import estimate
from bnrecon.run.announcement import chosen_width, source_images
from bnrecon.run.evaluation import evaluate_source
from bnrecon.run.naming import code_of_run
from bnrecon.runtime import digests, files
from bnrecon.runtime.errors import RunError
from bnrecon.solvers import Report, Solution
from bnrecon.targets.store import Trained

__all__ = ["finished_or_rebuilt_seed", "row_key", "whole_row"]


def finished_or_rebuilt_seed(
    config: RunConfig,
    seed: int,
    folder: Path,
    trained: Trained,
    moments: Mapping[str, LayerMoments],
    data: Images,
    device: torch.device,
    plan: Plan,
) -> dict[str, Any]:
    """One source network: rebuild, save, reload from the file, evaluate. What was done before is taken up."""
    place = folder / f"seed-{seed}"
    key = row_key(config, trained, data, device)
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
    seen = source_images(config, flops, data.sizes[1], device)
    solved = time.monotonic() - started
    outcome = evaluate_source(
        source, collapse(source), trained.network, data, device, seen, f"testing seed {seed}"
    )
    row = {
        "seed": seed,
        "accuracy": outcome.percent,
        "images": outcome.images,
        "source_images": outcome.source_images,
        "largest_logit_difference": outcome.largest_logit_difference,
        "largest_difference_to_target": outcome.largest_difference_to_target,
        "outside_linear_region": sum(layer.outside for layer in source_layers(source).values()),
        "layers": layers,
        "notes": notes,
        "key": key,
        "seconds": time.monotonic() - started,
        "solving_seconds": solved,
        "trainable_parameters": sum(p.numel() for p in source.parameters() if p.requires_grad),
        "parameters": sum(p.numel() for p in source.parameters()),
    }
    files.write_json(place / "result.json", row)
    _remove_layers(place)
    print(tables.seed_line(row), flush=True)
    return row


def row_key(config: RunConfig, trained: Trained, data: Images, device: torch.device) -> str:
    """What a seed's row depends on, its seed apart: target, pixels, options, own code, kind of device, version."""
    content = digests.differences(config, VOLATILE | {"seeds"}) | code_of_run(config)
    content |= {
        "target": digests.tensor_digest(trained.network.state_dict()),
        "pixels": data.checksum(),
    }
    content |= {"device": device.type, "version": importlib.metadata.version("bnrecon")}
    return digests.content_key(content)


def _finished_seed(config: RunConfig, seed: int, place: Path, key: str) -> dict[str, Any] | None:
    """A seed's row, if it is of this key and its files are whole; one that a run of other seeds has is taken over."""
    if (row := whole_row(place, key, config.keep_source, mend=True)) is not None:
        _remove_layers(place)
        return row
    prefix = place.parent.name.rpartition("-")[0]
    for other in sorted(place.parent.parent.iterdir()):
        if other == place.parent or other.name.rpartition("-")[0] != prefix:
            continue
        with contextlib.suppress(OSError):  # removed while it is looked at
            taken = other / f"seed-{seed}"
            if (row := whole_row(taken, key, config.keep_source)) is None:
                continue
            place.mkdir(parents=True, exist_ok=True)
            if config.keep_source:
                files.write_bytes(
                    place / "source.safetensors", (taken / "source.safetensors").read_bytes()
                )
            files.write_json(place / "result.json", row)
            print(f"seed {row['seed']} was done before, in {other}", file=sys.stderr)
            return row
    return None


def whole_row(
    place: Path, key: str, with_source: bool, mend: bool = False
) -> dict[str, Any] | None:
    """A seed's row, if it is of this key and all its files are whole; ``mend`` sets damaged ones aside."""
    if with_source and files.sound(place / "source.safetensors", files.read_tensors, mend) is None:
        return None
    row = files.sound(place / "result.json", files.read_json, mend)
    return row if row is not None and row.get("key") == key else None


def _remove_layers(place: Path) -> None:
    """Remove the solved layers of a seed that is done."""
    for file in place.glob("layer-*.safetensors"):
        file.unlink()


def _rebuild(
    config: RunConfig,
    seed: int,
    place: Path,
    trained: Trained,
    moments: Mapping[str, LayerMoments],
    key: str,
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
            named = (
                error
                if isinstance(error, files.Damaged)
                else f"{file} was written by another version of bnrecon"
            )
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
        trained.network,
        features.name,
        solver=config.solver.name,
        seed=seed,
        **chosen_width(config),
        allow_below_minimum=features.allow_below_minimum,
        activation=features.activation,
        epsilon=features.epsilon,
        margin=features.margin,
        strict=features.strict,
        skip=features.skip,
        moments=moments,
        tolerance=config.solver.tolerance,
        max_iterations=config.solver.max_iterations,
        solved=solved,
        on_layer=keep,
    )


def _verified(
    source: torch.nn.Module, reports: list[LayerReport], trained: Trained
) -> list[dict[str, Any]]:
    """The layers' reports with errors recomputed from the file just read, and the frozen weights' digest compared."""
    targets = {found.name: found.target.weight for found in find_layers(trained.network).layers}
    layers = source_layers(source)
    rows = []
    for report in reports:
        layer = layers[report.name]
        if layer.frozen_digest() != report.digest:
            raise RunError(
                f"layer {report.name}: the frozen weights are not the drawn ones; this is a defect, please report it"
            )
        exact, assembled = layer_errors(layer, targets[report.name])
        if not (math.isfinite(exact) and math.isfinite(assembled)):
            raise RunError(
                f"layer {report.name}: its error is not a number; the target's weights or normalization are not finite"
            )
        rows.append(
            dataclasses.asdict(report) | {"relative_error": exact, "assembled_error": assembled}
        )
    return rows
