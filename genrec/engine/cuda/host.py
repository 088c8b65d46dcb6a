"""Arrays of the host and tensors of a device."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from genrec.engine.interface import Array


def tensor_of(array: Array) -> Tensor:
    """The host's memory as a tensor; NumPy has no bf16, its bits travel as uint16."""
    if not array.flags.writeable:  # torch warns of memory that it could write to
        array = array.view()
        array.flags.writeable = True
    tensor = torch.from_numpy(array)
    return tensor.view(torch.bfloat16) if array.dtype == np.uint16 else tensor
