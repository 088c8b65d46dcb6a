"""The benchmark of rankings: its worlds keep the paper's proportions, and all ways give the same answers."""

import argparse
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cli.main import main
from genrec.artifact import load_config
from perf.rank import rank
from perf.rank.asked import Asked, own_users, requests_of
from perf.rank.company import COUNTS as LISTED
from perf.rank.company import Load, gains
from perf.rank.company import cell as company_cell
from perf.rank.company import measure as loads_of
from perf.rank.figures import table
from perf.rank.mock_ranker import PAPER_WIDTH, SHAPE, narrow
from perf.rank.operations import Ranked, attention, products
from perf.rank.rank import WAYS, measure, model_of, sizes_of
from perf.rank.simulate import POOL_BYTES, SHAPES, TOKEN_BYTES
from perf.rank.together import COMPANY, COUNTS, ORDERS, cell, passes_of
from training.data.histories import Histories

BOOKS = SHAPES["books"]


def operations(model, keys):
    """(of products, of attention) of a token in a layer that reads so many keys."""
    heads, size = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    weights = model.hidden_size * (2 * heads + 2 * size + 3 * model.intermediate_size)
    return 2 * weights, 4 * heads * keys


@pytest.mark.parametrize("text, layers", [("384-2", 2), ("768-1", 1), ("1536-28", 28)])
def test_a_narrow_model_has_the_papers_layers_and_shorter_prompts(text, layers):
    model, prompts = model_of(text)
    assert model.num_hidden_layers == layers and prompts == model.hidden_size / PAPER_WIDTH
    paper = operations(narrow(PAPER_WIDTH, 28), 2293)
    found = operations(model, 2293 * prompts)
    assert found[1] / found[0] == pytest.approx(paper[1] / paper[0]) == pytest.approx(0.15, abs=0.005)
    small = operations(SHAPE, 2293)
    assert small[1] / sum(small) == pytest.approx(0.43, abs=0.005)


def test_the_last_layer_makes_only_keys_and_values_of_what_no_score_reads():
    model = narrow(384, 2)
    layer = operations(model, 0)[0]
    keys = 4 * model.hidden_size * model.num_key_value_heads * model.head_dim

    def counted(order, user_reused, items_reused, marks=5):
        """Of 5 candidates with 3 tokens each, behind a user's 10."""
        return products(Ranked(order, 10, 5, 3, user_reused, items_reused, marks), model)

    assert counted("split", 10, 5) == 5 * 2 * layer
    assert counted("item", 0, 5) == 5 * 2 * layer + 10 * (layer + keys)
    assert counted("whole", 0, 0) == 5 * 2 * layer + 25 * (layer + keys)
    assert counted("user", 10, 0, marks=1) == 2 * layer + 15 * (layer + keys)


@pytest.mark.parametrize("marks", [1, 3])
@pytest.mark.parametrize(
    "order, user_reused, items_reused",
    [("whole", 0, 0), ("user", 3, 0), ("user", 0, 0), ("item", 0, 2), ("split", 2, 1)],
)
def test_attention_is_counted_as_its_mask_says(order, user_reused, items_reused, marks):
    """Every token that is computed, and what it sees, one by one."""
    user, candidates, item = 4, 3, 2
    seen_by_others = seen_by_marks = 0
    for u in range(user):
        if order == "item" or u >= user_reused:
            seen_by_others += u + 1 + (candidates * item if order == "item" else 0)
    for candidate in range(candidates):
        for token in range(item):
            if order in ("user", "whole") or candidate >= items_reused:
                seen_by_others += token + 1 + (user if order in ("user", "whole") else 0)
    for _ in range(marks):
        seen_by_marks += user + (item if marks == candidates else candidates * item)
    found = attention(Ranked(order, user, candidates, item, user_reused, items_reused, marks), narrow(384, 2))
    assert found == 4 * 384 * (seen_by_others + 2 * seen_by_marks)


