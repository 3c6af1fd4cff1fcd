"""A processor that has every precision."""

import pytest

from bnrecon.runtime.precision import BFLOAT16, FLOAT32, FLOAT64
from bnrecon.solvers import iterative


@pytest.fixture
def every_precision(monkeypatch):
    """All precisions of a processor with bf16, at any size; without such units it is emulated."""
    schedule = [BFLOAT16, FLOAT32, FLOAT64]
    monkeypatch.setattr(iterative, "precision_schedule", lambda device: schedule)
    monkeypatch.setattr(iterative, "BF16_ENTRIES", 0)
