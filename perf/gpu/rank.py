"""Rankings on a GPU: candidates over KV that is there, beside computing it, beside torch alone, and two floors.

The shape is that of the paper's Books (BAT, Table 1: 1,586 tokens of a user, 15 of an item; section 6.2: 100
candidates) with the layers of Qwen3-1.7B, order `split`; random weights, as in `perf.gpu.requests`.

python -m perf.gpu.rank LIBRARY      # the attention kernel's checks alone: what compute-sanitizer runs
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from genrec.engine.cuda.discriminant import candidate_attention
from genrec.engine.cuda.fused import FusedOperations
from genrec.engine.cuda.kernel import XAttentionKernel
from genrec.engine.cuda.ranker import CudaRanker
from genrec.engine.interface import Split, UserName
from genrec.models.config import ModelConfig
from genrec.nn.ranker import Ranker
from genrec.rank.options import RankerConfig
from perf.gpu import requests
from perf.gpu.attention import TOLERANCE, Case
from perf.gpu.pool_memory import pool_memory
from perf.gpu.reference import TOLERANCES
from perf.gpu.timing import median_ms, median_wall_ms

KEPT = 16 << 30  # bytes of each kind on the device


@dataclass(frozen=True)
class Setting:
    """A model's shape; tokens of an item, candidates, and the (tokens of a user, rankings of a pass) to time."""

    config: ModelConfig
    item_tokens: int
    candidates: int
    points: tuple[tuple[int, int], ...]


FULL = Setting(requests.FULL.config, 15, 100, ((1586, 1), (1586, 8), (5000, 1)))
# Through a server, whose start reads and digests the weights: the layers of Qwen3-0.6B, whose KV is as large.
SERVED = Setting(
    replace(FULL.config, hidden_size=1024, intermediate_size=3072, max_history=528), 15, 100, ((1584, 1),)
)
DRY = Setting(requests.DRY.config, 3, 6, ((12, 1), (12, 2)))
CHECKS = [
    Case(2, 5, 4, 2, 16, 9, 3), Case(1, 40, 4, 2, 32, 70, 15), Case(2, 100, 16, 8, 128, 1100, 15),
    Case(2, 20, 16, 8, 128, 1100, 15),
]  # fmt: skip


def check_kernel(library: Path, device: torch.device, cases: list[Case]) -> float:
    """Rows of a table of items, read by queries of their own, against torch in float64; the worst error over its
    tolerance. Raises AssertionError.
    """
    worst = 0.0
    for case in cases:
        for dtype, tolerance in TOLERANCE.items():
            q, k, v, *_, length = case.inputs(device, dtype, full=False)
            own_q, most = torch.randn_like(q), 2 * case.beams
            items = torch.randn(2, most, case.unshared, case.kv_heads, case.size, device=device, dtype=dtype)
            rows = torch.randint(0, most, q.shape[:2], device=device)
            exact = [each.double() for each in (q, k, v, *items)]
            want = candidate_attention(*exact, length, own_q.double(), rows)
            for splits in (1,) if dtype == torch.float32 else (1, 4):
                attend = XAttentionKernel(library, device, splits)
                got = attend(q, k, v, items[0], items[1], length, own_q, rows).double()
                error = float((got - want).norm() / want.norm())
                assert error < tolerance, f"{case} {dtype} splits {splits}: error {error}"
                worst = max(worst, error / tolerance)
    return worst


def random_ranker(setting: Setting, device: torch.device) -> Ranker:
    """Over a generator of random weights in bf16, the same every time; discriminant tokens have layers of their own."""
    ranker = Ranker(requests.random_weights(replace(requests.FULL, config=setting.config), device), True)
    ranker.options = RankerConfig(True, "split", setting.item_tokens)
    return ranker.to(device, torch.bfloat16).eval()


