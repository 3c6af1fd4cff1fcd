"""Theorem 3.1: training the scales of ID cond features is training the weights, step by step."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from torch import nn

from bnrecon.data import DataSpec, load
from bnrecon.features.shapes import LayerShape
from bnrecon.reporting.figures import PAGE, PALETTE, Axes, Figure, draw_legend, new_figure
from bnrecon.reporting.wording import span
from bnrecon.reproduction.parts import Decisions, below, part, read_text, sweep
from bnrecon.reproduction.trainings import first_batches
from bnrecon.targets.collapsed_pair import CollapsedPair
from bnrecon.targets.models import vgg

TEXT = read_text(__file__)
CPU = torch.device("cpu")
STEPS = {"smoke": 10, "laptop": 200, "paper": 500}
BATCH = 64
PRECISIONS = ("float64", "float32")
# A pair is computed as its two convolutions, or collapsed to one.
PAIRS = {
    "two_convolutions": "ID cond, two convolutions",
    "one_convolution": "ID cond, collapsed to one convolution",
}
# The weights themselves: each convolution's sum over its input channels in a random order, or each
# initial weight changed by at most one in its last digit.
CONTROLS = {
    "weights, sums in another order": tuple(f"reordered_{seed}" for seed in range(3)),
    "weights, started one rounding apart": tuple(f"rounded_{seed}" for seed in range(8)),
}
ORDERS, STARTS = CONTROLS.values()
NAMES = (*ORDERS, *STARTS)
DIVERGED = 0.01  # trainings count as different above this relative difference of gradients
EARLY = 100  # steps of float32 that decide
COLUMNS = {  # of differences, with their names in the table
    "loss": "largest difference of losses",
    "first": "of gradients, first step",
    "early": f"in {EARLY} steps",
    "all": "in all",
}
ROUNDING = 1e-10  # what float64 rounding may add up to


def reparameterize(network: nn.Module, collapsed: bool) -> nn.Module:
    """Copy a network with its convolutions as id_cond pairs whose scales are the weights.

    Feature (i, p, j) reads input j and writes output i at tap p, so γ holds the weight in the order
    (outputs, taps, inputs). The inner layers have only scales. A pair is computed as one
    convolution if ``collapsed``, else as two: the same function up to rounding.
    """

    def pair(convolution: nn.Conv2d) -> nn.Module:
        outputs, inputs, *kernel = convolution.weight.shape
        shape = LayerShape(outputs, inputs, (kernel[0], kernel[1]))
        inner = CollapsedPair(shape, shape.equations, "id_cond", "scale", 0, 0, collapsed)
        return inner.to(convolution.weight).start_from(convolution.weight)

    return replace_convolutions(network, pair)


def replace_convolutions(network: nn.Module, make: Callable[[nn.Conv2d], nn.Module]) -> nn.Module:
    """Copy a network, replacing each convolution by what ``make`` returns for it."""
    network = copy.deepcopy(network)
    for parent in list(network.modules()):
        for name, module in list(parent.named_children()):
            if isinstance(module, nn.Conv2d):
                setattr(parent, name, make(module))
    return network


class Reordered(nn.Module):
    """A convolution that sums over input channels in another order.

    In exact arithmetic, it equals the original convolution: only rounding differs.

    >>> convolution = nn.Conv2d(3, 2, 3, bias=False)
    >>> x = torch.randn(1, 3, 4, 4)
    >>> other = Reordered(convolution, torch.tensor([2, 0, 1]))
    >>> torch.allclose(other(x), convolution(x), atol=1e-6)
    True
    """

    order: torch.Tensor

    def __init__(self, convolution: nn.Conv2d, order: torch.Tensor):
        super().__init__()
        self.convolution = convolution
        self.register_buffer("order", order)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The convolution of the reordered channels with the reordered weight."""
        weight = self.convolution.weight[:, self.order]
        padding = self.convolution.padding
        return F.conv2d(x[:, self.order], weight, self.convolution.bias, padding=padding)


def reorder(network: nn.Module, seed: int) -> nn.Module:
    """Copy a network with each convolution's input channels in a random order."""
    generator = torch.Generator().manual_seed(seed)

    def reordered(convolution: nn.Conv2d) -> nn.Module:
        return Reordered(convolution, torch.randperm(convolution.in_channels, generator=generator))

    return replace_convolutions(network, reordered)


