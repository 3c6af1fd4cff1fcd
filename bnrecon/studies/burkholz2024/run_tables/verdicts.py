"""Verdicts on a run's loss of accuracy, against its target and against the paper."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bnrecon.reporting.result import Predictions
from bnrecon.reporting.statistics import Interval

EQUIVALENT = 0.05  # percentage points: five of 10,000 test images
SMALLER = "not at the paper's size"
RESERVE = 2.0  # needed by untested images, see ``Predictions.reserve``
SIGNIFICANT = 0.05  # p of McNemar's test
CLOSE = 1e-9  # sums of decimal numbers are off by less


@dataclass(frozen=True)
class Reported:
    """The paper's numbers for a run, in percent."""

    target: float  # accuracy of the target
    rebuilt: float  # accuracy of the rebuilt network
    half_width: float  # of its interval over three source networks
    # Joint rounding of all three: half a unit of each last printed digit
    rounding: float = 0.0
    text: str = ""  # ``rebuilt`` and ``half_width`` as printed
    width: int | None = None  # of the target; ``None`` if it does not matter

    @classmethod
    def printed(cls, target: float, rebuilt: str, *, width: int | None = None) -> Reported:
        """Read numbers as printed.

        >>> round(Reported.printed(94.12, "94.0 ± 0.1").rounding, 9)
        0.105
        """
        mean, half_width = rebuilt.split(" ± ")
        decimals = [len(text.partition(".")[2]) for text in (str(target), mean, half_width)]
        rounding = math.fsum(0.5 * 10.0**-places for places in decimals)
        return cls(target, float(mean), float(half_width), rounding, rebuilt, width)

    @property
    def loss(self) -> float:
        """Accuracy of the target minus that of the rebuilt network."""
        return self.target - self.rebuilt

    @property
    def reach(self) -> float:
        """How far from ``loss`` the paper's loss may lie."""
        return self.half_width + self.rounding


def against_target(loss: Interval, predictions: Sequence[Predictions | None]) -> str:
    """Whether a rebuilt network agrees with its target.

    Args:
        loss: the target's accuracy minus the rebuilt networks', in percent, over source seeds.
        predictions: each seed's predictions; ``None`` if not stored.

    Returns:
        "identical predictions": no seed predicts an image differently, and all images went through
        the real source network, or the others have a reserve of at least 2. "identical where
        tested": no image is predicted differently, without that. "accuracy equivalent within 0.05":
        the loss's whole interval lies within ±0.05. "different": the interval excludes 0 and
        reaches beyond ±0.05 or, with one seed, McNemar's p is below 0.05 and the loss beyond ±0.05.
        "inconclusive": all else.

    >>> against_target(Interval(0.01, 0.02, 3), [None] * 3)
    'accuracy equivalent within 0.05'
    >>> against_target(Interval(0.01, 0.2, 3), [None] * 3)
    'inconclusive'
    """
    counts = [seed for seed in predictions if seed is not None]
    if counts and len(counts) == len(predictions) and not any(seed.differ for seed in counts):
        settled = all(_is_settled(seed) for seed in counts)
        return "identical predictions" if settled else "identical where tested"
    if loss.half_width is None:
        significant = any(seed.p_value < SIGNIFICANT for seed in counts)
        far = significant and abs(loss.mean) > EQUIVALENT + CLOSE
        return "different" if far else "inconclusive"
    if abs(loss.mean) + loss.half_width <= EQUIVALENT + CLOSE:
        return f"accuracy equivalent within {EQUIVALENT}"
    return "different" if abs(loss.mean) > loss.half_width + CLOSE else "inconclusive"


def _is_settled(seed: Predictions) -> bool:
    """Whether the images tested on the collapsed form need no other test."""
    if seed.source_images in (0, seed.images):  # 0: not recorded
        return seed.source_images > 0
    return seed.reserve is None or seed.reserve >= RESERVE  # None: no logit differed at all


def against_paper(
    loss: Interval, reported: Reported | None, possible: bool = True, width: int | None = None
) -> str:
    """Whether the loss of accuracy agrees with the paper's.

    The paper's loss is anywhere within its half-width plus the rounding of all printed numbers.

    Args:
        loss: the reproduced loss with its interval over source seeds.
        reported: the paper's numbers.
        possible: whether the paper's numbers can be right.
        width: the reproduced target's width. The error of the paper's solver grows with it, so
            losses of another width are not compared.

    Returns:
        "loss reproduced": the paper's range excludes 0 and contains the whole reproduced interval,
        so a wider interval is never more agreement. "no more than reported": the same if the
        paper's range includes 0. "different": the two do not meet. "inconclusive": all else, such
        as one seed without an interval. "not compared": the widths differ.

    >>> against_paper(Interval(0.3, 0.05, 3), Reported.printed(94.37, "94.1 ± 0.1"))
    'loss reproduced'
    >>> against_paper(Interval(0.0, 0.0, 3), Reported.printed(94.12, "94.1 ± 0.08"))
    'no more than reported'
    >>> against_paper(Interval(0.0, 0.3, 3), Reported.printed(94.12, "94.1 ± 0.08"))
    'inconclusive'
    >>> against_paper(Interval(0.0, 0.0, 3), Reported.printed(94.37, "94.1 ± 0.1"))
    'different (smaller)'
    """
    if reported is None:
        return ""
    if not possible:
        return "impossible in print"
    if reported.width not in (None, width):
        return f"not compared (width {reported.width} in print)"
    if loss.half_width is None:
        return "inconclusive"
    apart = abs(loss.mean - reported.loss)
    if apart + loss.half_width <= reported.reach + CLOSE:
        lossless = abs(reported.loss) <= reported.reach + CLOSE
        return "no more than reported" if lossless else "loss reproduced"
    if apart > loss.half_width + reported.reach + CLOSE:
        return f"different ({'smaller' if loss.mean < reported.loss else 'larger'})"
    return "inconclusive"


def farthest_ends(losses: Sequence[Interval]) -> tuple[float, float]:
    """The smallest and largest end of intervals; for a single value, the value.

    >>> farthest_ends([Interval(0.5, 1.0, 3), Interval(2.0, None, 1)])
    (-0.5, 2.0)
    """
    ends = [end for loss in losses for end in (loss.ends if loss.n > 1 else (loss.mean,))]
    return min(ends), max(ends)


def counted(verdicts: Iterable[str], separator: str = ", ") -> str:
    """Count the verdicts, most frequent first.

    >>> counted(["different", "inconclusive", "", "different"])
    '2 different, 1 inconclusive'
    """
    counts = Counter(verdict for verdict in verdicts if verdict)
    return separator.join(f"{count} {name}" for name, count in counts.most_common())
