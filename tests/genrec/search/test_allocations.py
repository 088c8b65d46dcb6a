"""Once warm, a step of beam search allocates no array (xGR, section 6.3): counted by tracemalloc.

Counted in a process of its own: tracemalloc counts a whole process, and threads of other tests allocate and free too.
"""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor
from multiprocessing import get_context

import numpy as np
import pytest

from genrec.catalogue.validity import ValidityIndex
from genrec.engine.host import HostExecutor
from genrec.models.config import ModelConfig
from genrec.search.constraint import Constraint
from genrec.search.expand import Beams, expand
from genrec.search.scratch import Scratch

WIDTH = 4096
SMALLEST_ARRAY = 4 * WIDTH  # bytes: a beam's parent; every other array of a step is larger
SIZES = (256, 256, 256)
CONFIG = ModelConfig(
    SIZES, max_history=4, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=2,
    head_dim=8, intermediate_size=16,
)  # fmt: skip


def index_of(items: int = 60_000) -> ValidityIndex:
    draw = np.random.default_rng(0)
    codes = np.stack([draw.integers(0, t, items) for t in SIZES], axis=1)
    return ValidityIndex.build(codes, SIZES, np.ones(items, np.int64), np.arange(items))


def most_allocated(work: Callable[[], object]) -> int:
    """The largest number of bytes that `work`, once warm, had allocated at once, over what there was before it."""
    for _ in range(3):
        work()
    gc.collect()  # else what is collected during `work` counts against it
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        work()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


@pytest.fixture(scope="module")
def alone() -> Iterator[Executor]:
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        yield process


def allocated_by_steps() -> tuple[int, int]:
    """Bytes that three steps allocate, with scratch and without."""
    index, draw = index_of(), np.random.default_rng(1)
    rows = (1, 256, WIDTH)
    logits = [draw.standard_normal((w, t)).astype(np.float32) for w, t in zip(rows, SIZES, strict=True)]
    scratch = Scratch()

    def steps(into: Scratch | None) -> Beams | None:
        beams: Beams | None = None
        if into:
            into.clear()
        for level, scores in enumerate(logits, 1):
            beams = expand(Constraint(index), level, scores, beams, WIDTH, scratch=into)
        return beams

    ours, fresh = steps(scratch), steps(None)
    for mine, other in zip(vars(ours).values(), vars(fresh).values(), strict=True):
        np.testing.assert_array_equal(mine, other)
    return most_allocated(lambda: steps(scratch)), most_allocated(lambda: steps(None))


def test_a_step_allocates_no_array(alone: Executor) -> None:
    with_scratch, without = alone.submit(allocated_by_steps).result()
    assert with_scratch < SMALLEST_ARRAY
    assert without > SMALLEST_ARRAY, "the count sees arrays"


class Silent:
    """Passes that leave what was there: only what happens between them is looked at."""

    def prefill(self, tokens, lengths, logits, kv, lends):
        logits[:] = 0
        return kv

    def decode(self, given):
        given.logits[:] = 0
        return given.logits


def allocated_by_a_request() -> int:
    index = index_of()
    generator = HostExecutor(Silent(), CONFIG, WIDTH, "f32")
    tokens, lengths = np.zeros((2, 12), np.int64), np.full(2, 12)
    constraints = [Constraint(index, index.blocked(np.array([-1])))] * 2
    return most_allocated(lambda: generator.answers(tokens, lengths, constraints))


def test_a_request_allocates_its_answer_and_no_other_array(alone: Executor) -> None:
    answer = 2 * WIDTH * (8 + 4 + 4 + 4)
    found = alone.submit(allocated_by_a_request).result()
    assert 0 <= found - answer < SMALLEST_ARRAY


def test_memory_that_is_handed_out_is_nobody_else_s_and_large_enough() -> None:
    """Compiled code looks at no end of an array: what it writes behind one is in another."""
    draw, scratch = np.random.default_rng(0), Scratch()
    for _ in range(50):
        beams, candidates = (int(each) for each in draw.integers(0, (300, 5000)))
        scratch.fit(beams, candidates)
        assert min(len(scratch.starts), len(scratch.families)) > beams
        assert min(len(scratch.best), len(scratch.all_beams)) >= beams
        assert min(map(len, (scratch.child, scratch.logit, scratch.weight, scratch.keys))) >= candidates
        scratch.clear()
        pieces = [
            scratch.take((int(n),), np.dtype(kind)) for n in draw.integers(0, 99, 9) for kind in ("f4", "i8")
        ]
        for number, piece in enumerate(pieces):
            piece[:] = number
        assert all((piece == number).all() for number, piece in enumerate(pieces))
