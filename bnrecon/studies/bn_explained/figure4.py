"""Figure 4: folded hyperplanes around CIFAR-10 images and around random ones."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np
import pandas as pd
import torch
from torch import nn

from bnrecon.config import composition
from bnrecon.data import InMemoryImages, load
from bnrecon.partition import set_statistics
from bnrecon.partition.counting import count_by_sampling, detection_probability, fold_distances
from bnrecon.reporting.figures import PAGE, PALETTE, Figure, new_figure
from bnrecon.reporting.statistics import Interval, mean_interval
from bnrecon.reporting.wording import span
from bnrecon.reproduction import intervals
from bnrecon.reproduction.intervals import GeometricMean, geometric_mean
from bnrecon.reproduction.parts import Decisions, Task, merge, only, part, refuse_compared
from bnrecon.reproduction.pieces import piece
from bnrecon.runtime.errors import UserError
from bnrecon.studies.bn_explained.planar import SETTINGS
from bnrecon.targets.building import build_target

TARGETS = ("zero_bias", "random_bias", "frozen_statistics")  # of the settings
PIXELS = ("normalized", "from 0 to 1")
RADII = tuple(round(0.05 * number, 2) for number in range(1, 21))
REFERENCE = 0.1
SAMPLES, MANY = 256, 10**6  # per ball: drawn, and assumed to predict what more would find
STAGES = ("first", "stage")  # of a ResNet-9; later modules have no ReLU
CPU = torch.device("cpu")
OPTIONS = {
    "smoke": ("data=digits", "target=resnet9", "target.width=2"),
    "laptop": ("data=cifar10", "target=resnet9", "target.width=8"),
    "paper": ("data=cifar10", "target=resnet9"),
}
SEEDS = {"smoke": 2, "laptop": 5, "paper": 5}
IMAGES = {"smoke": 4, "laptop": 40, "paper": 100}  # seeds vary more than images
PROBES = 16
CHECKED = {"smoke": 1, "laptop": 2, "paper": 2}
EXCESS = 1.1  # a smaller ratio of counts is no focus
*OTHERS, NORM = ZERO, RANDOM, _ = SETTINGS
KINDS = TRAINING, GAUSSIAN, SMOOTH = "training", "Gaussian", "smooth"  # of images
NAMES = {kind: f"{kind} images" for kind in KINDS} | {SMOOTH: "smooth random images"}


class TrainingImages:
    """All training images in batches, for repeated iteration.

    Pixels are "normalized" to mean 0 and deviation 1 per channel, or "from 0 to 1".
    """

    def __init__(self, data: InMemoryImages, pixels: str):
        self.data = data
        self._mean, self._factor = (values[:, None, None] for values in data.moments())
        if pixels == PIXELS[0]:
            self._mean, self._factor = 0 * self._mean, 1 + 0 * self._mean
        self.deviation = float(self._factor.square().mean().sqrt())  # of a pixel

    def __iter__(self) -> Iterator[torch.Tensor]:
        """Yield batches that fit a CPU's cache."""
        for batch in self.data.plain_train_batches(100, CPU, self.data.sizes[0]):
            yield self.change(batch)

    def change(self, images: torch.Tensor) -> torch.Tensor:
        """Convert normalized images (n, C, H, W) to the wanted pixels."""
        return images * self._factor + self._mean


def draw_points(data: InMemoryImages, kind: str, count: int, seed: int) -> torch.Tensor:
    """Normalized images (count, C, H, W): training images, or random ones like them.

    "Gaussian": independent pixels with the mean and variance of the training images' channel.
    "smooth": training images with noise's Fourier phases added, the same in all channels: each
    image's mean, spectrum and channel covariances stay, its objects do not.
    """
    generator = torch.Generator().manual_seed(seed)
    if kind == GAUSSIAN:
        return torch.randn(count, *data.shape, generator=generator)
    images = list(data.plain_train_batches(count, CPU, (seed + 1) * count))[-1]
    if kind == TRAINING:
        return images
    noise = torch.fft.rfft2(torch.randn(count, 1, *data.shape[1:], generator=generator))
    phase = noise / noise.abs()
    phase[..., 0, 0] = 1  # of the mean
    return torch.fft.irfft2(torch.fft.rfft2(images) * phase, s=data.shape[1:])


