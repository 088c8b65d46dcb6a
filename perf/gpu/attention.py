"""The attention kernel: right against the oracle, clean under compute-sanitizer, timed beside others and two floors.

python -m perf.gpu.attention LIBRARY      # the checks alone, on small shapes: what compute-sanitizer runs
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from build.plugin.oracle import xattention as oracle
from genrec.engine.cuda.kernel import XAttentionKernel
from perf.gpu.timing import graphed, median_ms

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}  # of the norm
EXPANDED_LIMIT = 40 << 30  # bytes of KV that the per-beam baseline may take
COPIES = 4  # of the inputs in rotation, so that a small case is not timed out of the cache alone


@dataclass(frozen=True)
class Case:
    """B, W, H, G, D, S, U of one call."""

    batch: int
    beams: int
    heads: int
    kv_heads: int
    size: int
    span: int
    unshared: int

    @property
    def name(self) -> str:
        """`bw512_s1024_b1`, the key in the results."""
        return f"bw{self.beams}_s{self.span}_b{self.batch}"

    def inputs(self, device: torch.device, dtype: torch.dtype, full: bool = True) -> list[Tensor]:
        """Random q, shared k, v, unshared k, v and prompt lengths: S each, or random ones."""
        shared = (self.batch, self.kv_heads, self.span, self.size)
        own = (self.batch, self.beams, self.unshared, self.kv_heads, self.size)
        shapes = [(self.batch, self.beams, self.heads, self.size), shared, shared, own, own]
        tensors = [torch.randn(shape, device=device, dtype=dtype) for shape in shapes]
        least = self.span if full else 1
        return [*tensors, torch.randint(least, self.span + 1, (self.batch,), device=device)]

    def floors_ms(self, bytes_rate: float, operation_rate: float) -> dict[str, float]:
        """Least time for the operations, and for the bytes (every input read once, the output written once)."""
        tokens = self.batch * self.beams
        operations = 4 * tokens * self.heads * self.size * (self.span + self.unshared)
        values = 2 * tokens * self.heads * self.size + 2 * self.kv_heads * self.size * (
            self.batch * self.span + tokens * self.unshared
        )
        return {"operations": 1e3 * operations / operation_rate, "bytes": 1e3 * 2 * values / bytes_rate}


CHECKS = [
    Case(2, 5, 4, 2, 16, 9, 1),
    Case(1, 40, 4, 2, 32, 70, 2),
    Case(3, 33, 6, 2, 64, 300, 3),
    Case(1, 70, 2, 2, 128, 257, 2),
]
TIMED = [
    Case(b, w, 16, 8, 128, s, 2)
    for s, b in ((1024, 1), (1024, 8), (5000, 1), (5000, 8))
    for w in (128, 256, 512)
]
DRY = [Case(1, 6, 4, 2, 16, 40, 2)]


def check(library: Path, device: torch.device, cases: list[Case]) -> float:
    """Every type, case and number of splits against the float64 oracle; the worst error over its tolerance.

    Raises AssertionError on the first that is wrong. NaN poisons what a launch leaves unwritten: the output's
    memory is handed over dirty.
    """
    worst = 0.0
    for case in cases:
        for dtype, tolerance in TOLERANCE.items():
            inputs = case.inputs(device, dtype, full=False)
            want = oracle(
                *(t.double().cpu().numpy() if t.is_floating_point() else t.cpu().numpy() for t in inputs)
            )
            for splits in (1,) if dtype == torch.float32 else (1, 2, 3):
                attend = XAttentionKernel(library, device, splits)
                torch.full_like(inputs[0], torch.nan)  # freed at once: the output lands in it
                for _ in range(2):  # the second launch finds the counters as the first left them
                    got = attend(*inputs).double().cpu().numpy()
                error = float(np.linalg.norm(got - want) / np.linalg.norm(want))
                assert error < tolerance, f"{case} {dtype} splits {splits}: error {error}"
                worst = max(worst, error / tolerance)
    return worst


def sanitize(library: Path) -> dict[str, str]:
    """The checks under compute-sanitizer's tools: the last line each says, or why there is none."""
    if shutil.which("compute-sanitizer") is None:
        return {"compute-sanitizer": "not installed"}
    said = {}
    for tool in ("memcheck", "racecheck", "initcheck", "synccheck"):
        command = [
            "compute-sanitizer",
            f"--tool={tool}",
            sys.executable,
            "-m",
            "perf.gpu.attention",
            str(library),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
            said[tool] = (done.stdout.strip().splitlines() or ["said nothing"])[-1]
        except subprocess.TimeoutExpired:
            said[tool] = "not done in 90 s"
    return said


def measure(library: Path, device: torch.device, case: Case, rates: tuple[float, float]) -> dict[str, Any]:
    """One case in bf16: the kernel at several splits, its peers, the floors. Milliseconds; None is not run."""
    sets = [case.inputs(device, torch.bfloat16) for _ in range(COPIES)]
    floors = case.floors_ms(*rates)
    by_splits = {n: _rotated_ms(XAttentionKernel(library, device, n), sets, device) for n in (1, 2, 4, 8)}
    return {
        **asdict(case),
        "ms": _rotated_ms(XAttentionKernel(library, device), sets, device),
        "ms_by_splits": by_splits,
        "baseline_ms": _peer(lambda: _per_beam(case, sets[0]), device) if _fits(case) else None,
        "flex_ms": _peer(lambda: _flex(case, sets[0], device), device),
        "cascade_ms": _peer(lambda: _cascade(case, sets[0]), device),
        "floor_ms": max(floors.values()),
        "floors_ms": floors,
    }


def _rotated_ms(attend: Callable[..., Tensor], sets: list[list[Tensor]], device: torch.device) -> float:
    """Time of one call, the inputs taking turns within one graph."""
    return median_ms(graphed(lambda: [attend(*inputs) for inputs in sets], device), device) / len(sets)


def _peer(prepare: Callable[[], Callable[[], object]], device: torch.device) -> float | str:
    """Time of a peer, or why it has none: a peer that is missing or refuses is not our failure."""
    try:
        return median_ms(prepare(), device, 10)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]


