"""The side by side with peers: ratios, a cell as people and machines read it, the command line."""

from __future__ import annotations

import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from cli.main import main
from genrec.errors import InputError
from perf.kit.work import work
from perf.peers import ratios
from perf.peers.__main__ import add_limits, arguments, claims
from perf.peers.cells import Cell
from perf.peers.envs import ENVIRONMENTS
from perf.peers.folder import SHAPES
from perf.peers.ours import NAME
from perf.peers.peer import FOLDER
from perf.peers.refusal import last_line
from perf.peers.system import Turn
from perf.peers.table import PEERS


def timed(system: str, seconds: float, memory: int, at_once: float = 0.0, **about: Any) -> Cell:
    """A cell of one request at a time, and of four in `at_once` seconds."""
    answers = [np.array([0, 1, 1, -1])]
    cell = Cell(system, "m", 6, 128, memory=memory, **about)
    cell.turns[1] = [Turn([seconds], seconds, answers, {"prefill": 0.5, "decode": 0.25})]
    cell.turns[4] = [Turn([at_once], at_once, answers * 4)] if at_once else []
    return cell


def test_ratios_are_ours_over_the_best_peer_at_its_best() -> None:
    cells = [timed(NAME, 0.5, 300, 1.0), timed("slow", 4.0, 100), timed("fast", 1.0, 200, 2.0)]
    (found,) = ratios.ratios(cells, 128).values()
    assert found.pop("fastest_rate") == 2.0  # four in two seconds
    assert found == {"rate": 2.0, "fastest": "fast", "memory": 3.0, "smallest": "slow"}
    assert ratios.lowest({"a": found, "b": found | {"rate": 0.5}}) == 0.5
    assert ratios.highest_memory({"a": found, "b": found | {"memory": None}}) == 3.0
    assert ratios.ratios(cells, 512) == {} and ratios.lowest({}) is None
    (found,) = ratios.ratios([timed(NAME, 0.5, 300, 1.0), timed("once", 1.0, 200)], 128).values()
    assert found["rate"] == 2.0, "four at a time have no twin"
    refused = [Cell(system, "m", 6, 128, refusal="> 30 s") for system in (NAME, "slow")]
    assert ratios.ratios([cells[0], refused[1]], 128) == {}
    (found,) = ratios.ratios([refused[0], *cells[1:]], 128).values()
    assert found["rate"] == 0.0 and found["memory"] is None


def test_a_cell_as_a_line_and_as_json() -> None:
    cell = timed("fast", 1.0, 200 << 20, 2.0)
    line = ratios.table([cell]).splitlines()[-1].split()
    assert line[:4] == ["fast", "1000.0", "(1000.0", "-"] and line[-4:] == ["200", "75.0%", "2.0", "5"]
    found = ratios.as_json(cell)
    assert json.loads(json.dumps(found)) == found
    assert found["requests_per_s"] == {"1": [1.0] * 3, "4": [2.0] * 3} and found["valid_rate"] == 0.75
    alone = ratios.as_json(timed("slow", 4.0, 100, missing={4: "> 30 s"}))
    assert alone["requests_per_s"]["4"] == "> 30 s"


def test_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert arguments([]).peers == list(PEERS) and arguments(["--quick"]).models == ["30m"]
    assert arguments(["--beam-widths", "512,32", "--peers", "vllm"]).beam_widths == [32, 512]
    with pytest.raises(InputError, match="peers: names gpt "):
        arguments(["--peers", "gpt"])


@pytest.mark.parametrize("cores", [0, -1, 100_000])
def test_cores_that_there_are_not_are_refused(
    cores: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    most = len(os.sched_getaffinity(0))
    assert main(["bench", "peers", "--folder", str(tmp_path), "--cores", str(cores)]) == 2
    said = capsys.readouterr()
    assert f"cores: is {cores} (accepted: 1 to {most})" in said.err and not said.out
    assert len(os.sched_getaffinity(0)) == most and not list(tmp_path.iterdir())


def test_every_peer_has_its_environment_and_its_worker() -> None:
    for entry in PEERS.values():
        assert entry.environment in ENVIRONMENTS and (FOLDER / entry.script).is_file()
    assert all("==" in package for e in ENVIRONMENTS.values() for package in (*e.packages, *e.bare))


def test_of_an_output_the_last_line_is_the_reason() -> None:
    assert last_line("a\n  ERROR: no wheel  \n\n") == "ERROR: no wheel"
    assert last_line(" \n") == "no output" and len(last_line("x" * 999)) == 160


def test_no_ratio_passes_what_the_gemm_rate_allows() -> None:
    cost = work(SHAPES["30m"], 6, 128, "f32")
    model = SimpleNamespace(work=lambda prompt, width: work(SHAPES["30m"], prompt, width, "f32"))
    operations = cost.prefill_operations + cost.decode_operations
    found = ratios.ratios([timed(NAME, 0.5, 300), timed("fast", 1.0, 200)], 128)
    gflops = 3 * operations / 1e9  # three requests a second
    add_limits(found, {"m": model}, [6], 128, gflops)
    assert found["m, 6 tokens"]["limit"] == pytest.approx(3.0)


def test_what_is_claimed_follows_from_cells_alone() -> None:
    model = SimpleNamespace(work=lambda prompt, width: work(SHAPES["30m"], prompt, width, "f32"))
    cells = [timed(NAME, 0.5, 300), timed("fast", 1.0, 200)]
    found = claims(cells, {"m": model}, [128, 512], 100.0)
    assert (found["ratio_bw128"], found["memory_ratio_bw128"]) == (2.0, 1.5)
    assert found["ratio_bw512"] is None and found["draft_ratio_bw128"] is None  # not measured
    assert found["valid_rate"] == 0.75 and found["gemm_gflops"] == 100.0
    assert found["of_gemm_peak"]["m, 6 tokens, BW 128"]["prefill"] == found["prefill_of_gemm_peak"]
    assert json.loads(json.dumps(found)) == found
