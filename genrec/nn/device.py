"""Where a model computes: what it reads follows its weights, so that nobody passes a device around."""

from __future__ import annotations

import torch
from torch import nn


def device_of(model: nn.Module) -> torch.device:
    """The device of a model's weights, which all lie on one."""
    return next(model.parameters()).device
