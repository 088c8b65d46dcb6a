"""Choices of the prefix: token counts, and every policy against its rule written out."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.errors import InputError
from genrec.pool.hotness import Hotness
from genrec.pool.rule import Room, Standing
from genrec.rank.choice import POLICIES, Request, choice, policy

NS = 10**9
FULL = Room(False, float("inf"))
ME = np.array([1, 2], np.uint64)


@pytest.mark.parametrize(
    ("user", "candidates", "item", "one_mark", "marks", "split"),
    [
        (1500, 100, 3, (1801, 301, 1501), (400, 1600), (100, 1600, 400)),
        (1500, 500, 4, (3501, 2001, 1501), (2500, 2000), (500, 2000, 2500)),
        (5000, 500, 10, (10001, 5001, 5001), (5500, 5500), (500, 5500, 5500)),
    ],
)
def test_token_counts(user, candidates, item, one_mark, marks, split):
    """BAT, section 4.2: one discriminant token, one per candidate; and both prefixes at once."""

    def cost(order, user_cached, items_cached, marked):
        return Request(user, candidates, item, user_cached, items_cached, marked).cost(order)

    assert (
        cost("whole", user, candidates, False),
        cost("user", user, 0, False),
        cost("item", 0, candidates, False),
    ) == one_mark
    assert (cost("user", user, 0, True), cost("item", 0, candidates, True)) == marks
    assert (
        cost("split", user, candidates, True),
        cost("split", 0, candidates, True),
        cost("split", user, 0, True),
    ) == split
    assert cost("user", 0, candidates, True) == cost("whole", 0, 0, True) == user + candidates * (item + 1)
    assert cost("item", user, 0, False) == one_mark[0], "nothing there is nothing reused"


REQUESTS = st.builds(
    Request,
    user=st.integers(0, 40),
    candidates=st.integers(1, 5),
    item=st.integers(1, 5),
    user_cached=st.just(0),
    items_cached=st.integers(0, 1),
    marked=st.booleans(),
)


@settings(deadline=None)
@given(REQUESTS, st.sampled_from(["whole", "user", "item", "split"]))
def test_a_plan_adds_up(request, order):
    found = choice(request, order)
    unread = request.user - found.user_reused + (request.candidates - found.items_reused) * request.item
    assert found.computed == unread + (request.candidates if request.marked or order == "split" else 1)
    assert found.keep_user == (order in ("user", "split"))
    assert found.keep_items == (order in ("item", "split"))


def expected_order(name, request, frequency, room):
    """The rules in one place. `frequency` counts the request at hand."""
    long = request.user >= request.candidates * request.item
    if name in ("recompute", "user", "item", "split"):
        return {"recompute": "whole"}.get(name, name)
    if name == "agnostic":
        return "user" if long else "item"
    if not long:
        return "item"
    if request.user_cached and request.cost("user") <= request.cost("item"):
        return "user"
    frequency -= name == "past"
    return "user" if room.free or frequency > room.least else "item"


@settings(deadline=None)
@given(st.data())
@pytest.mark.parametrize("name", [name for name in POLICIES if name != "hazard"])
def test_every_policy_follows_its_rule(name, data):
    hotness = Hotness(owners=64)
    rule = policy(name, hotness)
    for times in range(1, data.draw(st.integers(2, 7))):
        user = data.draw(st.integers(0, 40))
        request = Request(
            user,
            4,
            data.draw(st.integers(1, 5)),
            data.draw(st.sampled_from([0, user])),
            data.draw(st.integers(0, 4)),
        )
        room = data.draw(st.sampled_from([FULL, Room(True, -1.0), Room(False, 1.0), Room(False, 2.0)]))
        found = rule.choose(request, ME, NS, lambda room=room: room)
        assert found == choice(request, expected_order(name, request, times, room))


def test_the_paper_counts_the_request_at_hand_and_past_does_not():
    """The hole: a user who never came before takes the place of users who have grown cold."""
    request, cold = Request(1500, 100, 3, 0, 100), Room(False, 0.0)
    assert policy("greedy", Hotness(owners=64)).choose(request, ME, NS, lambda: cold).order == "user"
    past = policy("past", Hotness(owners=64))
    assert past.choose(request, ME, NS, lambda: cold).order == "item"
    assert past.choose(request, ME, 2 * NS, lambda: cold).order == "user"


def returning(hotness, share, users=400):
    """Users of whom a share comes back after ten seconds."""
    now = NS
    for user in range(users):
        now += 20 * NS
        who = np.array([user * 0x9E3779B97F4A7C15 % 2**64, user], np.uint64)
        hotness.see(who, now)
        if user % 100 < share * 100:
            hotness.see(who, now + 10 * NS)
    return now


def test_hazard_gives_a_place_where_returns_repay_it():
    request = Request(1500, 100, 3, 0, 100)
    orders = []
    for share, price in ((0.0, 0.0), (0.6, 0.0), (0.6, 1.0)):
        hotness = Hotness(owners=1 << 12)
        now = returning(hotness, share)
        hotness.price[:] = price
        orders.append(policy("hazard", hotness).choose(request, ME, now, lambda: FULL).order)
    assert orders == ["item", "user", "item"]


def test_hazard_reads_what_is_cheaper_and_never_keeps_the_short():
    hotness = Hotness(owners=64)
    hotness.price[:] = 1  # no return repays a place
    rule = policy("hazard", hotness)
    assert rule.choose(Request(1500, 100, 3, 1500, 100), ME, NS, lambda: FULL).order == "user"
    assert rule.choose(Request(1500, 100, 3, 30, 100), ME, NS, lambda: FULL).order == "item"
    assert rule.choose(Request(150, 100, 3, 150, 100), ME, NS, lambda: FULL).order == "item"
    assert rule.choose(Request(200, 100, 3, 200, 0), ME, NS, lambda: FULL).order == "user"


def test_who_leaves_first():
    hotness = Hotness(owners=1 << 12)
    now = returning(hotness, 0.6)
    frequent, rare, stranger = (np.array([7 + n, n], np.uint64) for n in range(3))
    for at in range(3):
        hotness.see(frequent, now + at)
    hotness.see(rare, now)
    owners = np.array([frequent, rare, stranger])
    standing = Standing(now + 10 * NS, np.array([3.0, 1.0, 2.0]), np.full(3, 1500), owners)
    worth = {
        name: policy(name, hotness).worth(standing).argsort().tolist() for name in ("split", "greedy", "past")
    }
    assert worth == {"split": [0, 2, 1], "greedy": [2, 1, 0], "past": [2, 1, 0]}
    hazard = policy("hazard", hotness)
    hazard.choose(Request(1500, 100, 3, 0, 100), ME, now + 5, lambda: FULL)
    longer = Standing(now + 10 * NS, np.zeros(2), np.array([400, 4000]), np.array([rare, rare]))
    short, long = hazard.worth(longer)
    assert 0 < short < long and hazard.worth(standing)[2] == 0


def test_what_leaves_sets_the_price():
    hotness = Hotness(owners=64)
    rule = policy("hazard", hotness)
    for _ in range(2000):
        rule.evicted(0.25)
    assert hotness.price[0] == pytest.approx(0.25)


def test_an_unknown_policy_is_refused():
    with pytest.raises(InputError, match="recompute, user, item, agnostic, greedy, past, hazard, split"):
        policy("lru", Hotness(owners=64))
