"""Training a target: SGD with warm-up and cosine, resumable at any step to the same numbers."""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn
from tqdm import tqdm

from bnrecon.data import Images
from bnrecon.runtime import distributed, files
from bnrecon.runtime.errors import Interrupted, RunError, UserError
from bnrecon.runtime.hardware import has_fast_bfloat16
from bnrecon.runtime.interruption import StopRequest
from bnrecon.targets.schedule import WarmupCosine

__all__ = ["TrainingPlan", "autocast_dtype", "train"]


SYNC_EVERY = 16  # steps between looks at the loss: each waits for the GPU, which no other step does


TRIALS = 3  # steps in which a compiled network may fail: they compile, capture and replay


@dataclass(frozen=True)
class TrainingPlan:
    """How a target is trained: everything its final weights depend on beside the data and the network.

    ``compile``: by torch.compile, or as it stands where that fails; with ``compile_required`` a
    failure is a ``UserError``.
    """

    epochs: int
    lr: float
    momentum: float
    weight_decay: float
    nesterov: bool
    batch_size: int
    warmup_epochs: float
    seed: int
    dtype: torch.dtype
    compile: bool = False
    compile_required: bool = False


def autocast_dtype(precision: str, device: torch.device) -> torch.dtype:
    """Resolve ``auto``, ``float32`` or ``bfloat16``; ``auto`` takes bf16 only where the device has units for it."""
    fast = precision == "bfloat16" or (precision == "auto" and has_fast_bfloat16(device))
    return torch.bfloat16 if fast else torch.float32


