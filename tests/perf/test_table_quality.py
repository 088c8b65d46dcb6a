"""The benchmark of what tables learn: its arms begin alike, see the same, and its figures are those of `evaluate`."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from genrec.nn.hstu import HstuConfig
from perf.quality import table_arms, table_quality
from perf.quality.table_arms import COLD, DYNAMIC, EXPERTS, NEXT_DYNAMIC, NEXT_STATIC, STATIC
from tests.training.hstu import test_hstu
from tests.training.hstu_next import test_hstu_next
from training.hstu.measure import gaucs, scores_of
from training.hstu.settings import HstuSettings
from training.hstu_next.timed import Timed
from training.loop import Limits

SETTINGS = HstuSettings(epochs=2, tokens=400, averaging=0.9)
NEXT = replace(test_hstu_next.SETTINGS, epochs=2, validate_every=1)
CONFIG = HstuConfig(
    test_hstu.ITEMS, (8, 8), 7, max_history=test_hstu.MOST, hidden_size=16, layers=1, dropout=0.0
)


CODES = torch.from_numpy(np.random.default_rng(0).integers(0, 8, (CONFIG.items, 2)))


def some_timed() -> Timed:
    timed = test_hstu_next.some_timed()
    return replace(timed, rows=timed.rows % CONFIG.items)


def ranker(arm: str, seed: int = 0) -> table_arms.HstuRun:
    return table_arms.ranker_run(arm, test_hstu.some_ratings(), CONFIG, CODES, SETTINGS, seed)


def of_next(arm: str) -> table_arms.HstuNextRun:
    return table_arms.next_run(arm, some_timed(), CODES, NEXT, CONFIG, 0)


def test_arms_of_a_seed_begin_alike_and_see_the_same_batches() -> None:
    runs = [ranker(arm) for arm in (STATIC, DYNAMIC, COLD)]
    firsts = [[[(s.user, s.start, s.stop) for s in batch] for batch in run.batches(1)] for run in runs]
    assert firsts[0] == firsts[1] == firsts[2]
    losses = [run.step(run.batches(0)[0], 0.0) for run in runs]
    assert losses == pytest.approx([losses[0]] * 3, rel=1e-5)
    other = ranker(DYNAMIC, seed=1)
    assert other.step(other.batches(0)[0], 0.0) != pytest.approx(losses[0], rel=1e-5)


def test_the_arm_of_experts_has_another_head_alone() -> None:
    one, other = (
        {name: each for name, each in ranker(arm).model.state_dict().items() if not name.startswith("head.")}
        for arm in (EXPERTS, DYNAMIC)
    )
    assert one.keys() == other.keys() and all(torch.equal(one[name], each) for name, each in other.items())
    assert ranker(EXPERTS).model.config.experts == 4 and ranker(DYNAMIC).model.config.experts == 0


@pytest.mark.parametrize("arm", [STATIC, DYNAMIC])
def test_rows_that_are_not_looked_up_move_in_a_static_table_alone(arm: str) -> None:
    run = ranker(arm)
    batch = run.batches(0)[0]
    run.step(batch, 0.0)
    (sample,) = alone = batch[:1]
    seen = run.ratings.items[np.concatenate((np.arange(sample.start, sample.stop), sample.asked))]
    apart = torch.from_numpy(np.setdiff1d(run.ratings.items[np.concatenate([s.asked for s in batch])], seen))
    none = torch.zeros_like(apart)
    rows = [run.model.by_id(apart + 1, none).detach().clone()]
    run.embeddings.forget()
    run.step(alone, 0.0)
    rows.append(run.model.by_id(apart + 1, none).detach())
    assert len(apart) and (rows[0] != rows[1]).any() == (arm == STATIC)


def test_rows_that_every_batch_meets_learn_what_plain_ones_do() -> None:
    """Of items and of features' values: in a batch of all samples both kinds of tables are the same Adam."""
    runs = [ranker(arm) for arm in (STATIC, DYNAMIC)]
    for run in runs:
        whole = [each for batch in run.batches(0) for each in batch]
        for _ in range(4):
            run.step(whole, 0.0)
        run.fill_average()
    plain, dynamic = (run.model for run in runs)
    items, features = torch.arange(CONFIG.items + 1), torch.arange(CONFIG.features + 1)
    for given in ((items, items * 0), (features * 0, features)):
        torch.testing.assert_close(dynamic.by_id(*given), plain.by_id(*given), rtol=1e-3, atol=1e-5)
    kept = [run.average.state_dict() for run in runs]
    for name in ("of_item.weight", "of_feature.weight"):
        torch.testing.assert_close(kept[1][name], kept[0][name], rtol=0, atol=5e-5)


