"""`genrec trace` of a request that no server has taken, and one whose spans were lost."""

from __future__ import annotations

import pytest

from cli.collector import Collector
from cli.main import main
from cli.spans import Span, way_of
from tests.cli.page import NOBODY


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["--top-k", "1"], "Connection refused"),
        (["--top-k", str(2**31)], "top_k: is 2147483648"),
        (["--ensemble", "pre_infer"], "ensemble: is 'pre_infer' (accepted: recommend, "),
    ],
    ids=["nobody there", "not sent", "not asked"],
)
@pytest.mark.parametrize("protocol", ["grpc", "http"])
def test_no_spans_are_waited_for(
    protocol: str,
    given: list[str],
    says: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(Collector, "spans", lambda *_: pytest.fail("waits for spans"))
    options = [
        "--history",
        "1",
        "--protocol",
        protocol,
        "--collector",
        "http://127.0.0.1:0/v1/traces",
        *given,
    ]
    assert main(["trace", NOBODY, *options]) == 2
    assert says in capsys.readouterr().err


def test_a_request_whose_spans_were_lost_is_seen_from_outside_alone() -> None:
    """Triton loses some. The page has the client's own times."""
    assert way_of([], 10, 25) == Span("client", 10, 25)
