"""The attention kernel: right against the oracle, clean under compute-sanitizer, timed beside others and two floors.

python -m perf.gpu.attention LIBRARY      # the checks alone, on small shapes: what compute-sanitizer runs
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from build.plugin.oracle import xattention as oracle
from genrec.engine.cuda.kernel import XAttentionKernel
from genrec.nn.xattention import xattention as reference
from perf.gpu.timing import Missing, graphed, median_ms

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1e-2}  # of the norm
EXPANDED_LIMIT = 40 << 30  # bytes of KV that the per-beam baseline may take
TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
FOUND = (
    9  # the exit status of compute-sanitizer where its tool has found something; else it is the command's own
)
# These watch what was allocated: torch would lend parts of large blocks, and blocks that were written before.
WATCH_MEMORY = {"memcheck", "initcheck"}
TOOL_S = 150
CHECKED = ("attention", "fused", "rank")  # modules whose checks run under them


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

    @property
    def bytes(self) -> int:
        """Of the inputs in 16 bits."""
        q = self.batch * self.beams * self.heads * self.size
        kv = self.batch * self.kv_heads * self.size * (self.span + self.beams * self.unshared)
        return 2 * (q + 2 * kv)

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
    Case(1, 100, 2, 1, 128, 1100, 1),
    # Few rows of large heads, which Hopper's kernel leaves to the other one, and a size that both leave to `rows`.
    Case(1, 20, 4, 2, 64, 300, 2),
    Case(2, 20, 16, 8, 128, 1100, 2),
    Case(1, 5, 4, 2, 80, 70, 2),
]
TIMED = [
    Case(b, w, 16, 8, 128, s, 2)
    for s, b in ((1024, 1), (1024, 8), (5000, 1), (5000, 8))
    for w in (128, 256, 512)
]
DRY = [Case(1, 6, 4, 2, 16, 40, 2)]
DRY_CHECKS = [*DRY, Case(1, 5, 4, 2, 80, 40, 2)]


def check(library: Path, device: torch.device, cases: list[Case]) -> float:
    """Every type, case and number of splits against the float64 oracle; the worst error over its tolerance.

    Raises AssertionError on the first that is wrong. The kernel `rows` knows no splits. NaN poisons what a launch
    leaves unwritten: the output's memory is handed over dirty.
    """
    worst = 0.0
    for case in cases:
        for dtype, tolerance in TOLERANCE.items():
            inputs = case.inputs(device, dtype, full=False)
            want = oracle(
                *(t.double().cpu().numpy() if t.is_floating_point() else t.cpu().numpy() for t in inputs)
            )
            unsplit = XAttentionKernel(library, device, 1)
            for splits in (1,) if unsplit.which(*inputs[:2], inputs[3]) == "rows" else (1, 2, 3):
                attend = XAttentionKernel(library, device, splits)
                torch.full_like(inputs[0], torch.nan)  # freed at once: the output lands in it
                for _ in range(2):  # the second launch finds the counters as the first left them
                    got = attend(*inputs).double().cpu().numpy()
                error = float(np.linalg.norm(got - want) / np.linalg.norm(want))
                assert error < tolerance, f"{case} {dtype} splits {splits}: error {error}"
                worst = max(worst, error / tolerance)
    return worst


def sanitize(library: Path) -> dict[str, str]:
    """All checks under all its tools, at once: what each says last. Raises Missing."""
    if shutil.which("compute-sanitizer") is None:
        raise Missing("compute-sanitizer is not on PATH")
    pairs = [(tool, module) for module in CHECKED for tool in TOOLS]
    with ThreadPoolExecutor(len(pairs)) as pool:
        said = pool.map(lambda pair: _sanitized(*pair, library), pairs)
        return {f"{tool}, {module}": each for (tool, module), each in zip(pairs, said, strict=True)}


def _sanitized(tool: str, module: str, library: Path) -> str:
    options = [f"--tool={tool}", f"--error-exitcode={FOUND}"]
    command = ["compute-sanitizer", *options, sys.executable, "-m", f"perf.gpu.{module}", str(library)]
    env = os.environ | ({"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"} if tool in WATCH_MEMORY else {})
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=TOOL_S, check=False, env=env)
    except subprocess.TimeoutExpired:
        return f"not done in {TOOL_S} s"
    last = (done.stdout.strip().splitlines() or ["said nothing"])[-1]
    return last if done.returncode == 0 else f"status {done.returncode}: {last} {done.stderr[-500:]}"


def rotated_sets(size: int, cache: int) -> int:
    """How many sets of `size` bytes take turns, so that each is out of a cache of so many bytes when its turn comes."""
    return 2 * cache // size + 1


def measure(
    library: Path, device: torch.device, case: Case, rates: tuple[float, float], cache: int
) -> dict[str, Any]:
    """One case in bf16: the kernel at several splits, its peers, the floors. Milliseconds; None is not run.

    `cache` is the device's L2 in bytes. AssertionError when a kernel that is timed is wrong.
    """
    sets = [case.inputs(device, torch.bfloat16) for _ in range(rotated_sets(case.bytes, cache))]
    kernels = {n: XAttentionKernel(library, device, n) for n in (0, 1, 2, 4, 8)}
    worst = check_timed(case, sets[0], kernels)
    times = {n: _rotated_ms(kernel, sets, device) for n, kernel in kernels.items()}
    expanded = sets[: rotated_sets(_expanded_bytes(case), cache)]
    floors = case.floors_ms(*rates)
    return {
        **asdict(case),
        "kernel": kernels[0].which(sets[0][0], sets[0][1], sets[0][3]),
        "sets": len(sets),
        "worst_error_over_tolerance": worst,
        "ms": times.pop(0),
        "ms_by_splits": times,
        "baseline_ms": _peer(_per_beam, case, expanded, device)
        if len(expanded) * _expanded_bytes(case) < EXPANDED_LIMIT
        else None,
        "flex_ms": _peer(_flex, case, sets, device),
        "cascade_ms": _peer(_cascade, case, sets, device),
        "floor_ms": max(floors.values()),
        "floors_ms": floors,
    }


def check_timed(case: Case, inputs: list[Tensor], kernels: Mapping[int, Callable[..., Tensor]]) -> float:
    """Every kernel of a case that is timed against plain attention in float32; the worst error over its tolerance.

    By its number of splits; 0 is as many as the library chooses. Raises AssertionError.
    """
    want, worst = reference(*(x.float() if x.is_floating_point() else x for x in inputs)), 0.0
    for splits, kernel in kernels.items():
        got = kernel(*inputs).float()
        error = float((got - want).norm() / want.norm()) / TOLERANCE[inputs[0].dtype]
        assert error < 1, f"{case} splits {splits}: {error} times the error that is allowed"
        worst = max(worst, error)
    return worst


def _rotated_ms(attend: Callable[..., object], sets: list[list[Tensor]], device: torch.device) -> float:
    """Time of one call, the inputs taking turns within one graph."""
    return median_ms(graphed(lambda: [attend(*inputs) for inputs in sets], device), device) / len(sets)


def _peer(
    prepare: Callable[[Case, list[Tensor]], Callable[[], object]], case: Case, sets: list[list[Tensor]],
    device: torch.device,
) -> float | str:  # fmt: skip
    """Time of a peer's call, or why it has none: a peer that is missing or refuses is not our failure."""
    try:
        calls = [prepare(case, inputs) for inputs in sets]
        return median_ms(lambda: [call() for call in calls], device, 10) / len(calls)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"[:200]


def _expanded_bytes(case: Case) -> int:
    """Of the KV where every beam has the whole prompt's."""
    keys = case.batch * case.beams * (case.span + case.unshared)
    return 4 * keys * case.kv_heads * case.size


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


def _flex(case: Case, inputs: list[Tensor]) -> Callable[[], object]:
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

    mask = create_block_mask(visible, None, None, case.beams, k.shape[2], device=q.device.type)
    attend = torch.compile(flex_attention) if q.is_cuda else flex_attention
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
