"""One source network of a run: rebuilt, saved, read back, evaluated."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import importlib.metadata
import logging
import math
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from bnrecon.config.composition import option_names, rename_fields
from bnrecon.config.schema import VOLATILE, RunConfig
from bnrecon.construction.activation import FIRST_ACTIVATIONS
from bnrecon.data import Images
from bnrecon.features.pair import Features
from bnrecon.reconstruction.assembly import check_moments, join_layers
from bnrecon.reconstruction.building import FOREIGN, BuiltLayer, build_layer
from bnrecon.reconstruction.collapse import layer_errors
from bnrecon.reconstruction.moments import LayerMoments
from bnrecon.reconstruction.plan import Plan, PlannedLayer
from bnrecon.reconstruction.planning import plan_layers
from bnrecon.reconstruction.report import NOTED, LayerReport
from bnrecon.reconstruction.solving import solve_layer
from bnrecon.reconstruction.source_file import collapse, load_source, source_layers
from bnrecon.reporting.convergence import layer_line, seed_line
from bnrecon.reporting.result import SeedRecord
from bnrecon.reporting.trackers.events import log_layer, log_seed
from bnrecon.run import estimate
from bnrecon.run.announcement import source_images
from bnrecon.run.evaluation import SourceEvaluation, evaluate_source
from bnrecon.run.layer_checkpoint import LayerCheckpoint, solved_layers
from bnrecon.run.naming import code_of_run
from bnrecon.runtime import digests, files
from bnrecon.runtime.errors import RunError
from bnrecon.runtime.tracking import TrackedRun
from bnrecon.solvers.base import Solution, SolverReport
from bnrecon.targets.store import Trained

__all__ = ["read_seed", "read_source", "run_seed", "seed_key"]

logger = logging.getLogger(__name__)

# What else than options a seed depends on (seed_key).
OTHERWISE = "another version of bnrecon, kind of device, target or code"


def run_seed(
    config: RunConfig,
    seed: int,
    folder: Path,
    trained: Trained,
    moments: Mapping[str, LayerMoments],
    data: Images,
    device: torch.device,
    tracked: TrackedRun,
) -> SeedRecord:
    """Rebuild the target from one seed, save the source network, read it back, evaluate it.

    Resumable: layers that were solved and seeds that were finished before are read, not repeated.

    Args:
        config: of the run.
        seed: what all features are drawn from.
        folder: of the run; the seed's files are in ``folder/seed-N``.
        trained: the target.
        moments: of its layers' inputs and outputs, for the running statistics.
        data: test images.
        device: where the source network is evaluated.
        tracked: is sent each layer, and the seed.

    Raises:
        RunError: a layer cannot be solved, or what was saved does not come back.
    """
    place = folder / f"seed-{seed}"
    key = seed_key(config, trained, data, device)
    if (known := _finished_before(config, seed, place, key)) is not None:
        log_seed(tracked, known, trained.about["accuracy"])
        return known
    started = time.monotonic()
    with option_names("features"):
        plan = plan_layers(trained.network, config.features, config.solver, seed=seed)
        seen = check_moments(plan, moments)  # before hours of solving
        built, before = _rebuild_layers(plan, seen, seed, place, key, tracked)
        rebuilt = join_layers(plan, built)
    path = rebuilt.save(place / "source.safetensors")
    reports, notes = rebuilt.layers, rebuilt.notes
    del rebuilt, built  # the network that is evaluated is the one that comes back from the file
    source = load_source(path, trained.network, plan.storage)
    layers = [_with_option_names(report) for report in _verify(source, reports, plan)]
    for report in layers:
        logger.log(logging.DEBUG if report.converged else logging.WARNING, layer_line(seed, report))
    flops = estimate.source_flops(plan, estimate.pixels(trained.network, data.shape))
    tested = source_images(config, flops, data.sizes[1], device)
    solved = before + time.monotonic() - started
    outcome = evaluate_source(
        source, collapse(source), trained.network, data, device, tested, f"testing seed {seed}"
    )
    if note := _far_logits(config, layers, outcome):
        logger.warning("seed %d: %s", seed, note)
        notes = [*notes, note]
    parameters = list(source.parameters())
    record = SeedRecord(
        seed=seed,
        accuracy=outcome.percent,
        layers=tuple(layers),
        seconds=before + time.monotonic() - started,
        solving_seconds=solved,
        images=outcome.images,
        source_images=outcome.source_images,
        largest_logit_difference=outcome.largest_logit_difference,
        largest_difference_to_target=outcome.largest_difference_to_target,
        outside_linear_region=sum(layer.outside for layer in source_layers(source).values()),
        trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
        parameters=sum(p.numel() for p in parameters)
        + sum(layer.unheld for layer in source_layers(source).values()),
        notes=tuple(notes),
        key=key,
        predictions=outcome.predictions,
        source=_file_digest(path),
    )
    files.write_json(place / "result.json", record.to_json())
    _remove_solutions(place)
    logger.info(seed_line(record))
    log_seed(tracked, record, trained.about["accuracy"])
    return record


def _far_logits(config: RunConfig, layers: Sequence[LayerReport], outcome: SourceEvaluation) -> str:
    """What to say where logits are far off although all layers are rebuilt; otherwise nothing."""
    exact = FIRST_ACTIVATIONS[config.features.activation].exact
    if not (exact and all(layer.converged for layer in layers)):
        return ""
    difference, size = outcome.largest_difference_to_target, outcome.largest_logit
    if difference <= NOTED * size:
        return ""
    return (
        f"every layer is rebuilt, and yet logits differ by {difference:.1e} where they are up to "
        f"{size:.1e}: numbers within the source network are so large that their rounding shows"
    )


def seed_key(config: RunConfig, trained: Trained, data: Images, device: torch.device) -> str:
    """A hash of what a seed's record depends on, its seed apart.

    That is the target, images, options, the user's own code, the kind of device and the version.

    Args:
        config: of the run.
        trained: the target.
        data: the images.
        device: where the run computes.
    """
    content = digests.differences_from_defaults(config, VOLATILE | {"seeds"}) | code_of_run(config)
    content |= {
        "target": digests.tensor_digest(trained.network.state_dict()),
        "pixels": data.checksum(),
        "device": device.type,
        "version": importlib.metadata.version("bnrecon"),
    }
    return digests.content_key(content)


def read_seed(place: Path, key: str, with_source: bool, repair: bool = False) -> SeedRecord | None:
    """A seed's record, if it is of its folder's seed, has this key, and its files can be read.

    Args:
        place: the seed's folder.
        key: from ``seed_key``.
        with_source: whether the source network's file must be there too.
        repair: set damaged files aside; the run's lock must be held.
    """
    record = files.read_if_valid(place / "result.json", SeedRecord.read, repair)
    if record is not None and (place.name, record.key) != (f"seed-{record.seed}", key):
        other = OTHERWISE if record.key != key else f"seed {record.seed}"
        if repair:
            for name in ("result.json", "source.safetensors"):
                files.quarantine(place / name, f"{place / name} is of {other}")
        return None
    source = place / "source.safetensors"
    if with_source and not files.read_if_valid(source, lambda p: read_source(p, record), repair):
        return None
    return record


def read_source(
    path: Path, record: SeedRecord | None
) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """Read a source network's file, and see that it is the one of a seed's record.

    Raises:
        Damaged: it is damaged, or another one.
        FileNotFoundError: there is none.
    """
    content = files.read_tensors(path)
    # Records of earlier versions do not say which source is theirs.
    if record is not None and record.source not in (None, _file_digest(path)):
        raise files.Damaged(f"{path} is not the source network of result.json beside it")
    return content


def _file_digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def _finished_before(config: RunConfig, seed: int, place: Path, key: str) -> SeedRecord | None:
    """A seed's record, if it is finished; one that a run of other seeds has is copied."""
    if (record := read_seed(place, key, config.keep_source, repair=True)) is not None:
        _remove_solutions(place)
        return record
    prefix = place.parent.name.rpartition("-")[0]
    for other in sorted(place.parent.parent.iterdir()):
        if other == place.parent or other.name.rpartition("-")[0] != prefix:
            continue
        with contextlib.suppress(OSError):  # removed while it is read
            found = other / f"seed-{seed}"
            if (record := read_seed(found, key, config.keep_source)) is None:
                continue
            place.mkdir(parents=True, exist_ok=True)
            if config.keep_source:
                source = (found / "source.safetensors").read_bytes()
                files.write_bytes(place / "source.safetensors", source)
            files.write_json(place / "result.json", record.to_json())
            logger.info("seed %d was done before, in %s", seed, other)
            return record
    return None