class Trainer:
    """One training run: network, optimizer and the place it has come to."""

    def __init__(self, network: nn.Module, data: Images, plan: TrainingPlan, device: torch.device):
        self.network = network.to(device, memory_format=torch.channels_last)
        self.data, self.plan, self.device = data, plan, device
        self.optimizer = torch.optim.SGD(
            network.parameters(),
            plan.lr,
            plan.momentum,
            weight_decay=plan.weight_decay,
            nesterov=plan.nesterov,
            fused=True,
        )
        self.place = distributed.place()
        if plan.batch_size % self.place[1]:
            raise UserError(
                f"train.batch_size={plan.batch_size} cannot be shared evenly by {self.place[1]} processes"
            )
        if data.sizes[0] < self.place[1]:
            raise UserError(
                f"{data.sizes[0]} training images are too few for {self.place[1]} processes"
            )
        self.batches = data.batches(plan.batch_size)
        self.total = plan.epochs * self.batches
        self.schedule = WarmupCosine(
            plan.lr, round(min(plan.warmup_epochs, plan.epochs / 2) * self.batches), self.total
        )
        self.step = 0
        self.seconds = 0.0
        self.log: list[dict[str, float]] = []
        # Sums over the epoch so far, of this process: loss, correct answers, images.
        self.sums = torch.zeros(3, dtype=torch.float64, device=device)

    def state(self) -> tuple[dict[str, torch.Tensor], dict]:
        """Everything that the next step depends on; the data's order needs nothing but the step number."""
        tensors = {f"network.{k}": v for k, v in self.network.state_dict().items()}
        for name, parameter in self.network.named_parameters():
            buffer = self.optimizer.state[parameter].get("momentum_buffer")
            if buffer is not None:
                tensors[f"momentum.{name}"] = buffer
        tensors["sums"] = distributed.total(self.sums)
        return tensors, {
            "step": self.step,
            "seconds": self.seconds,
            "log": self.log,
            "processes": self.place[1],
        }

    def restore(self, tensors: dict[str, torch.Tensor], about: dict) -> None:
        """Take up the state that ``state`` gave; raise ``ValueError``, and change nothing, where it is of another training."""
        held = {f"network.{name}": value.shape for name, value in self.network.state_dict().items()}
        found = {
            name: value.shape for name, value in tensors.items() if name.startswith("network.")
        }
        momenta = {
            f"momentum.{name}": value.shape for name, value in self.network.named_parameters()
        }
        fits = all(
            value.shape == momenta.get(name)
            for name, value in tensors.items()
            if name.startswith("momentum.")
        )
        whole = (
            {"step", "seconds", "log"} <= set(about)
            and "sums" in tensors
            and tensors["sums"].shape == self.sums.shape
        )
        if held != found or not fits or not whole or not 0 <= about["step"] <= self.total:
            raise ValueError("is of another network or training")
        self.network.load_state_dict(
            {k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.")}
        )
        for name, parameter in self.network.named_parameters():
            if f"momentum.{name}" in tensors:
                buffer = torch.empty_like(parameter).copy_(tensors[f"momentum.{name}"])
                self.optimizer.state[parameter]["momentum_buffer"] = buffer
        if self.place[0] == 0:
            self.sums.copy_(tensors["sums"])
        self.step, self.seconds, self.log = about["step"], about["seconds"], about["log"]

    def run(self, checkpoint: Path, checkpoint_seconds: float, stop: StopRequest) -> None:
        """Train from the present step to the last, saving to ``checkpoint`` in between."""
        self.network.train()
        forward = self._forward()
        trials = TRIALS if self.plan.compile and self.place[1] == 1 else 0
        saved = started = time.monotonic()
        already = self.seconds
        images = self.plan.batch_size
        quiet = None if self.place[0] == 0 else True  # None: where there is no terminal
        with tqdm(
            total=self.total * images,
            initial=self.step * images,
            unit="img",
            unit_scale=True,
            disable=quiet,
        ) as bar:
            while self.step < self.total:
                epoch, first = divmod(self.step, self.batches)
                bar.set_description(f"epoch {epoch + 1}/{self.plan.epochs}")
                plan = self.plan
                for x, y in self.data.train_batches(
                    plan.batch_size, plan.seed, epoch, self.device, first, plan.dtype, self.place
                ):
                    if trials:
                        works = self._works_compiled(forward, x, y)
                        forward, trials = (forward, trials - 1) if works else (self.network, 0)
                    else:
                        self._one_step(forward, x, y)
                    bar.update(images)
                    ended, last = self.step % self.batches == 0, self.step == self.total
                    look = ended or self.step % SYNC_EVERY == 0
                    due, stopping = (
                        time.monotonic() - saved >= checkpoint_seconds or last,
                        stop.reason is not None,
                    )
                    if (
                        self.place[1] > 1
                    ):  # no clock and no signal is the same in all processes: they agree, now and then
                        due, stopping = (
                            look and distributed.any_of(due, self.device),
                            look and distributed.any_of(stopping, self.device),
                        )
                    if due or stopping or look:
                        self._look(bar)  # first: what has diverged is not saved
                    self.seconds = already + time.monotonic() - started
                    if ended:
                        self._end_epoch(bar)
                    if due or stopping:
                        state = self.state()
                        if self.place[0] == 0:
                            files.write_tensors(checkpoint, *state)
                        saved = time.monotonic()
                    if stopping:
                        why = f"stopped because {stop.reason or 'another process was'}; training is saved at step {self.step} of {self.total}"
                        raise distributed.common(
                            Interrupted(f"{why}; the same command goes on from there")
                        )

    def _forward(self) -> nn.Module:
        """The network as it is run in training: compiled, or with gradients averaged over all processes.

        Compiled for a GPU, forward and backward pass are two captured CUDA graphs that are replayed
        in each step. What they hold:

        - Parameters, and the running statistics and counts of batch normalizations, at fixed
          addresses: all that changes them outside (the optimizer, a checkpoint taken up) does so in
          place. Capturing runs nothing, so that statistics move once a step.
        - Not the learning rate: the optimizer runs outside and is given it as a number in each step.
        - One shape of batch: an incomplete last batch is left out, or is the only one.
        - Logits and gradients, in memory that the next replay overwrites. Loss and correct answers
          are added up before it, in memory of their own; gradients are never added to, but dropped
          before the next forward pass and after the last step. A forward pass begins anew in that
          memory once the last one's backward pass has run, as here it always has: only loops that
          leave it out need ``torch.compiler.cudagraph_mark_step_begin``.
        """
        if self.place[1] > 1:
            # Channels-last kernels of 1x1 have strides that torch warns of for nothing; the option's new name is not in older versions.
            warnings.filterwarnings("ignore", "Grad strides do not match", UserWarning)
            warnings.filterwarnings("ignore", ".*broadcast_buffers", FutureWarning)
            # Each process keeps running statistics of its own images; those of the first are kept.
            return nn.parallel.DistributedDataParallel(self.network, broadcast_buffers=False)
        return (
            torch.compile(self.network, mode="reduce-overhead")
            if self.plan.compile
            else self.network
        )

    def _one_step(self, forward: nn.Module, x: torch.Tensor, y: torch.Tensor) -> None:
        """One step of SGD. Nothing in it waits for the GPU: the host may be many steps ahead."""
        self._update(y, *self._gradients(forward, x, y))

    def _gradients(
        self, forward: nn.Module, x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Forward and backward pass; return logits and loss."""
        self.optimizer.zero_grad(set_to_none=True)
        with torch.autocast(
            self.device.type, self.plan.dtype, enabled=self.plan.dtype != torch.float32
        ):
            logits = forward(x)
        loss = F.cross_entropy(logits.float(), y)
        loss.backward()
        return logits, loss

    def _update(self, y: torch.Tensor, logits: torch.Tensor, loss: torch.Tensor) -> None:
        """Take the step, and add up for the log."""
        for group in self.optimizer.param_groups:
            group["lr"] = self.schedule(self.step)
        self.optimizer.step()
        with torch.no_grad():
            correct = (logits.argmax(1) == y).sum()
            count = torch.full_like(loss, len(y), dtype=torch.float64)
            self.sums += torch.stack([loss.double() * len(y), correct.double(), count])
        self.step += 1

    def _works_compiled(self, forward: nn.Module, x: torch.Tensor, y: torch.Tensor) -> bool:
        """One step in which a compiled network may fail: the network itself then does it, and it is said why.

        Where a backward pass fails, the forward pass has moved the batch normalizations' statistics:
        they are put back. What is wrong with the network or the batch fails once more, and is raised
        as it is without torch.compile.
        """
        buffers, why = [buffer.clone() for buffer in self.network.buffers()], ""
        try:
            found = self._gradients(forward, x, y)
        except (
            Exception
        ) as error:  # of Dynamo, Inductor, Triton, a C compiler or CUDA: no common class
            cause = getattr(error, "inner_exception", error)
            said = (str(cause).strip() or "nothing more is said").splitlines()[0][:200]
            why = f"torch.compile fails here ({type(cause).__name__}: {said})"
        if why:
            for buffer, kept in zip(self.network.buffers(), buffers, strict=True):
                buffer.copy_(kept)
            found = self._gradients(self.network, x, y)
            if self.plan.compile_required:
                raise UserError(f"train.compile=on: {why}; give train.compile=auto or =off")
            tqdm.write(f"{why}; training goes on uncompiled", file=sys.stderr)
        self._update(y, *found)
        return not why

    def _look(self, bar: tqdm) -> None:
        loss, correct, count = distributed.total(self.sums).tolist()
        if not loss < float("inf"):
            why = f"training diverged: the loss is {loss} at step {self.step} of {self.total}; lower train.lr (now {self.plan.lr:g}) "
            raise distributed.common(RunError(f"{why}or lengthen train.warmup_epochs"))
        bar.set_postfix(
            loss=f"{loss / count:.3f}", accuracy=f"{100 * correct / count:.1f}%", refresh=False
        )

    def _end_epoch(self, bar: tqdm) -> None:
        loss, correct, count = distributed.total(self.sums).tolist()
        row = {"epoch": len(self.log) + 1, "loss": loss / count, "accuracy": 100 * correct / count}
        self.log.append(row)
        self.sums.zero_()
        if bar.disable and self.place[0] == 0:  # no terminal: a line an epoch for the log
            left = self.seconds * (self.total - self.step) / self.step
            print(
                f"epoch {row['epoch']}/{self.plan.epochs}  loss {row['loss']:.3f}  accuracy {row['accuracy']:.1f}%  "
                f"{self.step * self.plan.batch_size / self.seconds:.0f} images/s  {left / 60:.0f} min left",
                file=sys.stderr,
                flush=True,
            )


def _resume(trainer: Trainer, checkpoint: Path) -> None:
    """Take a checkpoint up if it is there and sound; the first of several processes, which comes first, says what it found."""
    if not checkpoint.exists():
        return
    try:
        tensors, about = files.read_tensors(checkpoint)
        trainer.restore(tensors, about)
    except ValueError as error:
        files.set_aside(
            checkpoint, error if isinstance(error, files.Damaged) else f"{checkpoint} {error}"
        )
        return
    if trainer.place[0] == 0:
        print(f"resuming at step {trainer.step} of {trainer.total}", file=sys.stderr)
        if (before := about.get("processes", 1)) != trainer.place[1]:
            print(
                f"{before} processes trained it so far, {trainer.place[1]} do from here: batch normalizations see other shares of a batch",
                file=sys.stderr,
            )


def train(
    network: nn.Module,
    data: Images,
    plan: TrainingPlan,
    device: torch.device,
    checkpoint: Path,
    checkpoint_seconds: float,
    stop: StopRequest,
) -> tuple[list[dict[str, float]], float]:
    """Train ``network`` in place; return the log (loss and training accuracy in percent per epoch) and the seconds.

    Goes on from ``checkpoint`` if it is there; a damaged one is named, set aside and training starts anew. Ends at the same
    numbers whether or not it was interrupted, on the same processor and number of threads; on a GPU up to the order in which
    its library adds.

    In a process of several (torchrun), trains on this process's share of each batch, with gradients averaged over all; the
    batch normalizations see that share alone. The first process saves.

    Where torch.compile fails training goes on uncompiled, which is said on standard error.

    Raises ``RunError`` if the loss is not finite, ``Interrupted`` when ``stop`` asks for it, after
    saving, and ``UserError`` where torch.compile fails and is required.
    """
    trainer = Trainer(network, data, plan, device)
    distributed.after_first(lambda: _resume(trainer, checkpoint))
    if (
        distributed.total(torch.tensor(trainer.step, device=device))
        != trainer.step * trainer.place[1]
    ):
        raise distributed.common(
            RunError(
                f"processes found different checkpoints; {checkpoint.parent} must be a folder that all share"
            )
        )
    try:
        trainer.run(checkpoint, checkpoint_seconds, stop)
    finally:
        trainer.optimizer.zero_grad(set_to_none=True)
        if plan.compile:
            torch.compiler.reset()  # the graphs' memory, and what the next target may recompile
    network.eval()
    return trainer.log, trainer.seconds
