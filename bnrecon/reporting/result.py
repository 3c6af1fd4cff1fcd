"""Results of runs as objects: only this module reads and writes ``result.json``."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from bnrecon.reconstruction.report import LayerReport
from bnrecon.reporting.statistics import Interval, mcnemar, mean_interval
from bnrecon.runtime import files
from bnrecon.runtime.digests import json_values

T = TypeVar("T")


@dataclass(frozen=True)
class DataSummary:
    """The images of a run: numbers of training and test images and of classes, and a digest."""

    name: str
    train: int
    test: int
    classes: int
    checksum: str


@dataclass(frozen=True)
class TargetSummary:
    """A trained target: test accuracy in percent on ``images`` images, size, training time.

    ``minimum_width_parameters`` is the number of trainable parameters of a source network of
    minimum width (Burkholz 2024, Theorem 2.2). ``checksum`` is that of the weights; it and the
    training's ``device``, ``precision`` and ``commit`` are ``None`` in files written before they
    were stored.
    """

    accuracy: float
    images: int
    parameters: int
    minimum_width_parameters: int
    seconds: float
    folder: str
    checksum: str | None = None
    device: str | None = None
    precision: str | None = None
    commit: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """How the accuracies of a run's source networks were measured, for the least favourable seed.

    ``images`` test images went through the real source network, and the rest through its collapsed
    form unless ``network`` is ``"source"``. They are the images for which the target's two largest
    logits are closest; in results without ``Predictions``, the first images. Over them,
    ``largest_logit_difference`` compares the two forms, ``largest_difference_to_target`` the source
    and the target. ``implicit_layers`` were never stored as matrices.
    """

    network: str
    images: int
    largest_logit_difference: float
    largest_difference_to_target: float
    implicit_layers: int


@dataclass(frozen=True)
class Predictions:
    """The predictions of a source network, compared with those of its target.

    Equal accuracies may hide images that only one network predicts correctly; these counts do not.

    Args:
        images: number of compared images, all test images.
        differ: images for which the predictions differ (both may be wrong).
        only_target_right: images that only the target predicts correctly.
        only_source_right: images that only the source predicts correctly.
        source_images: how many went through the real source network: those where the target's two
            largest logits are closest; the others went through its collapsed form. 0 in results
            that do not say.
        reserve: half the smallest such margin of the other images, over the largest logit
            difference between the real source and the target. A prediction of these images can only
            differ if a logit differs by ``reserve`` times the largest difference seen. ``None`` if
            all images went through the real source, or nothing differed.
    """

    images: int
    differ: int
    only_target_right: int
    only_source_right: int
    source_images: int = 0
    reserve: float | None = None

    @classmethod
    def compare(cls, target: Any, source: Any, labels: Any, *tested: Any) -> Predictions:
        """Compare the classes (N,) that two networks predict; ``labels`` are the right ones."""
        target_right, source_right = target == labels, source == labels
        counts = target != source, target_right & ~source_right, source_right & ~target_right
        return cls(len(labels), *(int(each.sum()) for each in counts), *tested)

    @property
    def p_value(self) -> float:
        """The p-value of McNemar's test that both networks are equally often right."""
        return mcnemar(self.only_target_right, self.only_source_right)


@dataclass(frozen=True)
class SeedResult:
    """A source network of a run: test accuracy in percent, layers, time in seconds.

    ``predictions`` are ``None`` in files written before they were counted.
    """

    seed: int
    accuracy: float
    layers: tuple[LayerReport, ...]
    seconds: float
    solving_seconds: float
    predictions: Predictions | None = dataclasses.field(default=None, kw_only=True)


@dataclass(frozen=True)
class SeedRecord(SeedResult, files.Stored):
    """A finished seed, as in ``seed-N/result.json``; a run's result is made of these.

    ``images`` were tested, ``source_images`` of them through the real source network; see
    ``Evaluation`` for the two differences. ``outside_linear_region`` counts intermediate values
    outside the activation's linear region. ``key`` is a hash of all that the numbers depend on
    except the seed. ``source`` is the SHA-256 of the source network's file.
    """

    images: int
    source_images: int
    largest_logit_difference: float
    largest_difference_to_target: float
    outside_linear_region: int
    trainable_parameters: int
    parameters: int
    notes: tuple[str, ...]
    key: str
    source: str
    predictions: Predictions = dataclasses.field(kw_only=True)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> SeedRecord:
        """Read the content of ``seed-N/result.json``."""
        layers = tuple(map(LayerReport.from_json, content["layers"]))
        return from_stored(
            cls,
            content,
            layers=layers,
            notes=tuple(content["notes"]),
            predictions=from_stored(Predictions, content["predictions"]),
        )

    def to_json(self) -> dict[str, Any]:
        """The content of ``seed-N/result.json``."""
        row = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        layers = [layer.to_json() for layer in self.layers]
        return json_values(row | {"layers": layers, "predictions": vars(self.predictions)})

    def result(self) -> SeedResult:
        """The part of this seed that the run's result keeps."""
        names = [field.name for field in dataclasses.fields(SeedResult)]
        return SeedResult(**{name: getattr(self, name) for name in names})


