"""NVIDIA's perf_analyzer, run at one request rate, and what it says read back, warnings included.

perf_analyzer exits with 0 on points it could not hold, so everything it prints is evidence: requests sent
late (it counts latency from the actual send), latency that does not stabilise, load it could not keep up
with.
"""

from __future__ import annotations

import csv
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genrec.errors import ArtifactError
from perf.kit.endpoints import Endpoint

# Wanted by the binary; the server's wheel has them under names that carry a hash.
LIBRARIES = {"libb64.so.0d": "libb64-*.so.0d", "libcudart.so.12": "libcudart-*.so.12*"}
DELAYED_LIMIT = 1.0  # per cent; perf_analyzer itself warns above
# Of the asked rate must be answered, or a queue is growing; less where chance alone explains it.
KEPT_UP = 0.95
UNSTABLE = "latency is not stable"
RESTRICTED = "This protocol is restricted"
PERCENTILES = (50, 90, 95, 99)
_DELAYED = re.compile(r"([\d.]+)% of the requests were delayed")
_SENT = re.compile(r"Avg send request rate: ([\d.]+)")
_COUNT = re.compile(r"Request count: (\d+)")
_THREAD_ERROR = re.compile(r"Thread \[\d+\] had error: (.+)")


@dataclass(frozen=True)
class Window:
    """When a point is measured: windows of at least `requests` and `seconds`, until three agree or `trials` are over.

    The three last are pooled, so P99 stands on about 3 * requests / 100 samples. `count` > 0: one run of so
    many requests and no such test, for smoke tests. `stability` is how far the P99 of windows may differ, per
    cent: the slowest four of 400 requests vary twofold by chance alone, and it is the pooled P99 that counts.
    """

    requests: int = 400
    trials: int = 6
    count: int = 0
    threads: int = 16
    stability: float = 100.0
    seconds: float = 3.5  # of a window, if that is more requests: a queue that grows slowly shows

    def least(self, rate: float) -> int:
        """Requests of a window at a rate."""
        return max(self.requests, round(rate * self.seconds))


@dataclass(frozen=True)
class Point:
    """One rate: latencies in ms; `held` means P99 within the SLO and no evidence against the figure."""

    rate: float
    held: bool
    problems: tuple[str, ...]
    throughput: float | None = None
    p50_ms: float | None = None
    p90_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    requests: int = 0
    delayed_percent: float = 0.0
    # The SLO was met; only the windows differed too much for a verdict.
    unsure: bool = False
    sent_rate: float | None = None  # printed by perf_analyzer only when it was late


def find_binary() -> Path:
    """perf_analyzer beside this Python, else on PATH. Raises ArtifactError."""
    beside = Path(sys.executable).parent / "perf_analyzer"
    found = beside if beside.is_file() else shutil.which("perf_analyzer")
    if not found:
        raise ArtifactError("perf_analyzer", "not found; tritonclient 2.24.0 to 2.60.0 brings it")
    return Path(found)


@contextmanager
def libraries() -> Iterator[dict[str, str]]:
    """The environment in which perf_analyzer finds its libraries: links in a folder that is removed after."""
    spec = find_spec("pytriton")  # found, not imported
    bundled = Path(spec.origin).parent.parent / "nvidia_pytriton.libs" if spec and spec.origin else None
    with tempfile.TemporaryDirectory(prefix="genrec-perf-") as folder:
        for name, pattern in LIBRARIES.items():
            if bundled and (files := sorted(bundled.glob(pattern))):
                (Path(folder) / name).symlink_to(files[0])
        paths = [folder, *filter(None, [os.environ.get("LD_LIBRARY_PATH")])]
        # A proxy of the environment cannot reach a server of this machine.
        near = ",".join(["127.0.0.1", "localhost", *filter(None, [os.environ.get("no_proxy")])])
        yield {**os.environ, "no_proxy": near, "LD_LIBRARY_PATH": os.pathsep.join(paths)}


def write_input_data(
    path: Path, histories: Sequence[NDArray[np.int64]], top_k: int,
    further: Callable[[NDArray[np.int64]], dict[str, list[int]]] = lambda _: {},
) -> None:  # fmt: skip
    """Histories as JSON of perf_analyzer, each with its `further` inputs; it sends them over and over in this order."""
    records = [
        {
            name: {"content": values, "shape": [len(values)]}
            for name, values in {"history": history.tolist(), "top_k": [top_k], **further(history)}.items()
        }
        for history in histories
    ]
    path.write_text(json.dumps({"data": records}))


