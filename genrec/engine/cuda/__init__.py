"""Target `cuda`: the generator in torch, with kernels of ours around its products. No other serving imports torch.

`CudaPasses` works on arrays of the host, so every ensemble runs with it unchanged, at the price of copying KV to
the device for each decode. `CudaExecutor` is the fast path, a whole request without the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genrec.engine.cuda.forward import Forward
from genrec.engine.cuda.fused import FusedOperations
from genrec.engine.cuda.host import tensor_of
from genrec.engine.cuda.kernel import XAttentionKernel
from genrec.engine.cuda.operations import Operations, TorchOperations
from genrec.engine.interface import Array, DecodePass, Executor, Passes
from genrec.errors import ArtifactError
from genrec.files import read_json
from genrec.nn.checkpoint import load_generator
from genrec.nn.xattention import xattention

LIBRARY = "xattention.so"
TORCH_TYPES = {"f32": torch.float32, "bf16": torch.bfloat16}


def read_engine(folder: Path) -> tuple[torch.device, torch.dtype]:
    """What `engine.json` of `engines/cuda` says: the `device` (`cuda`, or `cpu` to try the logic without a GPU) and the
    type, `kv_type`. Raises ArtifactError.
    """
    path = folder / "engine.json"
    try:
        facts = read_json(path)
        device, dtype = torch.device(facts["device"]), TORCH_TYPES[facts["kv_type"]]
    except (KeyError, TypeError, RuntimeError) as error:
        raise ArtifactError(path, f"not readable: {error!r}") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ArtifactError(path, "is for a GPU, and torch sees none")
    return device, dtype


def kernels(folder: Path, device: torch.device) -> tuple[XAttentionKernel | None, Operations]:
    """Those compiled in `folder`; where there are none, as on a CPU, torch does their work."""
    library = folder / LIBRARY
    if not library.exists():
        return None, TorchOperations()
    return XAttentionKernel(library, device), FusedOperations(library, device)


def load_forward(folder: Path) -> Forward:
    """The generator of `engines/cuda`, on its device. Raises ArtifactError."""
    device, dtype = read_engine(folder)
    kernel, operations = kernels(folder, device)
    generator = load_generator(folder.parent.parent / "model").to(device, dtype)
    return Forward(generator, kernel or xattention, operations)


def load_passes(folder: Path, kv_type: str, threads: int, streams: int) -> list[Passes]:
    """See `genrec.engine.load.load_passes`: one device, one stream of passes."""
    return [CudaPasses(folder)]


def load_executors(folder: Path, width: int) -> list[Executor]:
    """See `genrec.engine.load.load_executors`."""
    from genrec.engine.cuda.generate import CudaExecutor

    return [CudaExecutor(load_forward(folder), width)]


class CudaPasses:
    """See `genrec.engine.interface.Passes`."""

    def __init__(self, folder: Path) -> None:
        self._forward = load_forward(Path(folder))
        self._model = Path(folder).parent.parent / "model"

    def prefill(
        self, tokens: Array, lengths: Array, logits: Array, kv: Sequence[Array], lends: bool = False
    ) -> Sequence[Array]:  # fmt: skip
        """See `Passes.prefill`."""
        first, found = self._forward.prefill(self._to_device(tokens), self._to_device(lengths))
        tensor_of(logits).copy_(first.reshape(logits.shape))
        for into, tensor in zip(kv, found, strict=True):
            tensor_of(into).copy_(tensor)
        return kv

    def decode(self, given: DecodePass) -> Array:
        """See `Passes.decode`."""
        device, dtype, earlier = self._forward.device, self._forward.dtype, given.level - 2
        heads, size = given.shared[0].shape[1], given.shared[0].shape[3]
        shape = (len(given.shared), *given.codes.shape, earlier + 1, heads, size)
        unshared = torch.empty(shape, dtype=dtype, device=device)
        for n, kept in enumerate(given.unshared):
            for u in range(earlier):
                unshared[n][:, :, u] = tensor_of(kept[u])
        where = self._to_device(given.codes), self._to_device(given.lengths)
        prompt = [tensor_of(each).to(device) for each in given.shared]
        tensor_of(given.logits).copy_(self._forward.decode(given.level, *where, prompt, unshared))
        for n, kept in enumerate(given.unshared):
            if len(kept) > earlier:
                tensor_of(kept[earlier]).copy_(unshared[n][:, :, -1])
        return given.logits

    def draft_states(self, tokens: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
        """See `Passes.draft_states`; of the draft head only the placeholders are read."""
        from genrec.nn.draft_head import embedded_prompt  # numba and more, which a device run need not have

        forward = self._forward
        read = self._to_device(tokens), self._to_device(lengths)
        states, _ = forward.prefill_at(*embedded_prompt(forward.embedding, self._placeholders, *read))
        found: NDArray[np.float32] = states.float().cpu().numpy()
        return found

    @cached_property
    def _placeholders(self) -> Tensor | None:
        """Of the draft head [L, hidden]; read by the first draft."""
        from genrec.nn.draft_checkpoint import load_draft

        head = load_draft(self._model)
        if not head.options.placeholders:
            return None
        return head.placeholders.detach().to(self._forward.device, self._forward.dtype)

    def _to_device(self, array: NDArray[np.int64]) -> Tensor:
        return torch.from_numpy(array).to(self._forward.device)
