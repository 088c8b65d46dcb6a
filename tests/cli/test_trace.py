"""`genrec trace` against a real server: real spans over OTLP, in the order of the ensemble, each within its parent."""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tritonclient.grpc
from tritonclient.utils import InferenceServerException

from cli import trace
from cli.collector import MOST_BYTES, MOST_TRACES, Collector
from cli.main import main
from cli.spans import Span, way_of
from cli.waterfall import LABEL, as_svg, as_text, rows
from clients.recommender import Recommender
from deploy.command import command
from deploy.launcher import RunningServer
from deploy.ports import Ports, choose_ports
from deploy.server_files import ServerFiles
from ensembles.served import served
from genrec.errors import InputError
from genrec.settings import Settings
from tests.ensembles.lint_argv import lint_argv

LEVELS = 3
STEPS = {each.name: [step.model for step in each.steps] for each in served(LEVELS, draft=True, ranker=False)}
ANY_PORT = "http://127.0.0.1:0/v1/traces"


def asked(
    server: RunningServer, items: list[int], ensemble: str = "recommend", protocol: str = "grpc"
) -> Span:
    options = {
        "ensemble": ensemble, "protocol": protocol, "history": items[:8], "top_k": 5, "deadline_ms": None,
        "exclude": None, "only": None, "exclude_groups": None, "only_groups": None,
    }  # fmt: skip
    url = server.http_url if protocol == "http" else server.grpc_url
    with Collector(server.trace_url) as collector:
        whole, refused = trace.ask(collector, url, argparse.Namespace(**options))
    assert refused is None
    return whole


def check_nested(span: Span) -> None:
    """Parts in order, one after the other, within the whole: so their sum is not more than it."""
    ends = [span.start, *(part.end for part in span.parts)]
    assert [part.start for part in span.parts] == sorted(part.start for part in span.parts)
    assert all(part.start >= before for part, before in zip(span.parts, ends, strict=False))
    assert ends[-1] <= span.end
    assert sum(part.end - part.start for part in span.parts) <= span.end - span.start
    for part in span.parts:
        check_nested(part)


@pytest.mark.serving
@pytest.mark.parametrize("protocol", ("grpc", "http"))
@pytest.mark.parametrize("ensemble", STEPS)
def test_spans_follow_the_ensemble(
    traced: RunningServer, items: list[int], ensemble: str, protocol: str
) -> None:
    whole = asked(traced, items, ensemble, protocol)
    check_nested(whole)
    send, server, receive = whole.parts
    assert (whole.name, send.name, server.name, receive.name) == ("client", "send", "server", "receive")
    (chain,) = server.parts
    assert chain.name == ensemble
    assert [step.name for step in chain.parts] == STEPS[ensemble]
    for step in chain.parts:
        assert [part.name for part in step.parts] == ["queue", "compute"], (
            "a single request is of the next batch"
        )


@pytest.mark.serving
def test_a_request_without_a_traceparent_is_not_traced(traced: RunningServer, items: list[int]) -> None:
    with Collector(traced.trace_url) as collector, Recommender(traced.http_url, "http") as recommender:
        recommender.recommend(items[:3], 5)
        recommender.recommend(items[:3], 5, traceparent=trace.traceparent_of("a" * 32))
        assert collector.spans("a" * 32, 30)
        assert collector.spans("a" * 32, 0) == []  # taken, and no other trace came before it
        assert collector.kept == 0


