"""In which order the ways of a cascade are asked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from perf.gpu import cascade


def test_every_way_is_asked_first_as_often(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    class Client:
        def __init__(self, _: str) -> None:
            pass

        def __enter__(self) -> Client:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def __getattr__(self, name: str) -> Any:
            return lambda *_: asked.append(name)

    monkeypatch.setattr(cascade, "Ranker", Client)
    monkeypatch.setattr(cascade, "Recommender", Client)
    found = cascade.cascade("a server", np.arange(20), 3, 10)
    assert asked[:2] == ["rank", "rank"], "all items are there"
    ways, turns = [*found], len(asked[2:]) // 3
    rounds = [asked[2 + 3 * turn : 5 + 3 * turn] for turn in range(turns)]
    assert all(sorted(each) == sorted(ways) for each in rounds)
    firsts = [sum(each[0] == way for each in rounds) for way in ways]
    assert min(firsts) > 0.8 * turns / 3
