"""The replayer's schedules and arithmetic against slow twins, and its bookkeeping against a double."""

from __future__ import annotations

import asyncio
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cli.main import main
from clients.errors import Overloaded, ServerError
from genrec.errors import ArtifactError, InputError
from perf.kit import traffic
from perf.slo.replay import ANSWERED, FAILED, SHED, ReplayedRequest, open_loop, percentile, replay, summarise
from tests.tiny import tiny_catalogue

times = st.floats(0, 100, allow_nan=False)
events = st.builds(
    lambda due, late, took, outcome: ReplayedRequest(
        due, due + late, due + late + took, outcome, "why" * (outcome == FAILED)
    ),
    times, st.floats(0, 0.02), st.floats(0, 2), st.sampled_from([ANSWERED, SHED, FAILED]),
)  # fmt: skip


@given(st.lists(times, max_size=100), st.sampled_from([0.5, 0.9, 0.99, 1.0]))
def test_percentile_is_the_smallest_value_that_covers_the_share(values: list[float], share: float) -> None:
    covering = [v for v in values if sum(w <= v for w in values) >= share * len(values) - 1e-9]
    assert percentile(values, share) == (min(covering) if values else None)


@given(st.lists(events, min_size=1, max_size=60), st.floats(1, 2000))
def test_summary_against_plain_loops(some: list[ReplayedRequest], slo_ms: float) -> None:
    found = summarise(some, slo_ms)
    good = late = 0
    latencies = []
    for event in some:
        late += 1000 * (event.sent - event.due) > 5 if event.sent > event.due else 0
        if event.outcome == ANSWERED:
            latencies.append(1000 * (event.done - event.due))  # from the scheduled time, not from the send
            good += latencies[-1] <= slo_ms
    assert (found.requests, found.answered) == (len(some), len(latencies))
    assert found.answered + found.shed + found.failed == found.requests
    assert found.late == late
    span = max(event.due for event in some) or max(event.done for event in some)
    if span > 1e-6:
        assert math.isclose(found.goodput, good / span) and math.isclose(found.offered_rate, len(some) / span)
    assert math.isclose(found.within_slo, good / len(some))
    assert found.p99_ms == percentile(latencies, 0.99)
    assert found.problems == ({"why": found.failed} if found.failed else {})
    assert summarise(some, None).within_slo == len(latencies) / len(some)


def test_arrivals() -> None:
    arrivals = traffic.poisson(50.0, 20_000, seed=1)
    assert (np.diff(arrivals) >= 0).all() and arrivals[0] > 0
    assert math.isclose(len(arrivals) / arrivals[-1], 50, rel_tol=0.03)
    gaps = np.diff(arrivals)
    assert math.isclose(gaps.std(), gaps.mean(), rel_tol=0.03)  # exponential gaps
    assert np.array_equal(arrivals, traffic.poisson(50.0, 20_000, seed=1))
    assert not np.array_equal(arrivals, traffic.poisson(50.0, 20_000, seed=2))
    assert traffic.bursts(10.0, 5, 2).tolist() == [0.2, 0.2, 0.4, 0.4, 0.5]
    assert traffic.given([30, 10, 20]).tolist() == [0.01, 0.02, 0.03]


@pytest.mark.parametrize("size", [1, 50, 64, 100])
def test_bursts_offer_the_rate_that_was_asked_for(size: int) -> None:
    events = [ReplayedRequest(due, due, due, ANSWERED) for due in traffic.bursts(20.0, 100, size).tolist()]
    found = summarise(events, 10.0)
    assert math.isclose(found.offered_rate, 20.0) and math.isclose(found.goodput, 20.0)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: traffic.poisson(0, 5),
        lambda: traffic.poisson(float("nan"), 5),
        lambda: traffic.poisson(5, 0),
        lambda: traffic.bursts(5, 5, 0),
        lambda: traffic.given([]),
        lambda: traffic.given([-1]),
        lambda: traffic.given([float("nan")]),
    ],
)
def test_wrong_arrivals(wrong: Any) -> None:
    with pytest.raises(InputError):
        wrong()


