"""Rankings of an HSTU model of the next item in the local runtime: they are the torch module's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ensembles.local import LocalRecommender
from genrec.catalogue.items import Catalogue
from genrec.engine.openvino_ranker import load_hstu
from genrec.errors import ArtifactError, InputError
from genrec.models.prompt import window_start
from genrec.rank.head import FILE_NAME as HEAD
from genrec.rank.hstu import NEXT_CONFIG, NEXT_EXPORTED, HstuConfig
from genrec.rank.hstu_weights import load_weights
from genrec.rank.kinds import DISCRIMINANT, HSTU, HSTU_NEXT, chosen_hstu, ranker_of
from genrec.report import ADMITTED, MODEL, NO_HISTORY, POPULARITY, READY, PreInferReport
from genrec.settings import Settings
from genrec.steps import load
from genrec.tensor_file import mapped_tensors, write_tensors
from tests.oracles.hstu_asked import check_ranking
from tests.oracles.next_asked import NextByTorch, times_of
from tests.serving.processes import until

MOST = 16
ALWAYS: dict[str, Any] = {"pre_infer_risk": 0, "pool_user_mb": 1, "pre_infer_share": 100, "lease_ms": 600_000}


@pytest.fixture(scope="module")
def local(tiny_hstu_next: Path) -> Iterator[LocalRecommender]:
    with LocalRecommender(tiny_hstu_next, 16, decoder="rank", **ALWAYS) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def by_torch(tiny_hstu_next: Path) -> NextByTorch:
    return NextByTorch(tiny_hstu_next)


@pytest.mark.parametrize("count", [1, 2, 7, 16, 17, 40])
def test_answers_are_the_module_s(
    local: LocalRecommender, by_torch: NextByTorch, items: list[int], count: int
) -> None:
    events, history, candidates = (
        times_of(np.random.default_rng(count), count),
        items[:count],
        items[100:140],
    )
    (answer,) = local.rank([(history, candidates)], 10, **events)
    report = check_ranking(answer, by_torch(history, candidates, **events), 10)
    assert report.answered_by == MODEL and report.cut == window_start(count, MOST)


@pytest.mark.parametrize("known", [(), ("times",)])
def test_what_is_not_given_is_unknown(
    local: LocalRecommender, by_torch: NextByTorch, items: list[int], known: tuple[str, ...]
) -> None:
    """Without times all events are of one second; without now it is that of the newest."""
    events = times_of(np.random.default_rng(1), 9)
    given = {name: events[name] for name in known}
    (answer,) = local.rank([(items[:9], items[50:60])], 10, **given)
    want, everything = (by_torch(items[:9], items[50:60], **each) for each in (given, events))
    check_ranking(answer, want, 10)
    assert max(abs(want[item] - everything[item]) for item in want) > 0.01


def test_items_that_the_catalogue_does_not_know_take_their_times_along(
    local: LocalRecommender, by_torch: NextByTorch, items: list[int]
) -> None:
    """The newest too: the known one before it waits until now."""
    events, history = times_of(np.random.default_rng(2), 8), [*items[:4], -1, *items[4:6], -2]
    (answer,) = local.rank([(history, items[50:60])], 10, **events)
    kept = {**events, "times": np.delete(events["times"], (4, 7), 1)}
    assert check_ranking(answer, by_torch(items[:6], items[50:60], **kept), 10).dropped == 2


def test_without_a_history_popularity_answers(
    local: LocalRecommender, items: list[int], tiny_hstu_next: Path
) -> None:
    (answer,) = local.rank([([], items[50:60])], 10)
    assert isinstance(answer, dict) and answer["report"][0, 0] == POPULARITY
    shares = Catalogue.load(tiny_hstu_next / "catalogue.parquet").popularity_scores
    assert answer["scores"][0].max() == shares[50:60].max()


def test_a_user_who_comes_back_is_there_but_for_his_newest_event(
    local: LocalRecommender, by_torch: NextByTorch, items: list[int]
) -> None:
    events, reused = times_of(np.random.default_rng(3), 12), []
    for count, later in ((1, 0), (6, 0), (6, 900), (9, 0), (12, 7)):
        given = {"times": events["times"][:, :count], "now": events["now"] + later}
        (answer,) = local.rank([(items[:count], items[50:70])], 10, user_id=5, **given)
        reused.append(check_ranking(answer, by_torch(items[:count], items[50:70], **given), 10).user_reused)
    assert reused == [0, 0, 5, 5, 8]
    (other,) = local.rank([(items[:12], items[50:70])], 10, user_id=6, **events)
    assert check_ranking(other, by_torch(items[:12], items[50:70], **events), 10).user_reused == 0


@pytest.mark.parametrize(
    ("times", "agree"),
    [
        ([10, 20, 30, 40, 51], 3),  # the fourth event's wait is another
        ([10, 20, 31, 40, 50], 1),
        ([110, 120, 130, 140, 150], 4),  # only later
    ],
)
def test_nothing_of_another_past_is_read(
    local: LocalRecommender, by_torch: NextByTorch, items: list[int], times: list[int], agree: int
) -> None:
    asked, now, user = [(items[20:25], items[50:70])], np.array([[200]]), 100 + sum(times)
    local.rank(asked, 10, user_id=user, times=np.array([[10, 20, 30, 40, 50]]), now=now)
    (answer,) = local.rank(asked, 10, user_id=user, times=np.array([times]), now=now)
    want = by_torch(*asked[0], times=np.array([times]), now=now)
    assert check_ranking(answer, want, 10).user_reused == agree


def test_whatever_was_asked_before_an_answer_is_the_module_s(
    local: LocalRecommender, by_torch: NextByTorch, items: list[int]
) -> None:
    """Users who come back, some signals ahead, times that change or are left out."""
    draw, reused = np.random.default_rng(7), 0
    for _ in range(60):
        count, user = int(draw.integers(1, 24)), int(draw.integers(3))
        known = times_of(np.random.default_rng(user), 24)
        given = {"times": known["times"][:, :count], "now": known["now"]}
        if draw.random() < 0.2:
            given["times"] = given["times"] - np.arange(count)[::-1]
        if draw.random() < 0.2:
            given = {}
        history, candidates = items[30 * user : 30 * user + count], items[200:210]
        if draw.random() < 0.3:
            past = {name: each for name, each in given.items() if name == "times"}
            (said,) = local.pre_infer([history], user, 60_000, **past)
            assert isinstance(said, dict)
        (answer,) = local.rank([(history, candidates)], 5, user_id=user, **given)
        reused += check_ranking(answer, by_torch(history, candidates, **given), 5).user_reused > 0
    assert reused > 20


def ahead(local: LocalRecommender, history: list[int], user: int, **events: Any) -> PreInferReport:
    (answer,) = local.pre_infer([history], user, 60_000, **events)
    assert isinstance(answer, dict), answer
    return PreInferReport(*answer["report"][0].tolist())


def test_a_ranking_finds_what_was_computed_ahead(
    local: LocalRecommender, by_torch: NextByTorch, items: list[int]
) -> None:
    """All but the newest event, which waits until somebody asks; who has no other has nothing to compute."""
    events, history, asked = times_of(np.random.default_rng(9), 12), items[60:72], items[100:130]
    past = {"times": events["times"]}
    assert ahead(local, history, 50, **past) == PreInferReport(ADMITTED, 11, 0, 0)
    until(lambda: ahead(local, history, 50, **past) == PreInferReport(READY, 11, 11, 0))
    for later in (0, 10**6):
        given = {**past, "now": events["now"] + later}
        (answer,) = local.rank([(history, asked)], 5, user_id=50, **given)
        assert check_ranking(answer, by_torch(history, asked, **given), 5).user_reused == 11
    assert ahead(local, history[:1], 51) == PreInferReport(NO_HISTORY, 0, 0, 0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"ratings": np.ones((1, 3), np.int32)}, "ratings: is given (accepted: nothing: this ranker reads items and"),
        ({"features": np.ones((1, 1), np.int32)}, "features: is given (accepted: nothing"),
        ({"times": np.array([[5, 9, 7]])}, "times: has 7 after 9 (accepted: seconds, oldest first)"),
        ({"now": np.array([[2]])}, "now: is given without times"),
    ],
)  # fmt: skip
def test_bad_input_is_answered_with_the_field_and_the_limit(
    local: LocalRecommender, items: list[int], change: dict[str, np.ndarray], problem: str
) -> None:
    (answer,) = local.rank([(items[:3], items[5:8])], 1, **change)
    assert isinstance(answer, InputError) and problem in str(answer)
    if "now" not in change:
        (answer,) = local.pre_infer([items[:3]], 1, **change)
        assert isinstance(answer, InputError) and problem in str(answer)


def test_behind_a_retrieval_too(tiny_hstu_next: Path, by_torch: NextByTorch, items: list[int]) -> None:
    with LocalRecommender(tiny_hstu_next, 16, decoder="recommend_and_rank", **ALWAYS) as local:
        request = {
            "history": np.array([items[:5]]),
            "retrieve": np.array([[12]], np.int32),
            "top_k": np.array([[12]], np.int32),
        }
        (answer,) = local.runtime.run([request])
    assert isinstance(answer, dict), answer
    check_ranking(answer, by_torch(items[:5], answer["item_ids"][0].tolist()), 12)


def test_of_several_the_first_answers_or_the_one_that_is_chosen(
    tiny_hstu: Path, tiny_hstu_next: Path, tiny_ranker: Path, by_torch: NextByTorch, items: list[int], tmp_path: Path
) -> None:  # fmt: skip
    """A delta of the other ranker is nothing to it."""
    assert ranker_of(tiny_hstu_next) == HSTU_NEXT
    both = shutil.copytree(tiny_hstu, tmp_path / "both")
    for folder in ("model", "onnx", "engines/openvino/f32"):
        for path in (tiny_hstu_next / folder).glob("hstu_next*"):
            shutil.copy(path, both / folder)
    (both / "deltas" / "1").mkdir(parents=True)
    assert [ranker_of(both, each) for each in ("auto", "hstu-next")] == [HSTU, HSTU_NEXT]
    with LocalRecommender(both, 16, decoder="rank", ranker="hstu-next") as local:
        (answer,) = local.rank([(items[:5], items[20:40])], 10)
    check_ranking(answer, by_torch(items[:5], items[20:40]), 10)
    shutil.copy(tiny_ranker / "onnx" / HEAD, both / "onnx")
    assert ranker_of(both) == DISCRIMINANT
    with pytest.raises(InputError, match=r"ranker: is hstu, .* \(accepted: auto, none, hstu-next\)"):
        ranker_of(tiny_hstu_next, HstuConfig.kind.name)


def test_one_that_is_trained_anew_is_nothing_to_who_serves_until_it_is_exported(
    tiny_hstu_next: Path, tmp_path: Path
) -> None:
    """A start in between would read graphs and weights by the shape of others."""
    artifact = shutil.copytree(tiny_hstu_next, tmp_path / "artifact")
    served = chosen_hstu(artifact)
    anew = replace(served, max_history=64, layers=2)
    anew.save(artifact / "model" / NEXT_CONFIG)
    assert chosen_hstu(artifact) == served == chosen_hstu(tiny_hstu_next)
    exported = artifact / "onnx" / NEXT_EXPORTED
    arrays = {name: np.array(each) for name, each in mapped_tensors(exported).items()}
    write_tensors(exported, arrays, {"format": "pt"})
    assert chosen_hstu(artifact) == anew, "an export of before does not tell"


def test_what_it_does_not_read_is_refused_before_candidates_are_looked_at(
    tiny_hstu_next: Path, tmp_path: Path
) -> None:
    """`genrec cascade` finds out with an item of the data set, which may be served no more, what it may tell."""
    step = load("encode_candidates", Settings(tiny_hstu_next, tmp_path / "arena"))
    one, gone = np.ones((1, 1), np.int32), np.array([[-5]])
    (answer,) = step.run([{"history": gone, "candidates": gone, "top_k": one, "ratings": one}])
    assert isinstance(answer, InputError) and (answer.field, answer.problem) == ("ratings", "is given")


@pytest.mark.parametrize(
    ("name", "change", "problem"),
    [
        ("layers.0.position_bias", lambda each: np.tile(each, 3), r"as \[2,18\], onnx/ has \[2, 54\]"),
        ("layers.1.finish.bias", None, r"as \[16\], onnx/ has none"),
        ("layers.9.finish.bias", np.copy, r"as none, onnx/ has \[16\]"),
        ("of_item.weight", lambda each: np.tile(each, 2), r"as \[\?,16\], onnx/ has \[301, 32\]"),
    ],
)
def test_graphs_of_another_export_are_refused(
    tiny_hstu_next: Path, name: str, change: Any, problem: str
) -> None:
    """Exported anew with another shape, and not built: a longer table of places even gave scores."""
    config = chosen_hstu(tiny_hstu_next)
    weights = load_weights(tiny_hstu_next, kind=config.kind)
    there = weights.arrays.get(name, weights.arrays["layers.0.finish.bias"])
    arrays = {**weights.arrays, name: change(there) if change else None}
    given = weights._replace(arrays={each: values for each, values in arrays.items() if values is not None})
    make = load_hstu(tiny_hstu_next / "engines" / "openvino" / "f32", config, "f32", 1)
    with pytest.raises(ArtifactError, match=f"hstu_next_.*.xml: reads {name} {problem}; `genrec build`"):
        make(given)
