"""Progress bars for solves that take longer than two seconds."""

from __future__ import annotations

import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tqdm import tqdm

from bnrecon.runtime.distributed import rank_and_world_size

DELAY = 2.0  # seconds before a bar shows


class ResidualBar:
    """A bar over the digits gained: from a relative residual of 1 down to the tolerance.

    Iterations gain digits at a steady rate, so its remaining time is a real estimate. Nothing is
    drawn unless standard error is a terminal.
    """

    def __init__(self, name: str, tolerance: float):
        self.digits = -math.log10(min(0.1, max(tolerance, 1e-16)))
        self.bar = tqdm(
            total=round(self.digits, 1),
            desc=name,
            delay=DELAY,
            disable=rank_and_world_size()[0] > 0 or None,  # one bar for all processes
            leave=False,
            bar_format="{desc}: {percentage:3.0f}%|{bar}| {elapsed}<{remaining}{postfix}",
        )

    def __enter__(self) -> ResidualBar:
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.close()

    def show(self, iterations: int, residual: float) -> None:
        """Move the bar to a relative residual."""
        if self.bar.disable or not residual > 0:
            return
        gained = min(self.digits, max(0.0, -math.log10(residual)))
        self.bar.set_postfix_str(f"residual {residual:.1e}, {iterations} iterations", refresh=False)
        self.bar.update(max(0.0, gained - self.bar.n))


@contextmanager
def clock(name: str, expected: float) -> Iterator[None]:
    """Show elapsed and expected seconds of a library call that reports no progress."""
    title = f"{name}, expected {expected:.0f} s"
    bar = tqdm(desc=title, disable=None, leave=False, bar_format="{desc}: {elapsed}", delay=DELAY)
    done = threading.Event()

    def tick() -> None:
        wait = DELAY
        while not done.wait(wait):
            bar.refresh()
            wait = 1.0

    thread = threading.Thread(target=tick, daemon=True)
    if not bar.disable:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if thread.is_alive():
            thread.join()
        bar.close()
