"""HSTU attention over ragged sequences, fused: no padding, no scores in memory, no mask (MTGRBoost, section 5.2).

Of query i and key j of one sequence and head, where i sees j (`genrec.nn.hstu_layout.Layout`):

    a_ij = silu(q_i k_j + position_bias[position_i - position_j] + time_bias[bucket(time_i - time_j)]) / n
    out_i = sum over j of a_ij v_j

Differences of positions are clamped to the table. On CPUs it is an operation of ours in C++; elsewhere torch computes
it in blocks of queries (`genrec/nn/hstu_plain.py`). T tokens, H heads of size D, P positions, R time buckets.
"""

from __future__ import annotations

import ctypes
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor

from genrec.compiled import can_be_compiled, load_compiled
from genrec.errors import InputError
from genrec.nn.hstu_layout import Layout
from genrec.nn.hstu_plain import attention_in_blocks

SOURCE = Path(__file__).with_suffix(".cpp")
LANES = 16  # of the widest vectors: the operation takes head sizes that are a multiple


def hstu_attention(
    q: Tensor, k: Tensor, v: Tensor, layout: Layout, position_bias: Tensor, time_bias: Tensor, n: float
) -> Tensor:
    """float [T, H, D] of q, k, v [T, H, D], position_bias [H, P] and time_bias [H, R]. Raises InputError."""
    _check(q, k, v, layout, position_bias, time_bias)
    if not (q.is_cpu and q.dtype == torch.float32 and can_be_compiled()):
        return attention_in_blocks(q, k, v, layout, position_bias, time_bias, n)
    size = q.shape[2]
    if short := -size % LANES:
        q, k, v = (F.pad(each, (0, short)) for each in (q, k, v))  # zeros add nothing to a product
    return _fused(q, k, v, *layout, position_bias, time_bias, n)[..., :size]


def _check(q: Tensor, k: Tensor, v: Tensor, layout: Layout, position_bias: Tensor, time_bias: Tensor) -> None:
    if q.dim() != 3 or q.shape[0] != len(layout.reach):
        raise InputError("q", f"is of shape {list(q.shape)}", f"[{len(layout.reach)} tokens, heads, size]")
    for name, each in (("k", k), ("v", v)):
        if each.shape != q.shape or each.dtype != q.dtype:
            raise InputError(name, f"is {each.dtype}{list(each.shape)}", f"{q.dtype}{list(q.shape)}, as q")
    for name, each in (("position_bias", position_bias), ("time_bias", time_bias)):
        if each.dim() != 2 or each.shape[0] != q.shape[1] or not each.shape[1] or each.dtype != q.dtype:
            limit = f"{q.dtype}[{q.shape[1]} heads, buckets]"
            raise InputError(name, f"is {each.dtype}{list(each.shape)}", limit)


class _Batch(ctypes.Structure):
    """`Batch` of the source."""

    _fields_ = [(name, ctypes.c_void_p) for name in ("offsets", "reach", "position", "time", "near", "since")]
    _fields_ += [
        (name, ctypes.c_int64) for name in ("sequences", "heads", "size", "positions", "times", "threads")
    ]
    _fields_ += [("scale", ctypes.c_float)]


def _batch(layout: tuple[Tensor, ...], near: Tensor, since: Tensor, size: int, n: float) -> _Batch:
    shape = (len(layout[0]) - 1, near.shape[0], size, near.shape[1], since.shape[1], torch.get_num_threads())
    return _Batch(*(each.data_ptr() for each in (*layout, near, since)), *shape, 1 / n)


def _rows(tensor: Tensor) -> Tensor:
    """The same with every token's heads in one piece; a part of a wider projection is taken as it lies."""
    whole = tensor.stride(2) == 1 and tensor.stride(1) == tensor.shape[2]
    return tensor if whole else tensor.contiguous()


def _strided(tensor: Tensor) -> tuple[ctypes.c_void_p, ctypes.c_int64]:
    return ctypes.c_void_p(tensor.data_ptr()), ctypes.c_int64(tensor.stride(0))


def _address(tensor: Tensor) -> ctypes.c_void_p:
    return ctypes.c_void_p(tensor.data_ptr())


@torch.library.custom_op("genrec::hstu_attention", mutates_args=(), device_types="cpu")
def _fused(
    q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, reach: Tensor, position: Tensor, time: Tensor,
    position_bias: Tensor, time_bias: Tensor, n: float,
) -> Tensor:  # fmt: skip
    q, k, v, near, since = _rows(q), _rows(k), _rows(v), position_bias.contiguous(), time_bias.contiguous()
    out = q.new_empty(q.shape)
    batch = _batch((offsets, reach, position, time), near, since, q.shape[2], n)
    load_compiled(SOURCE).hstu_forward(
        ctypes.byref(batch), *_strided(q), *_strided(k), *_strided(v), _address(out)
    )
    return out


@_fused.register_fake
def _(q: Tensor, *_: object) -> Tensor:
    return q.new_empty(q.shape)


@torch.library.custom_op("genrec::hstu_attention_backward", mutates_args=(), device_types="cpu")
def _fused_backward(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, reach: Tensor, position: Tensor, time: Tensor,
    position_bias: Tensor, time_bias: Tensor, n: float,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    grad, q, k, v = grad.contiguous(), _rows(q), _rows(k), _rows(v)
    near, since = position_bias.contiguous(), time_bias.contiguous()
    batch = _batch((offsets, reach, position, time), near, since, q.shape[2], n)
    dq, dk, dv = (q.new_empty(q.shape) for _ in range(3))
    # Every thread has tables of its own, added in order: the same sums at every run.
    d_near, d_since = (q.new_zeros(batch.threads, *each.shape) for each in (near, since))
    load_compiled(SOURCE).hstu_backward(
        ctypes.byref(batch), *_strided(q), *_strided(k), *_strided(v),
        *map(_address, (grad, dq, dk, dv, d_near, d_since)),
    )  # fmt: skip
    return dq, dk, dv, d_near.sum(0), d_since.sum(0)


@_fused_backward.register_fake
def _(
    grad: Tensor, q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, reach: Tensor, position: Tensor, time: Tensor,
    position_bias: Tensor, time_bias: Tensor, n: float,
) -> tuple[Tensor, ...]:  # fmt: skip
    return (
        *(q.new_empty(q.shape) for _ in range(3)),
        torch.empty_like(position_bias),
        torch.empty_like(time_bias),
    )


def _keep(
    ctx: torch.autograd.function.FunctionCtx, inputs: tuple[Tensor | float, ...], output: Tensor
) -> None:
    *tensors, ctx.n = inputs  # type: ignore[attr-defined]
    ctx.save_for_backward(*tensors)  # type: ignore[arg-type]


def _differentiate(ctx: torch.autograd.function.FunctionCtx, grad: Tensor) -> tuple[Tensor | None, ...]:
    dq, dk, dv, near, since = _fused_backward(grad, *ctx.saved_tensors, ctx.n)  # type: ignore[attr-defined]
    return dq, dk, dv, None, None, None, None, near, since, None


_fused.register_autograd(_differentiate, setup_context=_keep)
