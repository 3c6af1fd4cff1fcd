"""Check a library user's arguments, naming them in errors, and turn them into specs."""

from __future__ import annotations

import dataclasses

import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

from bnrecon.features.register import DISTRIBUTIONS
from bnrecon.features.spec import FeatureSpec
from bnrecon.reconstruction.kernels import changes_to_torch
from bnrecon.reconstruction.refusal import dtype_name
from bnrecon.runtime.errors import UserError, nearest, shorten
from bnrecon.runtime.user_code import unregistered
from bnrecon.solvers.register import SOLVERS
from bnrecon.solvers.spec import SolverSpec


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
        whole = "" in training  # else parts were added after eval()
        which = "the model is" if whole else f"{shorten(training)}: parts of the model are"
        state = "in training mode, its normalization not yet fixed"
        when = "before reconstruct" if whole else "after adding them (weight_norm, quantization)"
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
    """Raise ``UserError`` unless the dtype and device of all parameters are supported.

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


def feature_spec(features: object, oversampling: float | None = None) -> FeatureSpec:
    """Return the spec for ``features``, a name or a spec, with ``oversampling`` if given.

    >>> feature_spec("id_cond").name, feature_spec(FeatureSpec(strict=True), 2.0).oversampling
    ('id_cond', 2.0)
    """
    name = features.name if isinstance(features, FeatureSpec) else features
    if not isinstance(name, str):
        raise UserError(
            f"features is {type(name).__name__}; give a name or a FeatureSpec (a function of yours "
            'gets a name by @bnrecon.register_features("mine"); images go into images=)'
        )
    if name not in DISTRIBUTIONS:
        raise unregistered("features", name, DISTRIBUTIONS)
    spec = features if isinstance(features, FeatureSpec) else FeatureSpec(name)
    return spec if oversampling is None else dataclasses.replace(spec, oversampling=oversampling)


def solver_spec(solver: object) -> SolverSpec:
    """Return the spec for ``solver``, a name or a spec.

    >>> solver_spec("lu").tolerance
    1e-10
    """
    name = solver.name if isinstance(solver, SolverSpec) else solver
    allowed = ("auto", *SOLVERS)
    if not isinstance(name, str) or name not in allowed:
        raise UserError(f"solver={name}: {nearest(name, allowed)}")
    return solver if isinstance(solver, SolverSpec) else SolverSpec(name)
