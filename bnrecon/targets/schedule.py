"""The learning rate at each step: linear warm-up, then cosine to zero.

Burkholz 2024, Sect. 3.2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class WarmupCosine:
    """The rate ``peak · (step + 1) / warmup_steps``, then ``peak · (1 + cos(π t)) / 2``.

    t goes from 0 to 1 after the warm-up.

    Attributes:
        peak: the rate at the end of the warm-up.
        warmup_steps: steps of warm-up.
        total_steps: steps in all.

    >>> schedule = WarmupCosine(peak=0.1, warmup_steps=2, total_steps=10)
    >>> [round(schedule(step), 3) for step in (0, 1, 2, 6, 9)]
    [0.05, 0.1, 0.1, 0.05, 0.004]
    """

    peak: float
    warmup_steps: int
    total_steps: int

    def __call__(self, step: int) -> float:
        """Rate of step number ``step``, counted from 0."""
        if step < self.warmup_steps:
            return self.peak * (step + 1) / self.warmup_steps
        progress = (step - self.warmup_steps) / max(1, self.total_steps - self.warmup_steps)
        return self.peak * (1 + math.cos(math.pi * progress)) / 2
