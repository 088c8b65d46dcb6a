"""Ratios of `genrec bench relay` by hand, where a way held nothing."""

from __future__ import annotations

from typing import Any

import pytest

from perf.kit.table_forms import Grid, Table
from perf.kit.tables import TABLES
from perf.relay import load
from perf.relay.figures import INLINE, RATIOS, RETURNING, figures_of
from perf.relay.load import RelayWay
from perf.relay.measure import Bench, Effort, Rate


def ratios_of(rounds: list[tuple[float, float]]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of rates that `inline` and `relay` held, round by round; of the rest relay held nothing."""
    rates = [
        {(way, "1500"): Rate(held, 9.0) for way, held in zip(("inline", "relay"), each, strict=True)}
        for each in rounds
    ]
    others = {"inline": 3000.0, "relay": 0.0}, {"inline": 2.0, "relay": 0.0}
    return figures_of(1500, rates, {}, *others, {}, {})


def test_a_round_in_which_a_way_held_nothing_counts() -> None:
    found, spread = ratios_of([(2.0, 8.0), (2.0, 0.0)])
    assert found["slo_rate_ratio"] == 2.0 and spread == {"slo_rate_ratio": [0.0, 4.0]}
    assert found["at_least"] == []


def test_what_held_nothing_where_the_other_did_is_no_times_as_good() -> None:
    found, _ = ratios_of([(2.0, 0.0)])
    assert found["slo_rate_ratio"] == found["longest_history_ratio"] == found["concurrency_ratio"] == 0
    assert ratios_of([(0.0, 0.0)])[0]["slo_rate_ratio"] is None, "neither says anything of the other"


def test_what_a_request_costs_is_shared_by_those_that_warm_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """They are no part of a load, and the server works for them in its time."""
    bench, way, served = Bench({}, Effort(0, 1, 1, 1), 0), RelayWay("relay"), [0]

    def run(*_: object) -> tuple[None, list[int]]:
        served[0] += load.WARM_UP + 20
        return None, [0] * 20

    monkeypatch.setattr(bench, "load", run)
    monkeypatch.setattr(bench, "_core_ms", lambda _: 3.0 * served[0])
    monkeypatch.setattr(bench, "_computed", lambda _: 500.0 * served[0])
    assert bench.spent([way], [96], 5.0, 2) == {("relay", "96"): [(3.0, 500.0)] * 2}


def test_a_row_is_of_the_same_field_in_every_table_of_relay() -> None:
    fields: dict[str, set[str]] = {}
    for table in TABLES.values():
        for each in () if isinstance(table, Table | Grid) else table:
            if each.file.startswith("relay"):
                fields.setdefault(each.what, set()).add(each.path)
    assert {what: of for what, of in fields.items() if len(of) > 1} == {}
    (of_returning,) = fields["the same, half of the users come again"]
    assert RATIOS[of_returning] == (RETURNING, INLINE)
