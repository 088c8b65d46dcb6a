"""Target `cuda`: the generator in torch with the attention kernel. The only part of serving that imports torch.

`CudaEngine` is the engine of the steps: it works in the host's KV arena, so every ensemble runs with it
unchanged, at the price of copying KV to the device for each decode. The fast path is
`genrec.engine.cuda.generate`: a whole request without the host.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genrec.arena import Region, Row
from genrec.engine.cuda.forward import Forward
from genrec.engine.cuda.kernel import XAttentionKernel
from genrec.errors import ArtifactError
from genrec.kv import Layout
from genrec.nn.checkpoint import load_generator
from genrec.nn.xattention import xattention

if TYPE_CHECKING:
    from genrec.nn.draft import DraftHead
    from genrec.nn.model import Generator

LIBRARY = "xattention.so"
TORCH_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def load_forward(folder: Path) -> Forward:
    """The generator of `engines/cuda`, on its device. Raises ArtifactError.

    `engine.json` says the type (`kv_type`), and the `device`: `cuda`, or `cpu` to try the logic without a GPU.
    """
    path = folder / "engine.json"
    try:
        facts = json.loads(path.read_text())
        device, dtype = torch.device(facts["device"]), TORCH_TYPES[facts["kv_type"]]
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ArtifactError(path, f"not readable: {error!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArtifactError(path, "is for a GPU, and torch sees none")
    generator = load_generator(folder.parent.parent / "model").to(device, dtype)
    library = folder / LIBRARY
    return Forward(generator, XAttentionKernel(library, device) if library.exists() else xattention)


class CudaEngine:
    """See `genrec.engine.base.Engine`."""

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.layout, self._forward = layout, load_forward(Path(folder))
        self._model = Path(folder).parent.parent / "model"
        self._draft: tuple[Generator, DraftHead] | None = None

    def prefill(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64], region: Region) -> None:
        """See `Engine.prefill`."""
        logits, kv = self._forward.prefill(self._to_device(tokens), self._to_device(lengths))
        torch.from_numpy(self.layout.first_logits(region)).copy_(logits)
        for n, tensor in enumerate(kv):
            self._host(self.layout.shared(region, n)).copy_(tensor)

    def decode(self, level: int, codes: NDArray[np.int64], length: int, row: Row) -> None:
        """See `Engine.decode`."""
        layout, config, width = self.layout, self.layout.config, len(codes)
        tensors = range(2 * config.num_hidden_layers)
        shared = [self._host(layout.row_shared(row, n)).to(self._forward.device) for n in tensors]
        shape = (len(tensors), 1, width, level - 1, config.num_key_value_heads, config.head_dim)
        own = torch.empty(shape, dtype=self._forward.dtype, device=self._forward.device)
        for n in tensors:
            for earlier in range(level - 2):
                own[n][:, :, earlier] = self._host(layout.past(row, n, earlier, width))
        where = self._to_device(codes[None]), self._to_device(np.array([length]))
        logits = self._forward.decode(level, *where, shared, own)
        torch.from_numpy(layout.logits(row, level, width)).copy_(logits[0])
        if level < config.levels:
            for n in tensors:
                self._host(layout.past(row, n, level - 2, width)).copy_(own[n][:, :, -1])

    def draft_states(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        """See `Engine.draft_states`; the weights are a second copy, loaded by the first draft."""
        from genrec.nn.draft import prompt_states  # numba and more, which a device run need not have
        from genrec.nn.draft_checkpoint import load_draft

        device = self._forward.device
        if self._draft is None:
            generator, head = load_generator(self._model), load_draft(self._model)
            self._draft = generator.to(device, self._forward.dtype), head.to(device, self._forward.dtype)
        with torch.no_grad(), device:
            states = prompt_states(*self._draft, self._to_device(tokens), self._to_device(lengths))
        found: NDArray[np.float32] = states.float().cpu().numpy()
        return found

    def _to_device(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._forward.device)

    def _host(self, view: NDArray[Any]) -> Tensor:
        """The arena's memory as a tensor of the model's type: NumPy has no bf16, its bits travel as uint16."""
        tensor = torch.from_numpy(view)
        return tensor.view(torch.bfloat16) if self.layout.kv_type == "bf16" else tensor
