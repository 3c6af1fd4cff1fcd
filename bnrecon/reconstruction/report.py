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
PRINTED = 20  # layers, the worst ones
NOTED = 1e-3  # of their spread: outputs that are farther off than rounding usually leads


@dataclass(frozen=True)
class LayerReport:
    """How well one layer was rebuilt.

    Args:
        name: of the layer in the model.
        shape: c2, c0 and the kernel's; of a grouped convolution, of one group, as the next two.
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

    solver = property(attrgetter("solution.solver"), doc="Name of the solver.")
    residual = property(attrgetter("solution.relative_residual"), doc="‖M x - b‖ / ‖b‖ in float64.")
    iterations = property(attrgetter("solution.iterations"), doc="Of the solver; direct ones: 0.")
    seconds = property(attrgetter("solution.seconds"), doc="Seconds that the solver took.")
    norm = property(attrgetter("solution.norm"), doc="Which of many solutions this is.")
    precision = property(attrgetter("solution.precision"), doc="Of the solver's products.")
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
        """Read such a row; keys that a layer does not have are passed over.

        Old rows lack ``norm`` and what follows; ``at_limit`` is there only where it is true,
        ``groups`` where there are several, ``kept`` where features were pruned. There is no
        ``memory`` of the solver's report, whose ``converged`` is taken to be the layer's.

        Raises ``KeyError`` or ``TypeError`` for anything else.
        """
        solved = {name: row[name] for name in ("solver", "iterations", "seconds", "converged")}
        solved |= {name: row.get(name, "") for name in ("norm", "reason", "diagnosis")}
        solved |= {"relative_residual": row["residual"], "precision": row.get("arithmetic", "")}
        solution = SolverReport(**solved, at_limit=row.get("at_limit", False))
        names = {each.name for each in fields(cls)}
        values = {name: value for name, value in row.items() if name in names}
        return cls(**values | {"shape": tuple(row["shape"]), "solution": solution})


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
        nothing = math.inf if self.largest else 0.0
        return self.largest / self.size if self.size > 0 else nothing


@dataclass(frozen=True)
class Reconstruction:
    """A source network and how it was made; printed as a table of its layers, the worst first.

    Args:
        network: the source network.
        layers: a report for each layer that was rebuilt.
        recipes: what each layer's features are drawn from.
        notes: what a user should know.
        difference: of the outputs; ``None`` without images, and where a note says why they could
            not be compared.

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

        What the images do not reach is not compared either: a note names such layers.
        """
        return None if self.difference is None else self.difference.relative <= NOTED

    def to_frame(self) -> pd.DataFrame:
        """A row for each layer, in the model's order, with all that its report says."""
        import pandas as pd  # a second that only who asks for a table waits

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
        """The layers for a reader: those that did not converge, then by error."""
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

        ``full`` saves all its weights instead. The short form is read by
        ``bnrecon.load_source(path, model)``, the full one by ``load_state_dict`` of
        ``safetensors.torch.load_file(path)``.
        """
        from bnrecon.reconstruction import source_file  # results are read without torch

        source_file.save(Path(path), self.network, self.recipes, full)
        return Path(path)
