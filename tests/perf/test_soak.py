"""28 seconds of load on the session's server, the last 20 of them steady: nothing grows."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from cli.main import main
from deploy.launcher import RunningServer
from perf.kit import traffic
from perf.slo import soak
from perf.slo.soak_plot import plot_soak
from perf.slo.watch import private_bytes, waits
from tests.serving.processes import until

WARM_UP_S, WARM_UP_RATE = 8, 250  # more at once than later: buffers per request in flight find their number
ROUNDS = 3  # a leak grows in each; a process that meets a new peak (the machine had other work) grows in one
STARVED_S = 0.7  # Triton takes a process of a model for dead that had no core for a second (docs/upkeep.md)
SECONDS, RATE = 20, 100  # as many steps of an allocator as in twice the time at half the rate
LEAK = 1024  # bytes per request in a process of ours that must not go unseen
BOUND = LEAK / 2 * RATE  # bytes per second: so far may the slope be from 0 by chance
# tritonserver itself grows with every new peak of requests in flight (its threads' allocator arenas): some 5 MB in all,
# which a short run cannot wait out. Over 5 minutes at 30 requests/s: 43 bytes per request (perf.slo.soak).
SERVER_BOUND = 4 * LEAK * RATE


def growth(samples: list[soak.Sample], name: str | None = None) -> float:
    """Bytes per second of one process, or of all stubs together."""
    stubs = [sum(s.memory.values()) - s.memory["tritonserver"] for s in samples]
    return soak.slope([s.at for s in samples], [s.memory[name] for s in samples] if name else stubs)


def leaking(samples: list[soak.Sample]) -> list[soak.Sample]:
    """The same measurements, had every request left LEAK bytes behind in one process."""
    return [
        replace(s, memory={**s.memory, "decode": s.memory["decode"] + int(LEAK * RATE * s.at)})
        for s in samples
    ]


def within_bounds(samples: list[soak.Sample]) -> bool:
    """No process grew by what a leak would leave."""
    return growth(samples) < BOUND and growth(samples, "tritonserver") < SERVER_BOUND


@pytest.mark.long
@pytest.mark.serving
def test_nothing_grows(
    server: RunningServer, tiny: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    histories = traffic.histories(tiny, 200)
    soak.soak(server, tiny, histories, WARM_UP_S, WARM_UP_RATE, seed=1)
    for _ in range(ROUNDS):
        figures, samples, windows, events = soak.soak(server, tiny, histories, SECONDS, RATE)
        with capsys.disabled():
            print(f"\nsoak: {figures}")
        if figures["errors"] == 0 and within_bounds(samples):
            break
        assert figures["errors"] == 0 or figures["starved_s"] > STARVED_S, figures["problems"]
    assert figures["errors"] == 0, figures["problems"]
    assert figures["requests"] == SECONDS * RATE and figures["refused_as_they_must"] == SECONDS * RATE // 20
    assert figures["restarts"] == 0
    checked = soak.worth_of(tiny, events)
    assert checked[:3] == (1, 1, 1) and checked.answers_checked >= SECONDS * RATE * 0.9 - figures["shed"]
    assert figures["shm_growth_bytes"] == 0
    assert within_bounds(samples), f"in each of {ROUNDS} rounds: {figures['memory_growth_bytes_per_s_of']}"
    assert not within_bounds(leaking(samples))  # or the run would have been too noisy to see the leak
    assert len(windows) == soak.WINDOWS and sum(window["problems"] for window in windows) == figures["shed"]
    plot_soak(samples, windows, soak.WARM_UP, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")


def test_a_process_that_has_ended_is_looked_at_too() -> None:
    ended = subprocess.Popen(["true"])
    os.waitid(os.P_PID, ended.pid, os.WEXITED | os.WNOWAIT)
    assert private_bytes(ended.pid) == 0, "it waits for its parent"
    ended.wait()
    assert private_bytes(ended.pid) == 0 and waits(ended.pid) == {}


def test_a_thread_that_wants_a_core_and_has_none_is_seen() -> None:
    busy = f"import os; os.sched_setaffinity(0, [{min(os.sched_getaffinity(0))}])\nwhile True: pass"
    hogs = [subprocess.Popen([sys.executable, "-c", busy]) for _ in "abc"]
    try:
        until(lambda: max((waited for hog in hogs for waited in waits(hog.pid).values()), default=0.0) > 0.2)
    finally:
        for hog in hogs:
            hog.kill()
            hog.wait()


def test_slope_ignores_the_warm_up_and_a_late_step() -> None:
    at = [float(second) for second in range(100)]
    assert soak.slope(at, [min(second, 30.0) * 1e6 + 5e6 * (second > 90) for second in at]) == 0
    assert soak.slope(at, [5e6 + 1024 * second for second in at]) == pytest.approx(1024)
    assert soak.slope(at, [131072 * (second // 8) for second in at]) == pytest.approx(16384, rel=0.05)


def ended(*due: float, problem: str = "") -> list[soak.SoakedRequest]:
    return [soak.SoakedRequest(soak.GOOD, each, each + 0.1, problem) for each in due]


def test_a_tenth_in_which_nothing_is_answered_is_told_and_ends_nothing() -> None:
    early, late = ended(0.5, 1.5, 9.5), ended(0.5, problem="gone") + ended(9.5)
    windows = soak.windows_of(ended(0.5, problem="gone") + ended(9.5, 10.0), 10.0)
    assert windows[0]["rate"] == 0 and windows[0]["p99_ms"] is None
    for name in ("rate", "p99_ms"):
        assert soak.last_over_first(windows, name) is None
        assert soak.last_over_first(soak.windows_of(late, 10.0), name) is None
        assert soak.last_over_first(soak.windows_of(early, 10.0), name) == 1
    assert soak.last_over_first(soak.windows_of(ended(0.5), 10.0), "rate") == 0


def test_what_was_refused_as_it_must_is_no_answer() -> None:
    refused = [replace(event, kind=kind) for event in ended(0.5) for kind in (soak.REFUSED, soak.LATE)]
    assert soak.windows_of([*refused, *ended(0.5, 9.5)], 10.0)[0]["rate"] == 1.0


def test_the_last_request_is_in_the_last_tenth() -> None:
    windows = soak.windows_of(ended(0.0, 5.0, 10.0, problem="gone"), 10.0)
    assert [window["problems"] for window in windows] == [1, 0, 0, 0, 0, 1, 0, 0, 0, 1]


def test_a_soak_too_short_to_see_growth_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", "soak", str(tmp_path), "--minutes", "0.01"]) == 2
    assert "minutes: is 0.01 (accepted: at least 0.1" in capsys.readouterr().err


def test_the_mix_holds_every_kind() -> None:
    requests = soak.mix([traffic.np.arange(1, 9)], 200, seed=0)
    assert [sum(r.kind == kind for r in requests) for kind in (soak.GOOD, soak.REFUSED, soak.LATE)] == [
        180,
        10,
        10,
    ]