def _with_option_names(report: LayerReport) -> LayerReport:
    """The report with a diagnosis that names options as the command line does."""
    diagnosis = rename_fields("features", report.diagnosis)
    return dataclasses.replace(
        report, solution=dataclasses.replace(report.solution, diagnosis=diagnosis)
    )


def _rebuild_layers(
    plan: Plan,
    moments: Mapping[str, LayerMoments],
    seed: int,
    place: Path,
    key: str,
    tracked: TrackedRun,
) -> tuple[list[BuiltLayer], float]:
    """Solve and build the layers of a plan; each solution is stored when it is found.

    Returns:
        The layers, and the seconds of solving before an interruption.
    """
    solutions, built = _read_solutions(place, seed, key), []
    before = math.fsum(solution.report.seconds for solution in solutions.values())
    if solutions:
        logger.info("seed %d: %d layers were solved before", seed, len(solutions))
    for number, layer in enumerate(plan.layers, start=1):
        pairs = layer.draw_groups()
        seen, solution, part = moments.get(layer.name), solutions.get(layer.name), None
        if solution is not None:
            part = build_layer(layer, solution, seen, pairs)
            if part.report.diagnosis == FOREIGN:  # an earlier version set up another system
                logger.warning("seed %d: %s is solved again: %s", seed, layer.label, FOREIGN)
                part = None
        if solution is None or part is None:
            solution, spent = _solve_and_store(layer, pairs, seed, place, key)
            before += spent
            part = build_layer(layer, solution, seen, pairs)
        log_layer(tracked, seed, number, solution.report)
        built.append(part)
    return built, before


