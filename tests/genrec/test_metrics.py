"""What is counted, and that names and labels keep to Prometheus' conventions."""

from __future__ import annotations

import re
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from genrec import metrics
from genrec.engine.ranking import Reuse
from genrec.errors import ArenaFull, DeadlineExceeded, InputError, ModelError, QueueFull, StaleHandle
from genrec.metrics import Counter, Gauge, Histogram
from genrec.pool.counts import count_pool
from genrec.steps import STEPS, versioned
from genrec.steps.candidates import count_ranking
from genrec.steps.outcome import outcome_of


def test_a_counter_has_every_series_from_the_start_and_only_rises() -> None:
    counter = Counter("x_total", "", outcome=("good", "bad"))
    assert [s.value for s in counter.samples()] == [0, 0]
    counter.add(outcome="bad")
    counter.add(3, outcome="bad")
    assert counter.value(outcome="bad") == 4 and counter.value(outcome="good") == 0
    assert all(s.rises for s in counter.samples())
    for labels in ({"outcome": "else"}, {}, {"outcome": "bad", "more": "1"}):
        with pytest.raises(KeyError, match=r"x_total|outcome"):
            counter.add(**labels)


def test_a_gauge_does_not_rise_for_prometheus() -> None:
    gauge = Gauge("x", "")
    gauge.set(5)
    gauge.set(2)
    assert [(s.value, s.rises) for s in gauge.samples()] == [(2, False)]


def test_buckets_are_cumulative_and_take_their_bound() -> None:
    histogram = Histogram("x_seconds", "", (0.1, 1))
    for value in (0.1, 0.5, 1, 7):
        histogram.observe(value)
    found = {(s.name, dict(s.labels).get("le")): s.value for s in histogram.samples()}
    assert found == {
        ("x_seconds_bucket", "0.1"): 1,
        ("x_seconds_bucket", "1"): 3,
        ("x_seconds_bucket", "+Inf"): 4,
        ("x_seconds_sum", None): pytest.approx(8.6),
        ("x_seconds_count", None): 4,
    }
    assert {name for name, _ in found} == set(histogram.series())


@pytest.mark.parametrize("family", metrics.FAMILIES, ids=lambda f: f.name)
def test_names_and_labels_keep_to_the_conventions(family: metrics.MetricFamily) -> None:
    assert re.fullmatch(r"genrec_[a-z_]+", family.name) and family.help
    assert (family.kind == "counter") == family.name.endswith("_total")
    assert not set(family.labels) & {"model", "le", "job", "instance"}  # others set these
    assert set(family.models) <= set(STEPS)
    row = next(line for line in metrics.table().splitlines() if f"`{family.name}`" in line)
    assert all(value in row for value in chain(*family.labels.values()))


def test_no_name_twice() -> None:
    names = [name for family in metrics.FAMILIES for name in family.series()]
    assert len(names) == len(set(names))


def test_every_model_that_holds_a_catalogue_says_which() -> None:
    """Each that makes a `Versioned` names itself in its step's file."""
    steps = [path.read_text() for path in Path(versioned.__file__).parent.glob("*.py")]
    named = [name for text in steps for name in re.findall(r'Versioned\(\s*settings, "(\w+)"', text)]
    assert len(named) >= 5
    for name in named:
        assert metrics.CATALOGUE_VERSION in metrics.families_of(name), name


def counted(family: metrics.MetricFamily) -> dict[str, float]:
    """By the value of its label."""
    return {"".join(value for _, value in sample.labels): sample.value for sample in family.samples()}


def test_what_a_ranking_took_is_counted_by_what_it_was() -> None:
    families = metrics.RANKINGS, metrics.RANK_TOKENS, metrics.RANK_COPIED
    before = [counted(family) for family in families]
    count_ranking("item", Reuse(user=3, items=50, computed=700, copied=9000))
    more = [
        {key: value - was[key] for key, value in counted(family).items() if value > was[key]}
        for family, was in zip(families, before, strict=True)
    ]
    assert more == [{"item": 1}, {"user_reused": 3, "items_reused": 50, "computed": 700}, {"": 9000}]


def test_what_a_pool_holds_is_told_by_what_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = {
        "bytes": 1,
        "entries": 2,
        "items": 3,
        "evictions": 4,
        "item_evictions": 5,
        "leases_used": 6,
        "leases_unused": 7,
    }
    pool: Any = SimpleNamespace(usage=lambda: usage)
    families = metrics.POOL_BYTES, metrics.POOL_ENTRIES, metrics.POOL_EVICTED, metrics.POOL_LEASES
    told = [{"": 1}, {"users": 2, "items": 3}, {"users": 4, "items": 5}, {"used": 6, "unused": 7}]
    for family in families:
        monkeypatch.setattr(family, "_values", dict(family._values))
    for found in (usage, None):  # whose table is not to be had counts as before
        usage = found
        count_pool(pool)
        assert [counted(family) for family in families] == told


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (InputError("x", "y", "z"), "bad_input"),
        (DeadlineExceeded("late"), "deadline"),
        (QueueFull("full"), "queue"),
        (ArenaFull("full"), "arena"),
        (StaleHandle("stale"), "failed"),
        (ModelError("logits"), "failed"),
        ({"paths": np.zeros((1, 2))}, None),
        ({"report": np.array([[0, 0, 0, 3, 5, 1]])}, "answered"),
        ({"report": np.array([[1, 0, 0, 0, 0, 1]])}, "popularity"),
        ({"reuse": np.array([[0, 12, 0, 0, 0]])}, "answered"),  # of a pre-inference
        ({"reuse": np.array([[12, 0, 3, 0]])}, None),  # of a ranking, which is looked up next
    ],
)
def test_a_request_is_counted_where_it_ends(answer: object, outcome: str | None) -> None:
    assert outcome_of(answer) == outcome
