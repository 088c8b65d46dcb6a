"""HSTU rankers on a GPU: a ranking over a user's KV that is in host memory, and the user's whole pass, beside floors.

Two sizes: that of `genrec train` as it is, and a large one. Random weights, float32, 100 candidates (BAT, section 6.2).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from genrec.engine.cuda.host import PageLocked
from genrec.engine.cuda.hstu import MODULES, CudaHstu, Shared
from genrec.rank.hstu import CODES, ITEM, RATING, TIME, HstuConfig, NextConfig
from genrec.rank.hstu_marks import candidate_marks, user_marks
from genrec.rank.hstu_weights import HstuWeights
from genrec.rank.options import USUAL_CANDIDATES
from perf.gpu.pool_memory import pool_memory
from perf.gpu.timing import median_ms, median_wall_ms

TOLERANCE = 1e-3  # of a norm: both sides are float32, in another order
BYTES = 4  # of a number


@dataclass(frozen=True)
class Setting:
    """Shapes to check, and of rankers of ratings those to time; users have `max_history` events."""

    checked: Mapping[str, HstuConfig]
    timed: Mapping[str, HstuConfig]
    candidates: int = USUAL_CANDIDATES


ITEMS, SIZES = 100_000, (256, 256, 256)
DEFAULT = HstuConfig(ITEMS, SIZES, 0)
LARGE = HstuConfig(ITEMS, SIZES, 0, max_history=2000, hidden_size=512, layers=8, heads=8)
SIZED = {"default": DEFAULT, "large": LARGE}
FULL = Setting({**SIZED, "next": NextConfig(ITEMS, SIZES)}, SIZED)
TINY = HstuConfig(50, (4, 4), 0, max_history=40, hidden_size=16, layers=2)
DRY = Setting(
    {"default": TINY, "next": NextConfig(50, (4, 4), max_history=40, hidden_size=16, layers=2)},
    {"default": TINY}, 6,
)  # fmt: skip


class Rankings:
    """Of one shape, asked of the engine with everything in host memory, users' KV as a pool has it."""

    def __init__(self, config: HstuConfig, candidates: int, device: torch.device) -> None:
        self.config, self.device = config, device
        ranker, user, rank = MODULES[config.kind.name]
        torch.manual_seed(0)
        model = ranker(
            config, torch.zeros(config.items, len(config.codebook_sizes), dtype=torch.int64)
        ).eval()
        for parameter in model.requires_grad_(False).parameters():
            parameter += 0.02 * torch.randn_like(parameter)  # biases and norms too are seen then
        self.user, self.rank = user(model), rank(model)
        arrays = {name: each.numpy() for name, each in model.state_dict().items()}
        shared = Shared(device, threading.Lock(), PageLocked(device))
        self.passes = CudaHstu(shared, config, HstuWeights(arrays, "", 0))
        draw = np.random.default_rng(0)
        self.tokens = np.zeros((config.max_history, config.token_size), np.int32)
        self.tokens[:, ITEM] = draw.integers(1, config.items, len(self.tokens))
        self.tokens[:, RATING] = draw.integers(0, config.ratings + 1, len(self.tokens))
        self.tokens[:, TIME] = np.sort(draw.integers(0, 10**8, len(self.tokens)))
        self.tokens[:, CODES:] = draw.integers(1, config.code_rows, self.tokens[:, CODES:].shape)
        some = self.tokens[draw.integers(0, len(self.tokens), candidates)]
        self.candidates = np.concatenate((some[:, [ITEM]], some[:, CODES:]), 1)
        self.now = 2 * 10**8

    def room(self, tokens: int) -> list[NDArray[np.float32]]:
        """For a user's KV: 2N arrays [1, H, S, D]."""
        c = self.config
        shape = 2 * c.layers, 1, c.heads, tokens, c.hidden_size // c.heads
        return list(pool_memory((*shape[:-1], 2 * shape[-1])).view(np.float32))

    def marks(self, prefix: NDArray[np.int32], first: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Of tokens from `first` on, towards themselves and those before, or towards one that nobody sees."""
        marks = user_marks(self.config, prefix, first)
        before = marks[:, :, :first] if first else np.zeros((3, len(prefix), 1), np.int64)
        return np.ascontiguousarray(marks[:, :, first:]), np.ascontiguousarray(before)

    def fill(self, prefix: NDArray[np.int32], new: list[NDArray[np.float32]]) -> None:
        """A user's whole pass, by the engine."""
        self.passes.user(self.config.read(prefix), *self.marks(prefix), self._nobody(), new)

    def error(self, events: int) -> float:
        """Of KV at once and in two parts, and of the scores over it, as a share of their norms: the largest."""
        prefix = self.config.prefix(self.tokens[:events])
        kv, half = self.room(len(prefix)), len(prefix) // 2
        self.fill(prefix, kv)
        newest, past = self.room(len(prefix) - half), [np.ascontiguousarray(each[:, :, :half]) for each in kv]
        self.passes.user(self.config.read(prefix[half:]), *self.marks(prefix, half), past, newest)
        found = self.passes.logits(*self.asked(events), kv)
        read = [torch.from_numpy(each) for each in (self.config.read(prefix), *self.marks(prefix))]
        want = self.user(*read, [torch.from_numpy(each) for each in self._nobody()])
        rows, marks = self.asked(events)
        scores = self.rank(*map(torch.from_numpy, (*rows, marks)), list(want))
        exact = [each.numpy() for each in want]
        pairs = (kv, exact), (newest, [each[:, :, half:] for each in exact]), (found, scores.numpy())
        errors = [np.linalg.norm(np.subtract(*each)) / np.linalg.norm(each[1]) for each in pairs]
        return float(np.max(errors))  # NaN stays

    def asked(self, events: int) -> tuple[list[NDArray[np.int64]], NDArray[np.int64]]:
        """All candidates for the user of so many events: what a ranking reads beside his KV."""
        tokens = self.tokens[:events]
        query = self.config.query(tokens, self.candidates, self.now)
        return query.rows, candidate_marks(self.config, self.config.prefix(tokens), query.time)

    def _nobody(self) -> list[NDArray[np.float32]]:
        return [np.zeros_like(each) for each in self.room(1)]


def check(setting: Setting, device: torch.device) -> dict[str, float]:
    """KV and scores against the modules on the CPU, as shares of a norm. Raises AssertionError."""
    errors = {}
    for name, config in setting.checked.items():
        rankings, events = Rankings(config, setting.candidates, device), config.max_history
        # A shorter user in between: he sees nothing of the longer one.
        errors[name] = float(np.max([rankings.error(each) for each in (events, events // 2, events)]))
    worst = np.max([*errors.values()])
    assert worst <= TOLERANCE, f"HSTU is {errors} of its norms off, at most {TOLERANCE}"
    return errors


def measure(setting: Setting, device: torch.device, rates: tuple[float, float]) -> dict[str, dict[str, Any]]:
    """Milliseconds by size; `rates` are bytes, and operations in float32, a second.

    `rank`: candidates over a user's KV in host memory, as a caller waits for them. `user`: his whole pass, from tokens
    on to KV in host memory; of it `marks` are made by the host. `*_pass` is what the device computes, `*_floor` the
    least time of that. `rehearsal_s`: all `captured` shapes before a server is ready.
    """
    return {
        name: _measured(Rankings(config, setting.candidates, device), rates)
        for name, config in setting.timed.items()
    }


def _measured(rankings: Rankings, rates: tuple[float, float]) -> dict[str, Any]:
    passes, config, device, many = rankings.passes, rankings.config, rankings.device, len(rankings.candidates)
    begun = time.perf_counter()
    passes.rehearse(many)
    rehearsal_s, events = time.perf_counter() - begun, config.max_history
    kv = rankings.room(events)
    rows, marks = rankings.asked(events)
    floors = floors_ms(config, events, many, rates)
    return {
        "user": median_wall_ms(lambda: rankings.fill(rankings.tokens, kv), device),
        "marks": median_wall_ms(lambda: rankings.marks(rankings.tokens), device),
        "user_pass": median_ms(passes.bucket_of_user(events).replayed, device),
        "user_floor": max(floors["user"].values()),
        "rank": median_wall_ms(lambda: passes.logits(rows, marks, kv), device),
        "rank_pass": median_ms(passes.bucket_of_ranking(many, events).replayed, device),
        "rank_floor": max(floors["rank"].values()),
        "floors": floors,
        "user_mb": sum(each.nbytes for each in kv) / 1e6,
        "rehearsal_s": rehearsal_s,
        "captured": passes.captured,
    }


def floors_ms(
    config: HstuConfig, events: int, candidates: int, rates: tuple[float, float]
) -> dict[str, dict[str, float]]:
    """Least time of both passes of a ranker of ratings, for the bytes of weights and KV, and for its operations."""
    size, layers = config.hidden_size, config.layers
    kv, matrices, head = 2 * layers * events * size, 5 * size**2, size**2
    # Of the last layer, a user's pass needs keys and values alone. An event sees those before it: half of all pairs.
    of_user = (layers - 1) * matrices + 2 * size**2
    seen = (layers - 1) * 4 * size * events / 2
    numbers = {"user": of_user + kv, "rank": layers * matrices + head + kv}
    operations = {
        "user": events * (2 * of_user + seen),
        "rank": candidates * (2 * (layers * matrices + head) + layers * 4 * size * events),
    }
    return {
        of: {"bytes": 1e3 * BYTES * numbers[of] / rates[0], "operations": 1e3 * operations[of] / rates[1]}
        for of in numbers
    }
