"""One step of SGD: forward and backward pass, compiled if possible, and the update."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from bnrecon.runtime import distributed
from bnrecon.runtime.errors import UserError, first_line
from bnrecon.targets.spec import TrainSpec

logger = logging.getLogger(__name__)

TRIALS = 3  # steps in which a compiled network may fail: they compile, capture and replay


@dataclass(frozen=True)
class TrainingPlan:
    """A ``TrainSpec`` with the options that depend on the machine resolved."""

    spec: TrainSpec  # how to train
    dtype: torch.dtype  # of forward and backward pass (autocast); weights are float32
    # Whether to try torch.compile; if it fails, the network runs as it is unless spec.compile=on
    compiled: bool = False


class Step:
    """Steps of SGD on a network in training mode, which never wait for the GPU."""

    def __init__(
        self,
        network: nn.Module,
        optimizer: torch.optim.Optimizer,
        plan: TrainingPlan,
        device: torch.device,
    ):
        self.network, self.optimizer, self.plan, self.device = network, optimizer, plan, device
        self.forward = self._forward()
        self.trials = TRIALS if plan.compiled else 0

    def __call__(self, x: torch.Tensor, y: torch.Tensor, rate: float) -> torch.Tensor:
        """Take one step at a learning rate on images x (N, C, H, W) of classes y (N,).

        Returns:
            Sums over the batch, float64: loss, correct answers, images.
        """
        if self.trials:
            logits, loss = self._try_compiled(x, y)
        else:
            logits, loss = self._gradients(self.forward, x, y)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        self.optimizer.step()
        with torch.no_grad():
            correct = (logits.argmax(1) == y).sum()
            count = torch.full_like(loss, len(y), dtype=torch.float64)
            return torch.stack([loss.double() * len(y), correct.double(), count])

    def _forward(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The network for training: compiled, or with gradients averaged over processes."""
        if distributed.rank_and_world_size()[1] > 1:
            # torch warns needlessly of the strides of channels-last 1x1 kernels, and of an option
            # whose new name older versions lack.
            warnings.filterwarnings("ignore", "Grad strides do not match", UserWarning)
            warnings.filterwarnings("ignore", ".*broadcast_buffers", FutureWarning)
            # Each process has running statistics of its images; the first process's are saved.
            return nn.parallel.DistributedDataParallel(self.network, broadcast_buffers=False)
        if self.plan.compiled:
            # Two CUDA graphs, replayed in each step, assume fixed addresses of parameters and
            # running statistics (which only change in place) and one batch shape; they contain no
            # learning rate. The next replay overwrites logits and gradients, which are therefore
            # dropped before it, not accumulated. Loops without a backward pass would need
            # ``torch.compiler.cudagraph_mark_step_begin``.
            return torch.compile(self.network, mode="reduce-overhead")
        return self.network

    def _gradients(
        self, forward: Callable[[torch.Tensor], torch.Tensor], x: torch.Tensor, y: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        self.optimizer.zero_grad(set_to_none=True)
        low = self.plan.dtype != torch.float32
        with torch.autocast(self.device.type, self.plan.dtype, enabled=low):
            logits = forward(x)
        loss = F.cross_entropy(logits.float(), y)
        loss.backward()
        return logits, loss

    def _try_compiled(self, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Logits and loss; if compiling fails, the uncompiled network does the step."""
        buffers, why = [buffer.clone() for buffer in self.network.buffers()], ""
        self.trials -= 1
        try:
            return self._gradients(self.forward, x, y)
        except Exception as error:  # Dynamo, Inductor, Triton, a C compiler, CUDA: no common class
            cause = getattr(error, "inner_exception", error)
            why = f"torch.compile fails here ({type(cause).__name__}: {first_line(cause)})"
        for buffer, kept in zip(self.network.buffers(), buffers, strict=True):
            buffer.copy_(kept)  # undo the forward pass's update of batch statistics
        # An error of the network or the batch occurs again, and is raised unchanged.
        logits_and_loss = self._gradients(self.network, x, y)
        if self.plan.spec.compile == "on":
            raise UserError(f"train.compile=on: {why}; give train.compile=auto or =off")
        logger.warning("%s; training goes on uncompiled", why)
        self.forward, self.trials = self.network, 0
        return logits_and_loss
