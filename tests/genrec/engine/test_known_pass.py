"""Requests that one pass over all levels answers, against those that a pass for each level does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genrec import metrics
from genrec.artifact import load_config
from genrec.catalogue.answerable import THESE_ALONE
from genrec.catalogue.indices import load_validity
from genrec.engine.load import load_executors
from genrec.search.constraint import Constraint
from genrec.settings import Settings
from tests.oracles.twin import twin_artifact

WIDTH = 16


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return twin_artifact(tmp_path_factory.mktemp("deep") / "artifact", (2, 3, 2, 3, 4), 90)


@pytest.fixture(params=["twin", "openvino", "bf16"])
def case(request: pytest.FixtureRequest) -> tuple[Path, str]:
    name = {"twin": "deep", "openvino": "tiny", "bf16": "tiny_bf16"}[request.param]
    return request.getfixturevalue(name), "twin" if request.param == "twin" else "openvino"


def candidates(config: Any, index: Any, seed: int) -> tuple[Any, Any, Constraint]:
    """A prompt, its length, and some items of which all are wanted."""
    draw = np.random.default_rng(seed)
    items = int(draw.integers(1, 5))
    sizes, offsets = config.codebook_sizes, config.code_offsets
    codes = np.column_stack([draw.integers(0, size, items) for size in sizes]) + np.array(offsets)
    rows = draw.choice(index.items, int(draw.integers(1, WIDTH + 1)), replace=False)
    only = index.blocked(np.array([THESE_ALONE, *rows], np.int32))
    return codes.reshape(1, -1), np.array([codes.size]), Constraint(index, only, len(rows))


def scored() -> float:
    return metrics.BEAMS.value(kind="scored")


def test_one_pass_answers_what_a_pass_for_each_level_does(case: tuple[Path, str], tmp_path: Path) -> None:
    artifact, target = case
    config = load_config(artifact)
    executor = load_executors(Settings(artifact, tmp_path, WIDTH, target), config)[0]
    index, used = load_validity(artifact, config), 0
    executor.rehearse(1, 8, index)  # type: ignore[attr-defined]
    inner: Any = getattr(executor, "_all", executor)
    assert inner._decodes_all
    passes, called = inner._passes, list[str]()
    for name in ("decode", "decode_all"):
        of = getattr(passes, name)
        setattr(passes, name, lambda given, of=of, name=name: called.append(name) or of(given))
    for seed in range(40):
        tokens, lengths, constraint = candidates(config, index, seed)
        called.clear()
        before = scored()
        (got,) = inner.answers(tokens, lengths, [constraint])
        ours, at_once = scored() - before, "decode_all" in called
        assert not at_once or called == ["decode_all"]
        inner._decodes_all = False
        (want,) = inner.answers(tokens, lengths, [constraint])
        inner._decodes_all, used = True, used + at_once
        assert ours == scored() - before - ours
        np.testing.assert_array_equal(got.paths, want.paths)
        np.testing.assert_array_equal(got.nodes, want.nodes)
        atol = 0.06 if artifact.name == "bf16" else 1e-5
        np.testing.assert_allclose(got.scores, want.scores, rtol=0, atol=atol)
    assert used > 10


def test_a_batch_of_several_goes_level_by_level(deep: Path, tmp_path: Path) -> None:
    config = load_config(deep)
    (executor,) = load_executors(Settings(deep, tmp_path, WIDTH, "twin"), config)
    index = load_validity(deep, config)
    asked = [candidates(config, index, seed) for seed in (1, 2)]
    tokens = np.zeros((2, max(each[0].size for each in asked)), np.int64)
    for row, (given, _, _) in zip(tokens, asked, strict=True):
        row[: given.size] = given[0]
    together = executor.answers(tokens, np.array([each[1][0] for each in asked]), [each[2] for each in asked])
    for both, (given, lengths, constraint) in zip(together, asked, strict=True):
        (alone,) = executor.answers(given, lengths, [constraint])
        np.testing.assert_array_equal(both.paths, alone.paths)
        np.testing.assert_allclose(both.scores, alone.scores, rtol=0, atol=1e-5)
