"""Recompute the predictions of a finished run's saved source networks."""

from __future__ import annotations

from pathlib import Path

import torch

from bnrecon.config.composition import option_names
from bnrecon.construction.activation import FIRST_ACTIVATIONS
from bnrecon.data import Images, load
from bnrecon.reconstruction.source_file import collapse, load_source
from bnrecon.reporting.result import Predictions, RunResult
from bnrecon.reporting.stored_target import target_request
from bnrecon.runtime import hardware
from bnrecon.runtime.errors import UserError
from bnrecon.targets.accuracy import finite_logits
from bnrecon.targets.building import build_target


def disagreements(
    first: tuple[Path, RunResult], second: tuple[Path, RunResult], root: str | None = None
) -> dict[int, Predictions]:
    """Compare the saved sources of two runs on their test images, for each common seed.

    The first run's source takes the place of the target.

    A source is evaluated in its collapsed form, which is the same function, if its first activation
    is linear; otherwise as the real network. The images are in ``root``, by default in the folder
    of each run.

    Raises:
        UserError: the runs have different images, no common seed or no saved source; or the
            available images are not theirs.
        RunError: a source cannot be loaded.
    """
    one, other = first[1], second[1]
    if (one.data.checksum, one.target.images) != (other.data.checksum, other.target.images):
        raise UserError("--predict: the two runs were tested on different images")
    seeds = sorted({seed.seed for seed in one.seeds} & {seed.seed for seed in other.seeds})
    if not seeds:
        raise UserError("--predict: the two runs have no seed in common")
    for folder, _ in (first, second):
        for seed in seeds:
            _require_source(folder, seed)
    a, b = (_Run(folder, result, root) for folder, result in (first, second))
    return {seed: Predictions.compare(a.predict(seed), b.predict(seed), a.labels) for seed in seeds}


def _require_source(folder: Path, seed: int) -> Path:
    path = folder / f"seed-{seed}" / "source.safetensors"
    if not path.is_file():
        raise UserError(
            f"--predict: {folder} has no saved source of seed {seed}: shipped runs and runs with "
            "keep_source=false have only the result; run it in a folder of yours"
        )
    return path


class _Run:
    """A run's images and its untrained target, the template of its sources."""

    def __init__(self, folder: Path, result: RunResult, root: str | None) -> None:
        config, self.folder = result.config, folder
        self.device = hardware.resolve_device("auto")
        request = target_request(config, root)
        with option_names("data"):
            self.data: Images = load(request.data)
        if self.data.checksum() != result.data.checksum:
            raise UserError(
                f"--predict: the {request.data.name} images on this machine are not those of "
                f"{folder}; give data.root=FOLDER"
            )
        self.target = build_target(request, self.data)
        activation = config["features"].get("activation", "identity")
        self.exact = FIRST_ACTIVATIONS[activation].exact
        self.labels = torch.cat([y for _, y in self.data.test_batches(250, torch.device("cpu"))])

    def predict(self, seed: int) -> torch.Tensor:
        """The class of each test image."""
        source = load_source(_require_source(self.folder, seed), self.target)
        network = (collapse(source) if self.exact else source).to(self.device).eval()
        with torch.inference_mode(), hardware.exact_float32():
            batches = self.data.test_batches(64, self.device)
            logits = (finite_logits(network(x), "the source network") for x, _ in batches)
            return torch.cat([batch.argmax(1).cpu() for batch in logits])