def measure_seed(
    seed: int, pixels: str, images: int, probes: int, checked: int, options: Sequence[str]
) -> pd.DataFrame:
    """Mean counts around images, for three settings of the same random weights.

    There are ``images`` of each type; ``probes`` directions estimate a gradient's norm. At
    ``checked`` training and Gaussian images, the count is compared with exact gradient norms, and
    with samples of the ball.

    Returns:
        Kind ``curve``: ``count`` of the ReLUs' zero sets, mean over images, by radius; at
        ``REFERENCE`` also per layer (``layer`` 0 is all). Radii are in deviations of a pixel. Kinds
        ``probes`` and ``sampling``: sums over the checked images.
    """
    rows = []
    for setting in SETTINGS:
        network, batches = _prepare(setting, seed, pixels, options)
        for images_kind in KINDS:
            points = draw_points(batches.data, images_kind, images, seed)
            inputs = batches.change(points)
            row = {"setting": setting, "images": images_kind, "pixels": pixels, "seed": seed}
            row |= {"points": len(inputs)}
            distances = [
                (layer / batches.deviation).numpy()
                for layer in fold_distances(network, inputs, probes=probes, seed=seed)
            ]
            rows += [row | line for line in _curves(distances)]
            if checked and images_kind != SMOOTH:
                some = inputs[:checked]
                row["points"] = len(some)
                rows += [row | line for line in _check(network, some, distances, batches)]
    return pd.DataFrame(rows).assign(probes=probes)


def _prepare(
    setting: str, seed: int, pixels: str, options: Sequence[str]
) -> tuple[nn.Module, TrainingImages]:
    """The random network up to its last ReLU, and the images of its BN statistics."""
    initialization = dict(zip(SETTINGS, TARGETS, strict=True))[setting]
    varied = (f"target.initialization={initialization}", f"train.seed={seed}")
    config = composition.compose((*options, *varied))
    with composition.option_names("data"):
        data = load(config.data)
    if not isinstance(data, InMemoryImages):
        raise UserError(f"data={config.data.name}: not held in memory; give data=cifar10")
    parts = build_target(config.target_request, data).named_children()
    stages = nn.Sequential(*(module for name, module in parts if name.startswith(STAGES)))
    batches = TrainingImages(data, pixels)
    if setting == NORM:
        stages.load_state_dict(
            piece("statistics", {}, lambda: set_statistics(stages, batches).state_dict())
        )
    return stages.eval(), batches


def _curves(distances: list[np.ndarray]) -> Iterator[dict]:
    """Rows of kind ``curve``."""
    for radius in RADII:
        by_layer = [float((layer <= radius).sum(1).mean()) for layer in distances]
        row = {"kind": "curve", "radius": radius}
        units = [layer.shape[1] for layer in distances]
        yield row | {"layer": 0, "count": sum(by_layer), "units": sum(units)}
        if radius == REFERENCE:
            for number, (count, size) in enumerate(zip(by_layer, units, strict=True), 1):
                yield row | {"layer": number, "count": count, "units": size}


def _check(
    network: nn.Module, inputs: torch.Tensor, distances: list[np.ndarray], batches: TrainingImages
) -> Iterator[dict]:
    """Compare with exact gradient norms, and these with samples of the ball."""
    estimated = np.concatenate([layer[: len(inputs)] for layer in distances], 1)
    exact = torch.cat(fold_distances(network, inputs), 1).numpy() / batches.deviation
    some = np.isfinite(exact) & (exact > 0)
    row = {"radius": REFERENCE, "exact": int((exact <= REFERENCE).sum())}
    row |= {"estimated": int((estimated <= REFERENCE).sum())}
    error = np.square(estimated[some] / exact[some] - 1).mean() ** 0.5
    yield row | {"kind": "probes", "distance_error": float(error)}
    for radius in (REFERENCE, RADII[-1]):
        sampled = count_by_sampling(network, inputs, radius * batches.deviation, samples=SAMPLES)
        near, dimension = exact[exact <= radius], inputs[0].numel()
        yield {
            "kind": "sampling",
            "radius": radius,
            "exact": len(near),
            "sampled": int(sampled.sum()),
            "expected": float(detection_probability(near, radius, dimension, SAMPLES).sum()),
            "expected_many": float(detection_probability(near, radius, dimension, MANY).sum()),
        }


def tasks(scale: str, options: Sequence[str]) -> list[Task]:
    """One task per type of pixels and seed; the first compares ways to count."""
    refuse_compared(options, {"target", "target.initialization", "train.seed"})
    size = {"images": IMAGES[scale], "probes": PROBES}
    return [
        Task(
            f"pixels {pixels}, seed {seed}",
            measure_seed,
            {"seed": seed, "pixels": pixels, **size}
            | {"checked": CHECKED[scale] if (seed, pixels) == (0, PIXELS[0]) else 0},
            (*OPTIONS[scale], *options),
        )
        for seed in range(SEEDS[scale])
        for pixels in PIXELS
    ]


