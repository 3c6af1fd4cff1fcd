"""What a reconstruction returns: the source network and a report for each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torch import nn

from bnrecon.reconstruction import source_file
from bnrecon.reconstruction.source_file import LayerRecipe
from bnrecon.solvers.base import SolverReport

__all__ = ["NOTED", "LayerReport", "OutputDifference", "Reconstruction"]

NOTED = 1e-3  # of their spread: outputs that are farther off than rounding usually leads


@dataclass(frozen=True)
class LayerReport:
    """How well one layer was rebuilt.

    Args:
        name: of the layer in the model.
        shape: (c2, c0, *kernel); of a grouped convolution, that of one group, as the next two.
        equations: n, the product of these.
        width: c1, the number of features.
        relative_error: ‖W' - W‖ / ‖W‖ in float64, from the float64 normalization parameters and the
            features.
        assembled_error: the same from the parameters that the network holds, in the precision it
            runs in.
            Of several groups both are the largest of one.
        converged: the solver has converged, ``relative_error`` is within its tolerance,
            ``assembled_error`` is rounding, and so is ``channel_error``.
        redrawn: features that came out all-zero and were drawn again.
        rank: that of M where strict sparse features may lack it; ``None`` where it was not
            computed.
        convolutions: ``stored``, ``implicit`` where M = I is not formed, ``regenerated`` or
            ``on disk``.
        digest: of the frozen weights.
        solution: the solver's report, of several groups that of the one with the largest residual;
            its ``diagnosis`` says why the layer did not converge, where a reason was found.
        groups: of a grouped convolution, each rebuilt from features of its own.
        kept: how many of the features may have a scale that is not 0, of each group; ``None``
            without pruning.
        channel_error: ‖(W' - W)_i‖ / ‖W_i‖ of the output i for which it is largest, as assembled;
            each weight is multiplied by the size of its input where images tell it. ``None`` where
            an earlier version did not compute it.
    """

    name: str
    shape: tuple[int, ...]
    equations: int
    width: int
    relative_error: float
    assembled_error: float
    converged: bool
    redrawn: int
    rank: int | None
    convolutions: str
    digest: str
    solution: SolverReport
    groups: int = 1
    kept: int | None = None
    channel_error: float | None = None

    @property
    def oversampling(self) -> float:
        """c1 / n."""
        return self.width / self.equations

    @property
    def solver(self) -> str:
        """Name of the solver."""
        return self.solution.solver

    @property
    def residual(self) -> float:
        """‖M x - b‖ / ‖b‖ in float64."""
        return self.solution.relative_residual

    @property
    def iterations(self) -> int:
        """Iterations of the solver, 0 for direct ones."""
        return self.solution.iterations

    @property
    def seconds(self) -> float:
        """Seconds that the solver took."""
        return self.solution.seconds

    @property
    def norm(self) -> str:
        """Which of many solutions was found."""
        return self.solution.norm

    @property
    def precision(self) -> str:
        """What the solver's products ran in."""
        return self.solution.precision

    @property
    def reason(self) -> str:
        """Why ``auto`` chose the solver."""
        return self.solution.reason

    @property
    def diagnosis(self) -> str:
        """Why the layer did not converge, where a reason was found."""
        return self.solution.diagnosis

    def to_json(self) -> dict[str, Any]:
        """The flat row that ``result.json`` holds."""
        solution = self.solution
        return {
            "name": self.name,
            "shape": list(self.shape),
            "equations": self.equations,
            "width": self.width,
            "oversampling": self.oversampling,
            "solver": solution.solver,
            "relative_error": self.relative_error,
            "assembled_error": self.assembled_error,
            "residual": solution.relative_residual,
            "iterations": solution.iterations,
            "seconds": solution.seconds,
            "converged": self.converged,
            "redrawn": self.redrawn,
            "rank": self.rank,
            "convolutions": self.convolutions,
            "digest": self.digest,
            "norm": solution.norm,
            "arithmetic": solution.precision,
            "reason": solution.reason,
            "diagnosis": solution.diagnosis,
            **({"at_limit": True} if solution.at_limit else {}),
            **({"groups": self.groups} if self.groups > 1 else {}),
            **({} if self.kept is None else {"kept": self.kept}),
            **({} if self.channel_error is None else {"channel_error": self.channel_error}),
        }

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> LayerReport:
        """Read such a row; keys that a layer does not have are passed over.

        Old rows lack ``norm`` and what follows; ``at_limit`` is there only where it is true,
        ``groups`` where there are several, ``kept`` where features were pruned. There is no
        ``memory`` of the solver's report, whose ``converged`` is taken to be the layer's.

        Raises ``KeyError`` or ``TypeError`` for anything else.
        """
        solution = SolverReport(
            solver=row["solver"],
            relative_residual=row["residual"],
            iterations=row["iterations"],
            seconds=row["seconds"],
            converged=row["converged"],
            norm=row.get("norm", ""),
            precision=row.get("arithmetic", ""),
            reason=row.get("reason", ""),
            diagnosis=row.get("diagnosis", ""),
            at_limit=row.get("at_limit", False),
        )
        return cls(
            name=row["name"],
            shape=tuple(row["shape"]),
            equations=row["equations"],
            width=row["width"],
            relative_error=row["relative_error"],
            assembled_error=row["assembled_error"],
            converged=row["converged"],
            redrawn=row["redrawn"],
            rank=row["rank"],
            convolutions=row["convolutions"],
            digest=row["digest"],
            solution=solution,
            groups=row.get("groups", 1),
            kept=row.get("kept"),
            channel_error=row.get("channel_error"),
        )


@dataclass(frozen=True)
class OutputDifference:
    """How far the outputs of the source network are from the model's.

    Of several tensors it is that of the one that is farthest off by its ``size``.

    Args:
        largest: the largest difference of two numbers.
        size: the spread of the model's: the largest distance of one from their mean, at least a
            hundredth of the largest.
        images: how many were compared.
        output: which tensor of the outputs this is, from 0.
        outputs: how many there are.
    """

    largest: float
    size: float
    images: int
    output: int = 0
    outputs: int = 1

    @property
    def relative(self) -> float:
        """``largest / size``."""
        if self.size > 0:
            return self.largest / self.size
        return math.inf if self.largest else 0.0


@dataclass(frozen=True)
class Reconstruction:
    """A source network and how it was made.

    Args:
        network: the source network.
        layers: a report for each layer that was rebuilt.
        recipes: what each layer's features are drawn from.
        notes: what a user should know.
        difference: of the outputs; ``None`` without images, and where a note says why they could
            not be compared.

    >>> Reconstruction(nn.Identity(), [], [], difference=OutputDifference(0.2, 1.0, 64)).verified
    False
    """

    network: nn.Module
    layers: list[LayerReport]
    recipes: list[LayerRecipe]
    notes: list[str] = field(default_factory=list)
    difference: OutputDifference | None = None

    @property
    def verified(self) -> bool | None:
        """Whether outputs agree to a thousandth of their spread; ``None``: they weren't compared.

        What the images do not reach is not compared either: a note names such layers.
        """
        return None if self.difference is None else self.difference.relative <= NOTED

    def save(self, path: str | Path, full: bool = False) -> Path:
        """Save the network as its seed and normalization parameters.

        ``full`` saves all its weights instead. The short form is read by
        ``bnrecon.load_source(path, model)``, the full one by ``load_state_dict`` of
        ``safetensors.torch.load_file(path)``.
        """
        write = source_file.save_full if full else source_file.save
        write(Path(path), self.network, self.recipes)
        return Path(path)