@pytest.mark.serving
def test_the_command_draws_text_and_svg(
    traced: RunningServer, items: list[int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    svg = tmp_path / "way.svg"
    server_json = str(traced.run_dir / "server.json")
    history = ",".join(map(str, items[:3]))
    assert main(["trace", server_json, "--history", history, "--svg", str(svg)]) == 0
    lines = capsys.readouterr().out.splitlines()
    names = [line.split()[0] for line in lines[1:]]
    assert names[:4] == ["client", "send", "server", "recommend"]
    drawn = ElementTree.parse(svg).getroot()
    texts = [each.text for each in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert [text for text in texts if text in STEPS["recommend"]] == STEPS["recommend"]


@pytest.mark.serving
@pytest.mark.parametrize(
    ("options", "wrong"),
    [
        (("--top-k", "1000"), "top_k: is 1000 (accepted: 1 to 32"),
        (("--ensemble", "rank"), "candidates: are not given"),
        (
            ("--ensemble", "rank", "--candidates", "1", "--only", "1"),
            "only: is given for rank, which does not read it",
        ),
    ],
    ids=["drawn as far as it came", "candidates", "only"],
)
def test_a_refused_request(
    traced: RunningServer,
    items: list[int],
    capsys: pytest.CaptureFixture[str],
    options: tuple[str],
    wrong: str,
) -> None:
    place = str(traced.run_dir / "server.json")
    assert main(["trace", place, "--history", str(items[0]), *options]) == 2
    said = capsys.readouterr()
    assert said.err.splitlines() == [said.err.strip()] and wrong in said.err
    assert ("encode_history" in said.out) is ("rank" not in options) and "generate" not in said.out


@pytest.mark.serving
def test_trace_settings_stay_closed(traced: RunningServer) -> None:
    with tritonclient.grpc.InferenceServerClient(traced.grpc_url) as client:
        for headers in ({}, traced.grpc_headers):
            with pytest.raises(InferenceServerException, match=r"(?i)restricted"):
                client.update_trace_settings("", {"trace_rate": "1"}, headers=headers)


@pytest.mark.serving
def test_a_server_without_traces_says_how_to_have_them(
    server: RunningServer,
    items: list[int],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(trace, "WAIT_S", 0.1)
    port = choose_ports().http
    given = ["--collector", f"http://127.0.0.1:{port}/v1/traces", "--history", str(items[0])]
    assert main(["trace", server.grpc_url, *given]) == 2
    assert (
        f"no spans came to http://127.0.0.1:{port}/v1/traces: `genrec serve --trace-url"
        in capsys.readouterr().err
    )


def test_a_server_traces_only_what_it_is_asked_to() -> None:
    nowhere = Path("/nowhere")
    given = (
        ServerFiles(nowhere, nowhere, nowhere, nowhere),
        nowhere,
        nowhere,
        Ports(1, 2, 3),
        "t" * 32,
        "p-",
    )
    assert not [each for each in command(*given) if "trace-config" in each]
    argv = command(*given, trace_url="http://127.0.0.1:4318/v1/traces")
    assert "--trace-config=rate=0" in argv and "--trace-config=level=TIMESTAMPS" in argv
    assert lint_argv(argv) == []


@pytest.mark.parametrize(
    "url",
    ("127.0.0.1:4318", "http://127.0.0.1:4318", "http://h/a b", "http://h/,level=TENSORS",
     "http://127.0.0.1:65536/v1/traces", "http://127.0.0.1:x/v1/traces", "http://[::1/v1/traces", ANY_PORT),
)  # fmt: skip
def test_a_trace_url_is_a_url(url: str) -> None:
    with pytest.raises(InputError, match=r"trace_url: is .*accepted: http://host:port/path"):
        Settings(Path("artifact"), Path("arena"), trace_url=url)


@pytest.mark.parametrize("header", ("", "00-1-2-01", "00-" + "A" * 32 + "-" + "b" * 16 + "-01", "x\r\ny: z"))
def test_a_traceparent_is_one(header: str) -> None:
    with Recommender("127.0.0.1:1") as recommender, pytest.raises(InputError, match="traceparent: is "):
        recommender.recommend([], traceparent=header)


@pytest.mark.parametrize(
    "url",
    ("ftp://127.0.0.1:4318/v1/traces", "http://example.org:4318/v1/traces", "4318", "",
     "http://127.0.0.1:65536/v1/traces", "http://127.0.0.1:x/v1/traces", "http://[::1/v1/traces"),
)  # fmt: skip
def test_a_collector_listens_on_this_machine_alone(url: str) -> None:
    with pytest.raises(InputError, match=r"collector: is .* \(accepted: http on 127\.0\.0\.1"):
        Collector(url)


def test_a_taken_port_is_named() -> None:
    with Collector(ANY_PORT) as first, pytest.raises(InputError, match=f"cannot listen at {first.url}"):
        Collector(first.url)


@pytest.mark.parametrize(
    "body",
    (
        b"",
        b"[]",
        b"\x0a\x00protobuf",
        b'{"resourceSpans": 1}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{}]}]}]}',
        b"[" * 200_000,
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"traceId": "t", "spanId": "s", "name": "n",'
        b' "startTimeUnixNano": 1e999, "endTimeUnixNano": 1e999}]}]}]}',
        b'{"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "n", "spanId": [1]}]}]}]}',
    ),
    ids=len,
)
def test_a_message_that_is_no_otlp_is_refused(body: bytes) -> None:
    with Collector(ANY_PORT) as collector:
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(urllib.request.Request(collector.url, body, method="POST"), timeout=10)
        assert refused.value.code == 400
        assert "not OTLP in JSON" in json.load(refused.value)["message"]
        assert collector.kept == 0


@pytest.mark.parametrize("length", [str(MOST_BYTES + 1), "9" * 5000], ids=len)
def test_a_message_too_long_is_not_read(length: str) -> None:
    with Collector(ANY_PORT) as collector:
        request = urllib.request.Request(collector.url, b"", {"Content-Length": length}, method="POST")
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        assert refused.value.code == 413


def test_old_traces_go() -> None:
    with Collector(ANY_PORT) as collector:
        for number in range(MOST_TRACES + 3):
            collector.take("/v1/traces", otlp([raw("InferRequest", 0, 1, trace=f"{number:032x}")]))
        assert collector.kept == MOST_TRACES
        assert collector.spans(f"{2:032x}", 0) == [] != collector.spans(f"{3:032x}", 0)


def test_a_step_lasts_until_the_next_begins() -> None:
    spans = [
        raw("InferRequest", 0, 100, "s", "client"), raw("recommend", 5, 95, "e", "s"),
        raw("encode", 6, 22, "1", "e"), raw("compute", 8, 21, "1c", "1"),  # freed after the next has begun
        raw("generate", 20, 30, "2", "e"), raw("compute", 25, 29, "2c", "2"),  # answers long after it was freed
        raw("lookup", 80, 90, "3", "e"), raw("compute", 81, 89, "3c", "3"),
    ]  # fmt: skip
    whole = way_of(reversed(spans), -10, 130)
    check_nested(whole)
    (chain,) = whole.parts[1].parts
    assert [(step.name, step.start, step.end) for step in chain.parts] == [
        ("encode", 6, 20), ("generate", 20, 80), ("lookup", 80, 90),
    ]  # fmt: skip
    assert chain.parts[0].parts[-1] == Span("compute", 8, 20)
    assert chain.parts[1].parts[-1] == Span("answers later", 29, 80)


def test_a_server_of_another_clock_is_put_in_the_middle() -> None:
    whole = way_of([raw("InferRequest", 1000, 1060)], 0, 100)
    assert (whole.parts[1].start, whole.parts[1].end) == (20, 80)


def test_a_server_that_notes_its_end_late_stays_within_the_clients_time() -> None:
    spans = [raw("InferRequest", 0, 120, "s", "client"), raw("recommend", 1, 118, "e", "s")]
    whole = way_of(spans, 2, 100)
    check_nested(whole)
    assert (whole.parts[1].start, whole.parts[1].end) == (2, 100)


def test_the_pictures_say_the_same() -> None:
    parts = [Span("queue", 1_000_000, 1_500_000), Span("a<b", 2_000_000, 4_000_000)]
    whole = Span("client", 0, 4_000_000, parts).shifted(1_700_000_000_000_000_000)
    lines = as_text(whole).splitlines()[1:]
    figures = [" ".join(line.split()[:3]) for line in lines]
    assert figures == ["client 0.00 4.00", "queue 1.00 0.50", "a<b 2.00 2.00"]
    bars = [line.partition("█") for line in lines]
    places = [(len(before) - len(bars[0][0]), len(bar) + 1) for before, _, bar in bars]
    assert places == [(0, 48), (12, 6), (24, 24)]
    drawn = list(ElementTree.fromstring(as_svg(whole)).iter("{http://www.w3.org/2000/svg}rect"))[1:]
    places = [(float(each.attrib["x"]) - LABEL, float(each.attrib["width"])) for each in drawn]
    assert places == [(0, 640), (160, 80), (320, 320)]
    told = whole.as_json()
    assert [(each["start"], each["ms"]) for each in (told, *told["parts"])] == [(0, 4), (1, 0.5), (2, 2)]
    assert [depth for depth, _ in rows(whole)] == [0, 1, 1]


def raw(
    name: str, start: int, end: int, span: str = "s", parent: str = "", trace: str = "t"
) -> dict[str, str]:
    times = {"startTimeUnixNano": str(start), "endTimeUnixNano": str(end)}
    return {"name": name, "spanId": span, "parentSpanId": parent, "traceId": trace, **times}


def otlp(spans: list[dict[str, str]]) -> bytes:
    return json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]}).encode()