class Rankings:
    """Rankings of one setting, asked of the engine with everything in host memory, as a pool has it."""

    def __init__(self, setting: Setting, library: Path, device: torch.device) -> None:
        self.setting, self.device, self.ranker = setting, device, random_ranker(setting, device)
        kernel, operations = XAttentionKernel(library, device), FusedOperations(library, device)
        self.engine = CudaRanker(self.ranker, kernel, operations, KEPT, KEPT)
        self._draw, self._names = np.random.default_rng(0), count()
        self.items = self._draw.integers(
            0, setting.config.vocab_size, (setting.candidates, setting.item_tokens)
        )
        self.item_kv = self.entry(self.items)
        self.item_names = self._draw.integers(0, 1 << 60, (setting.candidates, 2)).astype(np.uint64)

    def entries(self, tokens: NDArray[np.int64]) -> list[NDArray[np.uint16]]:
        """Of tokens [B, S], by the engine: 2N arrays [B, G, S, D]."""
        c = self.setting.config
        shape = 2 * c.num_hidden_layers, len(tokens), c.num_key_value_heads, tokens.shape[1], c.head_dim
        kv = list(pool_memory(shape))
        self.engine.entries(tokens, kv)
        return kv

    def entry(self, tokens: NDArray[np.int64]) -> NDArray[np.uint16]:
        """The same as [B, 2N, G, S, D]."""
        kv = self.entries(tokens)
        whole = pool_memory((len(tokens), len(kv), *kv[0].shape[1:]))
        np.stack(kv, 1, out=whole)
        return whole

    def user(self, length: int) -> NDArray[np.int64]:
        """Random tokens [1, S]."""
        return self._draw.integers(0, self.setting.config.vocab_size, (1, length))

    def name(self) -> UserName:
        """One that nobody has had."""
        return UserName(next(self._names).to_bytes(16, "little"), 0)

    def asked(self, user_kv: NDArray[np.uint16], name: UserName | None, named_items: bool = True) -> Split:
        """All candidates for a user whose entry is [1, 2N, G, S, D]."""
        rows = np.arange(self.setting.candidates)
        return Split(rows, user_kv.shape[3], user_kv, name, self.item_names if named_items else None)


