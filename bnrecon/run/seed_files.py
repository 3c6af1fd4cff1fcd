"""The files of a seed: solved layers, the source network, its record."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import urllib.parse
from collections.abc import Sequence
from pathlib import Path

from bnrecon.features.pair import Features
from bnrecon.reconstruction.planned_layer import PlannedLayer
from bnrecon.reconstruction.solving import solve_layer
from bnrecon.reporting.result import SeedRecord
from bnrecon.run.layer_checkpoint import LayerCheckpoint, solved_layers
from bnrecon.runtime import files
from bnrecon.runtime.digests import file_digest
from bnrecon.solvers.base import Solution
from bnrecon.solvers.report import SolverReport

logger = logging.getLogger(__name__)

# What a seed depends on besides options (RunContext.seed_key).
OTHER_ORIGIN = "another version of bnrecon, kind of device, target or code"


class SolvedLayers:
    """The solved layers of a seed, stored as soon as they are solved and read when it resumes.

    Layers of another ``key`` are solved again. ``seconds`` counts those before an interruption.
    """

    def __init__(self, folder: Path, key: str):
        self.folder = folder
        self.key = key
        self.seed = int(folder.name.rpartition("-")[2])
        self._solutions: dict[str, Solution] = {}
        self.read()
        self.seconds = sum(solution.report.seconds for solution in self._solutions.values())
        if self._solutions:
            logger.info("seed %d: %d layers were solved before", self.seed, len(self._solutions))

    def get(self, layer: PlannedLayer) -> Solution | None:
        """The stored solution, if any."""
        return self._solutions.get(layer.name)

    def solve(self, layer: PlannedLayer, pairs: Sequence[Features]) -> Solution:
        """Solve a layer, from its checkpoint if any, and store the solution."""
        path = self.folder / f"unfinished-{_file_name(layer)}"
        unfinished = LayerCheckpoint(path, self._metadata(layer))
        solution = solve_layer(layer, unfinished, pairs)
        seconds = unfinished.before + solution.report.seconds
        report = dataclasses.replace(solution.report, seconds=seconds)
        solution = Solution(solution.scale, report)
        self.store(layer, solution)
        unfinished.path.unlink(missing_ok=True)
        self.seconds += unfinished.before
        return solution

    def store(self, layer: PlannedLayer, solution: Solution) -> None:
        """Write a layer's solution."""
        report = solution.report
        metadata = self._metadata(layer) | {"report": dataclasses.asdict(report)}
        path = self.folder / f"layer-{_file_name(layer)}"
        try:
            files.write_tensors(path, {"scale": solution.scale}, metadata)
        except OSError as error:
            what = f"{layer.label} is solved but its solution cannot be saved, {error.strerror}"
            raise OSError(error.errno, what, error.filename) from None
        logger.info(
            f"  seed {self.seed}  {layer.name:<24} n={layer.shape.equations:<8} "
            f"c1={layer.width:<8} {report.solver:<12} residual {report.relative_residual:.1e}  "
            f"{report.seconds:.1f} s"
        )

    def _metadata(self, layer: PlannedLayer) -> dict[str, object]:
        """What identifies a stored solution or state."""
        return {"name": layer.name, "key": self.key, "seed": self.seed}

    def read(self) -> None:
        """Read the stored layers; damaged files are set aside."""
        solutions: dict[str, Solution] = {}
        others = 0
        for file in sorted(self.folder.glob("layer-*.safetensors")):
            read = files.read_if_valid(file, self._read_layer, quarantine_damaged=True)
            solutions |= read or {}
            others += read == {}
        if others:
            what = f"{others} solved layers are from {OTHER_ORIGIN}; solved again"
            logger.warning("seed %d: %s", self.seed, what)
        self._solutions = solutions

    def _read_layer(self, path: Path) -> dict[str, Solution]:
        """A solution by its layer's name; empty if its origin differs."""
        tensors, metadata = files.read_tensors(path)
        if (metadata["key"], metadata["seed"]) != (self.key, self.seed):
            return {}
        report = SolverReport(**metadata["report"])
        return {metadata["name"]: Solution(tensors["scale"], report)}


def _file_name(layer: PlannedLayer) -> str:
    return f"{urllib.parse.quote(layer.name, safe='')}.safetensors"


def read_seed(
    folder: Path, key: str | None, with_source: bool, repair: bool = False
) -> SeedRecord | None:
    """A seed's record, if it matches its folder's seed and this key, and its files can be read.

    ``None`` stands for any key. ``with_source`` requires the source network's file. ``repair`` sets
    damaged files aside; the run's lock must be held.
    """
    record = files.read_if_valid(folder / "result.json", SeedRecord.read, repair)
    if record is not None and (
        folder.name != f"seed-{record.seed}" or key not in (None, record.key)
    ):
        other = OTHER_ORIGIN if record.key != key else f"seed {record.seed}"
        if repair:
            for name in ("result.json", "source.safetensors"):
                files.quarantine(folder / name, f"{folder / name} is of {other}")
        return None
    if with_source and not files.read_if_valid(
        folder / "source.safetensors", lambda path: _read_source(path, record), repair
    ):
        return None
    return record


def _read_source(path: Path, record: SeedRecord | None) -> bool:
    """Whether a source network can be read; raise ``Damaged`` if it is not the record's."""
    tensors, _ = files.read_tensors(path)
    if record is not None and record.source != file_digest(path):
        raise files.Damaged(f"{path} is not the source network of result.json next to it")
    return bool(tensors)


def read_finished_seed(folder: Path, key: str, with_source: bool) -> SeedRecord | None:
    """A finished seed's record, copied from a run of other seeds if need be."""
    if (record := read_seed(folder, key, with_source, repair=True)) is not None:
        for file in solved_layers(folder):
            file.unlink()
        return record
    run = folder.parent
    prefix = run.name.rpartition("-")[0]
    for other in sorted(run.parent.iterdir()):
        if other == run or other.name.rpartition("-")[0] != prefix:
            continue
        with contextlib.suppress(OSError):  # removed while it is read
            if (record := read_seed(other / folder.name, key, with_source)) is None:
                continue
            folder.mkdir(parents=True, exist_ok=True)
            if with_source:
                source = (other / folder.name / "source.safetensors").read_bytes()
                files.write_bytes(folder / "source.safetensors", source)
            files.write_json(folder / "result.json", record.to_json())
            logger.info("seed %d was done before, in %s", record.seed, other)
            return record
    return None
