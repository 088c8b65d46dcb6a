"""HSTU attention: the fused operation and torch's blocks against a loop over pairs in float64."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from genrec.compiled import can_be_compiled
from genrec.errors import InputError
from genrec.nn import hstu_attention as fused
from genrec.nn import hstu_plain as plain
from genrec.nn.hstu_layout import Layout, time_bucket
from tests.oracles.hstu_twin import bucket, slow_attention

WAYS = {
    "fused": fused.hstu_attention, "plain": plain.plain_attention, "blocks": plain.attention_in_blocks,
}  # fmt: skip
needs_compiler = pytest.mark.skipif(not can_be_compiled(), reason="there is no g++")
EDGES = [0, 1, 63, 64, 65, 0]  # an empty one, and both sides of a block's end


def case(
    lengths: list[int], heads: int = 2, size: int = 16, seed: int = 0
) -> tuple[list[Tensor], Layout, float]:
    """q, k, v and both biases, any masks, and n."""
    torch.manual_seed(seed)
    total = sum(lengths)
    reach = torch.cat([torch.randint(0, n + 1, (n,)) for n in lengths])
    layout = Layout.of(
        torch.tensor(lengths), reach, torch.randint(0, 60, (total,)), torch.randint(0, 10**6, (total,))
    )
    tensors = [torch.randn(total, heads, size) for _ in range(3)]
    return [*tensors, torch.randn(heads, 40), torch.randn(heads, 20)], layout, 7.0


def found(way: str, tensors: list[Tensor], layout: Layout, n: float) -> list[Tensor]:
    """The output and the gradients of all five, of one random gradient of the output."""
    dtype = torch.float64 if way == "slow" else torch.float32
    given = [each.detach().to(dtype).requires_grad_() for each in tensors]
    out = WAYS.get(way, slow_attention)(*given[:3], layout, *given[3:], n)
    weight = torch.randn(out.shape, generator=torch.Generator().manual_seed(1))
    (out * weight).sum().backward()
    return [out.detach(), *(torch.zeros_like(each) if each.grad is None else each.grad for each in given)]


def check(way: str, tensors: list[Tensor], layout: Layout, n: float) -> None:
    for name, ours, wanted in zip(
        ("out", "q", "k", "v", "position", "time"),
        found(way, tensors, layout, n), found("slow", tensors, layout, n), strict=True,
    ):  # fmt: skip
        # What is near 0 by cancellation is as exact as its terms, which are of 1 / n.
        scale = max(float(wanted.abs().max()), 1 / n) if wanted.numel() else 0.0
        # Gradients of biases are sums over thousands of pairs, of either sign: they lose a digit more in float32.
        tolerance = 1e-4 if name in ("position", "time") else 1e-5
        torch.testing.assert_close(
            ours.double(), wanted, rtol=0, atol=tolerance * scale, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.mark.parametrize("way", WAYS)
def test_edges_of_blocks_agree_with_pairs(way: str) -> None:
    check(way, *case(EDGES))


@needs_compiler
@pytest.mark.parametrize("size", [1, 16, 24, 48, 64])
def test_any_size_of_heads(size: int) -> None:
    check("fused", *case([70, 3], heads=3, size=size))


@settings(max_examples=12, deadline=None)
@given(lengths=st.lists(st.integers(0, 70), min_size=1, max_size=3), seed=st.integers(0, 99))
def test_any_lengths_and_masks(lengths: list[int], seed: int) -> None:
    check("fused", *case(lengths, heads=1, seed=seed))


def test_blocks_of_queries_are_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain, "BLOCK", 16)
    check("blocks", *case([40, 0, 16]))


@pytest.mark.parametrize("way", WAYS)
def test_nothing_at_all(way: str) -> None:
    for lengths in ([], [0, 0]):
        none = torch.zeros(0, dtype=torch.int64)
        layout = Layout.of(torch.tensor(lengths, dtype=torch.int64), none, none, none)
        tensors = [torch.zeros(0, 2, 16)] * 3 + [torch.zeros(2, 4)] * 2
        out, *gradients = found(way, tensors, layout, 1.0)
        assert out.shape == (0, 2, 16)
        assert not any(each.any() for each in gradients)


@needs_compiler
@pytest.mark.filterwarnings("ignore:Input .* is not a double precision")
def test_gradcheck() -> None:
    tensors, layout, n = case([3, 0, 5], heads=1, size=2)
    given = [each.requires_grad_() for each in tensors]
    assert torch.autograd.gradcheck(
        lambda *t: fused.hstu_attention(*t[:3], layout, *t[3:], n), given, eps=1e-2, atol=2e-3, rtol=1e-2
    )


@needs_compiler
def test_operation_is_registered_as_torch_wants_it() -> None:
    tensors, layout, n = case([5, 2])
    given = [each.requires_grad_() for each in tensors]
    torch.library.opcheck(fused._fused, (*given[:3], *layout, *given[3:], n), atol=1e-4, rtol=1e-4)


@needs_compiler
def test_parts_of_a_projection_are_read_as_they_lie() -> None:
    tensors, layout, n = case([33, 70])
    wide = torch.cat([each.flatten(1) for each in tensors[:3]], 1)
    parts = [each.unflatten(1, (2, 16)) for each in wide.split(32, 1)]
    assert not parts[0].is_contiguous()
    assert torch.equal(
        fused.hstu_attention(*parts, layout, *tensors[3:], n),
        fused.hstu_attention(*tensors[:3], layout, *tensors[3:], n),
    )


@needs_compiler
def test_marks_may_be_columns_of_int32_or_one_number_for_all() -> None:
    tensors, layout, n = case([33, 70])
    columns = torch.stack((*layout[1:3], torch.zeros_like(layout.time)), 1)
    apart = Layout.of(layout.lengths, columns[:, 0], columns[:, 1], columns[:1, 2].expand(103))
    assert not columns[:, 1].is_contiguous()
    check("fused", tensors, apart, n)


@needs_compiler
def test_threads_change_no_answer_and_runs_no_bit() -> None:
    given = case([200, 1, 64, 130, 90], heads=3)
    before = torch.get_num_threads()
    try:
        once = found("fused", *given)
        torch.set_num_threads(3)
        thrice, again = found("fused", *given), found("fused", *given)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(*pair) for pair in zip(thrice, again, strict=True))
    assert all(torch.equal(*pair) for pair in zip(once[:4], thrice[:4], strict=True))
    torch.testing.assert_close(once[4:], thrice[4:], rtol=1e-4, atol=1e-4)


@needs_compiler
def test_no_scores_in_memory() -> None:
    """Forward and backward over 4096 tokens, whose scores would take 64 MiB, within 16 MiB more than their tensors."""
    code = """