def _counts(rows: pd.DataFrame, pixels: str) -> pd.Series:
    """Mean counts at the reference radius by setting, type of images and seed."""
    curve = rows[(rows["kind"] == "curve") & (rows["layer"] == 0) & (rows["pixels"] == pixels)]
    curve = curve[curve["radius"] == REFERENCE]
    return curve.set_index(["setting", "images", "seed"])["count"].sort_index()


def _ratio(counts: pd.Series, above: tuple[str, str], below: tuple[str, str]) -> GeometricMean:
    """The ratio of two mean counts, paired by seed."""
    return geometric_mean(counts[above] / counts[below])


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One line per type of pixels and setting."""
    lines = []
    for pixels in rows["pixels"].unique():
        counts = _counts(rows, pixels)
        for setting in SETTINGS:
            line = {"pixels": pixels, "setting": setting}
            for kind in KINDS:
                line[NAMES[kind]] = mean_interval(list(counts[setting, kind]))
            for kind in (GAUSSIAN, SMOOTH):
                ratio = _ratio(counts, (setting, TRAINING), (setting, kind))
                line[f"training to {kind}"] = f"{ratio:.2f}"
            for kind in (TRAINING, GAUSSIAN):
                gain = _ratio(counts, (NORM, kind), (setting, kind))
                line[f"BN to this, {kind}"] = "" if setting == NORM else f"{gain:.2f}"
            lines.append(line)
    return pd.DataFrame(lines)


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the paper's two panels, and smooth random images; a row per type of pixels."""
    curves = rows[(rows["kind"] == "curve") & (rows["layer"] == 0)]
    pixels = [name for name in PIXELS if (curves["pixels"] == name).any()]
    size, shared = (PAGE, 0.6 + 1.9 * len(pixels)), {"sharex": True, "sharey": True}
    figure, grid = new_figure(len(pixels), len(KINDS), size, squeeze=False, **shared)
    for line, name in zip(grid, pixels, strict=True):
        for axes, kind in zip(line, KINDS, strict=True):
            for setting, colour in zip(SETTINGS, PALETTE, strict=False):
                curve = curves[(curves["setting"] == setting) & (curves["images"] == kind)]
                counts = curve[curve["pixels"] == name].groupby("radius")["count"]
                means = [mean_interval(list(some)) for _, some in counts]
                middle = np.array([interval.mean for interval in means]) / 1000
                spread = np.array([interval.bar for interval in means]) / 1000
                dashes = "--" if setting == RANDOM else "-"  # it may hide zero bias
                axes.plot(RADII, middle, dashes, color=colour, label=setting)
                ends = (middle - spread, middle + spread)
                axes.fill_between(RADII, *ends, color=colour, alpha=0.2, linewidth=0)
            axes.set(xscale="log", yscale="log", xlim=(RADII[0], RADII[-1]))
        line[0].set_ylabel(f"pixels {name}")
    for axes, kind in zip(grid[0], KINDS, strict=True):
        axes.set_title(NAMES[kind])
    for axes in grid[-1]:
        axes.set_xlabel("radius ε, in deviations of a pixel")
    figure.supylabel("units whose zero set passes within ε, 1000s", fontsize="medium")
    grid[0][0].legend(loc="lower right")
    return figure


