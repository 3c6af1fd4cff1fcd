"""What a library user gives, images too: checked by the name of the argument, made specs."""

from __future__ import annotations

import dataclasses
import itertools
import numbers
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from bnrecon.data.spec import IMAGE_KEYS
from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.kernels import changes_to_torch
from bnrecon.reconstruction.refusal import dtype_name
from bnrecon.reconstruction.substitution import share_parameters
from bnrecon.runtime.errors import Interrupted, RunError, UserError, first_line, nearest, shorten
from bnrecon.runtime.torch_modes import callers_default_device
from bnrecon.runtime.user_code import unregistered
from bnrecon.solvers.register import SOLVERS
from bnrecon.solvers.spec import SolverSpec

END = object()  # behind a user's last batch
OUR_OWN = (UserError, RunError, Interrupted, torch.OutOfMemoryError, MemoryError)  # clear already


def check_module(model: object) -> None:
    """Raise ``UserError`` unless this is a module."""
    if not isinstance(model, nn.Module):
        raise UserError(f"model is {type(model).__name__}; it must be a torch.nn.Module")


def check_model(model: nn.Module) -> None:
    """Raise ``UserError`` unless this is a module in eval mode that can be read and rebuilt."""
    check_module(model)
    if isinstance(model, torch.jit.ScriptModule):
        state = "compiled by torch.jit, its layers cannot be replaced"
        raise UserError(f"the model is {state}; give the module it was made of")
    if "eval" in vars(model):  # torch.export replaces it by one that raises
        raise UserError("the model is an exported program; give the module it was made of")
    if training := [name for name, module in model.named_modules() if module.training]:
        whole = "" in training  # else parts came after its eval()
        which = "the model is" if whole else f"{shorten(training)}: parts of the model are"
        state = "in training mode, its normalization not yet fixed"
        when = "before reconstruct" if whole else "after what adds them (weight_norm, quantization)"
        raise UserError(f"{which} {state}; call model.eval() {when}")
    if changes := changes_to_torch():
        raise UserError(
            f"{shorten(changes)}, so that layers do not compute what PyTorch's do; undo that while "
            "the model is rebuilt"
        )
    lazy = [name for name, part in model.named_modules() if isinstance(part, LazyModuleMixin)]
    if lazy:  # before images are run, which would give them weights
        names = shorten([name or "the model" for name in lazy])
        raise UserError(f"{names}: a lazy module has no weights yet; run the network once before")
    check_parameters(model)


def check_parameters(model: nn.Module) -> None:
    """Raise ``UserError`` unless parameters are of a dtype and on a device that can be computed on.

    >>> check_parameters(nn.Linear(2, 2).half())
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: the model holds float16 parameters; ... call model.float()
    """
    devices = {value.device.type for value in model.parameters()}
    if others := devices - {"cpu", "cuda", "meta"}:
        raise UserError(
            f"the model is on {', '.join(sorted(others))}; "
            "reconstruct works on cpu and cuda: call model.cpu()"
        )
    if any(value.is_meta for value in [*model.parameters(), *model.buffers()]):
        why = "some of its tensors are on the meta device and hold no numbers"
        raise UserError(f"model: {why}; load its weights first")
    if any(value.layout != torch.strided for value in model.parameters()):
        raise UserError("the model holds sparse tensors: give it with their to_dense()")
    types = {dtype_name(value.dtype) for value in model.parameters()}
    others = {name for name in types if name.startswith("complex")}
    works = "on real numbers"
    if not others:
        others = types - {"float32", "float64"}
        works = "in float32 or float64: call model.float()"
    if others:
        held = ", ".join(sorted(others))
        raise UserError(f"the model holds {held} parameters; reconstruct works {works}")


def check_seed(seed: object) -> None:
    """Raise ``UserError`` unless features can be drawn from this seed.

    >>> check_seed(-1)
    Traceback (most recent call last):
    ...
    bnrecon.runtime.errors.UserError: seed=-1: must be a whole number from 0 to 2^63 - 1
    """
    whole = isinstance(seed, numbers.Integral) and not isinstance(seed, bool)
    if not whole or not 0 <= seed < 2**63:  # type: ignore[operator]  # an integer by now
        raise UserError(f"seed={seed!r}: must be a whole number from 0 to 2^63 - 1")


def feature_spec(features: object, oversampling: float | None = None) -> FeatureSpec:
    """The spec of ``features``, a name or a spec, with ``oversampling`` where that is given.

    >>> feature_spec("id_cond").name, feature_spec(FeatureSpec(strict=True), 2.0).oversampling
    ('id_cond', 2.0)
    """
    name = features.name if isinstance(features, FeatureSpec) else features
    if not isinstance(name, str) or name not in DISTRIBUTIONS:
        raise unregistered("features", name, DISTRIBUTIONS)
    spec = features if isinstance(features, FeatureSpec) else FeatureSpec(name)
    return spec if oversampling is None else dataclasses.replace(spec, oversampling=oversampling)


