"""Train a target: SGD with warm-up and cosine, resumable at any step with the same numbers."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn
from tqdm import tqdm

from bnrecon.data import Images
from bnrecon.data.batches import EpochPosition
from bnrecon.runtime import distributed, files
from bnrecon.runtime.errors import Diverged, Interrupted, RunError, UserError
from bnrecon.runtime.interruption import StopRequest
from bnrecon.runtime.malloc import keep_freed_memory
from bnrecon.targets.accuracy import measure_accuracy
from bnrecon.targets.spec import TrainSpec
from bnrecon.targets.step import Step, TrainingPlan

logger = logging.getLogger(__name__)

OnEpoch = Callable[[Mapping[str, float]], None]  # takes a row of the log
SYNC_EVERY = 16  # steps between reads of the loss: only these wait for the GPU


def warmup_cosine(step: int, peak: float, warmup: int, total: int) -> float:
    """The learning rate of a step, counted from 0 (Burkholz 2024, Sect. 3.2).

    It is peak · (step + 1) / warmup in the first ``warmup`` of ``total`` steps, then
    peak · (1 + cos(π t)) / 2, with t from 0 to 1.

    >>> [round(warmup_cosine(step, 0.1, warmup=2, total=10), 3) for step in (0, 1, 2, 6, 9)]
    [0.05, 0.1, 0.1, 0.05, 0.004]
    """
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = (step - warmup) / max(1, total - warmup)
    return peak * (1 + math.cos(math.pi * progress)) / 2


def parameter_groups(network: nn.Module, spec: TrainSpec) -> list[dict[str, Any]]:
    """The optimizer's groups: one, or two if normalizations have another weight decay.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4))
    >>> [group["weight_decay"] for group in parameter_groups(net, TrainSpec(norm_decay=0.0))]
    [0.0005, 0.0]
    """
    if spec.norm_decay is None:
        return [{"params": list(network.parameters()), "weight_decay": spec.weight_decay}]
    norms = {
        parameter
        for module in network.modules()
        if isinstance(module, nn.modules.batchnorm._NormBase)
        for parameter in module.parameters(recurse=False)
    }
    others = [parameter for parameter in network.parameters() if parameter not in norms]
    ordered = [parameter for parameter in network.parameters() if parameter in norms]
    return [
        {"params": others, "weight_decay": spec.weight_decay},
        {"params": ordered, "weight_decay": spec.norm_decay},
    ]


class Trainer:
    """One training run: network, optimizer and current step.

    Raises:
        UserError: a batch cannot be shared evenly by the processes.
    """

    def __init__(self, network: nn.Module, data: Images, plan: TrainingPlan, device: torch.device):
        spec = plan.spec
        self.network = network.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's stub lacks it
        self.data, self.plan, self.spec, self.device = data, plan, spec, device
        groups, rates = parameter_groups(network, spec), (spec.lr, spec.momentum)
        self.optimizer = torch.optim.SGD(groups, *rates, nesterov=spec.nesterov, fused=True)
        self.rank, self.processes = distributed.rank_and_world_size()
        self.most_processes = self.processes  # that trained together, also before an interruption
        self.images = min(spec.batch_size, data.sizes[0])  # per batch
        if self.images % self.processes:  # the mean over processes would not be that over images
            raise UserError(
                f"a batch of {self.images} images cannot be shared evenly by {self.processes} "
                "processes; change train.batch_size or data.train_limit"
            )
        self.batches = data.batches(spec.batch_size)
        self.total = spec.epochs * self.batches
        self.warmup = round(min(spec.warmup_epochs, spec.epochs / 2) * self.batches)
        self.step = 0
        self.seconds = 0.0
        self.log: list[dict[str, float]] = []
        # This process's sums over the epoch so far: loss, correct answers, images.
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)
        self.on_epoch: OnEpoch = lambda _row: None

    def state(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        """Everything that the next step depends on; the step number determines the data's order."""
        tensors = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            buffer = self.optimizer.state[parameter].get("momentum_buffer")
            if buffer is not None:
                tensors[f"momentum.{name}"] = buffer
        tensors["sums"] = distributed.sum_over_ranks(self.sums)
        about = {"step": self.step, "epochs": self.spec.epochs, "seconds": self.seconds}
        return tensors, about | {"log": self.log, "processes": self.most_processes}

    def restore(self, tensors: dict[str, torch.Tensor], about: dict[str, Any]) -> None:
        """Restore what ``state`` returned.

        Raises:
            ValueError: it belongs to another training; nothing is changed.
        """
        if not self._fits(tensors, about):
            raise ValueError("is of another network or training")
        prefix = "network."
        self.network.load_state_dict(
            {k.removeprefix(prefix): v for k, v in tensors.items() if k.startswith(prefix)}
        )
        for name, parameter in self.network.named_parameters():
            if f"momentum.{name}" in tensors:
                buffer = torch.empty_like(parameter).copy_(tensors[f"momentum.{name}"])
                self.optimizer.state[parameter]["momentum_buffer"] = buffer
        if self.rank == 0:
            self.sums.copy_(tensors["sums"])
        self.step, self.seconds, self.log = about["step"], about["seconds"], about["log"]
        self.most_processes = max(self.processes, about.get("processes", 1))

    def _fits(self, tensors: dict[str, torch.Tensor], about: dict[str, Any]) -> bool:
        required = {f"network.{k}": v.shape for k, v in self.network.state_dict().items()}
        required["sums"] = self.sums.shape
        momenta = {f"momentum.{k}": v.shape for k, v in self.network.named_parameters()}
        shapes = {name: value.shape for name, value in tensors.items()}
        return (
            required.items() <= shapes.items() <= (required | momenta).items()
            and {"step", "seconds", "log"} <= set(about)
            and 0 <= about["step"] <= self.total
        )

    def run(self, checkpoint: Path, stop: StopRequest) -> None:
        """Train from the current step to the last, saving to ``checkpoint`` in between."""
        self.network.train()
        take_step = Step(self.network, self.optimizer, self.plan, self.device)
        saved = started = time.monotonic()
        already, share = self.seconds, (self.rank, self.processes)
        with self._bar() as bar:
            while self.step < self.total:
                epoch, first = divmod(self.step, self.batches)
                bar.set_description(f"epoch {epoch + 1}/{self.spec.epochs}")
                at = EpochPosition(self.spec.batch_size, self.spec.seed, epoch, first, share)
                for x, y in self.data.train_batches(at, self.device, self.plan.dtype):
                    torch.manual_seed(self._noise_seed())
                    rate = warmup_cosine(self.step, self.spec.lr, self.warmup, self.total)
                    self.sums += take_step(x, y, rate)
                    self.step += 1
                    bar.update(self.images)
                    ended = self.step % self.batches == 0
                    look = ended or self.step % SYNC_EVERY == 0
                    waited = time.monotonic() - saved >= self.spec.checkpoint_seconds
                    due, stopping = self._agree(look, waited or self.step == self.total, stop)
                    if due or stopping or look:
                        self._show(bar)  # first: it raises Diverged, before saving
                    self.seconds = already + time.monotonic() - started
                    if ended:
                        self._end_epoch(bar)
                    if due or stopping:
                        self._save(checkpoint)
                        saved = time.monotonic()
                    if stopping:
                        raise distributed.report_once(self._interrupted(stop))

    def _bar(self) -> tqdm:
        return tqdm(
            total=self.total * self.images,
            initial=self.step * self.images,
            unit="img",
            unit_scale=True,
            disable=None if self.rank == 0 else True,  # None: disabled without a terminal
        )

    def _agree(self, look: bool, due: bool, stop: StopRequest) -> tuple[bool, bool]:
        """Whether to save and to stop, agreed by all processes: clocks and signals differ."""
        stopping = stop.reason is not None
        if self.processes == 1:
            return due, stopping
        due = look and distributed.any_rank(due, self.device)
        return due, look and distributed.any_rank(stopping, self.device)

    def _test(self) -> float:
        """Test accuracy in percent; raise ``Diverged`` if outputs are not finite."""
        try:
            return measure_accuracy(self.network, self.data, self.device)
        except RunError as error:
            advice = f"lower train.lr (now {self.spec.lr:g})"
            raise Diverged(f"training diverged: {error}; {advice}") from None

    def _noise_seed(self) -> int:
        """Seed of a step's random numbers (dropout, noise), the same after an interruption."""
        number = self.spec.seed * 1_000_003 + self.step
        return (number * self.processes + self.rank) % 2**63

    def _save(self, checkpoint: Path) -> None:
        tensors, about = self.state()
        if self.rank == 0:
            files.write_tensors(checkpoint, tensors, about | {"folder": checkpoint.parent.name})

    def _interrupted(self, stop: StopRequest) -> Interrupted:
        why = f"stopped because {stop.reason or 'another process was'}"
        saved = f"training is saved at step {self.step} of {self.total}"
        return Interrupted(f"{why}; {saved}; rerun the command to resume")

    def _show(self, bar: tqdm) -> None:
        loss, correct, count = distributed.sum_over_ranks(self.sums).tolist()
        if not loss < float("inf"):
            where = f"the loss is {loss} at step {self.step} of {self.total}"
            advice = f"lower train.lr (now {self.spec.lr:g}) or lengthen train.warmup_epochs"
            raise distributed.report_once(Diverged(f"training diverged: {where}; {advice}"))
        accuracy = f"{100 * correct / count:.1f}%"
        bar.set_postfix(loss=f"{loss / count:.3f}", accuracy=accuracy, refresh=False)

    def _end_epoch(self, bar: tqdm) -> None:
        loss, correct, count = distributed.sum_over_ranks(self.sums).tolist()
        row = {"epoch": len(self.log) + 1, "loss": loss / count, "accuracy": 100 * correct / count}
        every = self.spec.test_every
        if every is not None and row["epoch"] % every == 0:
            row["test_accuracy"] = distributed.run_on_first_rank(self._test)
            self.network.train()
        self.log.append(row)
        self.sums.zero_()
        self.on_epoch(row)
        if bar.disable and self.rank == 0:  # no terminal: log one line per epoch
            logger.info(
                "epoch %d/%d  loss %.3f  accuracy %.1f%%  %.0f images/s  %.0f min left",
                row["epoch"],
                self.spec.epochs,
                row["loss"],
                row["accuracy"],
                self.step * self.images / self.seconds,
                self.seconds * (self.total - self.step) / self.step / 60,
            )


