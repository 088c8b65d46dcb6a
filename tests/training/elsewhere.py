"""A device that is not there: its tensors say that they lie on `meta:1`, and are computed on the CPU.

As on a GPU, an operation that reads tensors of both devices fails, and NumPy sees none of this one's. So what runs here
leaves nothing on the host that belongs on the device.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

DEVICE = torch.device("meta", 1)  # the plain one is for models without weights
CPU = torch.device("cpu")
MOVES = (torch.ops.aten._to_copy.default, torch.ops.aten.copy_.default)


class Elsewhere(torch.Tensor):
    """Its values are those of `held`."""

    held: torch.Tensor
    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Elsewhere:
        layout = {"strides": held.stride(), "storage_offset": held.storage_offset(), "dtype": held.dtype}
        tensor = torch.Tensor._make_wrapper_subclass(cls, held.size(), device=DEVICE, **layout)
        tensor.held = held
        return tensor

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


class Everywhere(TorchDispatchMode):
    """What makes tensors asks it too."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return computed(func, args, kwargs or {})


def computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What `func` gives, on the device that it was asked for on, or of its tensors."""
    given = [each for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor)]
    there = [isinstance(each, Elsewhere) for each in given]
    if any(there) and not all(there) and func not in MOVES:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device")
    asked = kwargs.get("device") and torch.device(kwargs["device"])
    if asked == DEVICE:
        kwargs = {**kwargs, "device": CPU}
    plain = tree_map(lambda each: each.held if isinstance(each, Elsewhere) else each, (args, kwargs))
    found = func(*plain[0], **plain[1])
    if found is not None and func._schema.name.endswith("_"):  # in place
        return args[0]
    stays = any(there) if asked is None else asked == DEVICE
    return tree_map(lambda each: Elsewhere(each) if stays and isinstance(each, torch.Tensor) else each, found)


@contextmanager
def elsewhere() -> Iterator[str]:
    """The name of the device, for as long as there is one."""
    make = torch.tensor
    with pytest.MonkeyPatch.context() as patch, Everywhere():
        # Torch itself would make an empty one, and would refuse to let the optimiser be one kernel.
        patch.setattr(torch, "tensor", lambda *given, device=CPU, **more: make(*given, **more).to(device))
        optimizer = sys.modules["torch.optim.optimizer"]
        patch.setattr(optimizer, "_get_fused_kernels_supported_devices", lambda: ["cpu", "meta"])
        yield str(DEVICE)
