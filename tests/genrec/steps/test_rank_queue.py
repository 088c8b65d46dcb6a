"""What a ranking counts in the queue: what it will compute in its order; and what the queue learns from it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genrec.artifact import load_config
from genrec.engine.load_ranker import create_pool
from genrec.errors import DeadlineExceeded
from genrec.rank.options import ORDERS
from genrec.settings import Settings
from genrec.steps import Tensors
from genrec.steps.score_candidates import ScoreCandidates

USER, ITEMS, L = 8 * 3, 10, 3


@pytest.fixture
def step(tiny_ranker: Path, tmp_path: Path) -> Iterator[ScoreCandidates]:
    settings = Settings(
        tiny_ranker, tmp_path / "arena", pool=tmp_path / "pool", pool_user_mb=1, pool_item_mb=1, pool_fill="none",
        prefix_choice="hazard",
    )  # fmt: skip
    create_pool(settings, load_config(tiny_ranker))
    made = ScoreCandidates(settings)
    yield made
    made.close()


def ranking(order: str) -> Tensors:
    """Always of the same user and items; what is new is kept."""
    draw = np.random.default_rng(0)
    codes = draw.integers(0, 12, (1, ITEMS, L)).astype(np.int32).reshape(1, -1)
    return {
        "tokens": draw.integers(0, 36, (1, USER)).astype(np.int32),
        "ticket": np.array([[5, USER, 0, 0, 0, 0]]),
        "owner": np.array([[1, 7, time.monotonic_ns()]]),
        "candidates": codes,
        "codes": codes,
        "plan": np.array([[ORDERS.index(order), 1, 1]]),
    }


def test_a_user_s_tokens_count_where_his_kv_is_not_read(
    step: ScoreCandidates, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit, counted = step._scheduler.submit, list[int]()

    def noted(item: Any, tokens: int, *when: Any) -> None:
        counted.append(tokens)
        submit(item, tokens, *when)

    monkeypatch.setattr(step._scheduler, "submit", noted)
    for order in ("user", "user", "item", "whole"):
        (answer,) = step.run([ranking(order)])
        assert isinstance(answer, dict), answer
    assert counted == [USER + ITEMS * L, ITEMS * L, USER + ITEMS * L, USER + ITEMS * L]


@pytest.fixture
def queued(step: ScoreCandidates, answers: list[Any], monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Two rankings of one user, which wait until a test runs them; so would others."""
    waiting = list[Any]()
    monkeypatch.setattr(step._scheduler, "submit", lambda item, *told: waiting.append(item))
    for _ in range(2):
        step.submit(ranking("split"), answers.append)
    return waiting


@pytest.fixture
def answers() -> list[Any]:
    return []


def test_the_queue_learns_nothing_from_rankings_that_came_too_late(
    step: ScoreCandidates, queued: list[Any], answers: list[Any]
) -> None:
    """They take no time: the queue would think that all rankings do, and take more than it can answer."""
    in_time, late = queued
    late = replace(late, ticket=late.ticket._replace(deadline_ns=1))
    learnt = [step._run(step._now, batch) for batch in ([in_time], [late], [in_time, late])]
    assert learnt == [True, False, False]
    assert [isinstance(each, DeadlineExceeded) for each in answers] == [False, True, True, False]


def test_the_queue_learns_nothing_from_rankings_whose_users_came_into_the_pool_while_they_waited(
    step: ScoreCandidates, queued: list[Any], answers: list[Any]
) -> None:
    """By a pre-inference or another ranking: they take no time for tokens that they counted."""
    assert [each.missing for each in queued] == [USER, USER]
    assert [step._run(step._now, [each]) for each in queued] == [True, False]
    step.submit(ranking("split"), answers.append)
    assert step._run(step._now, queued[2:]), "it knew of it"
    assert [int(each["reuse"][0, 0]) for each in answers] == [0, USER, USER]
