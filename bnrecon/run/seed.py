"""One source network of a run: rebuilt, saved, read back, evaluated."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Sequence

from torch import nn

from bnrecon.config.composition import option_names, rename_fields
from bnrecon.construction.activation import FIRST_ACTIVATIONS
from bnrecon.reconstruction.assembly import OTHER_SYSTEM, BuiltLayer, build_layer, join_layers
from bnrecon.reconstruction.collapse import layer_errors
from bnrecon.reconstruction.plan import Plan
from bnrecon.reconstruction.report import NOTED, LayerReport
from bnrecon.reconstruction.source_file import collapse, load_source, source_layers
from bnrecon.reporting.convergence import layer_line, seed_line
from bnrecon.reporting.result import SeedRecord
from bnrecon.reporting.trackers.events import log_layer, log_seed
from bnrecon.run import estimate
from bnrecon.run.announcement import source_images
from bnrecon.run.context import RunContext
from bnrecon.run.evaluation import SourceEvaluation, evaluate_source
from bnrecon.run.layer_checkpoint import solved_layers
from bnrecon.run.seed_files import SolvedLayers, read_finished_seed
from bnrecon.runtime import files
from bnrecon.runtime.digests import file_digest

logger = logging.getLogger(__name__)


def run_seed(run: RunContext, seed: int) -> SeedRecord:
    """Rebuild the target from one seed, save the source network, read it back, evaluate it.

    Resumable: solved layers and finished seeds are read, not computed again.

    Raises:
        RunError: a layer cannot be solved, or the saved source differs from the computed one.
    """
    folder, accuracy = run.folder / f"seed-{seed}", run.target.about["accuracy"]
    finished = read_finished_seed(folder, run.seed_key, run.config.keep_source)
    if finished is not None:
        log_seed(run.tracked, finished, accuracy)
        return finished
    started = time.monotonic()
    plan = run.plan_of_seed(seed)
    with option_names("features"):
        solved = SolvedLayers(folder, run.seed_key)
        rebuilt = join_layers(plan, _rebuild_layers(run, plan, solved))
    path = rebuilt.save(folder / "source.safetensors")
    reports, notes = rebuilt.layers, rebuilt.notes
    del rebuilt  # evaluate the network that the file contains
    source = load_source(path, run.target.network, plan.storage)
    layers = _verify(source, reports, plan)
    for report in layers:
        logger.log(logging.DEBUG if report.converged else logging.WARNING, layer_line(seed, report))
    solving_seconds = solved.seconds + time.monotonic() - started
    network, data = run.target.network, run.data
    flops = estimate.source_flops(plan, estimate.pixels(network, data.shape))
    tested = source_images(run.config, flops, data.sizes[1], run.device)
    what = (source, collapse(source), network, data, run.device, tested)
    outcome = evaluate_source(*what, f"testing seed {seed}")
    if note := _far_logits(run, layers, outcome):
        logger.warning("seed %d: %s", seed, note)
        notes = [*notes, note]
    parameters, parts = list(source.parameters()), list(source_layers(source).values())
    measured = outcome._asdict()
    del measured["largest_logit"]  # only the note needs it
    record = SeedRecord(
        seed=seed,
        layers=tuple(layers),
        seconds=solved.seconds + time.monotonic() - started,
        solving_seconds=solving_seconds,
        outside_linear_region=sum(layer.outside for layer in parts),
        trainable_parameters=sum(p.numel() for p in parameters if p.requires_grad),
        parameters=sum(p.numel() for p in parameters) + sum(layer.offloaded for layer in parts),
        notes=tuple(notes),
        key=run.seed_key,
        source=file_digest(path),
        **measured,
    )
    files.write_json(folder / "result.json", record.to_json())
    for file in solved_layers(folder):
        file.unlink()
    logger.info(seed_line(record))
    log_seed(run.tracked, record, accuracy)
    return record


def _rebuild_layers(run: RunContext, plan: Plan, solved: SolvedLayers) -> list[BuiltLayer]:
    """Solve and build the layers of a plan; each solution is stored when it is computed."""
    built, moments = [], run.moments  # check moments before hours of solving
    missing = [layer for layer in plan.layers if solved.get(layer) is None]
    if run.share is not None and len(missing) > 1:
        run.share(run, solved.seed, missing)
        solved.read()
    for number, layer in enumerate(plan.layers, start=1):
        pairs = layer.draw_groups()
        solution, part = solved.get(layer), None
        if solution is not None:
            part = build_layer(layer, solution, moments.get(layer.name), pairs)
            if part.report.diagnosis == OTHER_SYSTEM:  # an earlier version set up another system
                what = f"{layer.label} is solved again: {OTHER_SYSTEM}"
                logger.warning("seed %d: %s", solved.seed, what)
                part = None
        if solution is None or part is None:
            solution = solved.solve(layer, pairs)
            part = build_layer(layer, solution, moments.get(layer.name), pairs)
        log_layer(run.tracked, solved.seed, number, solution.report)
        built.append(part)
    return built


def _verify(source: nn.Module, reports: list[LayerReport], plan: Plan) -> list[LayerReport]:
    """Recompute the reports' errors from the file, with options' names in messages."""
    targets = {layer.name: layer.folded.target.weight for layer in plan.layers}
    layers = source_layers(source)
    verified = []
    for report in reports:
        exact, assembled = layer_errors(layers[report.name], targets[report.name])[:2]
        diagnosis = rename_fields("features", report.diagnosis)
        solution = dataclasses.replace(report.solution, diagnosis=diagnosis)
        report = dataclasses.replace(report, relative_error=exact, solution=solution)
        verified.append(dataclasses.replace(report, assembled_error=assembled))
    return verified


def _far_logits(run: RunContext, layers: Sequence[LayerReport], outcome: SourceEvaluation) -> str:
    """A note if logits differ much although all layers are rebuilt; otherwise empty."""
    exact = FIRST_ACTIVATIONS[run.config.features.activation].exact
    if not (exact and all(layer.converged for layer in layers)):
        return ""
    difference, size = outcome.largest_difference_to_target, outcome.largest_logit
    if difference <= NOTED * size:
        return ""
    return (
        f"every layer is rebuilt, and yet logits differ by {difference:.1e} where they are up to "
        f"{size:.1e}: numbers within the source network are so large that their rounding shows"
    )
