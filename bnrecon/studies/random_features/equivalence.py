"""Theorem 3.1: training the scales of ID cond features is training the weights, step by step."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
import torch
import torch.nn.functional as F
from matplotlib.figure import Figure

from bnrecon.data import DataSpec, Images, load
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
        yield from data.train_batches(BATCH, 0, epoch, CPU)


def _difference(rows: pd.DataFrame, kind: str) -> dict[str, float]:
    """How far one training is from that of the weights; a step of -1: it did not diverge."""
    gradients = rows[f"gradient_difference_{kind}"].to_numpy()
    diverged = (gradients > DIVERGED).nonzero()[0]
    return {
        "loss": float((rows["loss_weights"] - rows[f"loss_{kind}"]).abs().max()),
        "first": float(gradients[0]),
        "early": float(gradients[:100].max()),
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
                    "in 100 steps": _span(found["early"]),
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
    """Are the two parameterizations trained alike?"""
    exact, evidence, alike = True, [], []
    for precision, group in rows.groupby("precision", sort=False):
        found = _differences(group, (*PAIRS, *NAMES))
        exact = exact and bool((found.loc["one_convolution", ["loss", "all"]] == 0).all())
        pair, others = found.loc["two_convolutions"], found.loc[list(NAMES)]
        diverged = int((others["step"] > 0).sum())
        evidence.append(
            f"{precision}, two convolutions: gradients differ by up to {pair['all']:.1e} "
            f"(over {DIVERGED:g} from step: {_steps(found.loc[['two_convolutions'], 'step'])}), "
            f"those of {len(NAMES)} control trainings of the weights by {_span(others['all'])} "
            f"({diverged} over {DIVERGED:g}, from step: {_steps(others['step'])})"
        )
        alike.append(_is_rounding(pair, others, precision))
    same = "equal bit for bit" if exact else "different"
    return [
        Claim(
            "Theorem 3.1",
            "Learning with ID cond features is equivalent to learning in the original "
            "parameterization, w_ij = γ_ij.",
            "not confirmed" if not exact else "confirmed" if all(alike) else "open",
            f"collapsed to one convolution, losses and gradients are {same} in all "
            f"{rows['step'].max()} steps. {'; '.join(evidence)}.",
        )
    ]


def _is_rounding(pair: pd.Series, others: pd.DataFrame, precision: str) -> bool:
    """Whether two convolutions differ as rounding does.

    In float64 by rounding alone, in float32 by at most twice the largest difference of a control.
    """
    if precision == "float64":
        return bool(pair["all"] < ROUNDING)
    return bool(pair["all"] <= 2 * others["all"].max())


CAPTION = (
    "A small VGG is trained on the embedded digits by its weights and by the scales of ID cond "
    "features. Both start at the same function and see the same batches: SGD, momentum 0.9, "
    "weight decay 5e-4 on weights and scales alike. "
    "The inner layers of the pairs have scales and no shifts. "
    "A collapsed pair is one convolution with the same numbers as the weight; two convolutions "
    "round differently. "
    "The controls are trainings of the weights themselves: with the input channels of each "
    f"convolution, and so its sums, in another order ({len(ORDERS)} orders), and from weights "
    f"changed by at most one in the last digit ({len(STARTS)} starts). In float32 a training "
    "leaves the others where rounding decides on which side of 0 a ReLU's input falls. "
    "Differences are from training the weights: the largest over the steps, of gradients "
    "‖∂L/∂γ - ∂L/∂vec(W)‖ / ‖∂L/∂vec(W)‖ in the layer where it is largest; ranges are over the "
    "controls of a kind."
)


def draw_figure(rows: pd.DataFrame) -> Figure:
    """The differences of gradients, a panel for each precision."""
    precisions = list(dict.fromkeys(rows["precision"]))
    figure, (panels,) = new_figure(1, len(precisions), (PAGE, 2.8), sharey=True, squeeze=False)
    for letter, axes, precision in zip("ab", panels, precisions, strict=False):
        group = rows[rows["precision"] == precision]
        for (title, names), colour in zip(CONTROLS.items(), ("0.6", PALETTE[1]), strict=True):
            for number, kind in enumerate(names):
                axes.plot(
                    group["step"],
                    group[f"gradient_difference_{kind}"],
                    color=colour,
                    linewidth=0.8,
                    label=f"{title} ({len(names)})" if number == 0 else None,
                )
        for (kind, title), colour, style in zip(
            PAIRS.items(), (PALETTE[3], PALETTE[0]), ((0, (3, 2)), "--"), strict=True
        ):
            axes.plot(
                group["step"],
                group[f"gradient_difference_{kind}"],
                color=colour,
                linestyle=style,
                label=title,
            )
        axes.set_yscale("symlog", linthresh=1e-17)  # equal gradients are drawn at 0
        axes.set_ylim(-1e-18, 10)
        axes.set_yticks([0, 1e-15, 1e-10, 1e-5, 1])
        axes.set_xlabel("step of SGD")
        axes.set_title(f"({letter}) {precision}", loc="left")
    panels[0].set_ylabel("relative difference of gradients")
    handles, labels = panels[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2)
    return figure


PART = Experiment(
    where="Theorem 3.1",
    title="Training ID cond scales compared with training the weights",
    caption=CAPTION,
    tasks=tasks,
    summary=summarize,
    draw=draw_figure,
    claims=claims,
)
