"""Burkholz 2024: its theorems and the text's claims as experiments."""

from __future__ import annotations

from bnrecon.reproduction.experiments import Experiment
from bnrecon.reproduction.study import Study, read_reported
from bnrecon.studies.burkholz2024 import (
    deeper_sources,
    nonlinear_layer,
    normalization_training,
    papers_solver,
    source_cost,
    width_threshold,
)

__all__ = ["EXPERIMENTS", "STUDY"]


DRAWS = {"smoke": 3, "laptop": 50, "paper": 200}


EXPERIMENTS = {
    "thresholds": Experiment(
        "Lemma 2.1, Theorems 2.2 and 2.3",
        "Width at which targets become reachable",
        "Share of draws rebuilt to a relative error of 1e-6 over the whole composed kernel (float64), second scales free below n. "
        "Pathological targets are made from the features, for the width they are tried at (at n and above: for n - 1): Theorem 2.2 "
        "has to exclude them, Theorem 2.3 does not.",
        lambda scale, words: {
            setting.name: lambda setting=setting: width_threshold.success_rates(
                (setting,), DRAWS[scale]
            )
            for setting in width_threshold.SETTINGS
        },
        width_threshold.thresholds,
        width_threshold.draw,
    ),
    "layers": Experiment(
        "Sect. 3.1",
        "Where the papers' solver loses accuracy, layer by layer",
        "A trained target (VGG18 on CIFAR-10, relu; at smoke scale a small VGG on digits), he_normal features at minimum width: relative error of the rebuilt weight in float64, geometric mean over "
        "source seeds, the largest in brackets. LU is torch.linalg.solve in float32, refined the same factors corrected in float64.",
        papers_solver.pieces,
        papers_solver.summary,
        papers_solver.draw,
        options=lambda scale: (),
    ),
    "deeper": Experiment(
        "Theorem 2.5",
        "Deeper sources: draws rebuilt against the total width",
        "Random targets, He-normal weights, a first kernel that covers the target's and 1x1 kernels behind it; Levenberg-Marquardt from "
        "random starts, float64, rebuilt means a relative error of 1e-8. Failures at L = 2, n + 1, are the search's: there Theorem 2.2 "
        "gives the solution. Reachable dimensions: rank of the Jacobian at random scales; below n almost no target is reached. With a 3x3 kernel and L = 4 "
        "they suffice at n + L, and yet the search finds few solutions or none there: whether there are any is open. The settings "
        "with c_1 < c0 k² and with c_(L-1) = c0 < c2 fulfil all that the theorem asks for (total width n + L, c_l >= c0 in every layer) and are "
        "counterexamples to it: a target's rows would have to lie in the first layer's row space, its columns in the last one's, up to the last scales.",
        lambda scale, words: {
            f"{setting.name}, L = {setting.layers}": lambda setting=setting: (
                deeper_sources.success_rates(
                    (setting,), {"smoke": 2, "laptop": 20, "paper": 100}[scale]
                )
            )
            for setting in deeper_sources.SETTINGS
        },
        deeper_sources.summary,
        deeper_sources.draw,
    ),
    "nonlinear": Experiment(
        "Theorem 2.4",
        "A nonlinear first layer: error against the theorem's bound, on a trained target's activations",
        "Each layer of the trained target (at laptop scale VGG18 of width 16) rebuilt alone (he_normal, oversampling 1.5); ranges from up to 1,024 training "
        "images, times 2, in the place of the theorem's [-1, 1]; errors over 16 test images. A sigmoid cancels around 1/2, where a tanh around 0 does not: "
        "a smaller epsilon, a smaller scale, makes it worse, from 100 on in float32 and from 1e-4 on in float64.",
        lambda scale, words: {"all": lambda: nonlinear_layer.errors(scale, words)},
        nonlinear_layer.summary,
        nonlinear_layer.draw,
        options=lambda scale: (),
    ),
    "cost": Experiment(
        "Sect. 3.2",
        "What the source costs beside its target (VGG18 of width 64 on CIFAR-10)",
        "Trainable: inner scales, second scales and second shifts of all layers (inner shifts are not needed behind a linear first layer); "
        "the paper's 592,657, which it gives as the target's parameters, is what the 17 convolutions have at minimum width. Frozen weights come back from a seed: a saved source holds the "
        "normalization alone. Operations: multiply-adds of one image. Map: the largest intermediate map of one image, float32, which the "
        "source works through in chunks.",
        lambda scale, words: {"all": source_cost.table},
        lambda frame: frame,
    ),
    "scratch": Experiment(
        "Sect. 3.2",
        "Training normalizations alone from scratch",
        "The source architecture of the target in the first line, frozen he_normal features, n + excess of them a layer, trained by its normalizations "
        "alone through the collapsed pair; the last layer is a frozen pair too. Off: |γ| < 0.01 (Frankle et al. 2021 report a third); never "
        "active: not positive at any place of up to 1,000 test images. ± is the 95% Student-t interval over "
        "seeds of features, data order and crops. The paper's excess is printed as 10*, the exponent lost, and its accuracy as an error of 90.35. At laptop scale 10 epochs, 3 of them warm-up (the target: 2), in the place of the paper's.",
        normalization_training.pieces,
        normalization_training.summary,
        options=lambda scale: (),
    ),
}

STUDY = Study("burkholz2024", read_reported(__package__), EXPERIMENTS)