def perturb(network: nn.Module, seed: int) -> nn.Module:
    """Copy a network with each convolution's weights times 1 + r ε, r drawn from -1, 0 and 1."""
    network = copy.deepcopy(network)
    generator = torch.Generator().manual_seed(seed)
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            weight = module.weight.detach()
            steps = torch.randint(-1, 2, weight.shape, generator=generator).to(weight)
            module.weight.data = weight * (1 + torch.finfo(weight.dtype).eps * steps)
    return network


def controls(network: nn.Module) -> dict[str, nn.Module]:
    """The networks of ``CONTROLS``, by name."""
    makers = zip(CONTROLS.values(), (reorder, perturb), strict=True)
    return {name: make(network, seed) for names, make in makers for seed, name in enumerate(names)}


def gradient_difference(weights: nn.Module, others: nn.Module) -> float:
    """Largest ‖∂L/∂γ - ∂L/∂vec(W)‖ / ‖∂L/∂vec(W)‖ over the layers."""
    pairs = zip(_gradients(weights), _gradients(others), strict=True)
    return max(float((expected - other).norm() / expected.norm()) for expected, other in pairs)


def _gradients(network: nn.Module) -> list[torch.Tensor]:
    """The gradient of each convolution or pair, in the order (outputs, taps, inputs)."""
    gradients: list[Any] = []
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            weight: Any = module.weight
            gradients.append(weight.grad.permute(0, 2, 3, 1).flatten())
        elif isinstance(module, CollapsedPair):
            gradients.append(module.gamma.grad)
    return gradients


def train_together(precision: str, steps: int) -> pd.DataFrame:
    """Train a small VGG on the digits: by weights, by both types of pairs, and the controls.

    All start at the same function and see the same batches: SGD with learning rate 0.05, momentum
    0.9 and weight decay 5e-4 on weights and scales alike. One row per step: the losses, and the
    largest relative difference of a layer's gradient from the weights' gradient.
    """
    torch.manual_seed(0)
    dtype = getattr(torch, precision)
    data = load(DataSpec("digits", crop_padding=0, flip=False))
    weights = vgg(data.shape, len(data.classes), 8, [1, 2], "relu").to(dtype)
    pairs = {kind: reparameterize(weights, kind == "one_convolution") for kind in PAIRS}
    networks = {"weights": weights} | pairs | controls(weights)
    parameters = (network.parameters() for network in networks.values())
    optimizers = [torch.optim.SGD(one, 0.05, 0.9, weight_decay=5e-4) for one in parameters]
    rows = []
    for step, (x, y) in enumerate(first_batches(data, BATCH, 0, steps, CPU), 1):
        row: dict[str, Any] = {"step": step, "precision": precision}
        for optimizer in optimizers:
            optimizer.zero_grad()
        for name, network in networks.items():
            loss = F.cross_entropy(network(x.to(dtype)), y)
            loss.backward()
            row[f"loss_{name}"] = loss.item()
        for kind in (*PAIRS, *NAMES):
            row[f"gradient_difference_{kind}"] = gradient_difference(weights, networks[kind])
        for optimizer in optimizers:
            optimizer.step()
        rows.append(row)
    return pd.DataFrame(rows)


