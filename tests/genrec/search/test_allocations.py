"""Once warm, a step of beam search allocates no array (xGR, section 6.3): counted by tracemalloc."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable

import numpy as np

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
    """The largest number of bytes that `work` had allocated at once, over what there was before it.

    Of six runs the least: what other threads of the process allocate meanwhile is counted too, an array of `work` in
    every run.
    """
    for _ in range(3):
        work()
    tracemalloc.start()
    try:
        return min(_peak(work) for _ in range(6))
    finally:
        tracemalloc.stop()


def _peak(work: Callable[[], object]) -> int:
    gc.collect()  # else what is collected during `work` counts against it
    before, _ = tracemalloc.get_traced_memory()
    tracemalloc.reset_peak()
    work()
    return tracemalloc.get_traced_memory()[1] - before


def test_a_step_allocates_no_array() -> None:
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

    assert most_allocated(lambda: steps(scratch)) < SMALLEST_ARRAY
    assert most_allocated(lambda: steps(None)) > SMALLEST_ARRAY, "the count sees arrays"
    ours, fresh = steps(scratch), steps(None)
    for mine, other in zip(vars(ours).values(), vars(fresh).values(), strict=True):
        np.testing.assert_array_equal(mine, other)


class Silent:
    """Passes that leave what was there: only what happens between them is looked at."""

    def prefill(self, tokens, lengths, logits, kv):
        logits[:] = 0

    def decode(self, given):
        given.logits[:] = 0


def test_a_request_allocates_its_answer_and_no_other_array() -> None:
    index = index_of()
    generator = HostExecutor(Silent(), CONFIG, WIDTH, "f32")
    tokens, lengths = np.zeros((2, 12), np.int64), np.full(2, 12)
    constraints = [Constraint(index, index.blocked(np.array([-1])))] * 2
    answer = 2 * WIDTH * (8 + 4 + 4 + 4)
    found = most_allocated(lambda: generator.answers(tokens, lengths, constraints))
    assert (
        abs(found - answer) < SMALLEST_ARRAY
    )  # small objects of before may leave meanwhile: arrays are counted
