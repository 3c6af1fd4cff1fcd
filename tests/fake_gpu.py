"""A fake GPU: CPU tensors that report ``cuda:0``, refuse to be mixed, and count waits.

    with FakeGpu() as gpu:
        product = torch.randn(2, 3, device="cuda") @ torch.randn(3).to("cuda")
        float(product[0])
    gpu.waits  # Counter({'copy to the device at x.py:2': 1, 'number read at x.py:3': 1})

A tensor is on the device if its storage is marked; views share the storage and the mark. A *wait*
is a point where the host blocks until the device has finished its work: a number read, a copy that
is not from pinned memory, a size that depends on values.

Not covered: behaviour of a real device. No CUDA kernel runs; rounding, speed, memory, graphs and
autocast's lists are the CPU's. ``torch.cuda.is_available()`` stays false. Other threads do not use
the fake. In inference mode composite operations are seen as a whole, without the waits inside.
Gradients do not flow back through a copy between devices.
"""

from __future__ import annotations

import collections
import contextlib
import sys
from pathlib import Path
from unittest import mock

import torch
from repository import ROOT
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

DEVICE = torch.device("cuda", 0)
MEMORY = 2**33

READ = {
    **dict.fromkeys(("_local_scalar_dense", "item", "is_nonzero"), "number read"),
    **dict.fromkeys(("nonzero", "masked_select", "bincount"), "size read"),
    **dict.fromkeys(("_unique2", "unique_dim", "unique_consecutive"), "size read"),
    "equal": "comparison",
    "_linalg_check_errors": "check of errors",
}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_"}
IN_PLACE_OR_NOT = ("fill", "masked_fill", "index_fill")
TAKES_NUMBERS = {"where", *IN_PLACE_OR_NOT, *(f"{name}_" for name in IN_PLACE_OR_NOT)}
NO_INTEGERS = {"mm", "addmm", "addmm_", "bmm", "baddbmm", "mv", "addmv", "dot", "vdot"}


def on_device(tensor: torch.Tensor) -> bool:
    """Whether a tensor is on the fake device."""
    with torch._C.DisableTorchFunction():
        return getattr(tensor.untyped_storage(), "fake", False)


def _mark(tensor: torch.Tensor, there: bool) -> torch.Tensor:
    with torch._C.DisableTorchFunction():
        tensor.untyped_storage().fake = there
    return tensor


def _tensors(values: object) -> list[torch.Tensor]:
    return [value for value in tree_leaves(values) if isinstance(value, torch.Tensor)]


def _is_watched(file: str) -> bool:
    return ROOT in Path(file).parents and "site-packages" not in file and file != __file__


def _is_ours(device: object) -> bool:
    return torch.device(device).type == DEVICE.type


