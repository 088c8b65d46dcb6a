"""The room's tests are many tiny tensors: one thread each is fastest, most of all beside other work."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
