"""Pages that benchmarks read of servers on this machine: Triton's metrics, and Prometheus' numbers for the picture."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from perf.kit import dashboard_picture
from perf.relay.measure import computed_tokens
from tests.web import Quiet, answering

METRICS = """\
# HELP genrec_rank_tokens_total of rankings
genrec_rank_tokens_total{model="score_candidates",kind="computed"} 30
genrec_rank_tokens_total{model="score_candidates",kind="reused"} 500
genrec_pre_inferred_tokens_total{model="score_candidates"} 12
"""


@contextmanager
def page(text: str) -> Iterator[str]:
    """host:port of a server that answers everything with `text`."""

    class Answers(Quiet):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(text.encode())

    with answering(Answers) as server:
        yield f"127.0.0.1:{server.server_port}"


@pytest.fixture(autouse=True)
def a_proxy_that_leads_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)


def test_metrics_are_read_of_the_server_itself() -> None:
    with page(METRICS) as url:
        assert computed_tokens(url) == 42


def test_prometheus_is_asked_itself() -> None:
    series = [{"metric": {}, "values": [[1, "2"]]}]
    with page(json.dumps({"data": {"result": series}})) as url:
        assert dashboard_picture.over_time(f"http://{url}", "up", 1, 60.0) == series


def test_a_line_that_has_ended_ends_before_now() -> None:
    series = [
        {"metric": {"name": str(n)}, "values": [[60 * m, "1"] for m in range(7, 7 + n)]} for n in (1, 3)
    ]
    panel = {"targets": [{"expr": "up", "legendFormat": "{{name}}"}]}
    with page(json.dumps({"data": {"result": series}})) as url:
        found = dashboard_picture.lines_of(f"http://{url}", panel, 5, 600.0)
    assert [ago for _, ago, _ in found] == [[-3.0], [-3.0, -2.0, -1.0]]