class FakeGpu(TorchFunctionMode):
    """The device, for a ``with`` block; ``waits`` counts the host's waits by type and line."""

    device = DEVICE

    def __init__(self):
        super().__init__()
        self.waits: collections.Counter[str] = collections.Counter()
        self.asked: bool | None = None  # the device named by the present call
        self.home = False  # the present call takes and makes device tensors
        self._inside = contextlib.ExitStack()

    def __enter__(self) -> FakeGpu:
        autocast = torch.autocast
        answers = {
            "get_device_capability": lambda *_: (9, 0),
            "get_device_name": lambda *_: "fake",
            "mem_get_info": lambda *_: (MEMORY, MEMORY),
            "memory_reserved": lambda *_: 0,
            "memory_allocated": lambda *_: 0,
            "synchronize": lambda *_: self.wait("synchronize"),
        }
        on_cpu = mock.patch.object(torch, "autocast", lambda _, *a, **k: autocast("cpu", *a, **k))
        self._inside.enter_context(mock.patch.multiple(torch.cuda, **answers))
        self._inside.enter_context(on_cpu)
        self._inside.enter_context(_Operations(self))
        return super().__enter__()

    def __exit__(self, *error: object) -> None:
        super().__exit__(*error)
        self._inside.__exit__(*error)

    def wait(self, kind: str) -> None:
        """Count a wait at the innermost line of the package, its tests or scripts."""
        frame = sys._getframe(1)
        while frame.f_back and not _is_watched(frame.f_code.co_filename):
            frame = frame.f_back
        self.waits[f"{kind} at {Path(frame.f_code.co_filename).name}:{frame.f_lineno}"] += 1

    def move(
        self,
        tensor: torch.Tensor,
        there: bool,
        dtype: torch.dtype | None = None,
        non_blocking: bool = False,
        memory_format: torch.memory_format | None = None,
    ) -> torch.Tensor:
        """A copy of a tensor on the other device; a wait unless it leaves pinned memory."""
        if not (there and non_blocking and getattr(tensor.untyped_storage(), "pinned", False)):
            self.wait("copy to the device" if there else "copy to the host")
        layout = memory_format or torch.preserve_format
        return _mark(tensor.to(dtype or tensor.dtype, copy=True, memory_format=layout), there)

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if func in FUNCTIONS:
            result = FUNCTIONS[func](self, func, *args, **kwargs)
            if result is not NotImplemented:
                return result
        before = self.asked, self.home
        self.asked, self.home = None, any(map(on_device, _tensors((args, kwargs))))
        if kwargs.get("device") is not None:
            self.asked, kwargs["device"] = _is_ours(kwargs["device"]), "cpu"
        try:
            return func(*args, **kwargs)
        finally:
            self.asked, self.home = before


class _Operations(TorchDispatchMode):
    """Every tensor operation, after autograd has decomposed it."""

    def __init__(self, gpu: FakeGpu):
        super().__init__()
        self.gpu = gpu

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs, name, gpu = kwargs or {}, func.overloadpacket.__name__, self.gpu
        tensors = _tensors((args, kwargs))
        ours = [tensor for tensor in tensors if on_device(tensor)]
        if ours:
            self._check(func, name, args, kwargs, tensors, len(ours) < len(tensors))
        there = gpu.asked if gpu.asked is not None else bool(ours) or (gpu.home and not tensors)
        generator = kwargs.get("generator")
        if there and generator is not None and generator.device.type == "cpu":
            raise RuntimeError("Expected a 'cuda' device for generator but found 'cpu' (fake)")
        out = func(*args, **kwargs)
        if there:
            old = {id(tensor.untyped_storage()) for tensor in tensors}
            for tensor in _tensors(out):
                if id(tensor.untyped_storage()) not in old:
                    _mark(tensor, True)
        return out

    def _check(
        self, func, name: str, args: tuple, kwargs: dict, tensors: list[torch.Tensor], mixed: bool
    ) -> None:
        """Refuse what CUDA refuses for the device's tensors, and count waits."""
        gpu = self.gpu
        if name in READ:
            gpu.wait(READ[name])
        if name in NO_INTEGERS and not any(tensor.is_floating_point() for tensor in tensors):
            raise RuntimeError(f'"{name}" not implemented for integers on CUDA (fake)')
        if name == "linalg_lstsq" and (driver := kwargs.get("driver")) not in (None, "gels"):
            raise RuntimeError(f"torch.linalg.lstsq: CUDA has gels alone, not {driver} (fake)")
        if name == "copy_":
            if mixed:
                gpu.wait("copy to the device" if on_device(args[0]) else "copy to the host")
        elif name in INDEXING:
            self._check_indices(func, args)
        elif mixed:
            self._check_devices(func, name, args, kwargs, tensors)

    def _check_indices(self, func, args: tuple) -> None:
        """Indices may be on the host and masks anywhere; both make the host wait."""
        values = [value for value in _tensors(args[2:]) if value.dim()]
        if not all(map(on_device, (args[0], *values))):
            raise _two_devices(func)
        for index in _tensors(args[1]):
            if index.dtype in (torch.bool, torch.uint8):
                self.gpu.wait("mask as index")
            elif not on_device(index):
                self.gpu.wait("index from the host")

    def _check_devices(
        self, func, name: str, args: tuple, kwargs: dict, tensors: list[torch.Tensor]
    ) -> None:
        """All tensors are on the device, except single numbers in elementwise operations."""
        takes_numbers = torch.Tag.pointwise in func.tags or name in TAKES_NUMBERS
        written = args[:1] if name.endswith("_") else _tensors(kwargs.get("out"))
        for tensor in tensors:
            is_number = tensor.dim() == 0 and all(tensor is not target for target in written)
            if not (on_device(tensor) or (takes_numbers and is_number)):
                raise _two_devices(func)


