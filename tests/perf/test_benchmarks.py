"""`genrec bench`: every benchmark is in the one table, says what it takes, and can be kept."""

from __future__ import annotations

import ast
import importlib
import json
import re
from pathlib import Path

import pytest

from cli.main import main, parser
from genrec.catalogue.files import CATALOGUE
from perf.kit import report
from perf.kit.benchmarks import BENCHMARKS

ROOT = Path(__file__).parents[2]
TOOLS = {"perf.kit.dashboard_picture", "perf.kit.mock", "perf.kit.render"}  # run by hand, and measure nothing


def modules_with_a_main() -> set[str]:
    found = set()
    for path in (ROOT / "perf").rglob("*.py"):
        body = ast.parse(path.read_text()).body
        if any(isinstance(each, ast.FunctionDef) and each.name == "main" for each in body):
            found.add(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return found


def test_every_benchmark_is_in_the_table() -> None:
    assert modules_with_a_main() - TOOLS == {each.module for each in BENCHMARKS.values()}


@pytest.mark.parametrize("name", BENCHMARKS)
def test_every_benchmark_has_help_and_can_be_kept(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        importlib.import_module(BENCHMARKS[name].module).main(["--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0 and said.startswith(f"usage: genrec bench {name} ")
    assert "--save" in said and f"results/<machine>/{name}.json" in said


def test_without_a_name_all_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench"]) == 0
    lines = capsys.readouterr().out.splitlines()
    for name, about in BENCHMARKS.items():
        assert any(
            line.split()[:1] == [name] and about.question in line and " min " in line for line in lines
        )


def test_the_one_of_gpus_is_listed_with_the_minutes_that_it_takes() -> None:
    from perf.gpu.run import LIMIT_S

    minutes = BENCHMARKS["gpu"].minutes
    assert minutes == LIMIT_S / 60
    assert f"all figures below: {minutes:g} minutes" in (ROOT / "docs/gpu.md").read_text()


def test_one_runs_by_its_name_with_its_own_options(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        main(["bench", "selection", "--beam-widths", "4", "--candidates", "8", "--repeats", "1", "--save"])
        == 0
    )
    last = json.loads(capsys.readouterr().out.splitlines()[-1])
    (kept,) = tmp_path.glob("results/*/selection.json")
    assert json.loads(kept.read_text()) == last and last["settings"]["beam_widths"] == "4"


def test_a_name_that_is_none_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speed"]) == 2
    said = capsys.readouterr().err
    assert "'speed'" in said and "sweep" in said


@pytest.mark.parametrize(
    ("name", "option", "needs"),
    [
        ("training", "dims", []),
        ("embedding", "sizes", []),
        ("hstu_attention", "lengths", []),
        ("relay_fetch", "lengths", []),
        ("memory", "prompts", []),
        ("memory", "beam-widths", []),
        ("selection", "candidates", []),
        ("passes", "top-k", ["none"]),
        ("hashset", "items", []),
        ("stages", "beam-widths", ["none"]),
        ("returning", "prompts", []),
        ("returning", "in-flight", []),
        ("returning_peers", "prompts", []),
        ("rank", "seeds", []),
        ("rank_peers", "prompts", []),
        ("peers", "prompts", []),
        ("peers", "beam-widths", []),
        ("decoders", "beam-widths", ["none"]),
        ("table_quality", "seeds", ["none"]),
        ("draft_quality", "seeds", ["none"]),
        ("rank_quality", "seeds", ["none"]),
    ],
)
@pytest.mark.parametrize("bad", ["many", "1,,2", "", "-1", "1.5", "2147483648"])
def test_lists_of_numbers_are_read_before_anything_is_made(
    name: str, option: str, needs: list[str], bad: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    assert main(["bench", name, *needs, f"--{option}={bad}"]) == 2
    said = capsys.readouterr()
    assert f"{option}: is {bad!r} (accepted: whole numbers, " in said.err
    assert not said.out and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("name", "given", "limit"),
    [
        ("ablation", "rounds=0", "at least 1"), ("ablation", "seconds=0", "more than 0"),
        ("constraint", "repeats=0", "at least 1"), ("company", "prompts=0", "at least 1"),
        ("returning", "visits=1", "at least 2"), ("returning_peers", "users=0", "at least 1"),
        ("relay", "seconds=nan", "more than 0"), ("replay", "burst=0", "at least 1"),
        ("replay", "deadline-ms=-5", "at least 1"), ("batching", "rounds=-1", "at least 1"),
        ("rank", "item-tokens=0", "at least 1"), ("quality", "users=0", "at least 1"),
        ("data_scale", "interactions=0", "at least 1"), ("embedding", "queries=0", "at least 1"),
    ],
)  # fmt: skip
def test_counts_that_leave_nothing_to_measure_are_refused_first(
    name: str, given: str, limit: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    needs = ["none"] if name in ("ablation", "company", "replay", "batching", "quality") else []
    assert main(["bench", name, *needs, f"--{given}"]) == 2
    option, _, value = given.partition("=")
    said = capsys.readouterr()
    assert f"{option}: is {float(value):g}" in said.err and f"(accepted: {limit})" in said.err
    assert not said.out and not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "name", ["decoders", "next_quality", "rank_quality", "relay_fetch", "window_quality"]
)
def test_artifacts_of_one_name_are_refused(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Figures of the one would take the place of the other's."""
    assert main(["bench", name, "here/ml-1m", "there/beauty", "there/ml-1m/"]) == 2
    said = capsys.readouterr()
    assert "artifacts: has ml-1m twice (accepted: folders of different names" in said.err and not said.out


def test_every_limit_is_of_an_option_that_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    said = ""
    for each in BENCHMARKS.values():
        with pytest.raises(SystemExit):
            importlib.import_module(each.module).main(["--help"])
        said += capsys.readouterr().out
    for name in (*report.AT_LEAST, *report.ABOVE_0):
        assert f"--{name.replace('_', '-')} " in said, name


@pytest.mark.parametrize("name", ["ablation", "instances", "decoders"])
def test_what_drafts_are_measured_of_has_a_draft_head(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bench", name, str(tmp_path)]) != 0
    said = capsys.readouterr()
    assert f"{tmp_path / CATALOGUE}: cannot be read" in said.err and not said.out, "a name mistyped"
    (tmp_path / CATALOGUE).touch()
    assert main(["bench", name, str(tmp_path)]) != 0
    said = capsys.readouterr()
    assert f"{tmp_path}: has no draft head" in said.err and not said.out
    (advised,) = re.findall("`genrec (train .*?)`", said.err)
    assert parser().parse_args(advised.split()).draft
