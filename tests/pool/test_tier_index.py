"""What the second tier finds beside what a search through all it keeps finds, whoever leaves."""

from __future__ import annotations

import random

import numpy as np
import pytest

from genrec.pool.tier import Tier
from tests.pool.entries import STEP, find, hashes, write
from tests.pool.test_tier import restored, visit

ITEMS = 3  # so few that histories begin alike


def longest(tier: Tier, asked) -> int:
    """Tokens of the entry that agrees longest, by a look at each."""
    both = [zip(kept.hashes.tolist(), asked.tolist(), strict=False) for kept in tier._kept.values()]
    return max((sum(one == other for one, other in pairs) - 1 for pairs in both), default=0) * STEP


def test_who_began_alike_is_found_when_a_newer_one_has_left(pool, clock, tmp_path):
    tier = Tier(pool, tmp_path, 1 << 14)
    visit(pool, clock, 1, [7, 8, 1])
    visit(pool, clock, 1, [7, 8, 2])
    visit(pool, clock, 2, [2])
    tier.look()
    assert restored(tier, pool, 1, [7, 8, 5]) == (6, 9, 1)
    key = hashes(pool, 1, [7, 8, 2])
    (newer,) = [number for number, kept in tier._kept.items() if np.array_equal(kept.hashes, key)]
    tier._memory[tier._kept[newer].start] ^= 16
    assert restored(tier, pool, 1, [7, 8, 2]) is None, "it is damaged, and left"
    assert restored(tier, pool, 1, [7, 8, 2]) == (6, 9, 1), "the older one agrees so far"
    tier.close()


@pytest.mark.parametrize("seed", range(8))
def test_the_longest_agreement_of_all_that_is_kept_is_found(pool, clock, tmp_path, seed):
    drawn, tier, found = random.Random(seed), Tier(pool, tmp_path, 1 << 14), 0

    def history() -> list[int]:
        return [drawn.randrange(ITEMS) for _ in range(drawn.randint(1, 6))]

    for _ in range(120):
        items = history()
        clock.go(1)
        write(pool, 1, items, drawn.randint(500, 3000))
        find(pool, 1, items)
        tier.look()
        if tier._kept and drawn.random() < 0.3:
            tier._drop(drawn.choice(list(tier._kept)))
        if drawn.random() < 0.02:
            clock.go(601)
        for asked in (hashes(pool, 1, history()) for _ in range(5)):
            want = longest(tier, asked)
            assert tier.tokens(asked, STEP) == want
            found += want > 0
    assert found > 100
    tier.close()
