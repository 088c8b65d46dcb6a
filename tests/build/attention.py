"""Calls of the attention kernel's library on random tensors, and what they should give."""

import numpy as np
import torch

from build.plugin.oracle import xattention as oracle
from genrec.engine import abi

DTYPES = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
TOLERANCE = {"f32": 1e-5, "f16": 2e-3, "bf16": 1e-2}  # of the norm; 16-bit weights and results


def random_case(seed, batch, beams, heads, kv_heads, size, span, unshared, kind):
    """Inputs of one call, as torch tensors; prompt lengths differ within the batch."""
    draw = torch.Generator().manual_seed(seed)
    shapes = [
        (batch, beams, heads, size),
        *[(batch, kv_heads, span, size)] * 2,
        *[(batch, beams, unshared, kv_heads, size)] * 2,
    ]
    tensors = [torch.randn(shape, generator=draw).to(DTYPES[kind]) for shape in shapes]
    return [*tensors, torch.randint(1, span + 1, (batch,), generator=draw)]


def call(library, case, splits=1, own_q=None, rows=None):
    """Run the C ABI on torch CPU tensors. The output is poisoned first and the counters must be left at 0."""
    q, shared_k, _, unshared_k, _, _ = case
    kind = next(name for name, dtype in DTYPES.items() if dtype == q.dtype)
    batch, beams, heads, size = q.shape
    shape = abi.Shape(
        batch,
        beams,
        heads,
        shared_k.shape[1],
        size,
        shared_k.shape[2],
        unshared_k.shape[-3],
        splits,
        abi.TYPES[kind],
    )
    out = torch.full_like(q, torch.nan)
    counters = library.xattention_counters(shape)
    workspace = torch.full((library.xattention_workspace(shape),), 255, dtype=torch.uint8)
    workspace[:counters] = 0
    pointers = [t if t is None else t.data_ptr() for t in (*case, own_q, rows, out, workspace)]
    assert library.xattention(shape, *pointers, None) == 0
    assert not workspace[:counters].any()
    return out


def error(got, want):
    """Norm of the difference over the norm."""
    return np.linalg.norm(got.double().numpy() - want) / np.linalg.norm(want)


def truth(case):
    return oracle(*(t.double().numpy() if t.is_floating_point() else t.numpy() for t in case))