import torch
from pathlib import Path
from genrec.nn.hstu_attention import hstu_attention
from genrec.nn.hstu_layout import Layout
torch.set_num_threads(1)
def run(n):
    place = torch.arange(n)
    t = [torch.randn(n, 1, 16, requires_grad=True) for _ in range(3)] + [torch.randn(1, 8, requires_grad=True)] * 2
    hstu_attention(*t[:3], Layout.of(torch.tensor([n]), place, place, place), *t[3:], n).sum().backward()
def field(name):
    return next(int(l.split()[1]) for l in Path("/proc/self/status").read_text().splitlines() if l.startswith(name))
run(8)
Path("/proc/self/clear_refs").write_text("5")
before = field("VmRSS")
run(4096)
print(field("VmHWM") - before)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment
    )
    assert int(done.stdout) < 16 << 10


def test_time_buckets_are_half_octaves() -> None:
    seconds = [0, 1, 2, 3, 4, 5, 6, 7, 8, 11, 12, 1000, 1535, 1536, -1536, 2**24, 2**31 - 1]
    assert time_bucket(torch.tensor(seconds), 64).tolist() == [bucket(each, 64) for each in seconds[:-1]] + [
        62
    ]
    assert int(time_bucket(torch.tensor(10**6), 20)) == 19


def test_bad_input_is_named() -> None:
    tensors, layout, n = case([3, 4])
    q, k, v, near, since = tensors
    for wrong, message in (
        ((q[:5], k, v, layout, near, since, n), "q: is of shape"),
        ((q, k[:, :1], v, layout, near, since, n), "k: is"),
        ((q, k, v.double(), layout, near, since, n), "v: is"),
        ((q, k, v, layout, near[:1], since, n), "position_bias: is"),
        ((q, k, v, layout, near, since[:, :0], n), "time_bias: is"),
    ):
        with pytest.raises(InputError, match=message):
            fused.hstu_attention(*wrong)
    place = torch.arange(3)
    for lengths, marks, message in (
        ([3], (place, place, place[:2]), "time: is"),
        ([3], (place, place - 1, place), "position: is from -1"),
        ([3], (place, place, place.float()), "time: is"),
        ([1, 2], (place + 1, place, place), "reach: is beyond"),
        ([4, -1], (place, place, place), "lengths: has -1"),
    ):
        with pytest.raises(InputError, match=message):
            Layout.of(torch.tensor(lengths), *marks)
