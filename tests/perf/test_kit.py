"""What all benchmarks share: turns, the JSON that they end with and keep, the name of the machine, pictures."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from genrec import cores
from genrec.errors import InputError
from perf.kit import machine, plot, report, turns
from perf.parts import roofline


@pytest.mark.parametrize("arms", ["a", "ab", "abc", "abcd"])
def test_every_arm_has_every_place_as_often(arms: str) -> None:
    """Over twice as many rounds as arms; and no arm always comes after the same one."""
    rounds = [turns.order(arms, number) for number in range(2 * len(arms))]
    assert all(sorted(each) == list(arms) for each in rounds)
    assert all(sorted(place) == sorted(2 * arms) for place in zip(*rounds, strict=True))
    if len(arms) > 1:
        assert len({each[each.index("a") - 1] for each in rounds if each[0] != "a"}) > 1 or len(arms) == 2


def test_arms_are_called_in_turn_and_warm_ups_are_left_out() -> None:
    called: list[str] = []

    def arm(name: str) -> int:
        called.append(name)
        return len(called)

    given = turns.in_turns({name: lambda name=name: arm(name) for name in "ab"}, 2, warm_ups=1)
    assert called == ["a", "b", "b", "a", "b", "a"], "round 2 begins one later"
    assert given == {"a": [4, 6], "b": [3, 5]}
    assert list(turns.interleaved("ab", 2)) == [(0, "a"), (0, "b"), (1, "b"), (1, "a")]


def test_repeats_leave_out_the_first_and_timing_keeps_what_was_given(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter((0.0, 1.0, 1.0, 3.0, 3.0, 6.0, 6.0, 10.0))
    monkeypatch.setattr(turns, "time", SimpleNamespace(perf_counter=clock.__next__))
    calls: list[None] = []
    assert turns.repeated(lambda: calls.append(None), 3) == [1.0, 2.0, 3.0] and len(calls) == 4
    assert turns.timed(lambda: "answer") == (4.0, "answer")


def test_the_middle_and_the_ends() -> None:
    values = [4.0, 1.0, 3.0, 2.0, 10.0]
    assert turns.extremes(values) == (3.0, 1.0, 10.0)
    assert turns.quartiles(values) == (3.0, 2.0, 4.0)


def test_what_has_no_place_in_json_is_made_plain() -> None:
    given = {1: (np.float32(0.5), np.int64(3)), "at": Path("/somewhere/beauty"), "none": [math.inf, math.nan]}
    made = report.plain(given)
    assert json.loads(json.dumps(made, allow_nan=False)) == made
    assert made == {"1": [0.5, 3], "at": "beauty", "none": [None, None]}


def test_a_run_ends_with_one_line_of_json_and_keeps_it_where_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(machine, "roofline", lambda repeats: machine.Roofline(1.0, None, None, 2.0, 3.0, 2))
    roofline.main(["--repeats", "2"])
    assert not (tmp_path / "results").exists(), "only kept when asked"
    capsys.readouterr()
    roofline.main(["--repeats", "2", "--save"])
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    kept = tmp_path / "results" / machine.name() / "machine.json"
    assert json.loads(kept.read_text()) == last
    assert last["benchmark"] == "machine" and last["roofline"]["read_gb_s"] == 2.0
    assert (last["repeats"], last["spread"], last["settings"]) == (2, {}, {"repeats": 2})
    assert {"name", "cpu", "flags", "usable_cores", "versions", "commit"} <= set(last["machine"])
    roofline.main(["--save", "--label", "again"])
    assert kept.with_name("machine-again.json").is_file()


def test_a_result_says_what_was_typed_and_not_where_things_lay() -> None:
    parser = report.arguments("sweep", "")
    parser.add_argument("artifact")
    parser.add_argument("--out")
    typed = ["/home/me/artifacts/shop", "--out=/tmp/of/me", "--label", "a b", "--save"]
    assert report.command_of(parser.parse_args(typed)) == "genrec bench sweep shop --out=me --label 'a b'"
    assert report.command_of(parser.parse_args(["/home/me/artifacts/shop/"])) == "genrec bench sweep shop/"


def test_a_label_names_no_folder() -> None:
    with pytest.raises(InputError, match="label"):
        report.begin(Namespace(benchmark="machine", save=True, label="../x"))


MACHINES = {
    "xeon-amx-2": ("Intel(R) Xeon(R) Processor", "6", "avx2 avx512f avx512_bf16 amx_bf16"),
    "epyc-avx512bf16-2": ("AMD EPYC 9R14", "25", "avx2 avx512f avx512_bf16"),
    "epyc-zen5-2": ("AMD EPYC", "26", "avx2 avx512f avx512_bf16"),
    "xeon-avx512-2": ("Intel(R) Xeon(R) Platinum 8259CL", "6", "avx2 avx512f"),
    "epyc-avx2-2": ("AMD EPYC 7571", "23", "avx2"),
    "core-plain-2": ("Intel(R) Core(TM) i7", "6", "sse4_2"),
}


@pytest.mark.parametrize("made", MACHINES)
def test_a_machine_is_named_after_its_cpu(monkeypatch: pytest.MonkeyPatch, made: str) -> None:
    fields = dict(zip(("model name", "cpu family", "flags"), MACHINES[made], strict=True))
    monkeypatch.setattr(machine, "_cpu_field", fields.__getitem__)
    monkeypatch.setattr(machine.os, "sched_getaffinity", lambda pid: {0, 1})
    assert machine.name() == made


def test_a_machine_has_the_cores_whose_time_it_has(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a container that may use the time of two of 64 cores."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(64)))
    monkeypatch.setattr(cores, "cores_of_time", lambda: 2)
    assert machine.name().endswith("-2") and machine.facts()["usable_cores"] == 2


def test_a_commit_is_dirty_when_the_source_differs_not_when_results_do(tmp_path: Path) -> None:
    def git(*argv: str) -> None:
        who = ["-c", "user.name=t", "-c", "user.email=t@localhost", "-c", "commit.gpgsign=false"]
        subprocess.run(["git", *who, *argv], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    assert machine.commit(tmp_path) == "unknown", "nothing is committed"
    for name in ("perf/source.py", "results/m/swap.json", "docs/page.md", "README.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("one")
    git("add", ".")
    git("commit", "-m", "one")
    clean = machine.commit(tmp_path / "perf")
    assert re.fullmatch("[0-9a-f]{7,}", clean)
    for name in ("results/m/swap.json", "docs/page.md", "README.md"):
        (tmp_path / name).write_text("two")
    assert machine.commit(tmp_path / "perf") == clean
    (tmp_path / "perf" / "source.py").write_text("two")
    assert machine.commit(tmp_path / "perf") == f"{clean}-dirty"


def test_what_openvino_multiplies_is_held_while_it_does() -> None:
    """Memory that is let go is unmapped at once here: a product that reads it ends the process."""
    code = "from perf.kit.machine import openvino_gemm; print(openvino_gemm('f32', repeats=1))"
    environment = os.environ | {"MALLOC_MMAP_THRESHOLD_": "65536"}
    ended = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert ended.returncode == 0 and float(ended.stdout) > 0


def test_columns_line_up() -> None:
    lines = report.columns(("", "ms"), [("one", 1.5), ("another", 10)]).splitlines()
    assert lines == ["          ms", "one      1.5", "another   10"]


def test_the_same_figures_make_the_same_picture(tmp_path: Path) -> None:
    drawn = []
    for number in range(2):
        figure, axis = plot.panels(1, 1, (3, 2))
        axis.plot([1, 2, 3], [0.1, 1 / 3, 0.2], label="line")
        plot.save(figure, tmp_path / f"{number}.svg")
        drawn.append((tmp_path / f"{number}.svg").read_text())
    assert drawn[0] == drawn[1] and "line" in drawn[0] and drawn[0].startswith('<?xml version="1.0"')