def test_a_table_that_is_read_whole_learns_what_a_plain_one_does() -> None:
    """All rows are in every step, so both are the same Adam, but for the order of sums."""
    runs = [of_next(arm) for arm in (NEXT_STATIC, NEXT_DYNAMIC)]
    for run in runs:
        for batch in run.batches(0)[:4]:
            run.step(batch, 0.0)
    plain, whole = (run.model.rows().detach() for run in runs)
    torch.testing.assert_close(whole, plain, rtol=1e-3, atol=1e-5)
    before = runs[1].average.rows().detach().clone()
    for run in runs:
        run.validate()
    kept = [run.average.rows().detach() for run in runs]
    # A row's average forgets its start sooner
    torch.testing.assert_close(kept[1], kept[0], rtol=0, atol=5e-5)
    assert (kept[1] - before).abs().max() > 1e-4


def test_gauc_is_that_of_evaluate_and_cold_rows_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table_arms.RANKERS, COLD, (table_arms.HstuRun, {"hot_every": 1}))
    run = ranker(COLD)
    table_arms.learn(run, Limits(2, 2), 0)
    ratings = run.ratings
    samples = table_quality.held_out_samples(ratings, np.arange(len(ratings)), 0, CONFIG.max_history)
    wanted = gaucs(ratings, np.flatnonzero(ratings.held_out), scores_of(run.best, ratings, samples, ""))
    found = table_quality.lists_of(run)
    assert found[table_quality.GAUC].mean() == pytest.approx(wanted["GAUC r>=4"])
    assert len(found[table_quality.LISTS]) == wanted["users r>=4"] and found[table_quality.LISTS].max() <= 1
    assert 0 < table_arms.cold_share(run) <= 1 and table_arms.cold_share(ranker(DYNAMIC)) == 0


def test_every_claim_is_made_of_what_a_seed_gives() -> None:
    found, share = table_quality.train_seed(
        test_hstu.some_ratings(), some_timed(), CONFIG, CODES, 0, 0,
        replace(SETTINGS, epochs=1), replace(NEXT, epochs=1),
    )  # fmt: skip
    compared = table_quality.summary([found, found], table_quality.COMPARED)
    skipped = {claim for claim, (arm, *_) in table_quality.COMPARED.items() if arm not in found}
    assert set(compared) | skipped == set(table_quality.COMPARED) and 0 <= share <= 1
    assert all(of["error_over_seeds"] == 0 < of["users"] for of in compared.values())


def test_a_difference_is_as_sure_as_its_users_and_seeds() -> None:
    one, other = np.array([[0.5, 1.0, 0.6], [0.7, 0.8, 0.6]]), np.full((2, 3), 0.5)
    found = table_quality.compare(one, other)
    assert found["ratio"] == pytest.approx(1.4) and found["ratios"] == pytest.approx([1.4, 1.4])
    assert found["difference"] == pytest.approx(0.2) and found["error_over_seeds"] == pytest.approx(0)
    of_users = np.array([0.1, 0.4, 0.1])
    assert found["error_over_users"] == pytest.approx(of_users.std(ddof=1) / 3**0.5)