@pytest.mark.parametrize("text", ["384", "100-2", "384-0", "0-2", "a-b"])
def test_a_bad_model_is_named(text, capsys):
    assert main(["bench", "rank", "--model", text]) != 0
    assert f"model: is {text!r} (accepted: width, a multiple of 384" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (["--ways", "recompute,best"], "ways: is 'recompute,best' (accepted: "),
        (["--seeds", "0,x"], "seeds: is '0,x' (accepted: whole numbers"),
        (["--requests", "0"], "requests: is 0 (accepted: at least 1)"),
        (["--scale", "0"], "scale: is 0 (accepted: at least 1)"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_a_model_is_made(
    given: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    asked = ["bench", "rank", "--model", "384-1", "--artifact", str(tmp_path / "mock"), *given]
    assert main(asked) == 2
    assert said in capsys.readouterr().err and not list(tmp_path.iterdir())


def test_the_pool_is_in_the_papers_proportion():
    whole = POOL_BYTES / TOKEN_BYTES
    shape = BOOKS.scaled(100, 0.25)
    assert sizes_of(shape, BOOKS, "recompute", 8) == (0, 0)
    assert sizes_of(shape, BOOKS, "item", 8) == (0, 2800)
    users, rows = sizes_of(shape, BOOKS, "user", 8)
    assert users == pytest.approx(8 * whole / 400, rel=0.002) and not rows
    users, rows = sizes_of(shape, BOOKS, "split", 8)
    assert users == pytest.approx(8 * (whole - 280_000 * 15) / 400, rel=0.002) and rows == 2800


def test_an_artifacts_own_users_are_as_long_as_they_are(tiny: Path, tmp_path: Path):
    shutil.copy(tiny / "catalogue.parquet", tmp_path)
    lengths = np.random.default_rng(0).integers(3, 9, 80)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    histories = Histories(np.arange(80), np.zeros(offsets[-1], np.int64), offsets)
    histories.save(tmp_path / "histories.parquet", [str(u) for u in range(80)])
    of = own_users(tmp_path, BOOKS.scaled(10_000))
    assert len(of.lengths) == of.shape.users == 51 and of.shape.item_tokens == 3
    assert set(of.lengths) <= set(3 * lengths)
    items, asks = requests_of(of, load_config(tiny), 50, 0)
    assert items.shape == (of.shape.items, 3)
    assert {len(request.tokens) for request, _ in asks} <= set(of.lengths)
    assert all(0 < len(request.candidates) <= of.shape.candidates for request, _ in asks)


def test_all_ways_answer_what_recomputation_answers(tiny_ranker: Path):
    # A pool with room for all
    shape = replace(BOOKS.scaled(30_000), item_tokens=3, user_tokens=12_000, candidates=7)
    asked = argparse.Namespace(requests=60, seeds="0,1", ways=",".join(WAYS), data="books", slo_ms=1e6)
    lengths = np.random.default_rng(0).integers(1, 6, shape.users) * 3
    found = measure(tiny_ranker, load_config(tiny_ranker), Asked(shape, lengths), asked)
    assert found["equal_answers"] and found["largest_difference"] < 1e-3
    assert found["counted"] == pytest.approx(84, abs=16) and set(found["ways"]) == set(WAYS)
    computed = {name: way["computed_tokens"] for name, way in found["ways"].items()}
    assert computed["recompute"] > computed["user"] > computed["split"]
    least = {name: way["least_ms"] for name, way in found["ways"].items()}
    assert least["recompute"] > least["user"] > least["split"] > 0
    assert found["ways"]["recompute"]["reused_share"] == 0 < found["ways"]["split"]["reused_share"]


def test_no_way_is_always_asked_behind_the_same_one(
    tiny_ranker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked_in: list[str] = []
    right = rank.RankWay.ask_all

    def ask_all(way, some):
        asked_in.append(way.name)
        return right(way, some)

    monkeypatch.setattr(rank.RankWay, "ask_all", ask_all)
    monkeypatch.setattr(rank, "TURN", 5)
    shape = replace(BOOKS.scaled(30_000), item_tokens=3, user_tokens=12_000, candidates=7)
    asked = argparse.Namespace(requests=30, seeds="0", ways="recompute,user,split", data="books", slo_ms=1e6)
    lengths = np.random.default_rng(0).integers(1, 6, shape.users) * 3
    measure(tiny_ranker, load_config(tiny_ranker), Asked(shape, lengths), asked)
    turns = [asked_in[first : first + 3] for first in range(0, len(asked_in), 3)]
    assert all(sorted(turn) == ["recompute", "split", "user"] for turn in turns)
    before = {turn[turn.index("user") - 1] for turn in turns if turn[0] != "user"}
    assert before == {"recompute", "split"}


def test_a_trace_with_scores_that_are_no_numbers_is_not_equal(
    tiny_ranker: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shape = replace(BOOKS.scaled(30_000), item_tokens=3, user_tokens=12_000, candidates=7)
    asked = argparse.Namespace(requests=20, seeds="0,1", ways="recompute", data="books", slo_ms=1e6)
    lengths = np.random.default_rng(0).integers(1, 6, shape.users) * 3
    right = rank._of_one_trace

    def with_nan(*given):
        answers, apart = right(*given)
        return answers, np.nan if given[-1] == 1 else apart

    monkeypatch.setattr(rank, "_of_one_trace", with_nan)
    found = measure(tiny_ranker, load_config(tiny_ranker), Asked(shape, lengths), asked)
    assert np.isnan(found["largest_difference"]) and not found["equal_answers"]


@pytest.mark.parametrize(
    "ways, known", [("recompute", False), ("user,item", False), ("recompute,hazard", True)]
)
def test_what_cannot_be_said_of_the_ways_asked_for_is_null(tiny_ranker: Path, ways: str, known: bool) -> None:
    shape = replace(BOOKS.scaled(30_000), item_tokens=3, user_tokens=12_000, candidates=7)
    asked = argparse.Namespace(requests=20, seeds="0", ways=ways, data="books", slo_ms=1e6)
    lengths = np.random.default_rng(0).integers(1, 6, shape.users) * 3
    found = measure(tiny_ranker, load_config(tiny_ranker), Asked(shape, lengths), asked)
    said = {name for name in ("reused_share", "choice_share", "over_recompute") if found[name] is not None}
    assert said == ({"reused_share", "choice_share", "over_recompute"} if known else set())
    assert found["over_user_prefix"] is None and found["slo_rate_over_user_prefix"] is None
    lines = table(found["ways"]).splitlines()
    assert [line.split()[0] for line in lines[1:]] == ways.split(",")


def test_rankings_together_are_measured_by_passes_of_as_many_candidates(tiny_ranker: Path):
    arms = passes_of(tiny_ranker, load_config(tiny_ranker), 3, 9)
    assert set(arms) == {(order, count, many) for order in ORDERS for count in COUNTS for many in COMPANY}
    assert all(work() > 0 for work in arms.values())
    given = {("split", 5, 1): [2.0, 2.0], ("split", 5, 2): [3.0], ("split", 5, 4): [5.0, 5.0, 5.0]}
    want = {"order": "split", "candidates": 5, "ms": 2000.0, "two": 4 / 3, "four": 8 / 5}
    assert cell("split", 5, given) == want


def test_a_server_s_gain_is_that_of_the_rounds():
    apart, together = (
        [Load(10, 1.0, 9), Load(20, 1.0, 8), Load(40, 1.0, 7)],
        [Load(20, 1.0, 4), Load(30, 1.0, 5), Load(40, 1.0, 6)],
    )
    want = {"apart": 20, "together": 30, "gain": 1.5, "apart_p99_ms": 8, "together_p99_ms": 5}
    assert company_cell(25, apart, together) == {"candidates": 25, **want}
    assert gains(apart, together) == [2, 1.5, 1]


@pytest.mark.long
def test_rankings_in_flight_are_answered_by_a_server(tiny_ranker: Path):
    loads = loads_of(tiny_ranker, 5, 50, 8, 0.3)
    assert set(loads) == set(LISTED) and all(load.rate > 0 < load.p99_ms for load in loads.values())
