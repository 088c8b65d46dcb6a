"""How many HSTU rankings run at once, by times that are told; and that those at once are what each is alone."""

from __future__ import annotations

import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from genrec.engine import hstu_ranking
from genrec.engine.hstu_ranking import MOST_AT_ONCE, HstuExecutor, HstuRequest, HstuStreams
from genrec.engine.openvino_ranker import load_hstu
from genrec.rank.hstu import CODES, FEATURE, HstuConfig
from genrec.rank.hstu_weights import load_weights
from genrec.rank.options import USUAL_CANDIDATES

CORES = 4
CONFIG = HstuConfig(100, (8, 8), 7, max_history=50)


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, float]]:
    """Seconds of a ranking by passes of that name; what is asked of them is the longest user."""
    told: dict[str, float] = {}

    def seconds(passes: Any, config: HstuConfig, events: int, candidates: int) -> float:
        assert (config, events, candidates) == (CONFIG, CONFIG.max_history, USUAL_CANDIDATES)
        return told[passes]

    monkeypatch.setattr(hstu_ranking, "seconds_of", seconds)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(CORES)))
    yield told


def streams(threads: int = 0, many: bool = True) -> tuple[list[Any], list[int]]:
    """Passes of the second weights, and for how many threads some were loaded. None of the first is made for nothing
    but those that were tried and are not chosen.
    """
    loaded, made = [], []

    def load(threads: int) -> Any:
        def make(weights: str) -> str:
            made.append(weights)
            return "apart" if threads == 1 else "together"

        loaded.append(threads)
        return make

    chosen: Any = HstuStreams(load, CONFIG, threads, many)
    assert chosen("first") == chosen("second")
    second = made.count("second")
    assert made.count("first") == second + (len(loaded) - 1)
    return chosen("second"), loaded


@pytest.mark.parametrize(
    ("one", "all_cores", "found"),
    [(0.0065, 0.0068, ["apart"] * CORES), (0.013, 0.01, ["apart"] * CORES), (0.014, 0.01, ["together"]),
     (0.06, 0.06, ["together"])],
    ids=["no gain", "little gain", "gain", "long"],
)  # fmt: skip
def test_each_core_ranks_where_all_of_them_gain_little(
    one: float, all_cores: float, found: list[str], times: dict[str, float]
) -> None:
    times.update(apart=one, together=all_cores)
    assert streams() == (found, [0, 1])


@pytest.mark.parametrize("given", [{"threads": 3}, {"many": False}], ids=["threads were asked for", "a GPU"])
def test_who_says_how_is_not_asked(given: dict[str, Any], times: dict[str, float]) -> None:
    assert streams(**given) == (["together"], [given.get("threads", 0)])


def test_more_at_once_would_wait_for_their_process(
    times: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(64)))
    times.update(apart=0.01, together=0.01)
    assert len(streams()[0]) == MOST_AT_ONCE


def test_rankings_at_once_are_what_each_is_alone(tiny_hstu: Path) -> None:
    config, weights = HstuConfig.load(tiny_hstu / "model" / HstuConfig.kind.config), load_weights(tiny_hstu)
    load = load_hstu(tiny_hstu / "engines" / "openvino" / "f32", config, "f32", 1)
    executors = [HstuExecutor(load(weights), config) for _ in range(2)]
    draw, asked = np.random.default_rng(0), []
    for events in range(2, 2 + config.max_history - 2):
        tokens = draw.integers(1, 5, (events, config.token_size)).astype(np.int32)
        tokens[:, FEATURE] = 0
        candidates = draw.integers(1, 20, (9, config.token_size - CODES + 1)).astype(np.int32)
        asked.append(HstuRequest(None, tokens, candidates, 1000))
    want = [executors[0].scores(each)[0] for each in asked]
    with ThreadPoolExecutor(2) as pool:
        found = pool.map(lambda each: [executors[each].scores(one)[0] for one in asked * 5], range(2))
    for own in found:
        np.testing.assert_allclose(own, want * 5, atol=1e-6)
    assert len({scores.tobytes() for scores in want}) == len(want)
