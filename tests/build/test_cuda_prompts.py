"""KV of prompts that target `cuda` shows, on CPU tensors: what prefill gives, by request, and of sound ones alone."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from build.cuda.engines import build_engines as build_cuda
from ensembles.local import LocalRecommender
from genrec.batch_cost import BatchCost
from genrec.catalogue.validity import ValidityIndex
from genrec.engine.cuda.forward import Forward
from genrec.engine.cuda.generate import CudaExecutor
from genrec.models.config import ModelConfig
from genrec.nn.model import Generator
from genrec.nn.xattention import xattention
from genrec.schedule.cost import PassCost
from genrec.search.constraint import Constraint
from tests.build.test_cuda import index_of
from tests.tiny import tiny_catalogue

CONFIG = ModelConfig((12, 12, 12), 40, hidden_size=32, num_hidden_layers=3, head_dim=8, intermediate_size=48)


def made() -> tuple[Forward, CudaExecutor]:
    torch.manual_seed(1)
    forward = Forward(Generator(CONFIG).eval(), xattention)
    return forward, CudaExecutor(forward, 8)


def shown(executor: CudaExecutor, tokens: Any, lengths: Any, valid: list[ValidityIndex]) -> dict[int, Any]:
    """By row, an entry of a span of its own, garbage before; and the answers are those without."""
    entries: dict[int, Any] = {}

    def show(row: int, bring: Any) -> None:
        assert row not in entries
        entries[row] = np.full((6, 2, -(-int(lengths[row]) // 8) * 8, 8), np.nan, np.float32)
        bring(entries[row])

    constraints = [Constraint(each) for each in valid]
    for mine, plain in zip(
        executor.answers(tokens, lengths, constraints, prompts=show),
        executor.answers(tokens, lengths, constraints), strict=True,
    ):  # fmt: skip
        assert np.array_equal(mine.paths, plain.paths)
    return entries


@pytest.mark.parametrize("seed", range(3))
def test_every_row_is_shown_the_kv_of_its_prompt(seed: int) -> None:
    """Batches of several shapes, which share their memory, with two catalogue versions in each."""
    forward, executor = made()
    versions = [index_of(tiny_catalogue()), index_of(tiny_catalogue(60))]
    draw = np.random.default_rng(seed)
    for count, span in ((3, 40), (1, 9), (5, 70), (2, 33)):
        tokens, lengths = draw.integers(0, 36, (count, span)), draw.integers(1, span + 1, count)
        lengths[0] = span
        found = shown(executor, tokens, lengths, [versions[row % 2] for row in range(count)])
        assert set(found) == set(range(count))
        for row, entry in found.items():
            end = int(lengths[row])
            _, kv = forward.prefill(torch.from_numpy(tokens[row : row + 1, :end]), torch.tensor([end]))
            np.testing.assert_allclose(entry[:, :, :end], torch.stack(kv)[:, 0].numpy(), atol=1e-5)
            assert not entry[:, :, end:].any()


def test_a_prompt_whose_logits_are_no_numbers_is_not_shown() -> None:
    forward, executor = made()
    forward.embedding.data[7] = torch.nan
    tokens, lengths = np.array([[1, 2, 3], [1, 7, 3], [4, 5, 6]]), np.array([3, 3, 3])
    rows: list[int] = []
    with pytest.raises(Exception, match="logits"):
        executor.answers(
            tokens,
            lengths,
            [Constraint(index_of(tiny_catalogue()))] * 3,
            prompts=lambda row, _: rows.append(row),
        )
    assert rows == [0, 2]


def test_a_device_without_memory_for_the_copy_answers_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    _, executor = made()
    asked = np.array([[1, 2, 3]]), np.array([3]), [Constraint(index_of(tiny_catalogue()))]

    def refuse(row: int, bring: Any) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")

    (found,), (plain,) = executor.answers(*asked, prompts=refuse), executor.answers(*asked)
    assert np.array_equal(found.paths, plain.paths) and "not kept: CUDA out of memory" in caplog.text


def test_all_shapes_share_one_memory() -> None:
    forward, _ = made()
    largest, other = forward.prompts.of(4, 64), forward.prompts.of(2, 96)
    assert other.data_ptr() == largest.data_ptr() and other.shape == (6, 2, 2, 96, 8)
    assert forward.prompts.of(4, 96).data_ptr() != largest.data_ptr(), "has more room than there was"


def test_a_batch_of_a_new_shape_says_so() -> None:
    """Capturing takes a tenth of a second or two: estimates learn nothing from it."""
    _, executor = made()
    versions = [index_of(tiny_catalogue()), index_of(tiny_catalogue(60))]

    def is_new(count: int, span: int, valid: ValidityIndex) -> bool:
        before = executor.captured
        executor.answers(np.ones((count, span), np.int64), np.full(count, span), [Constraint(valid)] * count)
        return executor.captured != before

    asked = [(1, 9, 0), (1, 20, 0), (1, 40, 0), (3, 40, 0), (4, 33, 0), (1, 9, 1), (1, 9, 0)]
    assert [is_new(count, span, versions[which]) for count, span, which in asked] == [
        True, False, True, True, False, False, False,
    ]  # fmt: skip


def test_estimates_learn_nothing_from_a_shape_that_comes_first(
    tiny_ranker: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of requests and of rankings; what comes then in the same shape they learn."""
    artifact = shutil.copytree(tiny_ranker, tmp_path / "artifact")
    build_cuda(artifact, "f32", "cpu")
    ids = tiny_catalogue().item_ids.tolist()
    learnt: list[str] = []
    monkeypatch.setattr(BatchCost, "learn", lambda *_: learnt.append("batch"))
    monkeypatch.setattr(PassCost, "learn_together", lambda *_: learnt.append("rankings"))
    with LocalRecommender(artifact, 16, "cuda", decoder="rank") as local:
        for _ in range(3):
            local.rank([(ids[:5], ids[50:90])], 5)  # those that are rehearsed have a hundred candidates
    assert learnt == 2 * ["rankings", "batch"]
    learnt.clear()
    with LocalRecommender(artifact, 16, "cuda") as local:
        generate: Any = local.runtime._steps["generate"]
        local.recommend([ids[:5]], 5)  # all shapes were rehearsed
        generate._scheduler.close()
        assert learnt == ["batch"]
    with LocalRecommender(artifact, 16, "cuda") as local:
        generate = local.runtime._steps["generate"]
        generate._executors[0]._generator = None  # as a version that has no room begins
        for _ in range(3):
            local.recommend([ids[:5]], 5)
    assert learnt == 3 * ["batch"]
