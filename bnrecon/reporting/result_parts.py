"""Parts of a run's result: its images, its target, how it was tested, what was predicted."""

from __future__ import annotations

from dataclasses import dataclass

from bnrecon.reporting.statistics import mcnemar

__all__ = ["DataSummary", "Evaluation", "Predictions", "TargetSummary"]


@dataclass(frozen=True)
class DataSummary:
    """The images of a run: numbers of training and test images and of classes, and a digest."""

    name: str
    train: int
    test: int
    classes: int
    checksum: str


@dataclass(frozen=True)
class TargetSummary:
    """A trained target: test accuracy in percent on ``images`` images, size, training time.

    ``minimum_width_parameters`` is the number of trainable parameters of a source network of
    minimum width (Burkholz 2024, Thm 2.2). ``checksum`` is of the weights; it, ``device``,
    ``precision`` and ``commit`` (of its training) are ``None`` where the file was written before
    they were kept.
    """

    accuracy: float
    images: int
    parameters: int
    minimum_width_parameters: int
    seconds: float
    folder: str
    checksum: str | None = None
    device: str | None = None
    precision: str | None = None
    commit: str | None = None


@dataclass(frozen=True)
class Evaluation:
    """How the accuracies of a run's source networks were measured, the least favourable seed's.

    ``images`` test images went through the real source network, and the rest through its collapsed
    form unless ``network`` is ``"source"``. They are those whose two largest logits of the target
    are nearest to each other; in results without ``Predictions`` they are the first ones. Over them
    ``largest_logit_difference`` is between the two forms and ``largest_difference_to_target``
    between the source and the target. ``implicit_layers`` were never stored as matrices.
    """

    network: str
    images: int
    largest_logit_difference: float
    largest_difference_to_target: float
    implicit_layers: int


@dataclass(frozen=True)
class Predictions:
    """The classes that a source network predicts, compared with those of its target.

    Equal accuracies may hide images that one network has right and the other wrong; these counts
    do not.

    Args:
        images: how many were compared, all test images.
        differ: the two networks predict different classes (of these images both may be wrong).
        only_target_right: the target predicts the right class, the source another.
        only_source_right: the other way round.
        source_images: how many of them, those where the target's two largest logits are nearest to
            each other, went through the real source network; the others went through its collapsed
            form. 0 in results that do not say.
        reserve: half the smallest such margin of the others, over the largest difference of a logit
            between the real source and the target. A prediction among the others is another one
            only where a logit differs by ``reserve`` times as much as the largest difference seen.
            ``None`` where all images went through the real source, or nothing differed.
    """

    images: int
    differ: int
    only_target_right: int
    only_source_right: int
    source_images: int = 0
    reserve: float | None = None

    @property
    def p_value(self) -> float:
        """Of McNemar's test that both networks are equally often right."""
        return mcnemar(self.only_target_right, self.only_source_right)
