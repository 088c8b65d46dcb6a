"""Which device a training or an evaluation asks for, and whether it can have it."""

from __future__ import annotations

import torch

from genrec.errors import InputError
from training.launch import torchrun_rank

CPU = "cpu"


def use_device(name: str, ranks: int = 1) -> None:
    """From here on this process may compute there; on a GPU products of float32 are taken in TF32.

    Raises InputError.
    """
    if name == CPU:
        return
    if ranks > 1:
        raise InputError("ranks", f"is {ranks} with --device {name}", "1: one process computes on one GPU")
    if torchrun_rank() is not None:
        raise InputError("device", f"is {name} under torchrun", f"{CPU}; {name} in a process alone")
    if not torch.cuda.is_available():
        raise InputError("device", f"is {name}, and torch finds no GPU", f"{CPU}, or a machine with a GPU")
    torch.set_float32_matmul_precision("high")
