"""What passes will take, learnt from synthetic ones whose law is known."""

from __future__ import annotations

import numpy as np
import pytest

from genrec.schedule.cost import PassCost


def law(ranking: bool, past: int, new: int) -> float:
    """Seconds: 4 ms for the candidates, 20 us a token, 3 ns a pair."""
    return 0.004 * ranking + 2e-5 * new + 3e-9 * new * (past + new / 2)


def test_nothing_is_known_before_anything_ran() -> None:
    assert PassCost().seconds(True, 0, 8192) == 0.0
    assert np.isnan(PassCost().tokens_of_ranking(1.0))


def test_rankings_and_parts_of_1k_to_8k_tokens_teach_tokens_and_their_square() -> None:
    draw, cost = np.random.default_rng(0), PassCost()
    for _ in range(400):
        past, new = int(draw.integers(0, 8192)), int(draw.integers(1, 1024))
        cost.learn(False, past, new, law(False, past, new) * draw.uniform(0.9, 1.1))
        length = int(draw.integers(1, 8192))
        cost.learn(True, 0, length, law(True, 0, length) * draw.uniform(0.9, 1.1))
    for length in (1024, 4096, 8192):
        assert cost.seconds(True, 0, length) == pytest.approx(law(True, 0, length), rel=0.1)
        assert cost.seconds(False, length - 256, 256) == pytest.approx(
            law(False, length - 256, 256), rel=0.25
        )
        assert cost.tokens_of_ranking(cost.seconds(True, 0, length)) == pytest.approx(length)
    assert cost.tokens_of_ranking(1e-4) == 0, "its candidates alone take longer"


def test_rankings_of_several_users_at_once_teach_what_each_takes() -> None:
    draw, cost = np.random.default_rng(0), PassCost()
    for _ in range(200):
        users = [(int(past), int(new)) for past, new in draw.integers(1, 4096, (draw.integers(1, 9), 2))]
        cost.learn_together(users, sum(law(True, *each) for each in users))
    for past, new in ((0, 1000), (3000, 10), (1000, 4000)):
        assert cost.seconds(True, past, new) == pytest.approx(law(True, past, new), rel=0.02)


def test_no_factor_is_negative_and_a_longer_history_never_cheaper() -> None:
    """Short passes that took long, long ones that did not, as on a machine with other things to do."""
    draw, cost = np.random.default_rng(1), PassCost()
    for _ in range(50):
        length = int(draw.integers(1, 4096))
        cost.learn(bool(draw.integers(2)), int(draw.integers(0, 4096)), length, 1 / length)
        found = [cost.seconds(True, 0, n) for n in (1, 100, 1000, 8000)]
        assert found[0] >= 0 and (np.diff(found) >= 0).all()


def test_a_machine_that_became_slower_is_followed() -> None:
    cost = PassCost()
    for factor in (1, 3):
        for _ in range(150):
            for length in (500, 2000, 6000):
                cost.learn(True, 0, length, factor * law(True, 0, length))
        assert cost.seconds(True, 0, 4000) == pytest.approx(factor * law(True, 0, 4000), rel=0.15)


def test_of_a_law_without_pairs_the_longest_history_is_found_too() -> None:
    cost = PassCost()
    for _ in range(50):
        for length in (100, 4000):
            cost.learn(True, 0, length, 0.004 + 2e-5 * length)
    assert cost.tokens_of_ranking(0.05) == pytest.approx(2300, rel=0.02)
    cost = PassCost()
    cost.learn(True, 0, 100, 0.004)
    assert cost.tokens_of_ranking(0.05) == np.inf, "nothing says that a token costs anything"
    assert cost.tokens_of_ranking(0.003) == 0, "its candidates alone take longer"


def test_of_a_law_of_pairs_alone_no_history_is_ranked_in_no_time() -> None:
    cost = PassCost()
    for length in (100, 400, 1000, 2000) * 20:
        cost.learn(True, 0, length, 1e-3 + 5e-10 * length**2 + 1e-14 * length**3)
    assert cost.tokens_of_ranking(0.01) == pytest.approx(4159, rel=0.01)
    assert [cost.tokens_of_ranking(seconds) for seconds in (5e-4, 0.0, -1.0)] == [0, 0, 0]