def _two_devices(func: object) -> RuntimeError:
    devices = "expected one device, but found tensors on cuda:0 and on the cpu"
    return RuntimeError(f"{func}: {devices} (fake)")


# Replacements by function: (gpu, function, *arguments) -> the answer, or NotImplemented.


def _to(gpu: FakeGpu, _func, tensor, *args, copy=False, **kwargs):
    if args and isinstance(args[0], torch.Tensor):  # like that tensor
        there, args = on_device(args[0]), (args[0].dtype, *args[1:])
        _, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
    else:
        device, dtype, non_blocking, layout = torch._C._nn._parse_to(*args, **kwargs)
        there = on_device(tensor) if device is None else _is_ours(device)
    if there != on_device(tensor):
        return gpu.move(tensor, there, dtype, non_blocking, layout)
    layout = layout or torch.preserve_format
    return tensor.to(dtype=dtype or tensor.dtype, copy=copy, memory_format=layout)


def _made_of_data(gpu: FakeGpu, func, *args, device=None, **kwargs):
    made, like = func(*args, **kwargs), isinstance(args[0], torch.Tensor) and on_device(args[0])
    there = like if device is None else _is_ours(device)
    return made if there == on_device(made) else gpu.move(made, there)


def _number_set(gpu: FakeGpu, func, tensor, index, value):
    """Fill in a number on the device, without a copy."""
    if isinstance(value, torch.Tensor) or not on_device(tensor):
        return NotImplemented
    return func(tensor, index, _mark(torch.tensor(value, dtype=tensor.dtype), True))


def _to_list(gpu: FakeGpu, func, tensor):
    if on_device(tensor):
        gpu.wait("copy to the host")
    return func(tensor)


def _to_numpy(_gpu: FakeGpu, func, tensor, *args, **kwargs):
    if on_device(tensor):
        raise TypeError("can't convert cuda:0 device type tensor to numpy (fake)")
    return func(tensor, *args, **kwargs)


def _pinned(_gpu: FakeGpu, _func, tensor, *_args):
    copy = tensor.clone()
    copy.untyped_storage().pinned = True
    return copy


def _answer(here: object, otherwise: object):
    return lambda _gpu, _func, tensor, *_: here if on_device(tensor) else otherwise


of = torch.Tensor
FUNCTIONS = {
    of.device.__get__: _answer(DEVICE, torch.device("cpu")),
    of.is_cuda.__get__: _answer(True, False),
    of.is_cpu.__get__: _answer(False, True),
    of.get_device: _answer(0, -1),
    of.to: _to,
    of.cpu: lambda gpu, func, tensor, **options: _to(gpu, func, tensor, "cpu", **options),
    of.cuda: lambda gpu, func, tensor, **options: _to(gpu, func, tensor, "cuda", **options),
    of.tolist: _to_list,
    of.numpy: _to_numpy,
    of.__array__: _to_numpy,
    of.pin_memory: _pinned,
    of.__setitem__: _number_set,
    of.__deepcopy__: lambda _gpu, func, tensor, memo: _mark(func(tensor, memo), on_device(tensor)),
    **dict.fromkeys((torch.tensor, torch.as_tensor, torch.asarray, of.new_tensor), _made_of_data),
}
