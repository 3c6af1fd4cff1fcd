"""Progress files of studies, written as by the leading process."""

import contextlib
from types import SimpleNamespace

from bnrecon.jobs.work import Batch, Outcome, Started
from bnrecon.reproduction import progress


def pieces(**counts):
    """Work, as far as progress files need it."""
    labels = [(part, f"{part} number {i}") for part, count in counts.items() for i in range(count)]
    return [SimpleNamespace(part=part, key=label, label=label) for part, label in labels]


def start(piece):
    return Started(piece.key)


def end(piece, seconds=1.0, kind="done", gist="gist", log="a.log"):
    return Outcome(piece.key, piece.label, kind, gist, seconds, log)


@contextlib.contextmanager
def kept(outputs, work, study="giannou2023", scale="smoke", processes=1):
    """Keep a study's progress; the value records events."""
    batch = Batch(outputs / "studies" / study, scale, f"bnrecon study {study} scale={scale}")
    executor = SimpleNamespace(name=f"{processes} processes", processes=processes)
    with progress.keep(batch, executor, work) as keeper:
        yield keeper.note
