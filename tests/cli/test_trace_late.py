"""A server that tidies up when the client has its answer already, mostly over gRPC: spans end late, none begins so."""

from __future__ import annotations

from cli.spans import Span, way_of
from tests.cli.test_trace import check_nested, raw

SPANS = [
    raw("InferRequest", 40, 130, "s", "client"), raw("recommend", 41, 104, "e", "s"),
    raw("generate", 50, 70, "1", "e"), raw("compute", 51, 69, "1c", "1"),
    raw("lookup", 80, 103, "2", "e"), raw("compute", 81, 102, "2c", "2"),
]  # fmt: skip


def test_what_ends_late_is_cut_off_and_stays_where_it_began() -> None:
    whole = way_of(SPANS, 0, 100)
    check_nested(whole)
    send, server, receive = whole.parts
    assert (send, receive) == (Span("send", 0, 40), Span("receive", 100, 100))
    (chain,) = server.parts
    assert (chain.start, chain.end) == (41, 100)
    assert chain.parts[1] == Span("lookup", 80, 100, [Span("queue", 80, 81), Span("compute", 81, 100)])


def test_where_a_step_begins_after_the_answer_the_clock_differs() -> None:
    whole = way_of(SPANS, -20, 80)
    check_nested(whole)
    assert (whole.parts[0].end, whole.parts[1].parts[0].parts[1].start) == (-15, 25), "in the middle"
