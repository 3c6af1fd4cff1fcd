"""What a reconstruction returns: the source network and a report for each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from html import escape
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bnrecon.solvers.report import SolverReport

if TYPE_CHECKING:
    import pandas as pd
    from torch import nn

    from bnrecon.reconstruction.source_file import LayerRecipe

COLUMNS = (  # of a row in ``result.json``
    *("name", "shape", "equations", "width", "oversampling", "solver", "relative_error"),
    *("assembled_error", "residual", "iterations", "seconds", "converged", "redrawn", "rank"),
    *("convolutions", "digest", "norm", "arithmetic", "reason", "diagnosis"),
)
PRINTED = 20  # worst layers in a printed table
NOTED = 1e-3  # of their spread: a difference of outputs that rounding rarely reaches


@dataclass(frozen=True)
class LayerReport:
    """How well one layer was rebuilt.

    Args:
        name: the layer's name in the model.
        shape: c2, c0, kernel; one group's for a grouped convolution, as the next two.
        equations: n, the product of the shape.
        width: c1, the number of features.
        relative_error: ‖W' - W‖ / ‖W‖ in float64, from the float64 normalization parameters and the
            features.
        assembled_error: the same for the network's parameters in its precision. For several groups,
            both are the largest of any group.
        converged: whether the solver converged, ``relative_error`` is within its tolerance (for one
            output 1,000 times it), ``assembled_error`` and ``channel_error`` are within rounding,
            and outputs with tanh and sigmoid are within ``FeatureSpec.epsilon``.
        redrawn: how many all-zero features were drawn again.
        rank: of M, computed for strict sparse features if M is small enough; else ``None``.
        convolutions: ``stored``, ``implicit`` (M = I is not formed), ``regenerated`` or
            ``on disk``.
        digest: of the frozen weights.
        solution: the solver's report, for several groups the one with the largest residual; its
            ``diagnosis`` says why the layer did not converge, if known.
        groups: the number of groups, each rebuilt from separate features.
        kept: how many features of each group may have a nonzero scale; ``None`` without pruning.
        channel_error: the largest ‖(W' - W)_i‖ / ‖W_i‖ of any output i, as assembled. If images
            were given, it is ‖(W' - W)_i D‖ / ‖(W_i D, b_i)‖ for the bias b and the root mean
            squares D of the inputs. ``None`` in files of earlier versions.
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

    solver = property(attrgetter("solution.solver"), doc="Name of the solver.")
    residual = property(attrgetter("solution.relative_residual"), doc="‖M x - b‖ / ‖b‖ in float64.")
    iterations = property(attrgetter("solution.iterations"), doc="Of the solver; 0 if direct.")
    seconds = property(attrgetter("solution.seconds"), doc="Seconds that the solver took.")
    norm = property(attrgetter("solution.norm"), doc="Which of many solutions this is.")
    precision = property(attrgetter("solution.precision"), doc="Precision of the products.")
    reason = property(attrgetter("solution.reason"), doc="Why ``auto`` chose the solver.")
    diagnosis = property(attrgetter("solution.diagnosis"), doc="Why it did not converge, if known.")

    @property
    def oversampling(self) -> float:
        """c1 / n."""
        return self.width / self.equations

    def to_json(self) -> dict[str, Any]:
        """The flat row that ``result.json`` holds."""
        row: dict[str, Any] = {
            name: getattr(self, "precision" if name == "arithmetic" else name) for name in COLUMNS
        }
        row["shape"] = list(self.shape)
        beside = {
            "at_limit": self.solution.at_limit or None,
            "groups": self.groups if self.groups > 1 else None,
            "kept": self.kept,
            "channel_error": self.channel_error,
        }
        return row | {name: value for name, value in beside.items() if value is not None}

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> LayerReport:
        """Read such a row; unknown keys are ignored.

        ``at_limit`` is present only if true, ``groups`` only if there are several, ``kept`` only
        with pruning. Of the solver's report, ``memory`` is not stored, and ``converged`` is taken
        from the layer.

        Raises ``KeyError`` or ``TypeError`` for anything else.
        """
        columns = ("solver", "iterations", "seconds", "converged", "norm", "reason", "diagnosis")
        solved = {name: row[name] for name in columns}
        solved |= {"relative_residual": row["residual"], "precision": row["arithmetic"]}
        solution = SolverReport(**solved, at_limit=row.get("at_limit", False))
        names = {each.name for each in fields(cls)}
        values = {name: value for name, value in row.items() if name in names}
        return cls(**values | {"shape": tuple(row["shape"]), "solution": solution})


@dataclass(frozen=True)
class OutputDifference:
    """How far the outputs of the source network are from the model's.

    If there are several output tensors, this is the largest ``relative`` difference of any.

    Args:
        largest: the largest absolute difference of two numbers.
        size: the spread of the model's outputs: the largest distance from their mean, at least a
            hundredth of the largest.
        images: how many were compared.
        output: the index of the output tensor.
        outputs: the number of output tensors.
    """

    largest: float
    size: float
    images: int
    output: int = 0
    outputs: int = 1

    @property
    def relative(self) -> float:
        """``largest / size``."""
        nothing = math.inf if self.largest else 0.0
        return self.largest / self.size if self.size > 0 else nothing


@dataclass(frozen=True)
class Reconstruction:
    """A source network with its reports; prints as a table of its layers, the worst first.

    Args:
        network: the source network.
        layers: a report for each layer that was rebuilt.
        recipes: what each layer's features are drawn from.
        notes: what a user should know.
        difference: of the outputs; ``None`` without images, or if a note says why they could not be
            compared.

    >>> from torch import nn
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
        """Whether outputs agree to a thousandth of their spread, ``None`` if not compared.

        Layers that the images do not reach are not compared; a note names them.
        """
        return None if self.difference is None else self.difference.relative <= NOTED

    def to_frame(self) -> pd.DataFrame:
        """Return the layers' reports as rows, in the model's order."""
        import pandas as pd  # takes a second; only tables need it

        return pd.DataFrame([layer.to_json() for layer in self.layers])

    def __repr__(self) -> str:
        rest = len(self.layers) - PRINTED
        more = f"\n{rest} further layers: to_frame() has all" if rest > 0 else ""
        table = self._worst().to_markdown(index=False, tablefmt="simple", disable_numparse=True)
        return f"{self._summary()}\n\n{table}{more}"

    def _repr_html_(self) -> str:
        return f"<p>{escape(self._summary())}</p>{self._worst().to_html(index=False)}"

    def _summary(self) -> str:
        count, failed = len(self.layers), sum(not layer.converged for layer in self.layers)
        text = f"{count} layers rebuilt, {f'{failed} NOT CONVERGED' if failed else 'all converged'}"
        if self.difference is None:
            return f"{text}; outputs were not compared"
        off = f"outputs of {self.difference.images} images differ by {self.difference.relative:.1e}"
        return f"{text}; {'verified' if self.verified else 'NOT VERIFIED'}: {off} of their spread"

    def _worst(self) -> pd.DataFrame:
        """Return the layers to print: those that did not converge, then by error."""
        import pandas as pd

        worst = sorted(self.layers, key=lambda layer: (layer.converged, -layer.relative_error))
        return pd.DataFrame(
            {
                "layer": layer.name or "the model",
                "shape": "x".join(map(str, layer.shape))
                + (f", {layer.groups} groups" if layer.groups > 1 else ""),
                "c1/n": f"{layer.oversampling:.4g}",
                "solver": layer.solver,
                "error": f"{layer.relative_error:.1e}",
                "converged": "yes" if layer.converged else "NO",
                "seconds": f"{layer.seconds:.2g}",
            }
            for layer in worst[:PRINTED]
        )

    def save(self, path: str | Path, full: bool = False) -> Path:
        """Save the network as its seed and normalization parameters.

        ``full`` saves all its weights instead. Read the short form with
        ``bnrecon.load_source(path, model)``, the full one with
        ``load_state_dict(safetensors.torch.load_file(path))``.
        """
        from bnrecon.reconstruction import source_file  # results are read without torch

        source_file.save(Path(path), self.network, self.recipes, full)
        return Path(path)
