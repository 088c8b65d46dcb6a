"""Frequencies and chances of return, against slow obvious twins."""

import signal
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.pool.hotness import EARLIER, EDGES_S, OFTEN, THEN, WHO, WHOSE, Hotness
from tests.pool.entries import in_a_child

NS = 10**9


def owner(number):
    return np.array([number * 0x9E3779B97F4A7C15 % 2**64, number], np.uint64)


REQUESTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 400)), min_size=1, max_size=60)


@settings(deadline=None)
@given(REQUESTS, st.sampled_from([10.0, 300.0]))
def test_the_frequency_is_the_count_of_two_halves(steps, window):
    """This half's count, and of the last half's what the window still covers."""
    hotness, now = Hotness(owners=64, window_s=window), NS
    seen: dict[int, list[int]] = {}
    half = int(window / 2 * NS)

    def expected(who):
        this = [t for t in seen.get(who, []) if t // half == now // half]
        last = [t for t in seen.get(who, []) if t // half == now // half - 1]
        return len(this) + len(last) * (1 - now % half / half)

    for who, wait in steps:
        now += wait * NS
        assert hotness.see(owner(who), now) == pytest.approx(expected(who))
        seen.setdefault(who, []).append(now)
        everybody = np.array([owner(each) for each in range(5)])
        assert hotness.frequency(everybody, now) == pytest.approx([expected(each) for each in range(5)])


@settings(deadline=None)
@given(REQUESTS)
def test_returns_and_exposure_are_what_happened(steps):
    """Every wait of every owner, cut into spans of age, until it ended, or until now, or until nobody counts on it.

    A span that is still going on counts for nothing, nor does a wait that ended after the last one.
    """
    hotness, now = Hotness(owners=64, window_s=300), NS
    returns, exposed = (
        np.full((OFTEN + 1, len(EDGES_S) - 1), 0.05),
        np.full((OFTEN + 1, len(EDGES_S) - 1), 50.0),
    )
    waits: dict[int, tuple[int, int]] = {}
    ended = []
    for who, wait in steps:
        now += wait * NS + 1  # no two at one moment
        earlier = hotness.see(owner(who), now)
        if who in waits:
            ended.append((*waits[who], now))
        waits[who] = now, min(int(earlier), OFTEN)
    for since, often, until in ended:
        age = (until - since) / NS
        for span, (start, end) in enumerate(pairwise(EDGES_S)):
            if start <= age < end:
                returns[often, span] += 1
                exposed[often, span] += age - start
            elif age >= end:
                exposed[often, span] += end - start
    for since, often in waits.values():
        for span, (start, end) in enumerate(pairwise(EDGES_S)):
            if (now - since) / NS >= end:
                exposed[often, span] += end - start
    np.testing.assert_allclose(hotness.returns, returns)
    np.testing.assert_allclose(hotness.exposed, exposed)


def test_who_comes_back_soon_is_learnt():
    """Half the users come back after seven seconds, the others never."""
    hotness, now = Hotness(owners=1 << 14), NS
    for user in range(2000):
        now += NS
        hotness.see(owner(2 * user), now)
        if user >= 7:
            hotness.see(owner(2 * (user - 7) if user % 2 else 10**6 + user), now + 1)
    soon, late = (
        hotness.chance(owner(2 * 1999)[None], now + 7 * NS),
        hotness.chance(owner(2 * 1999)[None], now + 60 * NS),
    )
    assert soon > 10 * late > 0
    assert (
        hotness.chance(owner(2 * 1999)[None], now + 2000 * NS)
        == 0
        == hotness.chance(owner(999_999)[None], now)
    )


def net_twin(hotness, earlier, gain, size):
    """In steps of a tenth of a second."""
    away, saved, back, step = 1.0, 0.0, 0.0, 0.1
    for age in np.arange(0, EDGES_S[-1], step):
        span = int(np.searchsorted(EDGES_S, age + step / 2)) - 1
        chance = hotness.returns[earlier, span] / hotness.exposed[earlier, span]
        if chance * gain < hotness.price[0] * size:
            break
        come = away * (1 - np.exp(-chance * step))
        saved += come * gain - away * step * hotness.price[0] * size
        away, back = away - come, back + come
    return saved / max(1 - back, 0.2)


def test_what_a_place_is_worth():
    hotness = Hotness(owners=64)
    draw = np.random.default_rng(0)
    hotness.returns[:] = draw.random(hotness.returns.shape)
    for price in (0.0, 1e-4, 1e-3, 1.0):
        hotness.price[:] = price
        for earlier in range(OFTEN + 1):
            # Rent is paid for the whole of a span here and until the return there.
            assert hotness.net(earlier, 1000, 1500) == pytest.approx(
                net_twin(hotness, earlier, 1000, 1500), rel=0.35
            )
    assert hotness.net(3, 1000, 1500) == 0 == hotness.net(100, 1000, 1500), "too dear"
    hotness.price[:] = 0
    assert hotness.net(0, 1000, 1500) == pytest.approx(net_twin(hotness, 0, 1000, 1500), rel=1e-6)


def test_two_processes_count_in_one_memory_and_the_oldest_is_forgotten():
    memory = np.zeros(Hotness.bytes_for(8), np.uint8)
    one, other = Hotness(memory, 8), Hotness(memory, 8)
    for who in range(20):
        assert (one if who % 2 else other).see(owner(who), (who + 1) * NS) == 0
    known = one.frequency(np.array([owner(who) for who in range(20)]), 21 * NS) > 0
    assert known.tolist() == [False] * 12 + [True] * 8
    other.forget(owner(19))
    assert one.frequency(owner(19)[None], 21 * NS) == 0 and one.see(owner(19), 21 * NS) == 0


def test_of_who_is_forgotten_no_visit_is_left_and_others_are_learnt_from_as_before():
    one, other = Hotness(owners=64), Hotness(owners=64)
    for at in range(1, 30):
        for hotness in (one, other):
            hotness.see(owner(5), at * NS)
        one.see(owner(6), at * NS)
    one.forget(owner(6))
    assert not (one._requests[:, WHOSE] == owner(6)[:1].view(np.int64)).any()
    before = one.exposed.copy()
    for hotness in (one, other):
        hotness.see(owner(5), 2000 * NS)
    learnt = one.exposed - before
    assert (learnt <= other.exposed - Hotness(owners=64).exposed + 1e-9).all(), "nobody else was exposed"


@pytest.mark.parametrize("value", [-(2**62), 2**40])
@pytest.mark.parametrize("word", [EARLIER, THEN, WHO])
def test_damaged_memory_ends_no_process(word, value):
    """What lies there is a place in other arrays: a number that is none would be read, and written, outside of them."""
    hotness = Hotness(owners=64)
    hotness.see(owner(5), NS)
    (hotness._rows if word == EARLIER else hotness._requests)[:, word] = value

    def look() -> bool:
        signal.alarm(30)
        for at in (NS + NS // 2, 2000 * NS, 2001 * NS):
            hotness.chance(owner(5)[None], at)
            hotness.net(hotness.see(owner(5), at), 1000, 1500)
        return True

    assert in_a_child(look)
