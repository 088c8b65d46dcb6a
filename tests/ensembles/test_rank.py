"""Rankings in the local runtime: they are the torch module's, whatever the pool holds, loses or is not."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ensembles.local import LocalRecommender, request
from genrec.catalogue.items import Catalogue
from genrec.engine.ranking import RankExecutor, RankPlan, RankRequest, Reuse
from genrec.errors import InputError
from genrec.models.prompt import window_start
from genrec.pool import mapping
from genrec.pool.pool import Pool
from genrec.rank.options import MOST_CANDIDATES, OPTIONS, ORDERS, RankerConfig
from genrec.report import MODEL, POPULARITY
from genrec.settings import Settings
from genrec.steps import load
from genrec.steps.rank_lookup import RankLookup
from tests.ensembles.rankings import Scores, check, report_of

WIDTH, L = 16, 3
NAMED = {"user_id": np.array([[5]])}


@pytest.fixture(scope="module")
def local(tiny_ranker: Path) -> Iterator[LocalRecommender]:
    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", pool_user_mb=1, pool_item_mb=1) as runtime:
        yield runtime


def test_answers_are_the_module_s_and_the_second_time_nothing_is_computed(
    local: LocalRecommender, by_torch: Scores, items: list[int]
) -> None:
    history, candidates = items[:5], items[20:60]
    want = by_torch(history, candidates)
    reuse = []
    for _ in range(2):
        (answer,) = local.rank([(history, candidates)], 10, user_id=7)
        report = check(answer, want, 10)
        assert report.answered_by == MODEL
        reuse.append((report.user_reused, report.items_reused))
    assert reuse == [(0, 0), (len(history) * L, len(candidates) * L)]
    (again,) = local.rank([(history, candidates)], 10, user_id=8)
    assert check(again, want, 10).user_reused == 0, "another user's history is not looked at"


@pytest.mark.parametrize("prefix", ["recompute", "user", "item", "agnostic", "greedy", "past", "hazard"])
def test_whatever_is_chosen_an_answer_is_the_module_s_in_that_order(
    tiny_ranker: Path, by_torch: Scores, items: list[int], prefix: str
) -> None:
    """Users who come back and grow, candidates who are there and are not; a pool that has room for all."""
    draw, orders = np.random.default_rng(5), set()
    sizes: dict[str, Any] = {"pool_user_mb": 1, "pool_item_mb": 1, "prefix_choice": prefix}
    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", **sizes) as local:
        for _ in range(30):
            user, length, many = draw.integers(4), draw.integers(1, 16), draw.integers(1, 9)
            history = items[40 * user : 40 * user + length]
            candidates = draw.choice(items[170:200], many, replace=False).tolist()
            (answer,) = local.rank([(history, candidates)], 5, user_id=int(user))
            order = ORDERS[report_of(answer).order]
            orders.add(order)
            check(answer, by_torch(history, candidates, "split" if order == "whole" else order), 5)
    # A place that never cost anybody his is always worth keeping.
    wanted = {"recompute": {"whole"}, "user": {"user"}, "item": {"item"}, "hazard": {"user"}}
    assert orders == wanted.get(prefix, {"user", "item"})


def test_a_choice_that_the_ranker_was_not_trained_for_is_refused(
    tiny_ranker: Path, tmp_path: Path, items: list[int]
) -> None:
    artifact = shutil.copytree(tiny_ranker, tmp_path / "artifact")
    RankerConfig(True, "user", 3).save(artifact / "model" / OPTIONS)
    settings = Settings(artifact, tmp_path / "arena", prefix_choice="greedy")
    with pytest.raises(
        InputError, match=r"prefix_choice: is greedy, .*\['item'\].*accepted: auto, recompute, user"
    ):
        load("prefix_choice", settings)


@pytest.mark.parametrize("choice", ["recompute", "item"])
def test_a_disk_for_users_is_refused_where_rankings_read_none(
    tiny_ranker: Path, tmp_path: Path, choice: str
) -> None:
    settings = Settings(tiny_ranker, tmp_path / "arena", prefix_choice=choice, pool_disk=str(tmp_path))
    with pytest.raises(
        InputError, match=f"pool_disk: is '{tmp_path}', and rankings by {choice} read no user's"
    ):
        load("score_candidates", settings)


def test_a_grown_history_extends_the_entry_that_agrees_so_far(
    local: LocalRecommender, by_torch: Scores, items: list[int]
) -> None:
    for length in (6, 8):
        (answer,) = local.rank([(items[200 : 200 + length], items[:9])], 9, user_id=99)
        report = check(answer, by_torch(items[200 : 200 + length], items[:9]), 9)
    assert report.user_reused == 6 * L


def test_a_long_history_s_window_moves_in_steps() -> None:
    starts = [window_start(n, 16) for n in range(30)]
    assert starts[:17] == [0] * 17 and starts[17:21] == [4] * 4 and starts[21:25] == [8] * 4
    assert all(n - start <= 16 for n, start in enumerate(starts))


@pytest.mark.parametrize("sizes", [(0, 0), (1, 0), (0, 1)])
def test_without_memory_to_reuse_answers_are_the_same(
    tiny_ranker: Path, by_torch: Scores, items: list[int], sizes: tuple[int, int]
) -> None:
    users, rows = sizes
    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", pool_user_mb=users, pool_item_mb=rows) as local:
        for _ in range(2):
            (answer,) = local.rank([(items[:5], items[20:60])], 10)
            report = check(answer, by_torch(items[:5], items[20:60]), 10)
        assert (report.user_reused > 0, report.items_reused > 0) == (users > 0, rows > 0)


def test_a_pool_that_is_lost_or_overwritten_changes_no_answer(
    tiny_ranker: Path, by_torch: Scores, items: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is cut while it is mapped, then it is gone."""
    monkeypatch.setattr(mapping, "LOOK_S", 0.0)
    want = by_torch(items[:5], items[20:60])
    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", pool_user_mb=1, pool_item_mb=1) as local:
        pool = local.settings.pool
        assert pool is not None
        check(local.rank([(items[:5], items[20:60])], 10)[0], want, 10)
        os.truncate(pool / mapping.NAME, 64)
        check(local.rank([(items[:5], items[20:60])], 10)[0], want, 10)
        shutil.rmtree(pool)
        assert check(local.rank([(items[:5], items[20:60])], 10)[0], want, 10).items_reused == 0


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core is all there is")
def test_what_is_short_is_ranked_on_one_core_and_alike(
    tiny_ranker: Path, by_torch: Scores, items: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first ranking says what one takes; the others read what it left."""
    scores, on_one_core = RankExecutor.scores, []

    def noted(executor: RankExecutor, asked: RankRequest, plan: RankPlan) -> tuple[np.ndarray, Reuse]:
        on_one_core.append(executor.one_core is None)
        return scores(executor, asked, plan)

    sizes: dict[str, Any] = {"pool_user_mb": 1, "pool_item_mb": 1, "rank_budget_ms": 60_000}
    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", **sizes) as local:
        monkeypatch.setattr(RankExecutor, "scores", noted)
        for _ in range(3):
            check(local.rank([(items[:5], items[20:60])], 10, 1)[0], by_torch(items[:5], items[20:60]), 10)
    assert on_one_core == [False, True, True]


def test_rows_that_others_refill_at_once_change_no_answer(
    tiny_ranker: Path, by_torch: Scores, items: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between keeping its items and reading them another process may have put its own in their rows."""
    commit, refilled = Pool.commit_items, []

    def commit_and_lose(pool: Pool, rows: np.ndarray) -> None:
        commit(pool, rows)
        keys = np.random.default_rng(0).integers(0, 2**63, (5000, 2)).astype(np.uint64)
        others = pool.write_items(keys)
        taken = others[others >= 0]
        noise = np.random.default_rng(1).normal(size=(len(taken), 192)).astype(np.float32)
        pool.items_memory.view(np.float32).reshape(-1, 192)[taken] = noise
        commit(pool, others)
        refilled.append(np.isin(rows, taken).all())

    monkeypatch.setattr(Pool, "commit_items", commit_and_lose)
    with LocalRecommender(tiny_ranker, WIDTH, decoder="rank", pool_user_mb=0, pool_item_mb=1) as local:
        (answer,) = local.rank([(items[:5], items[20:60])], 10)
    check(answer, by_torch(items[:5], items[20:60]), 10)
    assert refilled == [True], "or nothing was lost"


def test_candidates_are_answered_once_and_unknown_ones_are_left_out(
    local: LocalRecommender, by_torch: Scores, items: list[int]
) -> None:
    (answer,) = local.rank([(items[:3], [items[30], 1, items[31], items[30], -5])], 10)
    report = check(answer, by_torch(items[:3], items[30:32]), 10)
    assert (report.left_out, report.dropped, report.cut) == (3, 0, 0)
    (answer,) = local.rank([([-5, *items[:20], 1], items[30:32])], 10)
    start = window_start(20, 16)
    report = check(answer, by_torch(items[start:20], items[30:32]), 10)
    assert (report.left_out, report.dropped, report.cut) == (0, 2, start)


def test_without_a_history_popularity_or_the_given_scores_decide(
    local: LocalRecommender, tiny_ranker: Path, items: list[int]
) -> None:
    catalogue, asked = Catalogue.load(tiny_ranker / "catalogue.parquet"), items[30:40]
    (answer,) = local.rank([([], asked)], 10)
    assert isinstance(answer, dict)
    counts = catalogue.popularity[catalogue.rows_of(answer["item_ids"][0])]
    assert (np.diff(counts) <= 0).all() and report_of(answer).answered_by == POPULARITY
    scores = catalogue.popularity_scores[catalogue.rows_of(answer["item_ids"][0])]
    np.testing.assert_array_equal(answer["scores"][0], scores)
    tensors = request([], 2)
    del tensors["exclude_history"]
    tensors |= {"candidates": np.array([asked[:3]]), "candidate_scores": np.array([[1, 3, 2]], np.float32)}
    (answer,) = local.runtime.run([tensors])
    assert isinstance(answer, dict) and answer["item_ids"][0].tolist() == [asked[1], asked[2]]


def test_given_scores_stay_with_their_candidates_and_equal_ones_go_by_id(
    local: LocalRecommender, items: list[int]
) -> None:
    """Beside others that are unknown, or named before: the first score counts."""
    one, two, three, four = items[30:34]
    tensors = request([], 9)
    del tensors["exclude_history"]
    tensors["candidates"] = np.array([[1, two, one, two, -5, three, four]])
    tensors["candidate_scores"] = np.array([[9, 2, 1, 8, 9, 3, 2]], np.float32)
    (answer,) = local.runtime.run([tensors])
    assert isinstance(answer, dict)
    assert answer["item_ids"][0].tolist() == [three, *sorted((two, four)), one]
    assert answer["scores"][0].tolist() == [3, 2, 2, 1] and report_of(answer).left_out == 3


def test_scores_as_large_as_numbers_are_stay_numbers(tiny_ranker: Path, tmp_path: Path) -> None:
    artifact = shutil.copytree(tiny_ranker, tmp_path / "artifact")
    RankerConfig(True, "all", 3, 2.0).save(artifact / "model" / OPTIONS)
    most = np.finfo(np.float32).max
    lookup = RankLookup(Settings(artifact, tmp_path / "arena"))
    both = lookup._together(np.ones(3, np.float32), np.array([-most, 1, most], np.float32))
    assert both.tolist() == [-most, 3, most] and both.dtype == np.float32


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"candidates": np.zeros((1, 0), np.int64)}, "candidates: is empty"),
        ({"candidates": np.array([[1, 2]])}, "candidates: names no item of the catalogue; 1 is none"),
        ({"candidates": np.zeros((1, MOST_CANDIDATES + 1), np.int64)}, f"at most {MOST_CANDIDATES}"),
        ({"top_k": np.array([[0]], np.int32)}, "top_k: is 0"),
        ({"candidate_scores": np.array([[np.inf]], np.float32)}, "candidate_scores"),
        ({"deadline_ms": np.array([[0]], np.int32)}, "deadline_ms: is 0"),
        ({"user_id": np.array([[1, 2]])}, "user_id: has 2 values"),
    ],
)
def test_bad_input_is_answered_with_the_field_and_the_limit(
    local: LocalRecommender, items: list[int], change: dict[str, np.ndarray], problem: str
) -> None:
    tensors = request(items[:2], 1)
    del tensors["exclude_history"]
    (answer,) = local.runtime.run([{**tensors, "candidates": np.array([[items[5]]]), **change}])
    assert isinstance(answer, InputError) and problem in str(answer)


@pytest.mark.parametrize(("length", "user", "read"), [(6, {}, 6), (22, {}, 16), (22, NAMED, 14)])
def test_behind_our_own_retrieval_the_history_is_computed_once(
    tiny_ranker: Path, by_torch: Scores, items: list[int], length: int, user: dict[str, Any], read: int
) -> None:
    history, retrieve = items[:length], 12
    tensors = {**request(history, 12), "retrieve": np.array([[retrieve]], np.int32)}
    with LocalRecommender(tiny_ranker, WIDTH, decoder="beam") as recommender:
        (found,) = recommender.recommend([history[-read:]], retrieve)
    assert isinstance(found, dict)
    with LocalRecommender(tiny_ranker, WIDTH, decoder="recommend_and_rank") as local:
        (answer,) = local.runtime.run([{**tensors, **user}])
        report = check(answer, by_torch(history[-read:], found["item_ids"][0].tolist()), retrieve)
        assert report.user_reused == read * L
        (nothing,) = local.runtime.run(
            [{**tensors, "history": np.array([items]), "exclude_history": np.array([[True]])}]
        )
    assert isinstance(nothing, dict) and nothing["item_ids"].size == 0, "all items are excluded"