def command(server: Endpoint, rate: float, window: Window, data: str, report: str) -> list[str]:
    """argv. `data` and `report` are bare names in the working folder: for an ensemble perf_analyzer puts the
    name of every composing model in front of the report's, which breaks on a path.
    """  # fmt: skip
    argv = [
        str(find_binary()),
        "-m",
        server.ensemble,
        "-i",
        "grpc",
        "-u",
        server.grpc_url,
        "--async",
        f"--input-data={data}",
    ]
    argv += [f"--request-rate-range={rate:g}", "--request-distribution=poisson", "--percentile=99"]
    argv += [f"--max-threads={window.threads}", "-f", report]
    if window.count:
        argv += [f"--request-count={window.count}"]
    else:
        requests = window.least(rate)
        argv += ["--measurement-mode=count_windows", f"--measurement-request-count={requests}"]
        argv += [f"--stability-percentage={window.stability:g}", f"--max-trials={window.trials}"]
    for name, value in server.headers.items():
        argv += ["-H", f"{name}:{value}"]
    return argv


def measure(server: Endpoint, rate: float, slo_ms: float, window: Window, folder: Path, data: str) -> Point:
    """Run perf_analyzer at `rate` in `folder`, which keeps its report and output. Raises ArtifactError."""
    name = f"rate-{rate:g}"
    report = folder / f"{name}.csv"
    report.unlink(missing_ok=True)  # of a former run: perf_analyzer writes none for a point it gave up
    limit_s = limit_of(window, rate)
    with libraries() as environment:
        process = subprocess.Popen(
            command(server, rate, window, data, report.name),
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            out, err = process.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            out, err = _end(process, 30)
            err += f"\nended after {limit_s:.0f} s"
        except BaseException:
            _end(process, 5)
            raise
    (folder / f"{name}.txt").write_text(out + err)
    if "error while loading shared libraries" in err:
        raise ArtifactError("perf_analyzer", err.strip())
    table = report.read_text() if report.is_file() else ""
    return judge(rate, slo_ms, process.returncode, table, out + err, windows=not window.count)


def limit_of(window: Window, rate: float) -> float:
    """Seconds that a point may take: twice what all its windows do, and a minute."""
    return 60 + 2 * (window.count or window.trials * window.least(rate)) / rate


def _end(process: subprocess.Popen[str], owed_s: float) -> tuple[str, str]:
    """Ask first: on SIGINT perf_analyzer waits for the answers it is owed, killed it cancels them (H2). It sends no
    more, and yet waits until its window is full, which at a low rate is never: so not for longer than `owed_s`.
    """
    process.send_signal(signal.SIGINT)
    try:
        return process.communicate(timeout=owed_s)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.communicate()


def judge(rate: float, slo_ms: float, code: int, report: str, output: str, windows: bool = True) -> Point:
    """The point that perf_analyzer's exit code, CSV and output (stdout and stderr) speak of.

    Without `windows` (a run of a fixed count) it divides by a time it rounded up, so its throughput is too
    low and proves nothing.
    """
    row = next(iter(csv.DictReader(report.splitlines())), None)
    problems = _problems(code, output)
    if not row:
        return Point(rate, False, tuple(problems or ["no result"]))
    ms = {f"p{p}_ms": float(row[f"p{p} latency"]) / 1000 for p in PERCENTILES}
    throughput = float(row["Inferences/Second"])
    delayed = [float(found) for found in _DELAYED.findall(output)]
    if ms["p99_ms"] > slo_ms:
        problems.append(f"p99 {ms['p99_ms']:.1f} ms over {slo_ms:g} ms")
    count = _COUNT.search(output)
    requests = int(count[1]) if count else 0
    if windows and throughput < rate * min(KEPT_UP, 1 - 3 / math.sqrt(max(requests, 1))):
        problems.append(f"answered {throughput:.1f} of {rate:g} per second")
    sent = _SENT.search(output)
    return Point(
        rate,
        not problems,
        tuple(problems),
        throughput=throughput,
        requests=requests,
        delayed_percent=max(delayed, default=0.0),
        unsure=problems == [UNSTABLE],
        sent_rate=float(sent[1]) if sent else None,
        **ms,
    )


def _problems(code: int, output: str) -> list[str]:
    """What the output says against the point."""
    problems = []
    for message in sorted(set(_THREAD_ERROR.findall(output)))[:1]:
        problems.append(f"a request failed: {message.strip()}")
    delayed = [float(found) for found in _DELAYED.findall(output)]
    if max(delayed, default=0.0) > DELAYED_LIMIT:
        problems.append(f"{max(delayed):g} % of the requests were sent late")
    if "not able to keep up with the desired load" in output:
        problems.append("perf_analyzer did not keep up with the load")
    if "Request latency is not stabilizing" in output:
        problems.append(UNSTABLE)
    if "Failed to obtain stable measurement" in output and UNSTABLE not in problems:
        problems.append("throughput is not stable")
    if "ended after" in output:
        problems.append("no result in time")
    if code and RESTRICTED in output:
        problems.append(
            "the server shows its configuration to who has its token; --server-json has that, --url has not"
        )
    if code and not problems:
        # An option that it refuses is named before it tells all others.
        lines = [line for line in output.partition("Usage: ")[0].splitlines() if line.strip()]
        problems.append(f"exit code {code}: {lines[-1] if lines else 'no output'}")
    return problems