def _solve_and_store(
    layer: PlannedLayer, pairs: Sequence[Features], seed: int, place: Path, key: str
) -> tuple[Solution, float]:
    """Solve a layer, from where it was interrupted before; the seconds until then beside it."""
    about: dict[str, object] = {"name": layer.name, "key": key, "seed": seed}
    name = f"{urllib.parse.quote(layer.name, safe='')}.safetensors"
    unfinished = LayerCheckpoint(place / f"unfinished-{name}", about)
    solution = solve_layer(layer, unfinished, pairs)
    seconds = unfinished.before + solution.report.seconds
    report = dataclasses.replace(solution.report, seconds=seconds)
    about |= {"report": dataclasses.asdict(report)}
    try:
        files.write_tensors(place / f"layer-{name}", {"scale": solution.scale}, about)
    except OSError as error:
        what = f"{layer.label} is solved and its solution cannot be kept, {error.strerror}"
        raise OSError(error.errno, what, error.filename) from None
    unfinished.path.unlink(missing_ok=True)
    logger.info(
        f"  seed {seed}  {layer.name:<24} n={layer.shape.equations:<8} c1={layer.width:<8} "
        f"{report.solver:<12} residual {report.relative_residual:.1e}  {report.seconds:.1f} s"
    )
    return Solution(solution.scale, report), unfinished.before


def _read_solutions(place: Path, seed: int, key: str) -> dict[str, Solution]:
    """The layers that were solved before, by name; damaged files are set aside."""
    solutions, others = {}, 0
    for file in sorted(place.glob("layer-*.safetensors")):
        try:
            tensors, about = files.read_tensors(file)
            if about["key"] == key and about["seed"] == seed:
                report = SolverReport(**about["report"])
                solutions[about["name"]] = Solution(tensors["scale"], report)
            else:
                others += 1
        except FileNotFoundError:
            continue  # removed since it was listed
        except files.Damaged as error:
            files.quarantine(file, error)
        except (ValueError, KeyError, TypeError):
            files.quarantine(file, f"{file} was written by another version of bnrecon")
    if others:
        logger.warning("seed %d: %d solved layers are of %s; solved again", seed, others, OTHERWISE)
    return solutions


def _remove_solutions(place: Path) -> None:
    """Remove the solved layers of a seed that is done."""
    for file in solved_layers(place):
        file.unlink()


def _verify(source: nn.Module, reports: list[LayerReport], plan: Plan) -> list[LayerReport]:
    """The reports with errors recomputed from the file; digests of frozen weights are compared."""
    targets = {layer.name: layer.found.target.weight for layer in plan.layers}
    layers = source_layers(source)
    verified = []
    for report in reports:
        layer = layers[report.name]
        if layer.frozen_digest() != report.digest:
            raise RunError(
                f"layer {report.name}: the frozen weights are not the drawn ones; "
                "this is a defect, please report it"
            )
        exact, assembled = layer_errors(layer, targets[report.name])[:2]
        if not (math.isfinite(exact) and math.isfinite(assembled)):
            raise RunError(
                f"layer {report.name}: its error is not a number; the target's weights or "
                "normalization are not finite"
            )
        verified.append(
            dataclasses.replace(report, relative_error=exact, assembled_error=assembled)
        )
    return verified