@torch.no_grad()
def check_states(rankings: Rankings, length: int) -> float:
    """States, from tokens on, against the ranker in float32 over the same weights: an error as a share of the norm.

    Two users, one of half the length, in one pass. Raises AssertionError.
    """
    tokens = rankings.user(length)
    users = [tokens, tokens[:, : max(length // 2, 1)]]
    asked = [rankings.asked(rankings.entry(each), rankings.name()) for each in users]
    got = np.stack(rankings.engine.split(rankings.item_kv, asked))
    _check_kept(rankings, asked, got)
    exact = random_ranker(rankings.setting, rankings.device).float()
    items = exact.items(torch.from_numpy(rankings.items).to(rankings.device))
    chosen = torch.arange(len(items), device=rankings.device)[None]
    want = []
    for each in users:
        prefix = exact.prefix(torch.from_numpy(each).to(rankings.device))
        end = torch.tensor([each.shape[1]], device=rankings.device)
        want.append(exact.states(prefix, end, items, chosen, "split")[0].cpu().numpy())
    error = float(np.linalg.norm(got - np.stack(want)) / np.linalg.norm(want))
    limit = TOLERANCES[torch.bfloat16].logits
    assert error <= limit, f"states are {error} of their norm off, at most {limit}"
    return error


def _check_kept(rankings: Rankings, asked: list[Split], want: NDArray[np.float32]) -> None:
    """A ranking behind a pre-inference reads what that left on the device, and not the host's entry (RelayGR)."""
    names = [rankings.name() for _ in asked]
    for name, each in zip(names, asked, strict=True):
        rankings.engine.keep(name, each.user)
    blank = [
        each._replace(user=np.zeros_like(each.user), user_name=name)
        for name, each in zip(names, asked, strict=True)
    ]
    assert np.array_equal(np.stack(rankings.engine.split(rankings.item_kv, blank)), want)


@torch.no_grad()
def measure(rankings: Rankings, length: int, batch: int, rates: tuple[float, float]) -> dict[str, Any]:
    """Milliseconds of `batch` rankings as a caller waits for them; `rates` are bytes and operations a second.

    `first`: of this shape, whose graph is captured then. `there`: all KV is on the device; `pass` is what the device
    computes of it. `user_on_host`: the users' KV is in host memory. `nothing_on_device`: the items' too.
    `user_computed_and_kept`: the users' are computed, put into host memory, as a pool has it, and read from there.
    `computed`: entries of users and items are computed on the device, and not copied anywhere. `by_torch`: as `there`,
    without kernels of ours.
    """
    engine, device = rankings.engine, rankings.device
    tokens = rankings.user(length)
    kv = rankings.entry(tokens)
    known = [rankings.asked(kv, rankings.name()) for _ in range(batch)]

    def ask(named_items: bool) -> None:
        engine.split(rankings.item_kv, [rankings.asked(kv, rankings.name(), named_items) for _ in known])

    forward, on_device = engine.forward, torch.from_numpy(tokens).to(device)
    of_items = torch.from_numpy(rankings.items).to(device)

    def compute_kept() -> None:
        for _ in known:
            engine.entries(tokens, room)
        ask(True)

    def compute() -> None:
        for _ in known:
            forward.prefix(on_device)
            forward.prefix(of_items)
        engine.split(rankings.item_kv, known)

    by_torch = _by_torch(rankings, on_device, of_items, batch)
    begun = time.perf_counter()
    engine.split(rankings.item_kv, known)
    first = 1e3 * (time.perf_counter() - begun)
    bucket = engine.passes.bucket(batch, rankings.setting.candidates, length)
    assert bucket.replayed is not None
    room = [kv[:, n] for n in range(kv.shape[1])]
    floors = floors_ms(rankings.setting, length, batch, rates)
    return {
        "there": median_wall_ms(lambda: engine.split(rankings.item_kv, known), device),
        "first": first,
        "pass": median_ms(bucket.replayed, device),
        "user_on_host": median_wall_ms(lambda: ask(True), device),
        "nothing_on_device": median_wall_ms(lambda: ask(False), device),
        "computed": median_wall_ms(compute, device),
        "user_computed_and_kept": median_wall_ms(compute_kept, device),
        "by_torch": median_wall_ms(by_torch, device),
        "user_mb": kv.nbytes / 1e6,
        "items_mb": rankings.item_kv.nbytes / 1e6,
        "floor": max(floors.values()),
        "floors": floors,
    }


def _by_torch(rankings: Rankings, tokens: Tensor, items: Tensor, batch: int) -> Any:
    ranker, device = rankings.ranker, rankings.device
    user = [tuple(each.expand(batch, -1, -1, -1) for each in pair) for pair in ranker.prefix(tokens)]
    table, end = ranker.items(items), torch.full((batch,), tokens.shape[1], device=device)
    chosen = torch.arange(len(items), device=device).expand(batch, -1)
    return lambda: ranker.states(user, end, table, chosen, "split").float().cpu()  # type: ignore[arg-type]


def floors_ms(setting: Setting, length: int, batch: int, rates: tuple[float, float]) -> Mapping[str, float]:
    """Least time of a pass for its bytes (weights, users' and items' KV once each) and for its operations."""
    c, tokens = setting.config, batch * setting.candidates
    heads, kv = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    weights = c.num_hidden_layers * c.hidden_size * (2 * heads + 3 * c.intermediate_size)
    entries = 2 * c.num_hidden_layers * kv * (batch * length + setting.candidates * setting.item_tokens)
    attention = c.num_hidden_layers * 4 * heads * (length + setting.item_tokens)
    return {
        "bytes": 1e3 * 2 * (weights + entries) / rates[0],
        "operations": 1e3 * tokens * (2 * weights + attention) / rates[1],
    }


if __name__ == "__main__":
    torch.manual_seed(0)
    check_kernel(Path(sys.argv[1]), torch.device("cuda"), CHECKS)