def decide(rows: pd.DataFrame) -> Decisions:
    """Decide what Section 3.3 sees in Figure 4, and check the count."""
    counts = [_counts(rows, name) for name in PIXELS if (rows["pixels"] == name).any()]
    # BN's count over that of zero and random bias, by type of images.
    gains = {
        kind: [_ratio(one, (NORM, kind), (other, kind)) for one in counts for other in OTHERS]
        for kind in (TRAINING, GAUSSIAN)
    }
    # The count at training images over that at Gaussian images.
    others = [_ratio(one, (name, TRAINING), (name, GAUSSIAN)) for one in counts for name in OTHERS]
    more = [ratio for one in counts for ratio in _contrasts(one, GAUSSIAN)]
    content = [_ratio(one, (NORM, TRAINING), (NORM, SMOOTH)) for one in counts]
    less = [ratio for one in counts for ratio in _contrasts(one, SMOOTH)]
    # The units that BN adds at training images, minus those at Gaussian ones.
    at_images, at_gaussian = (
        [one[NORM, kind] - one[other, kind] for one in counts for other in OTHERS]
        for kind in (TRAINING, GAUSSIAN)
    )
    pairs = zip(at_images, at_gaussian, strict=True)
    added = [mean_interval((images - gaussian).tolist()) for images, gaussian in pairs]
    verdicts = {
        "Figure 4, left": intervals.decide(map(_beyond, gains[TRAINING])),
        "Figure 4, right": intervals.decide(-_beyond(gain) for gain in gains[GAUSSIAN]),
        "more": intervals.decide(ratio.logarithm for ratio in more),
        "others": intervals.decide(-_beyond(ratio) for ratio in others),
        "added": intervals.decide(added),
        "content": intervals.decide(map(_beyond, content)),
    }
    ratios = {"more": more, "others": others, "content": content, "less": less}
    numbers = {name: _ends(some) for name, some in ratios.items()} | {
        "units": int(rows.loc[rows["layer"] == 0, "units"].iloc[0]),
        "images": int(rows["points"].iloc[0]),
        "probes": int(rows["probes"].iloc[0]),
        "reference": REFERENCE,
        "gains": {kind: _ends(some) for kind, some in gains.items()},
        "at_images": span((one.mean() for one in at_images), ",.0f"),
        "at_gaussian": span((one.mean() for one in at_gaussian), ",.0f"),
        "added": "; ".join(f"{one:,.0f}" for one in added),
        "by_layer": _gain_by_layer(rows),
        "above": sum(ratio.logarithm.sign > 0 for ratio in more),
        "compared": len(more),
    }
    checks = (_check_probes, _check_sampling) if (rows["kind"] == "sampling").any() else ()
    return merge((verdicts, numbers), *(check(rows) for check in checks))


def _ends(ratios: Sequence[GeometricMean]) -> str:
    """The smallest and the largest of some ratios, each with its interval."""
    ordered = sorted(ratios, key=lambda ratio: ratio.mean)
    return f"{ordered[0]:.2f} to {ordered[-1]:.2f}"


def _beyond(ratio: GeometricMean) -> Interval:
    """By how much a ratio exceeds ``EXCESS``, as a logarithm."""
    return ratio.logarithm - math.log(EXCESS)


def _gain_by_layer(rows: pd.DataFrame) -> str:
    """BN's mean count over zero bias's at training images, by layer and pixels."""
    curves = rows[(rows["kind"] == "curve") & (rows["layer"] > 0) & (rows["images"] == TRAINING)]
    logarithms = np.log(curves.set_index(["setting", "pixels", "layer"])["count"])
    means = np.exp(logarithms.groupby(level=[0, 1, 2]).mean())
    if means.empty:
        return ""
    gains = (means[NORM] / means[ZERO]).groupby("pixels")
    by_pixels = (f"{span(gain, '.2f')} times (pixels {pixels})" for pixels, gain in gains)
    return f"; by layer BN has, of zero bias' count at training images, {', '.join(by_pixels)}"


def _contrasts(counts: pd.Series, kind: str) -> list[GeometricMean]:
    """BN's ratio of training to other images, over those of zero and random bias."""
    norm, *others = (counts[name, TRAINING] / counts[name, kind] for name in (NORM, *OTHERS))
    return [geometric_mean(norm / other) for other in others]


def _check_probes(rows: pd.DataFrame) -> Decisions:
    """Compare the counts with estimated and with exact gradient norms."""
    rows = rows[rows["kind"] == "probes"]
    total, probes = rows["exact"].sum(), int(rows["probes"].iloc[0])
    ratio = rows["estimated"].sum() / total
    return {"method": "undecided" if total < 1000 else bool(abs(ratio - 1) < 0.03)}, {
        "probes": probes,
        "probed": 100 * ratio,
        "probed_images": int(rows["points"].sum()),
        "error": 100 * float(np.square(rows["distance_error"]).mean() ** 0.5),
        "expected_error": 100 * (1 / (2 * probes)) ** 0.5,
    }


def _check_sampling(rows: pd.DataFrame) -> Decisions:
    """Compare samples of the ball with the local map."""
    near = rows[(rows["kind"] == "sampling") & (rows["radius"] == REFERENCE)]
    total = near[["sampled", "expected_many", "exact"]].sum()
    shares = (100 * total / total["exact"]).to_dict() | {"samples": SAMPLES, "many": MANY}
    return {"samples": bool(shares["sampled"] > 90)}, shares


FORMATS = dict.fromkeys(NAMES.values(), ".0f")
EXCERPT = only(drop=[*NAMES.values()])  # they are in the figure
PART = part(__file__, tasks, summarize, draw, decide, formats=FORMATS, excerpt=EXCERPT)
