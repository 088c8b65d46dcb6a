"""KV of a batch's prompts on a GPU: where prefill leaves it, and its way to the pool's memory."""

from __future__ import annotations

import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genrec.engine.cuda.host import PageLocked, tensor_of
from genrec.engine.interface import Array
from genrec.models.config import ModelConfig


class PromptRoom:
    """The same memory for all shapes, as their graphs never run at once. One thread, one stream that computes."""

    def __init__(self, config: ModelConfig, device: torch.device, dtype: torch.dtype) -> None:
        self._config, self._locked = config, PageLocked(device)
        self._memory = torch.empty(0, dtype=dtype, device=device)
        # Copies to the host go beside what is computed meanwhile: at 1,000 tokens a search takes longer than they do.
        self._beside = torch.cuda.Stream(device) if device.type == "cuda" else None

    def of(self, batch: int, span: int) -> Tensor:
        """Of B prompts of S tokens: [2N, B, G, S, D], which other shapes write over. The largest should come first."""
        c = self._config
        shape = 2 * c.num_hidden_layers, batch, c.num_key_value_heads, span, c.head_dim
        if self._memory.numel() < math.prod(shape):
            self._memory = self._memory.new_empty(math.prod(shape))
        return self._memory[: math.prod(shape)].view(shape)

    def filled(self) -> None:
        """What is there now is what `bring` copies: it waits for no later work."""
        if self._beside:
            self._beside.wait_stream(torch.cuda.current_stream())

    def sound(self, logits: Tensor) -> NDArray[np.bool_]:
        """Which prompts are, by first-level logits [B, 1, T_1]: no NaN, no +inf. What is kept is read often."""
        with torch.cuda.stream(self._beside):  # of none: where we are
            sound: NDArray[np.bool_] = (logits < torch.inf).all(2)[:, 0].cpu().numpy()
        return sound

    def bring(self, kv: Tensor, row: int, length: int, entry: Array) -> None:
        """Fill a user's entry [2N, G, S', D] with the first `length` tokens of a row of `kv`, as `of` gives it, and
        zeros behind them. It is there when this returns.
        """
        self._locked.hold(entry)
        with torch.cuda.stream(self._beside):
            found = kv.new_zeros(entry.shape)
            found[:, :, :length] = kv[:, row, :, :length]
            tensor_of(entry).copy_(found, non_blocking=True)
        if self._beside:
            self._beside.synchronize()
