"""The graphs of an HSTU ranker give the torch module's logits, in ONNX Runtime; and their marks are its layout's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
import torch

from genrec.engine.hstu_ranking import HstuExecutor, HstuRequest
from genrec.engine.interface import WEIGHTS, HstuPasses
from genrec.nn import hstu_layout
from genrec.nn.hstu import HstuRanker
from genrec.nn.hstu_checkpoint import load_hstu
from genrec.rank.hstu import (
    CODES,
    FEATURE,
    ITEM,
    RATING,
    TIME,
    HstuConfig,
    HstuKind,
    time_bucket,
)
from genrec.rank.hstu_marks import candidate_marks, user_marks
from genrec.tensor_file import mapped_tensors
from tests.oracles.hstu_asked import Asked, logits_of


class OnnxPasses:
    """`HstuPasses` of the exported files as they are."""

    def __init__(self, onnx: Path, kind: HstuKind = HstuConfig.kind) -> None:
        self._user, self._rank = (
            onnxruntime.InferenceSession(str(onnx / f"{name}.onnx")) for name in kind.graphs
        )
        self._weights = mapped_tensors(onnx / kind.exported)
        self.captured = 0
        self.rows = 0  # of tokens that were computed, those padded included

    def rehearse(self, candidates: int) -> None:
        """No shape is slow the first time."""

    def hold(self, memory: Any) -> None:
        """Nothing is copied."""

    def user(self, tokens: Any, marks: Any, past_marks: Any, past: Sequence[Any], new: Sequence[Any]) -> None:
        self.rows += len(tokens)
        for place, found in zip(new, self._run(self._user, [tokens, marks, past_marks, *past]), strict=True):
            place[:] = found

    def logits(self, asked: Sequence[Any], marks: Any, user: Sequence[Any]) -> Any:
        return self._run(self._rank, [*asked, marks, *user])[0]

    def _run(self, session: Any, given: Sequence[Any]) -> Any:
        names = [each.name for each in session.get_inputs()]
        weights = {name: name.removeprefix(WEIGHTS) for name in names if name.startswith(WEIGHTS)}
        inputs = dict(zip([name for name in names if name not in weights], given, strict=True))
        return session.run(None, inputs | {name: self._weights[of] for name, of in weights.items()})


@pytest.mark.parametrize(("events", "features"), [(0, 2), (1, 0), (1, 3), (16, 0), (16, 3), (29, 3)])
def test_logits_are_torch_s(tiny_hstu: Path, events: int, features: int) -> None:
    passes = OnnxPasses(tiny_hstu / "onnx")
    assert_torch_s(passes, load_hstu(tiny_hstu / "model"), events, features)


def assert_torch_s(passes: HstuPasses, model: HstuRanker, events: int, features: int) -> None:
    """Scores of nine candidates, over a user of so many events and features, are those of a model of tiny's."""
    draw = np.random.default_rng(events)
    times = np.sort(draw.integers(0, 10**7, events))
    times -= times[:1].sum()  # seconds since the first event
    asked = Asked(
        draw.integers(0, 300, events), draw.integers(0, 6, events), times, 2 * 10**7, [7, 1, 4][:features]
    )
    codes = model.codes.numpy()
    tokens = np.zeros((features + events, model.config.token_size), np.int32)
    tokens[:features, FEATURE] = asked.features
    tokens[features:, ITEM], tokens[features:, RATING] = asked.rows + 1, asked.ratings
    tokens[features:, TIME], tokens[features:, CODES:] = times, codes[asked.rows + 1]
    candidates = draw.permutation(300)[:9]
    rows = np.concatenate((candidates[:, None] + 1, codes[candidates + 1]), 1).astype(np.int32)
    executor = HstuExecutor(passes, model.config)
    now = asked.now if events else 0
    scores, reuse = executor.scores(HstuRequest(None, tokens, rows, now))
    np.testing.assert_allclose(scores, logits_of(model, asked, candidates)[:, 0], rtol=1e-5, atol=2e-5)
    assert reuse == (0, 0, len(tokens) + 9, 0)


def test_buckets_of_times_are_those_of_training() -> None:
    edges = np.array([2**n + d for n in range(31) for d in (-1, 0, 1)] + [3 * 2**n for n in range(29)])
    seconds = np.concatenate((edges, -edges, np.arange(3000), [2**31 - 1])).astype(np.int32)
    for buckets in (5, 64):
        want = hstu_layout.time_bucket(torch.from_numpy(seconds), buckets)
        assert np.array_equal(time_bucket(seconds, buckets), want.numpy())


def test_who_sees_whom_pair_by_pair(tiny_hstu: Path) -> None:
    config = load_hstu(tiny_hstu / "model").config
    tokens = np.zeros((7, config.token_size), np.int32)
    tokens[:2, FEATURE], tokens[2:, TIME] = (3, 5), (0, 4, 4, 9, 100)
    # Features see each other; events see those and what was before
    seen = [[j < 2 if i < 2 else j <= i for j in range(7)] for i in range(7)]
    near = [[max(max(i - 1, 0) - max(j - 1, 0), 0) for j in range(7)] for i in range(7)]
    times = tokens[:, TIME].tolist()
    since = [[int(time_bucket(np.array([i - j], np.int32), config.times)[0]) for j in times] for i in times]
    for first in (0, 1, 2, 3, 6, 7):
        marks = user_marks(config, tokens, first)
        assert marks.tolist() == [near[first:], since[first:], seen[first:]], first
    padded = user_marks(config, tokens, span=9)
    assert padded[:, :7, :7].tolist() == [near, since, seen]
    assert not padded[:, 7:].any() and not padded[:, :, 7:].any()
    found = candidate_marks(config, tokens, 228)
    assert found.tolist() == [[6, 6, 5, 4, 3, 2, 1], [15, 15, 15, 15, 15, 15, 14], [1] * 7]
    padded = candidate_marks(config, tokens, 228, 9)
    assert np.array_equal(padded[:, :7], found) and not padded[:, 7:].any()


@pytest.mark.parametrize("features", [0, 3])
@pytest.mark.parametrize("events", [0, 1, 2, 40])
def test_places_far_apart_are_alike(tiny_hstu: Path, features: int, events: int) -> None:
    """More events than the table has rows, events alone and features alone, from any token on."""
    config, count = replace(load_hstu(tiny_hstu / "model").config, max_history=20), features + events
    tokens = np.zeros((count, config.token_size), np.int32)
    tokens[:features, FEATURE] = 1
    position = [max(i - features + 1, 0) for i in range(count)]
    for first in range(count + 1):
        near, _, seen = user_marks(config, tokens, first)
        assert near.tolist() == [[min(max(i - j, 0), 21) for j in position] for i in position[first:]]
        reach = [features if i < features else i for i in range(count)]
        assert seen.tolist() == [
            [int(j < reach[i] or j == i) for j in range(count)] for i in range(first, count)
        ]