def _differences(rows: pd.DataFrame, kinds: Sequence[str]) -> pd.DataFrame:
    """How far one precision's trainings are from the weights'; step -1 means no divergence."""
    gradients = rows[[f"gradient_difference_{kind}" for kind in kinds]].set_axis(kinds, axis=1)
    losses = rows[[f"loss_{kind}" for kind in kinds]].set_axis(kinds, axis=1)
    diverged = gradients > DIVERGED
    columns = {
        "loss": losses.sub(rows["loss_weights"], axis=0).abs().max(),
        "first": gradients.iloc[0],
        "early": gradients[:EARLY].max(),
        "all": gradients.max(),
        "step": diverged.mul(rows["step"], axis=0).where(diverged).min().fillna(-1),
    }
    return pd.DataFrame(columns)


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per precision and type of training: differences from training the weights."""
    lines = []
    for precision, group in rows.groupby("precision", sort=False):
        for title, kinds in ({title: (kind,) for kind, title in PAIRS.items()} | CONTROLS).items():
            differences = _differences(group, kinds)
            line = {"precision": precision, "training": title, "steps": len(group)}
            line["last loss"] = f"{group[f'loss_{kinds[0]}'].iloc[-1]:.3f}"
            line |= {name: span(differences[of], ".1e") for of, name in COLUMNS.items()}
            lines.append(line | {f"over {DIVERGED:g} from step": _steps(differences["step"])})
    return pd.DataFrame(lines)


def _steps(values: pd.Series) -> str:
    reached = values[values > 0].astype(int)
    steps = span(reached, absent="never")
    share = "" if len(reached) in (0, len(values)) else f", {len(reached)} of {len(values)}"
    return f"{steps}{share}"


def decide(rows: pd.DataFrame) -> Decisions:
    """Do the two parameterizations train alike?

    Decided by collapsed pairs, which must agree bit for bit, by float64, and by the first steps of
    float32: later, rounding decides about ReLUs, and any two trainings may differ.
    """
    exact, evidence, branch, alike, apart = True, [], "", {}, math.nan
    for precision, group in rows.groupby("precision", sort=False):
        differences = _differences(group, (*PAIRS, *NAMES))
        exact = exact and bool((differences.loc["one_convolution", ["loss", "all"]] == 0).all())
        pair, others = differences.loc["two_convolutions"], differences.loc[list(NAMES)]
        double = precision == "float64"
        judged = "all" if double else "early"
        limit = ROUNDING if double else 2 * others["early"].max()
        apart = pair[judged] if double else apart
        alike[precision] = bool(pair[judged] <= limit)
        numbers = {"pair": pair[judged], "others": span(others[judged], ".1e")}
        evidence.append(TEXT.sentence(precision, **numbers, steps=min(EARLY, len(group))))
        branch += "" if double else _branch(differences)
    failed = not exact or not alike.get("float64", True)
    decided = set(alike) == set(PRECISIONS) and all(alike.values())
    verdict = "contradicted" if failed else "confirmed" if decided else "undecided"
    same = "equal bit for bit" if exact else "different"
    numbers = {"same": same, "apart": apart, "steps": rows["step"].max(), "controls": len(NAMES)}
    numbers |= {"precisions": "; ".join(evidence), "orders": len(ORDERS), "starts": len(STARTS)}
    return {"Theorem 3.1": verdict}, numbers | {"branch": branch}


def _branch(differences: pd.DataFrame) -> str:
    """The step at which two convolutions leave the weights, and how many controls do."""
    pair = differences.loc["two_convolutions"]
    if pair["step"] < 0:
        return ""
    diverged = {"diverged": (differences.loc[list(NAMES), "step"] > 0).sum(), "of": len(NAMES)}
    return " " + TEXT.sentence("branch", step=pair["step"], limit=DIVERGED, **diverged)


def draw(rows: pd.DataFrame) -> Figure:
    """Draw the differences of gradients, a panel per precision."""
    precisions = list(dict.fromkeys(rows["precision"]))
    figure, (panels,) = new_figure(1, len(precisions), (PAGE, 2.8), sharey=True, squeeze=False)
    for letter, axes, precision in zip("ab", panels, precisions, strict=False):
        _draw_lines(axes, rows[rows["precision"] == precision])
        axes.set_yscale("symlog", linthresh=1e-17)  # equal gradients are drawn at 0
        axes.set(ylim=(-1e-18, 10), yticks=[0, 1e-15, 1e-10, 1e-5, 1])
        axes.set(xlabel="step of SGD", title=f"({letter}) {precision}, a small VGG on digits")
    panels[0].set_ylabel("relative difference of gradients")
    draw_legend(figure, 2, "lower")
    return figure


def _draw_lines(axes: Axes, rows: pd.DataFrame) -> None:
    """Draw the pairs as wide lines, and the controls over them as thin lines."""
    for (kind, title), colour in zip(PAIRS.items(), ("#f4b6ae", "0.75"), strict=True):
        line = rows[f"gradient_difference_{kind}"]
        axes.plot(rows["step"], line, color=colour, linewidth=3.5, label=title)
    for (title, names), colour in zip(CONTROLS.items(), ("0.35", PALETTE[1]), strict=True):
        for number, kind in enumerate(names):
            line = rows[f"gradient_difference_{kind}"]
            label = None if number else f"{title} ({len(names)})"
            axes.plot(rows["step"], line, color=colour, linewidth=0.7, label=label)


TASKS = sweep(train_together, "{precision}", {"precision": PRECISIONS}, {"steps": STEPS})
PART = part(__file__, TASKS, summarize, draw, decide, excerpt=below)