def solver_spec(solver: object) -> SolverSpec:
    """The spec of ``solver``, a name or a spec.

    >>> solver_spec("lu").tolerance
    1e-10
    """
    name = solver.name if isinstance(solver, SolverSpec) else solver
    allowed = ("auto", *SOLVERS)
    if not isinstance(name, str) or name not in allowed:
        raise UserError(f"solver={name}: {nearest(name, allowed)}")
    return solver if isinstance(solver, SolverSpec) else SolverSpec(name)


def checked_images(images: Any, model: nn.Module) -> tuple[torch.Tensor, Iterator[torch.Tensor]]:
    """The first batch of ``images``, and all batches, the first included, on the model's device.

    Batches without an image are left out.

    Args:
        images: a tensor (N, C, H, W), or whatever the model takes, or an iterable of such; of
            batches that are pairs (images, labels), as a DataLoader gives them, the first part is
            taken, of mappings ``pixel_values``, ``image``, ``images`` or ``img``.
        model: what will be given them; its parameters' dtype must be the images'.

    Raises:
        UserError: there is no image, or a batch is no tensor of the model's dtype, or the model
            does not take it.

    >>> first, batches = checked_images([(torch.zeros(2, 3), torch.zeros(2))], nn.Linear(3, 1))
    >>> first.shape, len(list(batches))
    (torch.Size([2, 3]), 1)
    """
    if isinstance(images, Mapping):
        images = [images]
    tensors = itertools.chain(model.parameters(), model.buffers())
    parameter = next((t for t in tensors if t.is_floating_point()), torch.empty(()))
    array = hasattr(images, "__array__")  # of another library, no iterable of batches
    iterable = isinstance(images, Iterable) and not isinstance(images, str | bytes)
    if not isinstance(images, torch.Tensor) and (array or not iterable):
        raise UserError(
            f"images={_described(images)}: give a tensor, or an iterable of tensors such as a "
            "DataLoader"
        )
    batches = (_check_batch(batch, parameter) for batch in _each_batch(images))
    checked = (batch for batch in batches if len(batch))
    first = next(checked, None)
    if first is None:
        raise UserError("images: there is no image in it; at least one is needed")
    with torch.no_grad():
        run_model(share_parameters(model), first[:1].clone())
    return first, itertools.chain([first], checked)


def run_model(model: nn.Module, images: torch.Tensor) -> Any:
    """The model's output; ``UserError`` where its own code does not take these images.

    >>> run_model(nn.Linear(3, 1), torch.zeros(2, 3)).shape
    torch.Size([2, 1])
    """
    try:
        with callers_default_device():
            return model(images)
    except OUR_OWN:
        raise
    except Exception as error:  # the user's own forward: anything can come out of it
        raise UserError(
            f"images of shape {tuple(images.shape[1:])}: the model does not take them "
            f"({first_line(error)}); the first dimension of a batch counts its images"
        ) from error


def _each_batch(images: Any) -> Iterator[Any]:
    try:
        with callers_default_device():
            batches = iter([images] if isinstance(images, torch.Tensor) else images)
        while True:
            with callers_default_device():  # a loader's, which may draw from a generator there
                batch = next(batches, END)
            if batch is END:
                return
            yield batch
    except OUR_OWN:
        raise
    except Exception as error:  # the user's own loader
        what = f"{type(error).__name__}: {first_line(error)}"
        raise UserError(f"images: going through them ended in an error ({what})") from error


def _check_batch(batch: Any, like: torch.Tensor) -> torch.Tensor:
    """One batch on the model's device, the images alone of a pair with labels."""
    if isinstance(batch, Mapping):
        key = next((name for name in IMAGE_KEYS if name in batch), None)
        if key is None:
            keys, wanted = shorten([*map(str, batch)]), " or ".join(IMAGE_KEYS)
            raise UserError(f"images: a batch is a mapping of {keys}; it must have {wanted}")
        batch = batch[key]
    elif isinstance(batch, list | tuple) and batch:
        batch = batch[0]
    if not isinstance(batch, torch.Tensor) or batch.ndim == 0:
        raise UserError(
            f"images: a batch is {_described(batch)}; it must be a tensor of images, "
            "(N, C, H, W) for a convolution"
        )
    if batch.dtype != like.dtype:
        wanted = dtype_name(like.dtype)
        raise UserError(
            f"images are {dtype_name(batch.dtype)}, the model is {wanted}: give them as it takes "
            f"them, as {wanted} and normalized"
        )
    if batch.is_nested or batch.layout != torch.strided:
        raise UserError("images: they are sparse or nested; give them as a tensor of one shape")
    if batch.is_meta:
        raise UserError("images: they are on the meta device and hold no numbers")
    if not bool(batch.isfinite().all()):
        raise UserError("images: some of their numbers are not finite")
    return batch.to(like.device)


def _described(value: Any) -> str:
    return f"{type(value).__module__}.{type(value).__name__}".removeprefix("builtins.")
