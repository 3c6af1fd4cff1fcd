"""What a reconstruction returns: the source network and a report for each layer."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from torch import nn

from bnrecon.reconstruction import source_file
from bnrecon.reconstruction.source_file import LayerRecipe

__all__ = ["LayerReport", "OutputDifference", "Reconstruction"]


@dataclass(frozen=True)
class LayerReport:
    """How well one layer was rebuilt.

    ``shape`` is (c2, c0, kh, kw), ``width`` c1, ``equations`` n. ``relative_error`` is ‖W' - W‖ / ‖W‖ in float64 from the float64
    normalization parameters and the features; ``assembled_error`` the same in the arithmetic the network runs in. A layer has
    ``converged`` when the solver has, the first is within the tolerance, and the second is rounding and little more.
    ``residual`` is the solver's, recomputed in float64; ``rank`` that of M where strict sparse features may lack it. ``norm`` says
    which of many solutions was taken, ``arithmetic`` what the work was done in, ``reason`` why ``auto`` picked the solver,
    ``diagnosis`` why the layer did not converge, where a reason was found.
    """

    name: str
    shape: tuple[int, int, int, int]
    equations: int
    width: int
    oversampling: float
    solver: str
    relative_error: float
    assembled_error: float
    residual: float
    iterations: int
    seconds: float
    converged: bool
    redrawn: int
    rank: int | None
    convolutions: str
    digest: str
    norm: str = ""
    arithmetic: str = ""
    reason: str = ""
    diagnosis: str = ""


@dataclass(frozen=True)
class OutputDifference:
    """How far the source network's outputs are from the model's on ``images`` of the images given.

    ``largest`` is the largest difference of two numbers, ``size`` the largest number that the model puts out.
    """

    largest: float
    size: float
    images: int


@dataclass(frozen=True)
class Reconstruction:
    """A source network and how it came about; ``difference`` is ``None`` where outputs were not compared.

    That is without images, and where a note says why they could not be.
    """

    network: nn.Module
    layers: list[LayerReport]
    recipes: list[LayerRecipe]
    notes: list[str] = field(default_factory=list)
    difference: OutputDifference | None = None

    def save(self, path: str | Path, full: bool = False) -> Path:
        """Save the network as its seed and normalization parameters; ``full`` saves all its weights instead.

        The short form is reloaded by ``bnrecon.load_source(path, model)``, the full one by ``load_state_dict`` of
        ``safetensors.torch.load_file(path)``.
        """
        write = source_file.save_full if full else source_file.save
        write(Path(path), self.network, self.recipes)
        return Path(path)
