"""Theorem 3.1: training the scales of ID cond features is training the weights, step by step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bnrecon.data import DataSpec, Images, load
from bnrecon.data.batches import EpochPosition
from bnrecon.reporting.figures import PAGE, PALETTE, new_figure
from bnrecon.reproduction.experiment import Claim, Experiment, Task
from bnrecon.studies.random_features.equivalent_networks import (
    CONTROLS,
    PAIRS,
    controls,
    gradient_difference,
    reparameterize,
)
from bnrecon.targets.models import vgg

__all__ = ["CONTROLS", "NAMES", "PAIRS", "PART", "train_together"]

CPU = torch.device("cpu")
STEPS = {"smoke": 10, "laptop": 200, "paper": 500}
BATCH = 64
PRECISIONS = ("float64", "float32")
ORDERS, STARTS = CONTROLS.values()
NAMES = (*ORDERS, *STARTS)
DIVERGED = 0.01  # a relative difference of gradients from which trainings are called different
EARLY = 100  # steps of float32 that are judged
ROUNDING = 1e-10  # what float64 rounding may add up to


def tasks(scale: str, _options: Sequence[str]) -> list[Task]:
    """One task for each precision."""
    return [
        Task(precision, train_together, {"precision": precision, "steps": STEPS[scale]})
        for precision in PRECISIONS
    ]


def train_together(precision: str, steps: int) -> pd.DataFrame:
    """Train a small VGG on the digits: by weights, by both kinds of pairs, and the controls.

    All start at the same function and see the same batches: SGD with learning rate 0.05, momentum
    0.9 and weight decay 5e-4 on weights and scales alike.

    Args:
        precision: "float64" or "float32".
        steps: how many steps of SGD.

    Returns:
        One row for each step: the losses, and the largest relative difference of a layer's
        gradient from the weights' gradient.
    """
    torch.manual_seed(0)
    dtype = getattr(torch, precision)
    data = load(DataSpec("digits", crop_padding=0, flip=False))
    weights = vgg(data.shape, len(data.classes), 8, [1, 2], "relu").to(dtype)
    networks = {"weights": weights} | {
        kind: reparameterize(weights, kind == "one_convolution") for kind in PAIRS
    }
    networks |= controls(weights)
    optimizers = [
        torch.optim.SGD(network.parameters(), 0.05, 0.9, weight_decay=5e-4)
        for network in networks.values()
    ]
    rows = []
    for step, (x, y) in enumerate(itertools.islice(_batches(data), steps)):
        row: dict[str, Any] = {"step": step + 1, "precision": precision}
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


def _batches(data: Images) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for epoch in itertools.count():
        yield from data.train_batches(EpochPosition(BATCH, 0, epoch), CPU)


def _difference(rows: pd.DataFrame, kind: str) -> dict[str, float]:
    """How far one training is from that of the weights; a step of -1: it did not diverge."""
    gradients = rows[f"gradient_difference_{kind}"].to_numpy()
    diverged = (gradients > DIVERGED).nonzero()[0]
    return {
        "loss": float((rows["loss_weights"] - rows[f"loss_{kind}"]).abs().max()),
        "first": float(gradients[0]),
        "early": float(gradients[:EARLY].max()),
        "all": float(gradients.max()),
        "step": float(rows["step"].iloc[diverged[0]]) if len(diverged) else -1.0,
    }


def _differences(rows: pd.DataFrame, kinds: Sequence[str]) -> pd.DataFrame:
    """One row of ``_difference`` for each training of one precision."""
    return pd.DataFrame([_difference(rows, kind) for kind in kinds], index=list(kinds))


def summarize(rows: pd.DataFrame) -> pd.DataFrame:
    """One row for each precision and kind of training: differences from training the weights."""
    lines = []
    for precision, group in rows.groupby("precision", sort=False):
        for title, kinds in ({title: (kind,) for kind, title in PAIRS.items()} | CONTROLS).items():
            found = _differences(group, kinds)
            lines.append(
                {
                    "precision": precision,
                    "training": title,
                    "steps": len(group),
                    "last loss": f"{group[f'loss_{kinds[0]}'].iloc[-1]:.3f}",
                    "largest difference of losses": _span(found["loss"]),
                    "of gradients, first step": _span(found["first"]),
                    f"in {EARLY} steps": _span(found["early"]),
                    "in all": _span(found["all"]),
                    f"over {DIVERGED:g} from step": _steps(found["step"]),
                }
            )
    return pd.DataFrame(lines)


def _span(values: pd.Series) -> str:
    low, high = f"{values.min():.1e}", f"{values.max():.1e}"
    return low if low == high else f"{low} to {high}"


def _steps(values: pd.Series) -> str:
    reached = values[values > 0]
    if reached.empty:
        return "never"
    low, high = int(reached.min()), int(reached.max())
    span = str(low) if low == high else f"{low} to {high}"
    return span if len(reached) == len(values) else f"{span}, {len(reached)} of {len(values)}"


def claims(rows: pd.DataFrame) -> list[Claim]:
    """Are the two parameterizations trained alike?

    Decided by collapsed pairs, which have to agree bit for bit, by float64, and by the first
    steps of float32: later rounding decides about ReLUs, and any two trainings may differ.
    """
    exact, evidence, alike = True, [], {}
    for precision, group in rows.groupby("precision", sort=False):
        found = _differences(group, (*PAIRS, *NAMES))
        exact = exact and bool((found.loc["one_convolution", ["loss", "all"]] == 0).all())
        pair, others = found.loc["two_convolutions"], found.loc[list(NAMES)]
        if precision == "float64":
            alike[precision] = bool(pair["all"] < ROUNDING)
            evidence.append(
                f"float64, two convolutions: gradients differ by up to {pair['all']:.1e}, those of "
                f"{len(NAMES)} control trainings of the weights by {_span(others['all'])}"
            )
        else:
            alike[precision] = bool(pair["early"] <= 2 * others["early"].max())
            evidence.append(
                f"float32, first {min(EARLY, len(group))} steps: up to {pair['early']:.1e}, "
                f"controls {_span(others['early'])}" + _branch(group, found)
            )
    failed = not exact or not alike.get("float64", True)
    decided = set(alike) == set(PRECISIONS) and all(alike.values())
    same = "equal bit for bit" if exact else "different"
    return [
        Claim(
            "Theorem 3.1",
            "Learning with ID cond features is equivalent to learning in the original "
            "parameterization, w_ij = γ_ij.",
            "contradicted" if failed else "confirmed" if decided else "open",
            f"collapsed to one convolution, losses and gradients are {same} in all "
            f"{rows['step'].max()} steps. {'; '.join(evidence)}.",
        )
    ]


def _branch(rows: pd.DataFrame, found: pd.DataFrame) -> str:
    """Which control two convolutions stay with once they have left the weights."""
    pair = found.loc["two_convolutions"]
    if pair["step"] < 0:
        return ""
    losses = rows["loss_two_convolutions"]
    apart = {name: float((losses - rows[f"loss_{name}"]).abs().max()) for name in NAMES}
    nearest = min(apart, key=lambda name: apart[name])
    step, diverged = int(pair["step"]), int((found.loc[list(NAMES), "step"] > 0).sum())
    kind, number = nearest.split("_")
    return (
        f"; from step {step} on (not judged) they are apart from the weights, as {diverged} of "
        f"the {len(NAMES)} controls: their losses differ from the weights' by up to "
        f"{pair['loss']:.1e} and from those of control {int(number) + 1} ({kind}) by up to "
        f"{apart[nearest]:.1e}"
    )


CAPTION = (
    "A small VGG is trained on the embedded digits by its weights and by the scales of ID cond "
    "features, from the same function on the same batches, of one seed: SGD, momentum 0.9, weight "
    "decay 5e-4 on weights and scales alike. The inner layers have scales and no shifts. "
    "A collapsed pair is one convolution with the weight's numbers; two convolutions round "
    "differently. "
    "The controls, their numbers fixed beforehand, are trainings of the weights themselves: "
    f"{len(ORDERS)} with the sums over input channels in another order, and {len(STARTS)} from "
    "weights changed by at most one in the last digit. "
    "Differences are from training the weights, the largest over the steps: of gradients "
    "‖∂L/∂γ - ∂L/∂vec(W)‖ / ‖∂L/∂vec(W)‖ in the layer where it is largest; ranges are over the "
    "controls of a kind."
)


def draw_figure(rows: pd.DataFrame) -> Figure:
    """The differences of gradients, a panel for each precision."""
    precisions = list(dict.fromkeys(rows["precision"]))
    figure, (panels,) = new_figure(1, len(precisions), (PAGE, 2.8), sharey=True, squeeze=False)
    for letter, axes, precision in zip("ab", panels, precisions, strict=False):
        _draw_lines(axes, rows[rows["precision"] == precision])
        axes.set_yscale("symlog", linthresh=1e-17)  # equal gradients are drawn at 0
        axes.set_ylim(-1e-18, 10)
        axes.set_yticks([0, 1e-15, 1e-10, 1e-5, 1])
        axes.set_xlabel("step of SGD")
        axes.set_title(f"({letter}) {precision}, a small VGG on digits")
    panels[0].set_ylabel("relative difference of gradients")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


def _draw_lines(axes: Axes, rows: pd.DataFrame) -> None:
    """The pairs as wide lines, and on them the controls as thin ones."""
    for (kind, title), colour in zip(PAIRS.items(), ("#f4b6ae", "0.75"), strict=True):
        line = rows[f"gradient_difference_{kind}"]
        axes.plot(rows["step"], line, color=colour, linewidth=3.5, label=title)
    for (title, names), colour in zip(CONTROLS.items(), ("0.35", PALETTE[1]), strict=True):
        for number, kind in enumerate(names):
            axes.plot(
                rows["step"],
                rows[f"gradient_difference_{kind}"],
                color=colour,
                linewidth=0.7,
                label=f"{title} ({len(names)})" if number == 0 else None,
            )


PART = Experiment(
    where="Theorem 3.1",
    title="Training ID cond scales compared with training the weights",
    caption=CAPTION,
    tasks=tasks,
    summary=summarize,
    draw=draw_figure,
    claims=claims,
)
