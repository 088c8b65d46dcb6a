"""What perf_analyzer 2.51 printed, word for word, and what we make of it."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import numpy as np
import pytest

from perf.kit.endpoints import Endpoint
from perf.slo import analyzer
from perf.slo.analyzer import Window, judge

HEADER = (
    "Request Rate,Inferences/Second,Client Send,Network+Server Send/Recv,Server Queue,Server Compute Input,"
    "Server Compute Infer,Server Compute Output,Client Recv,p50 latency,p90 latency,p95 latency,p99 latency\n"
)
STEADY = HEADER + "20,20.1507,22,5512,4,343,20173,2498,9,21619,46716,64472,124625\n"
LATE = HEADER + "150.00,49.93,15,3102,3,343,14578,2213,4,18543,24104,28620,34526\n"
OUTPUT = """\
Request Rate: 20 inference requests per seconds
  Client:
    Request count: 625
    Throughput: 20.1507 infer/sec
    p50 latency: 21619 usec
    p99 latency: 124625 usec
  Server:
    Inference count: 625
    Avg request latency: 26904 usec (overhead 8656 usec + queue 3368 usec + compute 14880 usec)
Inferences/Second vs. Client p99 Batch Latency
Request Rate: 20, throughput: 20.1507 infer/sec, latency 124625 usec
"""
UNSTABLE = "Warning: Request latency is not stabilizing. Please try lowering the request rate.\n"
GIVEN_UP = "Failed to obtain stable measurement.\n"
DELAYED = """\
  Client:
    Request count: 200
    Avg send request rate: 49.93 infer/sec
    [WARNING] Perf Analyzer was not able to keep up with the desired request rate. 99.50% of the requests were delayed.
    Throughput: 49.93 infer/sec
"""
SHED = """\
Failed to retrieve results from inference request.
Thread [0] had error: in ensemble 'recommend', kv arena: no 2 adjacent free slots of 64

Thread [1] had error: in ensemble 'recommend', kv arena: no 2 adjacent free slots of 64
"""


def test_a_point_within_the_slo_is_held() -> None:
    point = judge(20.0, 150.0, 0, STEADY, OUTPUT)
    assert point.held and point.problems == ()
    assert (point.p50_ms, point.p90_ms, point.p95_ms, point.p99_ms) == (21.619, 46.716, 64.472, 124.625)
    assert (point.throughput, point.requests, point.delayed_percent) == (20.1507, 625, 0.0)


def test_a_point_over_the_slo_is_not() -> None:
    point = judge(20.0, 100.0, 0, STEADY, OUTPUT)
    assert not point.held and point.problems == ("p99 124.6 ms over 100 ms",)


def test_exit_code_0_and_a_warning_is_not_held() -> None:
    point = judge(20.0, 150.0, 0, STEADY, OUTPUT + UNSTABLE)
    assert not point.held and point.problems == ("latency is not stable",) and point.p99_ms == 124.625
    assert point.unsure and not judge(20.0, 100.0, 0, STEADY, OUTPUT + UNSTABLE).unsure


def test_late_sends_hide_latency_so_the_point_is_not_held() -> None:
    point = judge(150.0, 150.0, 0, LATE, DELAYED)
    assert not point.held
    assert point.problems == ("99.5 % of the requests were sent late", "answered 49.9 of 150 per second")
    assert (point.delayed_percent, point.sent_rate) == (99.5, 49.93)
    few = DELAYED.replace("99.50%", "0.80%")
    assert judge(150.0, 150.0, 0, LATE, few, windows=False).held


def test_a_queue_that_grows_is_not_held_but_chance_may_explain_a_few() -> None:
    assert judge(23.5, 150.0, 0, STEADY, OUTPUT).problems == ("answered 20.2 of 23.5 per second",)
    assert judge(23.5, 150.0, 0, STEADY, OUTPUT.replace("625", "100")).held


@pytest.mark.parametrize(
    ("code", "output", "problem"),
    [
        (99, SHED, "a request failed: in ensemble 'recommend', kv arena: no 2 adjacent free slots of 64"),
        (0, GIVEN_UP, "throughput is not stable"),
        (0, UNSTABLE + GIVEN_UP, "latency is not stable"),
        (-2, "ended after 80 s", "no result in time"),
        (1, "error: unsupported option\n", "exit code 1: error: unsupported option"),
        (
            99,
            "Error: too many\nUsage: perf_analyzer [options]\n\t-m <name>\n",
            "exit code 99: Error: too many",
        ),
        (0, "", "no result"),
        (
            99,
            "error: failed to get model config: This protocol is restricted, expecting header 'a-token'",
            "the server shows its configuration to who has its token; --server-json has that, --url has not",
        ),
    ],
)
def test_points_without_a_result(code: int, output: str, problem: str) -> None:
    point = judge(120.0, 100.0, code, "", output)
    assert not point.held and point.problems == (problem,) and point.p99_ms is None


def test_input_data_is_read_back(tmp_path: Path) -> None:
    analyzer.write_input_data(tmp_path / "in.json", [np.array([5, 6]), np.array([7])], 10)
    data = json.loads((tmp_path / "in.json").read_text())["data"]
    assert [record["history"] for record in data] == [
        {"content": [5, 6], "shape": [2]},
        {"content": [7], "shape": [1]},
    ]
    assert {record["top_k"]["content"][0] for record in data} == {10}


@pytest.mark.parametrize("rate", [10.0, 100.0, 1000.0])
def test_a_point_has_the_time_of_all_its_windows(rate: float) -> None:
    window = Window(trials=100)
    argv = analyzer.command(Endpoint("h:1"), rate, window, "in.json", "out.csv")
    (requests,) = (int(word.partition("=")[2]) for word in argv if "measurement-request-count" in word)
    assert analyzer.limit_of(window, rate) > 100 * requests / rate
    assert analyzer.limit_of(Window(count=50), 5.0) == 80


def test_the_command_names_files_without_folders_and_opens_the_statistics() -> None:
    target = Endpoint("h:1", {"triton-grpc-protocol-key": "secret"}, "recommend_draft")
    argv = analyzer.command(target, 12.5, Window(), "in.json", "out.csv")
    assert argv[argv.index("-m") + 1] == "recommend_draft" and argv[argv.index("-u") + 1] == "h:1"
    assert argv[argv.index("-f") + 1] == "out.csv" and "--input-data=in.json" in argv
    assert argv[argv.index("-H") + 1] == "triton-grpc-protocol-key:secret"
    assert {
        "--async",
        "--percentile=99",
        "--request-rate-range=12.5",
        "--request-distribution=poisson",
    } <= set(argv)
    assert "--measurement-request-count=400" in argv and "--stability-percentage=100" in argv
    fast = analyzer.command(target, 400, Window(), "in.json", "out.csv")
    assert "--measurement-request-count=1400" in fast and "--max-trials=6" in fast, (
        "ten seconds of three windows"
    )
    assert "--request-count=20" in analyzer.command(target, 1, Window(count=20), "i", "o")


def test_the_real_binary_starts_and_the_links_are_removed() -> None:
    with analyzer.libraries() as environment:
        folder = environment["LD_LIBRARY_PATH"].split(os.pathsep)[0]
        assert {path.name for path in Path(folder).iterdir()} == set(analyzer.LIBRARIES)
        run = [str(analyzer.find_binary()), "--version"]
        ended = subprocess.run(run, env=environment, capture_output=True, text=True, check=True)
    assert "Perf Analyzer Version 2." in ended.stdout + ended.stderr
    assert not Path(folder).exists()
