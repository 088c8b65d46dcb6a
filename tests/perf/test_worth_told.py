"""That benchmarks tell, beside the speed of answers, what these are worth: with real servers and few requests."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from deploy.launcher import RunningServer
from perf.kit.worth import WRONG
from perf.slo import batching, capacity, overload, replay, returning, served_arms

SHARES = ("valid_share", "distinct_share", "enough_share")


def shares_of(figures: dict[str, Any]) -> list[float]:
    return [figures[share] for share in SHARES]


@pytest.fixture
def last_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Any, Sequence[str]], dict[str, Any]]:
    """The JSON of a benchmark that is called with these words, and that it has said for people what it holds."""
    monkeypatch.setattr(capacity, "WARM_UP_S", 0.0)

    def run(main: Callable[[Sequence[str]], None], words: Sequence[str]) -> dict[str, Any]:
        main(words)
        *said, last = capsys.readouterr().out.splitlines()
        assert any("items valid 100.00%" in each for each in said) and not any(WRONG in each for each in said)
        found: dict[str, Any] = json.loads(last)
        return found

    return run


@pytest.mark.serving
def test_loads_on_a_running_server_say_it(
    tiny: Path, server: RunningServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    last_line: Callable[..., dict[str, Any]],
) -> None:  # fmt: skip
    monkeypatch.setattr(overload, "SHARES", (0.5, 2.0))
    there = [str(tiny), "--server-json", str(server.run_dir / "server.json"), "--histories", "10"]
    found = last_line(replay.main, [*there, "--requests", "5", "--rate", "50"])
    assert shares_of(found) == [1, 1, 1] and found["answers_checked"] == 10
    found = last_line(overload.main, [*there, "--seconds", "0.4", "--out", str(tmp_path)])
    assert shares_of(found) == [1, 1, 1] and found["answers_checked"] == 20


def test_arms_of_which_no_request_ended_within_its_load_have_no_p50() -> None:
    rounds = [served_arms.ServedRound(*each, []) for each in ((8.0, None), (4.0, 5.0), (6.0, 7.0))]
    found = {"some": served_arms.figures(rounds), "none": served_arms.figures(rounds[:1])}
    assert found["some"] == {"capacity": 6.0, "capacities": [8.0, 4.0, 6.0], "p50_ms": 6.0}
    assert found["none"]["p50_ms"] is None
    assert [line.split()[-1] for line in served_arms.table(found).splitlines()] == ["ms", "6.00", "-"]


@pytest.mark.long
@pytest.mark.serving
def test_arms_with_servers_of_their_own_say_it(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, last_line: Callable[..., dict[str, Any]]
) -> None:
    short = ["--rounds", "1", "--beam-width", "32"]
    arm = served_arms.ServedArm("drafts", "recommend_draft", {"ensembles": ("recommend_draft",)})
    found = last_line(
        lambda words: served_arms.compare("instances", "", [arm], words),
        [str(tiny), "--seconds", "0.3", *short],
    )
    assert shares_of(found["arms"]["drafts"]) == [1, 1, 1]
    assert found["arms"]["drafts"]["answers_checked"] == 32
    monkeypatch.setattr(batching, "ARMS", batching.ARMS[1:2])
    monkeypatch.setattr(batching, "SHARES", (0.3, 0.5))
    found = last_line(batching.main, [str(tiny), "--seconds", "0.3", *short])
    (of_arm,) = found["arms"].values()
    assert shares_of(of_arm) == [1, 1, 1] and of_arm["answers_checked"] == 64
    words = ["--prompts", "4", "--users", "3", "--visits", "2", "--in-flight", "2"]
    found = last_line(returning.main, ["--artifact", str(tiny), *words, *short])
    (cell,) = found["cells"].values()
    assert shares_of(cell) == [1, 1, 1] and cell["answers_checked"] == 2 * 3  # of second visits, by both ways
