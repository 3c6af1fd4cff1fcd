"""Sparse and pruned sources: methods, targets, seeds and shares that are compared."""

from __future__ import annotations

from collections.abc import Callable

from bnrecon.studies.burkholz2024.pruned_limits import magnitude_error, random_error, refit_error

__all__ = [
    "ADDED",
    "AT",
    "COMPARED",
    "DERIVED",
    "FIRST",
    "LABELS",
    "NETWORK",
    "OVERSAMPLING",
    "RANDOM",
    "SEEDS",
    "SHARES",
    "TARGETS",
    "WEIGHTS",
]

RANDOM, WEIGHTS = "random", "weights"  # beside the options of features.pruning
OVERSAMPLING = 1.5

LABELS = {
    "magnitude": "magnitude",
    RANDOM: "random, refit",
    "refit": "magnitude, refit",
    "iterative": "magnitude, in rounds",
    "l1": "least L1 norm, refit",
    WEIGHTS: "the target's own weights",
}
DERIVED: dict[str, tuple[Callable[[float], float], float]] = {  # errors, and from where they are 0
    RANDOM: (random_error, 1.0),
    "magnitude": (lambda share: magnitude_error(share, OVERSAMPLING), OVERSAMPLING),
    "refit": (lambda share: refit_error(share, OVERSAMPLING), 1.0),
}
COMPARED = 0.9  # the share of n at which choosing is compared with drawing fewer
NETWORK = "vgg18 on cifar10"  # that of every scale but smoke
LAPTOP = ("target=vgg18", "data=cifar10", "scale=laptop", "target.width=16")
PAPER = ("target=vgg18", "data=cifar10", "scale=paper", "target.width=64")
FIRST = "relu"  # as target.activation by default
ADDED = ("tanh", "sigmoid", "leaky_relu")  # after the results of relu were known


def _by_activation(common: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """A target's options by its activation."""
    added = {name: (*common, f"target.activation={name}") for name in ADDED}
    return {FIRST: common, **added}


TARGETS: dict[str, dict[str, tuple[str, ...]]] = {
    "smoke": {FIRST: ("data=digits", "target=vgg_small", "scale=smoke")},
    "laptop": _by_activation(LAPTOP),
    "paper": _by_activation(PAPER),
}
SEEDS = {"smoke": (0,), "laptop": (0, 1, 2), "paper": (0, 1, 2)}
# Shares of the 1.5 n features; kept features over n are 1.5 times these.
ABOVE, AT = (1.0, 0.9, 0.8, 0.7), 2 / 3
BELOW = (0.65, 0.6, 0.55, 0.5, 0.4, 0.3, 0.2)
SHARES = {"smoke": ((1.0, 0.8), (0.6, 0.4)), "laptop": (ABOVE, BELOW), "paper": (ABOVE, BELOW)}