def _fits(case: Case) -> bool:
    return (
        4 * case.batch * case.beams * case.kv_heads * (case.span + case.unshared) * case.size < EXPANDED_LIMIT
    )


def _per_beam(case: Case, inputs: list[Tensor]) -> Callable[[], object]:
    """PyTorch's SDPA with every beam's whole KV of its own, as a cache that knows no sharing has it."""
    q, *kv, _ = inputs
    rows = case.batch * case.beams

    def expanded(shared: Tensor, own: Tensor) -> Tensor:
        each = shared.unsqueeze(1).expand(-1, case.beams, -1, -1, -1)
        return torch.cat((each, own.transpose(2, 3)), dim=3).reshape(rows, case.kv_heads, -1, case.size)

    k, v = expanded(kv[0], kv[2]), expanded(kv[1], kv[3])
    one = q.reshape(rows, case.heads, 1, case.size)
    return lambda: F.scaled_dot_product_attention(one, k, v, enable_gqa=True)


def _flex(case: Case, inputs: list[Tensor], device: torch.device) -> Callable[[], object]:
    """PyTorch's flex attention: one sequence of prompt and all beams' tokens, a mask that keeps beams apart."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    q, shared_k, shared_v, own_k, own_v, _ = inputs
    span, unshared = case.span, case.unshared
    k, v = (
        torch.cat((shared, own.flatten(1, 2).transpose(1, 2)), dim=2).contiguous()
        for shared, own in ((shared_k, own_k), (shared_v, own_v))
    )

    def visible(b: Tensor, h: Tensor, beam: Tensor, key: Tensor) -> Tensor:
        return (key < span) | ((key - span) // unshared == beam)

    mask = create_block_mask(visible, None, None, case.beams, k.shape[2], device=device.type)
    attend = torch.compile(flex_attention) if device.type == "cuda" else flex_attention
    mine = q.transpose(1, 2).contiguous()
    return lambda: attend(mine, k, v, block_mask=mask, enable_gqa=True)


def _cascade(case: Case, inputs: list[Tensor]) -> Callable[[], object]:
    """FlashInfer's cascade: the prompt once for all beams, each beam's own tokens, states merged. One request."""
    import flashinfer

    if case.batch != 1:
        raise NotImplementedError("the single-prefix cascade takes one request")
    q, shared_k, shared_v, own_k, own_v, _ = (x[0] for x in inputs)
    prompt = [x.transpose(0, 1).contiguous() for x in (shared_k, shared_v)]

    def work() -> object:
        far, far_lse = flashinfer.single_prefill_with_kv_cache(q, *prompt, causal=False, return_lse=True)
        group = case.heads // case.kv_heads
        score = (q.unflatten(1, (-1, group)).unsqueeze(1) * own_k.unsqueeze(3)).sum(
            -1
        ).float() * case.size**-0.5
        near_lse = score.logsumexp(1).flatten(1) * 1.4426950408889634  # FlashInfer's logarithms are of base 2
        near = (score.softmax(1).unsqueeze(-1).to(q.dtype) * own_v.unsqueeze(3)).sum(1).flatten(1, 2)
        return flashinfer.merge_state(far, far_lse, near, near_lse)

    return work


if __name__ == "__main__":
    torch.manual_seed(0)
    check(Path(sys.argv[1]), torch.device("cuda"), CHECKS)
