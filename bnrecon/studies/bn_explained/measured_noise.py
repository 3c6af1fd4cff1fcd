"""Controlled noise in a network: its measured effect on each BatchNorm's statistics."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from torch import nn

from bnrecon.config import composition
from bnrecon.data import load
from bnrecon.reporting.figures import PALETTE, Axes
from bnrecon.reporting.wording import span
from bnrecon.reproduction.trainings import first_batches
from bnrecon.runtime import hardware
from bnrecon.targets.building import build_target

STATISTICS = {"mean": "μ", "variance": "σ²"}
SOURCES = {"noise": "with noise", "batch": "batches of V"}
RESAMPLES = 100  # of the bootstrap
TICKS = (1, 2, 5, 10, 20)


def measure_noise(
    data: str, factors: list[float], draws: int, options: Sequence[str]
) -> pd.DataFrame:
    """Variances of mu and sigma² at the start of training, over those of BatchNorm, by layer.

    The network has its initial weights and is in training mode; the mini-batches are those of its
    training. A factor f is measured twice: with the noise of the virtual batch V = B / f on the
    same mini-batches (``noise``), and without noise on other mini-batches, of V images (``batch``).

    Returns:
        One row per factor, source, statistic and BatchNorm. ``ratio`` is the median over channels
        of the variance over mini-batches, relative to BatchNorm's on mini-batches of B images;
        ``error`` its standard error, by bootstrap over mini-batches.
    """
    config = composition.compose(options)
    images, device = load(config.data), hardware.resolve_device(config.device)
    size, seed = config.train.batch_size, config.train.seed

    def measure(virtual: float | None, size: int, seed: int) -> list[np.ndarray]:
        noise = [] if virtual is None else [f"target.virtual_batch={virtual:.6g}"]
        request = composition.compose([*options, *noise]).target_request
        network = build_target(request, images).to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
        batches = first_batches(images, size, seed, draws, device)
        return _statistics(network, (pixels for pixels, _ in batches))

    plain = measure(None, size, seed)
    rows = []
    for factor in factors:
        virtual = size / factor
        noise, batch = measure(virtual, size, seed), measure(None, round(virtual), seed + 1)
        for source, layers in (("noise", noise), ("batch", batch)):
            named = {"data": data, "kind": "measured", "factor": factor, "source": source}
            named |= {"batch": round(virtual), "draws": draws}
            for layer, (one, other) in enumerate(zip(layers, plain, strict=True), 1):
                for number, statistic in enumerate(STATISTICS):
                    ratio, error = _ratio(one[:, number], other[:, number], source == "noise")
                    row = {"layer": layer, "statistic": statistic, "ratio": ratio, "error": error}
                    rows.append(named | row)
    return pd.DataFrame(rows)


def _statistics(network: nn.Module, batches: Iterator[torch.Tensor]) -> list[np.ndarray]:
    """The mu and sigma² (mini-batches, 2, channels) that each BatchNorm normalizes by.

    In an initial network, with scales 1 and shifts 0, the output is y = (x - mu) / sigma.
    """
    norms = [module for module in network.modules() if isinstance(module, nn.BatchNorm2d)]
    statistics: dict[nn.Module, list[torch.Tensor]] = {norm: [] for norm in norms}

    def read(norm: nn.Module, inputs: tuple[torch.Tensor], output: torch.Tensor) -> None:
        (centre, before), (shift, after) = _moments(inputs[0]), _moments(output)
        variance = before / after
        statistics[norm].append(torch.stack([centre - variance.sqrt() * shift, variance]))

    network.train()
    for norm in norms:
        norm.register_forward_hook(read)
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        for pixels in batches:
            network(pixels)
    return [torch.stack(values).double().cpu().numpy() for values in statistics.values()]


def _moments(values: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Means and variances (channels,); ``torch.var_mean`` takes 20 times as long."""
    mean = values.mean((0, 2, 3))
    return mean, values.square().mean((0, 2, 3)) - mean.square()


def _ratio(one: np.ndarray, other: np.ndarray, paired: bool) -> tuple[float, float]:
    """Median over channels of the ratio of variances over mini-batches (N, C); standard error."""
    generator = np.random.Generator(np.random.Philox(0))
    resampled = []
    for _ in range(RESAMPLES):
        first, second = generator.integers(len(one), size=(2, len(one)))
        resampled.append(_median_ratio(one[first], other[first if paired else second]))
    return _median_ratio(one, other), float(np.std(resampled))


def _median_ratio(one: np.ndarray, other: np.ndarray) -> float:
    return float(np.median(one.var(0, ddof=1) / other.var(0, ddof=1)))


def describe_factors(rows: pd.DataFrame, source: str, statistic: str) -> str:
    """Measured factors of one data set and nominal factor: the first BatchNorm; the others."""
    rows = rows[(rows["source"] == source) & (rows["statistic"] == statistic)]
    if rows.empty:
        return "not measured"
    first, *others = rows.sort_values("layer")["ratio"]
    return f"{first:.2f}; {span(others, '.2f')}"


def draw_factors(axes: Axes, rows: pd.DataFrame, statistic: str) -> None:
    """Draw measured factors of one of ``STATISTICS`` by BatchNorm, ± two standard errors.

    The rows are those of ``measure_noise`` for one nominal factor; each data set has a colour.
    """
    measured = rows[rows["statistic"] == statistic]
    for number, (data, some) in enumerate(measured.groupby("data", sort=False)):
        for source, line in some.groupby("source", sort=False):
            noisy = source == "noise"
            axes.errorbar(
                line["layer"] + 0.12 * number,
                line["ratio"],
                2 * line["error"],
                fmt="o-" if noisy else "s:",
                markersize=3.5,
                markerfacecolor=PALETTE[number] if noisy else "white",
                color=PALETTE[number],
                linewidth=0.8,
                label=f"{data}, {SOURCES[str(source)]}",
            )
    for nominal in rows["factor"].unique():
        axes.axhline(nominal, color="grey", linewidth=0.8, linestyle="--", zorder=0)
    axes.set_yscale("log")
    axes.set_yticks(TICKS, [f"{tick:g}" for tick in TICKS])
    axes.minorticks_off()
    axes.set_xticks(sorted({int(layer) for layer in measured["layer"]}))
    label = f"var({STATISTICS[statistic]}) to that without noise"
    axes.set(xlabel="BatchNorm, from the input", ylabel=label)