@dataclass(frozen=True)
class RunResult(files.Stored):
    """The result of a run of the main job.

    ``config`` is the run's configuration as stored, ``device`` and ``versions`` are what it ran on.
    ``trainable_parameters`` and ``parameters`` are those of one source network;
    ``outside_linear_region`` is summed over seeds. ``finished`` (UTC), ``host`` and ``command``
    describe the process that wrote the result; ``None`` in files written before they were stored,
    and if they were removed for publication.
    """

    config: Mapping[str, Any]
    data: DataSummary
    target: TargetSummary
    seeds: tuple[SeedResult, ...]
    evaluation: Evaluation
    trainable_parameters: int
    parameters: int
    outside_linear_region: int
    notes: tuple[str, ...]
    device: str
    versions: Mapping[str, str]
    commit: str | None
    finished: str | None = None
    host: str | None = None
    command: str | None = None

    @property
    def accuracies(self) -> list[float]:
        """Test accuracy of the source networks in percent, by seed."""
        return [seed.accuracy for seed in self.seeds]

    @property
    def accuracy(self) -> Interval:
        """Mean accuracy of the source networks with its interval over seeds."""
        return mean_interval(self.accuracies)

    @property
    def loss(self) -> Interval:
        """Mean accuracy of the target minus that of a source, with its interval over seeds."""
        return mean_interval([self.target.accuracy - accuracy for accuracy in self.accuracies])

    @property
    def layers(self) -> list[LayerReport]:
        """The layers of all seeds, one seed after the other."""
        return [layer for seed in self.seeds for layer in seed.layers]

    @property
    def layer_rows(self) -> list[dict[str, Any]]:
        """The layers as JSON, each with its seed."""
        return [layer.to_json() | {"seed": one.seed} for one in self.seeds for layer in one.layers]

    @property
    def unconverged(self) -> list[LayerReport]:
        """The layers of all seeds whose solver did not converge."""
        return [layer for layer in self.layers if not layer.converged]

    @property
    def predictions(self) -> Predictions | None:
        """Those of the seed whose source differs from the target in most predictions.

        ``None`` if a seed's predictions were not counted.
        """
        counted = [seed.predictions for seed in self.seeds if seed.predictions is not None]
        if len(counted) < len(self.seeds):
            return None
        return max(counted, key=lambda seed: seed.differ)

    @property
    def redrawn(self) -> int:
        """Number of features, over layers and seeds, drawn again because they were all zero."""
        return sum(layer.redrawn for layer in self.layers)

    @property
    def largest_assembled_error(self) -> float:
        """The largest relative error of a layer in the precision of the network."""
        return max(layer.assembled_error for layer in self.layers)

    @property
    def iterations(self) -> int:
        """The largest number of iterations for a layer; 0 for direct solvers."""
        return max(layer.iterations for layer in self.layers)

    @property
    def seconds(self) -> float:
        """Time of all seeds, without training."""
        return math.fsum(seed.seconds for seed in self.seeds)

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> RunResult:
        """Read the content of ``result.json``; keys of later versions are ignored."""
        source = content["source"]
        columns = (
            content["seeds"],
            source["accuracy"],
            content["seconds_per_seed"],
            content["solving_seconds"],
            source.get("predictions", [None] * len(content["seeds"])),
        )
        seeds = tuple(
            SeedResult(
                seed,
                accuracy,
                tuple(
                    LayerReport.from_json(row) for row in content["layers"] if row["seed"] == seed
                ),
                seconds,
                solving,
                predictions=predictions and from_stored(Predictions, predictions),
            )
            for seed, accuracy, seconds, solving, predictions in zip(*columns, strict=True)
        )
        return from_stored(
            cls,
            {**content, **source},
            data=from_stored(DataSummary, content["data"]),
            target=from_stored(TargetSummary, content["target"]),
            seeds=seeds,
            evaluation=from_stored(Evaluation, source["evaluated"]),
            notes=tuple(content["notes"]),
        )

    def to_json(self) -> dict[str, Any]:
        """The content of ``result.json``; its keys must not change, as scripts read them."""
        target = {key: v for key, v in dataclasses.asdict(self.target).items() if v is not None}
        predictions = [seed.predictions and vars(seed.predictions) for seed in self.seeds]
        content = {
            "config": self.config,
            "seeds": [seed.seed for seed in self.seeds],
            "data": dataclasses.asdict(self.data),
            "target": target,
            "source": {
                "accuracy": self.accuracies,
                **({"predictions": predictions} if any(predictions) else {}),
                "evaluated": dataclasses.asdict(self.evaluation),
                "trainable_parameters": self.trainable_parameters,
                "parameters": self.parameters,
                "outside_linear_region": self.outside_linear_region,
            },
            "layers": self.layer_rows,
            "notes": self.notes,
            "seconds": self.seconds,
            "seconds_per_seed": [seed.seconds for seed in self.seeds],
            "solving_seconds": [seed.solving_seconds for seed in self.seeds],
            "device": self.device,
            "versions": self.versions,
            "commit": self.commit,
        }
        made = {"finished": self.finished, "host": self.host, "command": self.command}
        return json_values(content | {key: v for key, v in made.items() if v is not None})

    def write(self, path: Path) -> None:
        """Write ``result.json`` atomically, with a digest that ``read`` checks."""
        files.write_json(path, self.to_json())


def read_all(paths: Iterable[Path]) -> tuple[dict[Path, RunResult], list[str]]:
    """Read results; the second value has the reasons for files that cannot be read."""
    results, problems = {}, []
    for path in paths:
        try:
            results[path] = RunResult.read(path)
        except (ValueError, FileNotFoundError) as error:
            problems.append(str(error))
    return results, problems


def from_stored(kind: type[T], content: Mapping[str, Any], **parts: Any) -> T:
    """Make a dataclass from the stored entries named like its fields, and ``parts``."""
    # mypy has no way to say that T is a dataclass.
    names = [field.name for field in dataclasses.fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: content[name] for name in names if name in content} | parts)
