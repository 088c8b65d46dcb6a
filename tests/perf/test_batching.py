"""perf.slo.batching: its arithmetic, its histories, and that Triton's own batcher answers as ours does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import tritonclient.grpc

from deploy import launcher
from deploy.launcher import RunningServer
from genrec.models.config import ModelConfig
from perf.slo import replay
from perf.slo.batching import held, histories, repository, summary
from tests.conftest import BEAM_WIDTH
from tests.serving.servers import brief_server
from tests.serving.wire import ask, tensors


def test_the_rate_that_holds_is_the_last_before_the_first_failure():
    assert held([10, 20, 30, 40], [5, 9, 11, 8], 10) == 20
    assert held([10], [11], 10) == 0


def test_a_rate_at_which_requests_fail_does_not_hold() -> None:
    fine = replay.ReplaySummary(
        100, 100, 0, 0, 9.0, 9.0, 9.0, 1.0, 5.0, 6.0, 7.0, 8.0, late=0, late_p99_ms=0, late_max_ms=0, shed_by={},
        problems={},
    )  # fmt: skip
    lossy = replace(fine, answered=90, failed=10)
    found = summary([10.0, 20.0], {"a": [[fine, lossy]], "b": [[fine, fine]]}, 50.0)
    assert {name: arm["highest_rate"] for name, arm in found.items()} == {"a": 10.0, "b": 20.0}


def test_who_fails_is_late_beside_those_who_are() -> None:
    fast, slow = (replay.ReplayedRequest(1.0, 1.0, 1.0 + s, replay.ANSWERED) for s in (0.01, 0.9))
    lost = replay.ReplayedRequest(1.0, 1.0, 1.0, replay.FAILED, "gone")
    late = replay.summarise([fast] * 983 + [slow] * 8 + [lost] * 9, 300.0)
    assert late.p99_ms is not None and late.p99_ms < 300, "of those who were answered"
    within = replay.summarise([fast] * 990 + [slow] * 5 + [lost] * 5, 300.0)
    found = summary([10.0, 20.0], {"a": [[within, late]]}, 300.0)
    assert found["a"]["highest_rate"] == 10.0, "17 of 1,000 were not answered in time"


def test_a_rate_at_which_nothing_is_answered_has_no_median() -> None:
    nothing = replay.summarise([replay.ReplayedRequest(1.0, 1.0, 1.0, replay.FAILED, "gone")], 300.0)
    assert summary([10.0], {"a": [[nothing], [nothing]]}, 300.0)["a"]["p50_ms"] == [np.inf]


def test_histories_are_long_and_short_and_within_the_model(tiny: Path):
    config = ModelConfig.load(tiny / "model" / "config.json")
    lengths = [len(history) for history in histories(tiny, 500, seed=0)]
    assert min(lengths) == 4 and max(lengths) == config.max_history


@pytest.mark.serving
@pytest.mark.long
def test_the_plain_server_answers_as_ours_does(tiny: Path, server: RunningServer, items: list[int]) -> None:
    ours = launcher.REPOSITORY
    with repository(plain=True):
        with brief_server(tiny, beam_width=BEAM_WIDTH, ensembles=("recommend",)) as plain:
            for history in (items[:1], items[:9], items[3:40]):
                got = ask(tritonclient.grpc, plain.grpc_url, tensors(history))
                want = ask(tritonclient.grpc, server.grpc_url, tensors(history))
                np.testing.assert_array_equal(got["item_ids"], want["item_ids"])
        assert ours != launcher.REPOSITORY
    assert ours == launcher.REPOSITORY
