"""Rankings over a pool that is too small, and that is damaged, emptied and written by others: answers stay."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ensembles.local import LocalRecommender
from genrec.pool.forget import forget
from genrec.pool.keys import owner_key
from genrec.pool.pool import Pool
from genrec.pool.user_rows import START, used_entries
from genrec.rank.options import ORDERS
from tests.ensembles.rankings import Scores, check, report_of

USER_BYTES, ROWS = 48 << 10, 30  # two or three users, and fewer items than one ranking may have
WIDTH = 16
Fault = Callable[[Pool, np.random.Generator], None]


@contextmanager
def over_a_small_pool(artifact: Path, prefix: str) -> Iterator[LocalRecommender]:
    """A runtime that ranks by this choice of the prefix."""
    create = Pool.create

    def create_small(folder: Path, users: int, rows: int, *sizes: int) -> None:
        create(folder, USER_BYTES, ROWS, *sizes)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Pool, "create", staticmethod(create_small))
        sizes: dict[str, Any] = {"pool_user_mb": 1, "pool_item_mb": 1, "prefix_choice": prefix}
        with LocalRecommender(artifact, WIDTH, decoder="rank", **sizes) as local:
            yield local


def pool_of(local: LocalRecommender) -> Pool:
    assert local.settings.pool is not None
    return Pool(local.settings.pool)


@pytest.fixture(scope="module", params=["auto", "user", "item", "hazard"])
def small(request: pytest.FixtureRequest, tiny_ranker: Path) -> Iterator[LocalRecommender]:
    """By its end it has evicted whatever it may keep in its order."""
    with over_a_small_pool(tiny_ranker, request.param) as local:
        yield local
        usage = pool_of(local).usage()
    assert usage is not None
    evicted = {name for name in ("evictions", "item_evictions") if usage[name]}
    # `hazard` reads no items here: what leaves of them does so for the faults', if these are drawn often enough.
    kept = {"user": {"evictions"}, "hazard": {"evictions"}, "item": {"item_evictions"}}
    assert evicted >= kept.get(request.param, {"evictions", "item_evictions"}), "nothing had to leave"


def torn(pool: Pool, draw: np.random.Generator) -> None:
    """What lies before the KV of every entry is noise."""
    mapped = pool._map
    assert mapped is not None
    for start in mapped.table.entries[used_entries(mapped.table), START].tolist():
        mapped.users[start : start + 64] = draw.integers(0, 256, 64)


def misled(pool: Pool, draw: np.random.Generator) -> None:
    """The indexes point to others' entries and rows."""
    mapped = pool._map
    assert mapped is not None
    for index in (mapped.table.user_index, mapped.table.item_index):
        taken = np.flatnonzero(index[:, 2])
        index[taken, 2] = index[draw.permutation(taken), 2]


def crowded(pool: Pool, draw: np.random.Generator) -> None:
    """Another process fills rows with items of its own."""
    rows = pool.write_items(draw.integers(0, 2**63, (ROWS // 2, 2)).astype(np.uint64))
    memory = pool.items_memory.reshape(-1, pool.item_row_bytes)
    memory[rows[rows >= 0]] = 255
    pool.commit_items(rows)


FAULTS: dict[str, Fault] = {"torn": torn, "misled": misled, "crowded": crowded}
ASKED = st.tuples(st.integers(0, 3), st.integers(1, 24), st.integers(0, 30), st.integers(1, 40))


TOGETHER = st.lists(ASKED, min_size=1, max_size=5)


@settings(max_examples=25, deadline=None)
@given(
    moves=st.lists(
        st.one_of(st.lists(ASKED, min_size=1, max_size=1), TOGETHER, st.sampled_from([*FAULTS, "forgotten"])),
        min_size=4,
        max_size=9,
    )
)
def test_whatever_was_asked_and_whatever_went_wrong_an_answer_is_the_module_s(
    small: LocalRecommender, by_torch: Scores, items: list[int], moves: list[Any]
) -> None:
    """Histories that grow, are cut, are others' beginnings; candidates that overlap; alone and several at once; faults
    between them.
    """
    pool, draw = pool_of(small), np.random.default_rng(0)
    for move in moves:
        if isinstance(move, str) and move in FAULTS:
            FAULTS[move](pool, draw)
        elif move == "forgotten":
            forget(pool, owner_key(pool.secret, 1))
        else:
            asked = [
                (items[user : user + length], items[100 + first : 100 + first + count])
                for user, length, first, count in move
            ]
            answers = small.rank(asked, 5, user_id=move[0][0])
            for (history, candidates), answer in zip(asked, answers, strict=True):
                order = ORDERS[report_of(answer).order]
                check(answer, by_torch(history, candidates, "split" if order == "whole" else order), 5)


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_costs_what_was_there(fault: str, tiny_ranker: Path, items: list[int]) -> None:
    with over_a_small_pool(tiny_ranker, "auto") as local:
        for user in (1, 2):
            local.rank([(items[user : user + 5], items[100 : 100 + ROWS])], 5, user_id=user)
        reused = []
        for _ in range(2):
            (answer,) = local.rank([(items[1:6], items[100 : 100 + ROWS])], 5, user_id=1)
            reused.append(report_of(answer).user_reused + report_of(answer).items_reused)
            FAULTS[fault](pool_of(local), np.random.default_rng(0))
    assert reused[0] == 3 * (5 + ROWS) > reused[1]


@pytest.mark.parametrize("policy", ["greedy", "past"])
def test_who_comes_first_takes_no_place_of_those_who_come_often(
    policy: str, tiny_ranker: Path, items: list[int]
) -> None:
    """The process that chooses asks the pool for room, and another one's policy decides who leaves."""
    with over_a_small_pool(tiny_ranker, policy) as local:

        def order(user: int | None, first: int) -> str:
            asked = (items[first : first + 16], items[100:104])
            return ORDERS[report_of(local.rank([asked], 2, user_id=user)[0]).order]

        assert order(0, 0) == "user", "there is room"
        for _ in range(6):
            for user in range(4):
                order(user, 16 * user)
        assert {order(100 + n, 40 + 16 * n) for n in range(5)} == {"item"}
        assert {order(None, 40) for _ in range(9)} == {"item"}, "who is not named comes for the first time"
