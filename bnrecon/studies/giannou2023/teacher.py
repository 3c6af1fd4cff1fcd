"""The data of Appendix E: a random one-layer ReLU teacher with summed output, Gaussian inputs."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Sizes:
    """An experiment's numbers of samples, epochs and runs at a scale, and SGD's learning rates.

    The learning rate is one of ``rates``; rate and schedule are selected on the validation samples
    of the first ``selecting`` runs.
    """

    train: int
    validation: int
    test: int
    epochs: int
    runs: int
    rates: tuple[float, ...] = (1e-3, 1e-2, 1e-1)  # the paper states none
    selecting: int = 1


# The paper: 1,000,000 training and 1,000,000 test samples, 5 runs. It states no validation set. The
# best setting changes from run to run: all runs select it where this is affordable.
SIZES = {
    "smoke": Sizes(1024, 256, 512, 2, 3),
    "laptop": Sizes(50_000, 10_000, 50_000, 20, 5),
    "paper": Sizes(1_000_000, 100_000, 1_000_000, 20, 5, (1e-3, 3e-3, 1e-2, 3e-2, 1e-1), 5),
}
BY_SCALE: dict[str, object] = {"scale": {scale: scale for scale in SIZES}}  # for ``sweep``
# For variants beyond the paper; laptop scale omits the two largest widths of Figure 4.
VARIANT_SIDES = {"smoke": (3, 5), "laptop": (5, 10, 15, 20), "paper": (5, 10, 15, 20, 25, 30)}


@dataclass(frozen=True)
class Samples:
    """Samples of several runs: float32 ``x`` (runs, samples, d), float64 ``y`` (runs, samples).

    ``teachers`` are the runs' W* (runs, d, d), float64.
    """

    teachers: torch.Tensor
    x: dict[str, torch.Tensor]
    y: dict[str, torch.Tensor]

    def of_run(self, run: int) -> Samples:
        """One run's samples, (1, samples, ...)."""
        one = slice(run, run + 1)
        x, y = ({part: some[one] for part, some in all_.items()} for all_ in (self.x, self.y))
        return Samples(self.teachers[one], x, y)


def draw_samples(side: int, sizes: Sizes, runs: range | list[int]) -> Samples:
    """Draw teachers g(x) = sum_i relu(w_i . x), w_i of variance 1/d, and standard normal inputs.

    Each run's number seeds its teacher and samples.

    >>> samples = draw_samples(3, SIZES["smoke"], [0, 1])
    >>> samples.x["train"].shape, samples.y["test"].shape
    (torch.Size([2, 1024, 3]), torch.Size([2, 512]))
    """
    teachers: list[torch.Tensor] = []
    x: dict[str, list[torch.Tensor]] = {}
    y: dict[str, list[torch.Tensor]] = {}
    for run in runs:
        generator = torch.Generator().manual_seed(1_000_003 * side + run)
        teachers.append(torch.randn(side, side, generator=generator).double() / side**0.5)
        for part in ("train", "validation", "test"):
            inputs = torch.randn(getattr(sizes, part), side, generator=generator)
            x.setdefault(part, []).append(inputs)
            chunks = (chunk.double() @ teachers[-1].T for chunk in inputs.split(65_536))
            outputs = torch.cat([torch.relu(chunk).sum(1) for chunk in chunks])
            y.setdefault(part, []).append(outputs)
    stacked = ({part: torch.stack(runs) for part, runs in drawn.items()} for drawn in (x, y))
    return Samples(torch.stack(teachers), *stacked)


def draw_source(
    side: int, width: int, density: float, runs: range | list[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Draw the source's frozen weights: W (runs, width, d), V (runs, d, width), float64.

    Normal with variance 1 / fan-in; each entry is zero with probability 1 - ``density``.
    """
    first: list[torch.Tensor] = []
    second: list[torch.Tensor] = []
    for run in runs:
        generator = torch.Generator().manual_seed(7_000_003 * side + 101 * width + run)
        for weights, shape in ((first, (width, side)), (second, (side, width))):
            weight = torch.randn(*shape, generator=generator).double() / shape[1] ** 0.5
            if density < 1:
                weight *= torch.rand(*shape, generator=generator) < density
            weights.append(weight)
    return torch.stack(first), torch.stack(second)


def mean_squared_error(outputs: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    """The mean over samples, the last dimension, in float64."""
    return (outputs.double() - labels.double()).square().mean(-1)
