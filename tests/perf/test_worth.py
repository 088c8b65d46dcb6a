"""What answers are worth: by hand, and of the answers of a real server."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from build.catalogue import remove_items
from clients.rank_wire import Ranking
from clients.wire import Recommendation
from deploy.launcher import RunningServer
from genrec.catalogue.items import Catalogue
from perf.kit import asking, endpoints, traffic
from perf.kit.worth import WRONG, Worth, ask, line, lines, worth, worth_of
from perf.slo import soak
from tests.oracles.twin import twin_artifact
from tests.serving.servers import brief_server
from tests.tiny import tiny_catalogue

CATALOGUE = tiny_catalogue(40)
ITEMS = np.sort(CATALOGUE.item_ids)
NO_ITEM = 1
SHARES = ("valid_share", "distinct_share", "enough_share")


def answered(items: Sequence[int], version: int = 1) -> Recommendation:
    return Recommendation(np.array(items, np.int64), np.zeros(len(items)), "model", 0, 0, 3, 1, version)


def ranked(items: Sequence[int]) -> Ranking:
    return Ranking(np.array(items, np.int64), np.zeros(len(items)), "model", 0, 0, 0, 0, 0, 3, 1, 0)


def of(*answers: Sequence[int], top_k: int = 4) -> Worth:
    return worth([(answered(items), CATALOGUE) for items in answers], top_k)


def test_each_fault_lowers_its_own_share() -> None:
    right = ITEMS[:4]
    assert of(right, right) == (1, 1, 1, 2)
    assert of(right, [*ITEMS[:3], NO_ITEM]) == (7 / 8, 1, 1, 2)
    assert of(right, [*ITEMS[:3], ITEMS[0]]) == (1, 1 / 2, 1, 2)
    assert of(right, ITEMS[:3]) == (1, 1, 1 / 2, 2)
    assert of(right, []) == (1, 1, 1 / 2, 2)


def test_no_more_is_due_than_there_is() -> None:
    assert of(ITEMS, top_k=50).enough_share == 1
    assert of(ITEMS[1:], top_k=50).enough_share == 0


def test_items_of_a_history_that_is_left_out_are_not_due() -> None:
    answers = [(answered(ITEMS[3:]), CATALOGUE), (answered(ITEMS[4:]), CATALOGUE), (answered([2]), None)]
    history = [*ITEMS[:3], ITEMS[0], NO_ITEM]
    assert worth(answers[:1], len(ITEMS), [history]).enough_share == 1
    assert worth(answers[:2], len(ITEMS), [history, history]).enough_share == 1 / 2
    assert worth(answers[:1], len(ITEMS)).enough_share == 0
    assert worth(answers[2:], 2, [history]).enough_share == 0  # of a catalogue that is not here


def test_a_soak_says_which_items_were_left_out(tmp_path: Path) -> None:
    artifact = twin_artifact(tmp_path / "artifact", (7, 6, 5), 60)
    items = Catalogue.load(artifact / "catalogue.parquet").item_ids
    asked = soak.MixedRequest(soak.GOOD, {"history": items[:2], "exclude_history": True})
    event = soak.SoakedRequest(soak.GOOD, 0.0, 0.1, "", answered(items[2:]), asked.excluded)
    assert soak.worth_of(artifact, [event], len(items)) == (1, 1, 1, 1)
    assert soak.MixedRequest(soak.GOOD, {"history": items[:2]}).excluded == ()
    short = replace(event, answer=answered(items[2:-1]))
    events = [event, replace(event, problem=soak.SHED, answer=None), short, event]
    problems = [each.problem for each in soak.judged(artifact, events, len(items))]
    assert problems == ["", soak.SHED, soak.WRONG, ""], "no more are due than there are left"


def test_a_ranking_has_no_more_items_than_candidates(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "CANDIDATES", 3)
    assert worth([(ranked(ITEMS[:3]), CATALOGUE)], 4) == (1, 1, 1, 1)
    assert worth([(ranked(ITEMS[:2]), CATALOGUE)], 4).enough_share == 0


def test_what_cannot_be_told_is_no_share() -> None:
    assert of() == (None, None, None, 0)
    assert worth([(answered(ITEMS[:4]), CATALOGUE), (answered([1, 2]), None)], 4) == (None, 1, 1 / 2, 2)
    assert "not known" in line(of()) and WRONG not in line(of())


def test_answers_are_held_against_the_version_that_they_report(tmp_path: Path) -> None:
    artifact = twin_artifact(tmp_path / "artifact", (7, 6, 5), 60)
    first, second = Catalogue.load(artifact / "catalogue.parquet").item_ids[:2].tolist()
    remove_items(artifact, [first], base=1)
    both = [first, second]
    assert worth_of(artifact, [answered(both, 1)], 2) == (1, 1, 1, 1)
    assert worth_of(artifact, [answered(both, 1), answered(both, 2)], 2) == (3 / 4, 1, 1, 2)
    assert worth_of(artifact, [answered(both, 1), answered(both, 7)], 2) == (None, 1, 1, 2)


def test_what_is_wrong_is_said_loudly() -> None:
    right = Worth(1.0, 1.0, 1.0, 9)
    assert WRONG not in line(right) and line(right).endswith("; 9 answers checked")
    for share in SHARES:
        assert line(right._replace(**{share: 0.5})).startswith(WRONG)
    # Of 100,000 items one: it is rounded to all
    assert line(right._replace(valid_share=0.99999)).startswith(WRONG)
    assert lines({"a": right, "b": right._replace(valid_share=0.5)}).count(WRONG) == 1


@pytest.mark.serving
def test_a_real_server_is_asked_and_what_it_does_wrong_would_show(tiny: Path, server: RunningServer) -> None:
    about = endpoints.read_server_json(server.run_dir / "server.json")
    sample = traffic.histories(tiny, 40)
    for ensemble in ("recommend", "recommend_staged", "recommend_draft"):
        answers = ask(replace(about, ensemble=ensemble), sample, 5)
        assert worth_of(tiny, answers, 5) == (1, 1, 1, 32)
        assert worth_of(tiny, answers, 6).enough_share == 0
        whole = Catalogue.load(tiny / "catalogue.parquet")
        without = np.flatnonzero(whole.item_ids != answers[0].item_ids[0])
        smaller = Catalogue(
            whole.item_ids[without], whole.codes[without], [""] * len(without), whole.popularity[without],
            whole.codebook_sizes,
        )  # fmt: skip
        found = worth([(answer, smaller) for answer in answers], 5)
        assert found.valid_share is not None and found.valid_share < 1 and found[1:3] == (1, 1)


@pytest.mark.long
@pytest.mark.serving
def test_what_is_refused_is_not_counted(tiny: Path) -> None:
    """Two rows of the arena are room for one request at a time."""
    given: dict[str, Any] = {"beam_width": 32, "arena_slots": 2, "ensembles": ("recommend_staged",)}
    with brief_server(tiny, **given) as small:
        about = endpoints.Endpoint(small.grpc_url, ensemble="recommend_staged")
        found = worth_of(tiny, ask(about, traffic.histories(tiny, 40), 5), 5)
    assert found[:3] == (1, 1, 1) and 0 < found.answers_checked < 32
