"""The graphs of an HSTU model of the next item give the torch module's scores, in ONNX Runtime."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from genrec.engine.hstu_ranking import HstuExecutor, HstuRequest
from genrec.engine.hstu_users import HstuEntries, HstuUsers
from genrec.nn.hstu_checkpoint import load_hstu_next
from genrec.nn.hstu_next import HstuNext
from genrec.rank.hstu import CODES, ITEM, TIME, WAIT, NextConfig
from genrec.rank.hstu_marks import candidate_marks, user_marks
from tests.export.test_hstu_parity import OnnxPasses
from tests.oracles.next_asked import next_scores

DAY = 86_400


def tokens_of(model: HstuNext, rows: np.ndarray, times: np.ndarray) -> np.ndarray:
    """int32[U, token_size], as a request is read."""
    tokens = np.zeros((len(rows), model.config.token_size), np.int32)
    tokens[:, ITEM], tokens[:, CODES:] = rows + 1, model.codes.numpy()[rows]
    tokens[:, TIME] = times - times[:1].sum()
    return tokens


def candidates_of(model: HstuNext, rows: np.ndarray) -> np.ndarray:
    """int32[C, 1 + L]."""
    return np.concatenate((rows[:, None] + 1, model.codes.numpy()[rows]), 1).astype(np.int32)


@pytest.fixture(scope="module")
def model(tiny_hstu_next: Path) -> HstuNext:
    return load_hstu_next(tiny_hstu_next / "model")


@pytest.fixture(scope="module")
def executor(tiny_hstu_next: Path, model: HstuNext) -> HstuExecutor:
    return HstuExecutor(OnnxPasses(tiny_hstu_next / "onnx", NextConfig.kind), model.config)


@pytest.mark.parametrize("events", [1, 2, 3, 16, 29])
@pytest.mark.parametrize("later", [0, 30 * DAY])
def test_scores_are_torch_s(executor: HstuExecutor, model: HstuNext, events: int, later: int) -> None:
    """29: more than the model has read at once."""
    draw = np.random.default_rng(events)
    rows, times = draw.integers(0, 300, events), np.sort(draw.integers(0, 10**7, events))
    tokens, candidates = tokens_of(model, rows, times), draw.permutation(300)[:9]
    now = int(times[-1]) + later
    request = HstuRequest(None, tokens, candidates_of(model, candidates), now - int(times[0]))
    scores, reuse = executor.scores(request)
    want = next_scores(model, rows.tolist(), times.tolist(), now)
    np.testing.assert_allclose(scores, want[candidates], rtol=1e-5, atol=2e-5)
    assert reuse == (0, 0, events, 0)


def test_a_prefix_in_parts_is_the_prefix_at_once(tiny_hstu_next: Path, model: HstuNext) -> None:
    draw, config = np.random.default_rng(3), model.config
    tokens = config.prefix(tokens_of(model, draw.integers(0, 300, 12), np.sort(draw.integers(0, 10**7, 12))))
    entries = HstuEntries(config, "")
    users = HstuUsers(OnnxPasses(tiny_hstu_next / "onnx", config.kind), entries)
    whole, parts = (entries.user(np.zeros(entries.user_bytes(32), np.uint8), 32) for _ in range(2))
    users.fill(tokens, whole, 0, 11)
    for past, end in ((0, 1), (1, 5), (5, 11)):
        users.fill(tokens, parts, past, end)
    np.testing.assert_allclose(
        [each[:, :, :11] for each in parts], [each[:, :, :11] for each in whole], atol=1e-5
    )


def test_the_newest_event_alone_depends_on_when_it_is_asked(model: HstuNext) -> None:
    tokens = tokens_of(model, np.arange(4), np.array([50, 60, 60, 1000]))
    prefix = model.config.prefix(tokens)
    assert prefix[:, WAIT].tolist() == [10, 0, 940] and prefix[:, TIME].tolist() == [0, 10, 10]
    newest, candidates = model.config.query(tokens, candidates_of(model, np.arange(2)), 953).rows
    assert newest.tolist() == [[4, 3, *model.codes.numpy()[3]]], "three seconds are in bucket 3"
    assert candidates.shape == (2, 4)


def test_marks_are_the_layout_s(model: HstuNext) -> None:
    """Pair by pair: everybody sees himself and who was before him."""
    tokens = model.config.prefix(tokens_of(model, np.arange(6), np.array([0, 4, 4, 9, 100, 228])))
    near, _, seen = user_marks(model.config, tokens)
    assert seen.astype(bool).tolist() == [[j <= i for j in range(5)] for i in range(5)]
    assert near.tolist() == [[max(i - j, 0) for j in range(5)] for i in range(5)]
    assert candidate_marks(model.config, tokens, 228)[0].tolist() == [5, 4, 3, 2, 1]


def test_an_item_without_a_row_has_its_codes_alone(executor: HstuExecutor, model: HstuNext) -> None:
    tokens = tokens_of(model, np.array([5, 6]), np.array([0, 0]))
    asked = candidates_of(model, np.array([7, 8]))
    asked[0, 0] = 0
    scores, _ = executor.scores(HstuRequest(None, tokens, asked, 0))
    kept = model.of_item.weight[7].clone()
    with torch.no_grad():
        model.of_item.weight[7] = 0
        want: Tensor = torch.from_numpy(next_scores(model, [5, 6], [0, 0], 0))
        model.of_item.weight[7] = kept
    np.testing.assert_allclose(scores, want[[7, 8]].numpy(), atol=2e-5)
