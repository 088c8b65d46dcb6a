"""What commands tell of answers: what of a history was read, figures of many requests."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

from cli import demo
from cli.cascade import lines
from cli.demo import facts_of, overlap
from cli.evaluating import _as_json
from cli.show import answer_lines, ranking_lines
from clients.cascade import CascadeAnswer
from clients.rank_wire import PreInference, Ranking
from clients.wire import Recommendation
from genrec.catalogue.files import CATALOGUE
from tests.tiny import tiny_catalogue

SCORES = np.array([-0.5, -1.25], np.float32)


def test_a_history_is_told_by_its_newest_titles_and_what_of_it_was_not_read(tmp_path: Path) -> None:
    catalogue = tiny_catalogue()
    catalogue.save(tmp_path / CATALOGUE)
    best, history = catalogue.item_ids[:2], catalogue.item_ids[10:17].tolist()
    newest = f"  last of 7: {'; '.join(f'item {each}' for each in history[2:])}"
    items = [f"  {score:8.3f}  item {item}  [{item}]" for item, score in zip(best, SCORES, strict=True)]
    for dropped, cut, said in (
        (0, 0, ""),
        (2, 1, ", 2 items dropped, not in version 1, 1 older item cut off"),
    ):
        answer = Recommendation(best, SCORES, "model", dropped, cut, 21, 2, 1)
        assert answer_lines(tmp_path, history, answer) == [newest, *items, f"  answered by model{said}"]
        ranking = Ranking(best, SCORES, "popularity", dropped, cut, cut, 1, 6, 0, 1, 0)
        there = ", KV of 1 token of the user and 6 of candidates was there"
        left_out = ", 1 candidate left out" if cut else ""
        notes = f"  ranked by popularity{said}{there}{left_out}"
        assert ranking_lines(tmp_path, history, ranking) == [newest, *items, notes]


def cascaded(n: int) -> CascadeAnswer:
    """The n-th of many: a retrieval of n * n ms; every other signal was answered; every third user was there."""
    ranking = Ranking(np.array([7]), SCORES[:1], "model", 0, 0, 0, int(n % 3 == 0), 0, 0, 1, 0)
    heard = PreInference("admitted", 9, 0, 0) if n % 2 else None
    ms = {"pre_infer": 2.0 * n} if heard else {}
    return CascadeAnswer(
        ranking, heard, "" if heard else "away", {**ms, "retrieval": n * n, "rank": 7.0}, 5.0 * n
    )


def test_of_cascades_every_stage_has_its_median_and_its_tail() -> None:
    table, outcomes, there = "\n".join(lines([cascaded(n) for n in range(1, 102)])).split("\n\n")
    found = {name: tuple(figures) for name, *figures in map(str.split, table.splitlines()[1:])}
    assert found == {
        "pre_infer": ("102.00", "202.00", "51"),
        "retrieval": ("2601.00", "10000.00", "101"),
        "rank": ("7.00", "7.00", "101"),
        "all": ("255.00", "500.00", "101"),
    }
    assert [line.rsplit(maxsplit=1) for line in outcomes.splitlines()[1:]] == [
        ["admitted", "51"],
        ["failed: away", "50"],
    ]
    assert there == "33 of 101 rankings found KV of their user"


def test_a_figure_of_nobody_is_null_for_machines() -> None:
    said = _as_json({"GAUC": math.nan, "users": [0, 1.5, -math.inf]})
    assert json.loads(said, parse_constant=pytest.fail) == {"GAUC": None, "users": [0, 1.5, None]}


def test_figures_of_the_demo_are_counted_against_the_catalogue(tmp_path: Path) -> None:
    catalogue = tiny_catalogue()
    catalogue.save(tmp_path / CATALOGUE)
    first, second = catalogue.item_ids[:2].tolist()
    given = [[first, second], [first, first], [first, -1], [first, second]]
    answers = [Recommendation(np.array(items), SCORES, "model", 0, 0, 6, 2, 1) for items in given]
    facts = facts_of(tmp_path, [0.001, 0.002, 0.003, 0.010], answers, {"generate": 1.5})
    assert (facts["valid_rate"], facts["distinct"], facts["p50_ms"]) == (7 / 8, 7 / 4, 2.5)
    assert facts["p99_ms"] == pytest.approx(np.percentile([1, 2, 3, 10], 99), abs=0.01)
    assert facts["stages_ms"] == {"generate": 1.5, "triton and network": 2.5}
    assert overlap(answers[:3], answers[1:]) == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)


def test_a_port_that_is_taken_is_told_before_the_minutes_of_a_first_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("deploy.ports.is_free", lambda port: False)
    monkeypatch.setattr(demo, "prepare", lambda *_: pytest.fail("stages are made"))
    monkeypatch.setattr("sys.argv", ["demo", str(tmp_path), "--serve"])
    assert demo.main() == 2
    said = capsys.readouterr()
    assert "http_port: port 8000 is in use" in said.err and "Serving" not in said.out
