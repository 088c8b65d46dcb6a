"""`genrec bench relay_flood`: a flood goes on whatever becomes of its signals, and all of it is counted."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from cli.main import main
from genrec.report import PRE_INFER_OUTCOMES
from perf.relay.flood import flooded
from tests.serving.processes import until


@pytest.mark.long
@pytest.mark.serving
def test_a_flood_of_signals_is_counted_beside_rankings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    which = ["--folder", str(tmp_path), "--model", "32-1", "--tokens", "96", "--flood-tokens", "192"]
    assert main(["bench", "relay_flood", *which, "--rate", "40", "--requests", "8", "--rounds", "1"]) == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert set(found["p99_ms"]) == {"inline", "inline, flooded", "relay", "relay, flooded"}
    assert found["wrong_answers"] == 0 and sum(found["signals"].values()) > 0
    assert set(found["signals"]) <= set(PRE_INFER_OUTCOMES) and found["signals_per_s"] > 0


def test_a_flood_goes_on_and_is_counted_where_signals_are_lost() -> None:
    with socket.socket() as closed:  # nobody listens there
        closed.bind(("127.0.0.1", 0))
        with flooded(f"127.0.0.1:{closed.getsockname()[1]}", 1e3, 6) as outcomes:
            until(lambda: outcomes.total() > 1)
    assert set(outcomes) == {"Unreachable"}


def test_what_ends_a_flood_ends_the_benchmark() -> None:
    with pytest.raises(ZeroDivisionError), flooded("127.0.0.1:1", 0.0, 6):
        pass


def test_no_flood_is_none(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "relay_flood", "--flood", "0"]) == 2
    assert "flood: is 0 (accepted: more than 0 signals per second)" in capsys.readouterr().err