def train(
    network: nn.Module,
    data: Images,
    plan: TrainingPlan,
    device: torch.device,
    checkpoint: Path,
    stop: StopRequest,
    initialize: Callable[[nn.Module], None] | None = None,
    on_epoch: OnEpoch = lambda _row: None,
) -> tuple[list[dict[str, float]], dict[str, float]]:
    """Train a network in place, and leave it in eval mode.

    Training resumes from the checkpoint if there is one; a damaged one is reported, set aside, and
    training starts again. It ends at the same numbers whether or not it was interrupted, on the
    same processor and number of threads; on a GPU up to the order of summation in its library.

    In one process of several (torchrun), trains on this process's share of each batch, with
    gradients averaged over all; batch normalizations see only that share. The first process saves.

    The network maps (N, C, H, W) to logits (N, classes). ``stop`` is checked after each step;
    ``initialize`` is called with the network, on its device, unless a checkpoint is resumed;
    ``on_epoch`` with each epoch's row of the log, after an interruption also with earlier rows.

    Returns:
        The log (for each epoch loss and training accuracy in percent, and the test accuracy where
        ``test_every`` has it), and the ``seconds`` and the largest number of ``processes`` it took.

    Raises:
        Diverged: the loss is not finite.
        Interrupted: ``stop`` requested it, after saving.
        UserError: torch.compile fails and ``train.compile`` is ``on``.
    """
    trainer = Trainer(network, data, plan, device)
    resumed = distributed.run_on_first_rank_before_others(lambda: _resume(trainer, checkpoint))
    step = torch.tensor(trainer.step, device=device)
    if distributed.sum_over_ranks(step) != trainer.step * trainer.processes:
        raise distributed.report_once(
            RunError(
                "processes found different checkpoints; "
                f"{checkpoint.parent} must be a folder that all share"
            )
        )
    if not resumed and initialize is not None:
        initialize(network)
        trainer._save(checkpoint)  # a resumed training does not repeat it
    trainer.on_epoch = on_epoch
    for row in trainer.log:
        on_epoch(row)
    try:
        # Each step seeds PyTorch's generators; the caller's state is restored.
        on_gpu = device.type == "cuda" and torch.cuda.is_available()
        with torch.random.fork_rng([device] if on_gpu else []), keep_freed_memory():
            trainer.run(checkpoint, stop)
    finally:
        trainer.optimizer.zero_grad(set_to_none=True)
        if plan.compiled:
            torch.compiler.reset()  # frees the graphs' memory, and resets the recompile limit
    network.eval()
    return trainer.log, {"seconds": trainer.seconds, "processes": trainer.most_processes}


def _resume(trainer: Trainer, checkpoint: Path) -> bool:
    """Resume from a checkpoint if there is an intact one; the first process logs it."""
    if not checkpoint.exists():
        return False
    try:
        tensors, about = files.read_tensors(checkpoint)
        folder = checkpoint.parent.name  # identifies the target; earlier versions did not store it
        if about.get("folder", folder) != folder:
            raise ValueError(f"is of {about['folder']}")
        trainer.restore(tensors, about)
    except ValueError as error:
        damaged = isinstance(error, files.Damaged)
        files.quarantine(checkpoint, error if damaged else f"{checkpoint} {error}")
        return False
    if trainer.rank == 0:
        logger.info("resuming at step %d of %d", trainer.step, trainer.total)
        if (before := about.get("processes", 1)) != trainer.processes:
            logger.warning(
                "up to %d processes trained it so far, now %d: "
                "batch normalizations see other shares of a batch",
                before,
                trainer.processes,
            )
    return True
