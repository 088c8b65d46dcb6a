"""What `perf.slo.swaps` counts, and that it leaves the artifact alone; `tests/serving/test_swap.py` swaps for real."""

from __future__ import annotations

import argparse
import asyncio
from pathlib import Path

import numpy as np
import pytest

from clients.wire import Recommendation
from genrec.catalogue.soundness import verify
from genrec.catalogue.versions import FOLDER, versions_of
from perf.slo import swaps
from perf.slo.swaps import Checker, linked, make_versions
from tests.oracles.twin import twin_artifact


class Answers:
    """Stands for a client; answers with what it was given, and lets a swap happen in between."""

    def __init__(self, items: list[int], version: int) -> None:
        self.answer = Recommendation(np.array(items), np.zeros(len(items)), "model", 0, 0, 3, 1, version)

    async def recommend(self, history, top_k=10, *, deadline_ms=None):
        if history == "swap":
            self.checker.moves += 1
        return self.answer


@pytest.mark.parametrize(
    ("items", "version", "settled", "history", "mixed", "stale"),
    [
        ([1, 2], 1, 1, "", 0, 0),
        ([1, 3], 1, 1, "", 1, 0),  # 3 came with version 2
        ([2, 3], 2, 1, "", 0, 1),
        ([2, 3], 2, 1, "swap", 0, 0),
        ([2, 3], 2, None, "", 0, 0),
        ([1, 2], 9, None, "", 1, 0),  # a version that nobody made
    ],
)
def test_answers_are_held_against_the_version_they_report(items, version, settled, history, mixed, stale):
    client = Answers(items, version)
    client.checker = checker = Checker([client], {1: {1, 2}, 2: {2, 3}})
    checker.settled = settled
    asyncio.run(checker.recommend(history))
    assert (checker.mixed, checker.stale, dict(checker.versions)) == (mixed, stale, {version: 1})
    assert checker.answers == [client.answer]


def test_stretches_have_one_load_and_warm_up_is_no_part_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Client(Answers):
        def __init__(self, *_: object, **__: object) -> None:
            super().__init__([1, 2], 1)

        async def __aenter__(self) -> Client:
            return self

        async def __aexit__(self, *_: object) -> None:
            pass

    async def no_moves(*_: object) -> list[float]:
        return []

    monkeypatch.setattr(swaps, "AsyncRecommender", Client)
    monkeypatch.setattr(swaps, "_cycle", no_moves)
    asked = argparse.Namespace(rate=200, rounds=2, seed=0, top_k=2)
    checker, calm, moving, _ = asyncio.run(
        swaps._drive("a server", tmp_path, {1: {1, 2}}, [np.array([1])], 0.05, asked)
    )
    assert len(calm) == len(moving) == 20
    assert checker.versions == {1: 40} and len(checker.answers) == 40
    assert sorted(each.due for each in calm) == sorted(each.due for each in moving), "the same arrivals"


def test_versions_are_sound_unlike_each_other_and_made_elsewhere(tmp_path: Path) -> None:
    artifact = twin_artifact(tmp_path / "artifact", (7, 6, 5), 60)
    (tmp_path / "links").mkdir()
    folder = linked(artifact, tmp_path / "links")
    items = make_versions(folder, seed=0)
    assert versions_of(folder) == sorted(items) == [1, 2, 3, 4]
    for version in items:
        verify(folder, version)
    assert [len(items[v]) for v in (1, 2, 3, 4)] == [60, 54, 60, 54]
    assert items[1] > items[2] < items[3] > items[4] and items[3] != items[1]
    assert not (artifact / FOLDER).exists()
