"""The simulation of the pool: its traces have the shape they say, and its figures are counts of a plain simulation."""

import json
from dataclasses import replace

import numpy as np
import pytest

from cli.main import main
from genrec.rank.choice import Request
from perf.rank import placement
from perf.rank import simulate as simulate_module
from perf.rank.simulate import CANDIDATES, LONGEST, NS, SHAPES, DataShape, lengths, simulate, trace

SMALL = DataShape(users=200, items=50, user_tokens=1400, item_tokens=9, rate=10.0)


def test_a_trace_has_its_shape():
    for shape in (SHAPES["games"], SHAPES["books"]):
        tokens = lengths(np.random.default_rng(0), shape)
        assert tokens.mean() == pytest.approx(shape.user_tokens, rel=0.01)
        assert tokens.min() >= 50 and tokens.max() <= LONGEST - CANDIDATES * shape.item_tokens
        asked = trace(shape, 20_000)
        assert (np.diff(asked.when) >= 0).all() and asked.when[0] >= NS
        assert len(asked.user) == pytest.approx(20_000, rel=0.05)
        counts = np.bincount(asked.user, minlength=shape.users)
        assert counts[: shape.users // 10].sum() > 3 * counts[-shape.users // 10 :].sum()
        one = {user: tokens for user, tokens in zip(asked.user.tolist(), asked.tokens.tolist(), strict=True)}
        assert (asked.tokens == [one[user] for user in asked.user.tolist()]).all()


def test_a_scaled_world_hits_as_often_as_the_whole_one():
    """Which a law over fewer users, without those they stand for, does not: it is flatter, and hits half as often."""
    whole = SHAPES["books"]
    wanted = simulate(whole, trace(whole, 40_000), "split", whole.left_tokens)
    small = whole.scaled(170)
    found = [
        simulate(small, trace(small, 1000, seed), "split", whole.left_tokens // 170) for seed in range(3)
    ]
    assert np.mean([each["user_hits"] for each in found]) == pytest.approx(wanted["user_hits"], abs=0.06)
    flat = replace(small, each=1)
    assert simulate(flat, trace(flat, 1000), "split", whole.left_tokens // 170)["user_hits"] < 0.4
    assert small.scaled(2, prompts=0.5) == replace(
        whole.scaled(340), user_tokens=793, candidates=50, longest=4096
    )


@pytest.mark.parametrize("name", ["recompute", "user", "item", "agnostic", "split"])
def test_without_a_limit_the_figures_are_plain_counts(name):
    """Every user that was kept once is found ever after."""
    asked = trace(SMALL, 2000)
    found = simulate(SMALL, asked, name, limit=10**9)
    kept, computed, whole, hits = set(), 0, 0, 0
    for i, (user, tokens) in enumerate(zip(asked.user.tolist(), asked.tokens.tolist(), strict=True)):
        there = user in kept
        request = Request(tokens, CANDIDATES, 9, tokens * there, CANDIDATES, marked=name == "split")
        order = {"recompute": "whole", "agnostic": "user" if tokens >= 900 else "item"}.get(name, name)
        if order in ("user", "split"):
            kept.add(user)
        if i >= int(len(asked.user) * 0.3):
            computed += request.cost(order)
            whole += tokens + 901
            hits += there and order in ("user", "split")
    assert found["speedup"] == pytest.approx(whole / computed)
    assert found["user_hits"] == pytest.approx(hits / (len(asked.user) - int(len(asked.user) * 0.3)))


def test_no_policy_keeps_more_than_the_limit_and_a_small_pool_saves_less(monkeypatch):
    from perf.rank import simulate as module

    most = []

    class Watched(module.Cache):
        def keep(self, user, tokens, now):
            super().keep(user, tokens, now)
            held = sum(int(self._tokens[each]) for each in self._place)
            assert held == self.used <= self.limit and len(self._held) == len(self._place)
            most.append(held)

    monkeypatch.setattr(module, "Cache", Watched)
    asked = trace(SMALL, 1500)
    for name in ("user", "greedy", "past", "hazard", "split"):
        small, large = (simulate(SMALL, asked, name, limit)["speedup"] for limit in (20_000, 10**9))
        assert small < large
    assert max(most) > 20_000


def test_the_command_prints_a_table_and_one_json_line(capsys):
    assert main(["bench", "pool_sim", "--requests", "300", "--data", "games"]) == 0
    lines = capsys.readouterr().out.strip().splitlines()
    figures = json.loads(lines[-1])["simulated"]["games"]
    assert set(figures) == {"recompute", "user", "item", "agnostic", "greedy", "past", "hazard", "split"}
    assert figures["recompute"]["speedup"] == 1 < figures["item"]["speedup"] < figures["split"]["speedup"]
    assert main(["bench", "pool_sim", "--data", "music"]) != 0


@pytest.mark.parametrize(
    ("module", "command", "steps"),
    [
        (simulate_module, ["pool_sim", "--data", "games"], [8]),
        (placement, ["placement", "--items", "2000", "--policies", "split"], [4 + len(placement.SHARES)] * 3),
    ],
)
def test_what_takes_minutes_shows_how_far_it_is(module, command, steps, monkeypatch, capsys):
    shown = []

    def counting(_, total, *__, iterable, **___):
        told = list(iterable)
        assert len(told) == total
        shown.append(total)
        return told

    monkeypatch.setattr(module, "counting", counting, raising=False)
    assert main(["bench", *command, "--requests", "300"]) == 0
    assert shown == steps
