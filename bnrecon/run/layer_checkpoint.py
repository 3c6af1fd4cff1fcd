"""Files of an unfinished seed: its solved layers, and the state of the layer being solved."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from pathlib import Path

from bnrecon.runtime import files
from bnrecon.solvers.checkpoint import KrylovState, RefinementState

logger = logging.getLogger(__name__)

VECTORS = ("x", "residual", "direction", "energy", "reference")  # in a KrylovState


class LayerCheckpoint:
    """A ``Checkpoint`` in a file: the state of a layer that takes minutes or hours to solve.

    ``about`` identifies the state: layer, seed and the seed's key. ``before`` are the seconds spent
    on the loaded one.
    """

    seconds = 60.0  # between two checkpoints: small layers take less, and write none

    def __init__(self, path: Path, about: Mapping[str, object]):
        self.path, self.about, self.before = path, dict(about), 0.0
        self._started = self._saved = time.monotonic()
        self._warned = False

    def load(self) -> RefinementState | None:
        """The last saved state; a file that is damaged or of another solve is set aside."""
        return files.read_if_valid(self.path, self._read, quarantine_damaged=True)

    def _read(self, path: Path) -> RefinementState:
        tensors, about = files.read_tensors(path)
        inner = about.pop("inner", None)  # absent between two inner solves
        state = RefinementState(
            tensors["x"],
            tensors["residual"],
            about.pop("iterations"),
            about.pop("left"),
            about.pop("gain"),
            tuple(about.pop("names")),
            inner and KrylovState(**inner | {v: tensors[f"inner.{v}"] for v in VECTORS}),
        )
        before = about.pop("seconds")
        if about != self.about:
            raise files.Damaged(f"{path} is the state of another solve")
        self.before = before
        made = state.iterations + (state.inner.step if state.inner else 0)
        logger.info("%s: resumes after %d iterations", about.get("name"), made)
        return state

    def save(self, state: RefinementState) -> None:
        """Write a state, unless the last one is recent; the solve continues if writing fails."""
        if time.monotonic() - self._saved < self.seconds:
            return
        about: dict[str, object] = {
            "iterations": state.iterations,
            "left": state.precisions_remaining,
            "gain": state.reduction,
            "names": state.names,
            "seconds": self.before + time.monotonic() - self._started,
        }
        tensors = {"x": state.x, "residual": state.residual}
        if state.inner is not None:
            inner = state.inner._asdict()
            tensors |= {f"inner.{name}": inner.pop(name) for name in VECTORS}
            about["inner"] = inner
        try:
            files.write_tensors(self.path, tensors, self.about | about)
        except OSError as error:
            level = logging.DEBUG if self._warned else logging.WARNING
            logger.log(level, "%s: its state cannot be saved (%s)", self.about.get("name"), error)
            self._warned = True
        self._saved = time.monotonic()


def solved_layers(folder: Path) -> list[Path]:
    """The files of solved and unfinished layers in a seed's folder."""
    return [*folder.glob("layer-*.safetensors"), *folder.glob("unfinished-*.safetensors")]
