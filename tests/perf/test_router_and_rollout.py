"""What `genrec bench rollout` and `genrec bench overload --router` count; few requests, and no timing."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from clients.wire import Recommendation
from ensembles.local import LocalRecommender
from genrec import manifest
from genrec.errors import GenrecError, InputError
from perf.kit import asking
from perf.slo import overload, rollouts
from perf.slo.replay import ReplayedRequest, summarise
from perf.slo.rollouts import RolloutChecker, renumbered

OFFSET = 100
needs_haproxy = pytest.mark.skipif(not shutil.which("haproxy"), reason="apt-get install haproxy")


class Answers:
    """Stands for a client: answers with what it was given, and lets a move happen in between."""

    def __init__(self, items: list[int]) -> None:
        self.answer = Recommendation(np.array(items), np.zeros(len(items)), "model", 0, 0, 3, 1, 1)
        self.asked: list[list[int]] = []
        self.users: list[int] = []

    async def recommend(self, history, top_k, *, user_id, deadline_ms):
        self.asked.append(history.tolist())
        self.users.append(user_id)
        if history[0] == 99:
            self.checker.moves += 1
        return self.answer


@pytest.mark.parametrize(
    ("items", "settled", "history", "whose", "stale"),
    [
        ([1, 2], "old", [7], "old", 0),
        ([101, 102], "new", [7], "new", 0),
        ([1, 102], None, [7], "mixed", 0),
        ([101, 102], "old", [7], "new", 1),
        ([101, 102], "old", [99], "new", 0),  # users began to move meanwhile
        ([1, 2], None, [7], "old", 0),
    ],
)
def test_an_answer_is_told_by_its_numbers(items, settled, history, whose, stale) -> None:
    client = Answers(items)
    client.checker = checker = RolloutChecker(client, OFFSET)
    checker.settled = settled
    asyncio.run(checker.recommend(history))
    assert (dict(checker.whose), checker.stale) == ({whose: 1}, stale)
    assert client.asked == [[*history, *(item + OFFSET for item in history)]] and client.users == [1]


def test_a_renumbered_artifact_is_sound_and_answers_the_same_under_other_numbers(
    tiny: Path, items: list[int], tmp_path: Path
) -> None:
    offset = 1_000_000
    other = renumbered(tiny, tmp_path, offset)
    manifest.verify(other)
    both = [*items[:3], *(item + offset for item in items[:3])]
    found = []
    for artifact in (tiny, other):
        with LocalRecommender(artifact, 32) as local:
            (answer,) = local.recommend([both], 10)
            assert not isinstance(answer, GenrecError)
            found.append(answer["item_ids"])
    np.testing.assert_array_equal(found[0] + offset, found[1])


def test_the_goals_are_of_twice_the_capacity() -> None:
    event = ReplayedRequest(0.5, 0.5, 0.54, "answered")
    summary = summarise([event], 100)
    loads = [
        overload.LoadShare(1.0, replace(summary, goodput=5.0, p99_ms=7.0), 0.1),
        overload.LoadShare(2.0, replace(summary, goodput=90.0, p99_ms=80.0), 0.1),
    ]
    assert overload.against_goals(100.0, loads, 200) == {
        "goodput_2x_of_capacity": 0.9,
        "p99_of_deadline": 0.4,
    }
    nobody = [overload.LoadShare(2.0, replace(summary, goodput=0.0, p99_ms=None), 0.1)]
    assert overload.against_goals(100.0, nobody, 200)["p99_of_deadline"] is None


def test_what_was_not_answered_took_no_time() -> None:
    lost = [ReplayedRequest(1.0, 1.0, 1.0, "failed", "gone")]
    found = rollouts.figures_of(RolloutChecker(Answers([]), OFFSET), lost, [1.0])
    assert (found["failed"], found["p50_ms"], found["p99_ms"]) == (1, None, None)
    line = overload.table(9.0, [overload.LoadShare(1.0, summarise(lost, 100), 0.1)]).splitlines()[-1]
    assert line.split()[5:8] == ["0.0", "-", "-"]


def test_what_left_late_was_asked_for_when_it_was_due() -> None:
    """What was answered in time is counted in the same seconds: it cannot be more than was asked."""
    late = [ReplayedRequest(1.0, 1.5, 1.6, "answered")]
    line = overload.table(9.0, [overload.LoadShare(1.0, summarise(late, 1000), 0.1)]).splitlines()[-1]
    assert line.split()[1] == line.split()[5] == "1.0"


def test_a_router_is_not_put_before_a_server_of_others(tiny: Path) -> None:
    with pytest.raises(InputError, match="router"):
        overload.main([str(tiny), "--router", "--url", "127.0.0.1:1"])


def test_behind_a_router_candidates_are_of_the_artifact(tiny: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    @contextmanager
    def fleet(*_: object, **__: object) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(router=SimpleNamespace(ports=SimpleNamespace(grpc_url="127.0.0.1:1")))

    monkeypatch.setattr("deploy.router.fleet.running_fleet", fleet)
    with overload.behind_router(tiny, "rank") as server:
        assert asking.candidates_for(server) is not None


@pytest.mark.parametrize("router", [[], ["--router"]])
def test_behind_a_router_and_without_a_server_has_one_ensemble(
    router: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: dict[str, object] = {}
    pq.write_table(pa.table({"items": [[1, 2]]}), tmp_path / "histories.parquet")

    def starting(*_: object, **options: object) -> None:
        asked.update(options)
        raise GenrecError("not now")

    monkeypatch.setattr("deploy.router.fleet.running_fleet", starting)
    monkeypatch.setattr("deploy.launcher.running_server", starting)
    with pytest.raises(GenrecError, match="not now"):
        overload.main([str(tmp_path), "--ensemble", "recommend_draft", *router])
    assert asked["ensembles"] == ("recommend_draft",)


@pytest.mark.long
@needs_haproxy
@pytest.mark.serving
def test_a_rollout_loses_nothing(tiny: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rollouts.main([str(tiny), "--requests", "40", "--rate", "20", "--beam-width", "32"])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["requests"] >= 40 and found["moves"] == 4
    assert (found["failed"], found["shed"], found["mixed_versions"], found["stale_versions"]) == (0, 0, 0, 0)
    assert found["answers_of"].keys() == {"new", "old"}
    assert (found["valid_share"], found["distinct_share"], found["enough_share"]) == (1, 1, 1)
    assert found["answers_checked"] == sum(found["answers_of"].values())


@pytest.mark.long
@needs_haproxy
@pytest.mark.serving
def test_overload_behind_a_router_tells_both_goals(
    tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--router", "--seconds", "1", "--beam-width", "32", "--out", str(tmp_path)]
    overload.main([str(tiny), *given])
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert found["goodput_2x_of_capacity"] >= 0 and "p99_of_deadline" in found
    assert all(each["failed"] == 0 for each in found["shares"].values())