@pytest.mark.parametrize("inside", ["1\n2\nsoon\n", "-1", "", None])
def test_a_file_of_arrivals_that_is_none_is_named(
    inside: str | None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "arrivals.txt"
    if inside is not None:
        path.write_text(inside)
    assert main(["bench", "replay", "none", "--arrivals", str(path)]) == 2
    said = capsys.readouterr()
    assert "arrivals: are " in said.err and "milliseconds since the start)" in said.err and not said.out


@pytest.mark.parametrize("option", ["rate", "requests", "burst"])
def test_arrivals_of_a_file_have_no_other_schedule(
    option: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "arrivals.txt").write_text("10 20")
    given = ["--arrivals", str(tmp_path / "arrivals.txt"), f"--{option}", "5"]
    assert main(["bench", "replay", "none", *given]) == 2
    assert (
        f"arrivals: are given together with --{option} (accepted: one of the two)" in capsys.readouterr().err
    )


def test_histories_leave_out_the_test_item(tmp_path: Path) -> None:
    users = {1: [10, 11, 12], 2: [20, 21], 3: [30], 4: []}
    table = pa.table({"user_id": list(users), "items": pa.array(list(users.values()), pa.list_(pa.int64()))})
    pq.write_table(table, tmp_path / "histories.parquet")
    found = traffic.histories(tmp_path, 10)
    assert sorted(h.tolist() for h in found) == [[10, 11], [20]]
    assert len(traffic.histories(tmp_path, 1)) == 1
    many = pa.table({"items": pa.array([[n, 0] for n in range(100)], pa.list_(pa.int64()))})
    pq.write_table(many, tmp_path / "histories.parquet")
    orders = [[int(h[0]) for h in traffic.histories(tmp_path, 50, seed)] for seed in (0, 0, 1)]
    assert orders[0] == orders[1] != orders[2]
    with pytest.raises(InputError):
        traffic.histories(tmp_path, 0)
    (tmp_path / "histories.parquet").write_text("no parquet")
    with pytest.raises(ArtifactError):
        traffic.histories(tmp_path, 1)


def test_without_histories_it_draws_known_items_and_of_strangers_no_prompt(tmp_path: Path) -> None:
    from genrec.models.config import ModelConfig

    catalogue = tiny_catalogue(40)
    catalogue.save(tmp_path / "catalogue.parquet")
    (tmp_path / "model").mkdir()
    ModelConfig((12, 12, 12), max_history=7).save(tmp_path / "model" / "config.json")
    found = traffic.histories(tmp_path, 5)
    assert [len(h) for h in found] == [7] * 5
    assert set(np.concatenate(found).tolist()) <= set(catalogue.item_ids.tolist())
    assert len(traffic.prompts(tmp_path, 2, 0)) == 2
    strangers = pa.table({"items": pa.array([[-1, -2, -3]], pa.list_(pa.int64()))})
    pq.write_table(strangers, tmp_path / "histories.parquet")
    with pytest.raises(ArtifactError, match="no history has an item of the catalogue"):
        traffic.prompts(tmp_path, 2, 0)


class Double:
    """Answers by the first item: 0 answers, 1 sheds, 2 fails."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int, int | None]] = []
        self.open = self.most = 0

    async def recommend(self, history: Any, top_k: int = 10, *, deadline_ms: int | None = None) -> Any:
        self.seen.append((int(history[0]), top_k, deadline_ms))
        self.open += 1
        self.most = max(self.most, self.open)
        await asyncio.sleep(0.02)
        self.open -= 1
        if history[0] == 1:
            raise Overloaded("full")
        if history[0] == 2:
            raise ServerError("broken")


def test_replay_sends_all_in_order_without_waiting_for_answers() -> None:
    double, arrivals = Double(), np.zeros(9)
    found = asyncio.run(replay(double, [[0], [1], [2]], arrivals, top_k=4, deadline_ms=50, show=False))
    assert double.seen == [(0, 4, 50), (1, 4, 50), (2, 4, 50)] * 3
    assert double.most == 9  # open loop: all in flight at once
    assert sorted(event.outcome for event in found) == [ANSWERED] * 3 + [FAILED] * 3 + [SHED] * 3
    assert all(event.due == 0 and event.done >= event.sent >= event.due - 1e-9 for event in found)
    report = summarise(found, None)
    assert report.problems == {"ServerError: broken": 3}
    assert report.shed_by == {"full": 3}


def test_what_a_sender_raises_ends_the_load_and_is_no_request_less() -> None:
    sent: list[int] = []

    async def send(number: int, _: float) -> None:
        if number == 1:
            raise ZeroDivisionError
        sent.append(number)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(open_loop(np.zeros(4), time.monotonic(), send))
    assert sent == [0, 2, 3], "all have ended"
