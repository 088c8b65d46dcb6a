"""Rankings of an HSTU ranker in the local runtime: they are the torch module's."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from build.catalogue import add_items, remove_items
from build.openvino.engines import build_engines
from ensembles.local import LocalRecommender, request
from genrec.catalogue.files import CATALOGUE
from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import point, read_current
from genrec.errors import ArtifactError, InputError
from genrec.models.prompt import window_start
from genrec.nn.hstu_checkpoint import load_hstu
from genrec.pool import mapping
from genrec.rank.head import FILE_NAME as HEAD
from genrec.rank.kinds import DISCRIMINANT, HSTU, NO_RANKER, ranker_of
from genrec.report import MODEL, POPULARITY
from genrec.settings import Settings
from genrec.steps import load
from tests.ensembles.rankings import report_of
from tests.oracles.hstu_asked import Asked, ByTorch, check_ranking, events_of, logits_of

MOST = 16


@pytest.fixture(scope="module")
def local(tiny_hstu: Path) -> Iterator[LocalRecommender]:
    with LocalRecommender(tiny_hstu, 16, decoder="rank", pool_user_mb=1) as runtime:
        yield runtime


@pytest.fixture(scope="module")
def by_torch(tiny_hstu: Path) -> ByTorch:
    return ByTorch(tiny_hstu)


@pytest.mark.parametrize("count", [0, 1, 7, 16, 17, 21, 40])
def test_answers_are_the_module_s(
    local: LocalRecommender, by_torch: ByTorch, items: list[int], count: int
) -> None:
    events = events_of(np.random.default_rng(count), count)
    history, candidates = items[:count], items[100:140]
    (answer,) = local.rank([(history, candidates)], 10, **events)
    report = check_ranking(answer, by_torch(history, candidates, **events), 10)
    assert report.answered_by == MODEL and report.cut == window_start(count, MOST)


@pytest.mark.parametrize("known", [(), ("ratings",), ("times",), ("features",), ("ratings", "times", "now")])
def test_what_is_not_given_is_unknown(
    local: LocalRecommender, by_torch: ByTorch, items: list[int], known: tuple[str, ...]
) -> None:
    events = events_of(np.random.default_rng(1), 9)
    given = {name: events[name] for name in known}
    (answer,) = local.rank([(items[:9], items[50:60])], 10, **given)
    want = by_torch(items[:9], items[50:60], **given)
    check_ranking(answer, want, 10)
    everything = by_torch(items[:9], items[50:60], **events)
    assert max(abs(want[item] - everything[item]) for item in want) > 0.01


def test_the_second_time_the_user_is_there_and_a_grown_history_is_extended(
    local: LocalRecommender, by_torch: ByTorch, items: list[int]
) -> None:
    events = events_of(np.random.default_rng(3), 12)
    reused = []
    for count in (6, 6, 9, 12):
        given = {name: events[name][:, :count] for name in ("ratings", "times")}
        given |= {name: events[name] for name in ("now", "features")}
        (answer,) = local.rank([(items[:count], items[50:70])], 10, user_id=5, **given)
        reused.append(check_ranking(answer, by_torch(items[:count], items[50:70], **given), 10).user_reused)
    assert reused == [0, 3 + 6, 3 + 6, 3 + 9]
    (other,) = local.rank([(items[:12], items[50:70])], 10, user_id=6, **events)
    assert check_ranking(other, by_torch(items[:12], items[50:70], **events), 10).user_reused == 0


@pytest.mark.parametrize(
    ("change", "agree"),
    [
        ({"features": np.array([[2, 5]], np.int32)}, 0),  # features see each other, and events all of them
        ({"features": np.array([[2, 5, 6]], np.int32)}, 0),
        ({"ratings": np.array([[5, 5, 5, 5, 1]], np.int32)}, 3 + 4),
        ({"times": np.array([[10, 20, 31, 40, 50]])}, 3 + 2),
        ({"times": np.array([[110, 120, 130, 140, 150]]), "now": np.array([[160]])}, 3 + 5),  # only later
        ({"now": np.array([[61]])}, 3 + 5),  # candidates alone see it
    ],
)
def test_nothing_of_another_past_is_read(
    local: LocalRecommender, by_torch: ByTorch, items: list[int], change: dict[str, np.ndarray], agree: int
) -> None:
    events = {
        "features": np.array([[2, 5, 7]], np.int32),
        "ratings": np.full((1, 5), 5, np.int32),
        "times": np.array([[10, 20, 30, 40, 50]]),
        "now": np.array([[60]]),
    }
    asked = [(items[20:25], items[50:70])]
    user = 100 + sum(int(each.sum()) for each in change.values())  # of this change alone
    local.rank(asked, 10, user_id=user, **events)
    (answer,) = local.rank(asked, 10, user_id=user, **{**events, **change})
    want = by_torch(*asked[0], **{**events, **change})
    assert check_ranking(answer, want, 10).user_reused == agree


def test_whatever_was_asked_before_an_answer_is_the_module_s(
    local: LocalRecommender, by_torch: ByTorch, items: list[int]
) -> None:
    """Users who come back, with some of what is known changed or left out; a pool that has to evict."""
    draw, reused = np.random.default_rng(7), 0
    for _ in range(60):
        count, user = int(draw.integers(0, 24)), int(draw.integers(3))
        known = events_of(np.random.default_rng(user), 24)
        given = {name: known[name][:, :count] for name in ("ratings", "times")}
        given |= {"now": known["now"], "features": known["features"][:, : draw.integers(1, 4)]}
        for name in ("ratings", "features"):
            if draw.random() < 0.2:
                del given[name]
        if count and draw.random() < 0.2 and "ratings" in given:
            given["ratings"] = given["ratings"] % 5 + 1
        history, candidates = items[30 * user : 30 * user + count], items[200:210]
        (answer,) = local.rank([(history, candidates)], 5, user_id=user, **given)
        if count or "features" in given:
            reused += check_ranking(answer, by_torch(history, candidates, **given), 5).user_reused > 0
    assert reused > 20


def test_without_a_pool_or_when_it_is_lost_answers_are_the_same(
    tiny_hstu: Path, by_torch: ByTorch, items: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mapping, "LOOK_S", 0.0)
    want = by_torch(items[:5], items[20:60])
    with LocalRecommender(tiny_hstu, 16, decoder="rank", pool_user_mb=0) as local:
        for _ in range(2):
            assert check_ranking(local.rank([(items[:5], items[20:60])], 10)[0], want, 10).user_reused == 0
    with LocalRecommender(tiny_hstu, 16, decoder="rank", pool_user_mb=1) as local:
        check_ranking(local.rank([(items[:5], items[20:60])], 10)[0], want, 10)
        assert local.settings.pool is not None
        shutil.rmtree(local.settings.pool)
        assert check_ranking(local.rank([(items[:5], items[20:60])], 10)[0], want, 10).user_reused == 0


def test_without_a_history_features_are_enough(
    local: LocalRecommender, by_torch: ByTorch, items: list[int], tiny_hstu: Path
) -> None:
    features = {"features": np.array([[3]], np.int32)}
    (answer,) = local.rank([([], items[50:60])], 10, **features)
    check_ranking(answer, by_torch([], items[50:60], **features), 10)
    (answer,) = local.rank([([], items[50:60])], 10)
    assert isinstance(answer, dict) and answer["report"][0, 0] == POPULARITY
    shares = Catalogue.load(tiny_hstu / "catalogue.parquet").popularity_scores
    assert answer["scores"][0].max() == shares[50:60].max()


def test_items_that_the_catalogue_does_not_know_take_their_ratings_along(
    local: LocalRecommender, by_torch: ByTorch, items: list[int]
) -> None:
    events = events_of(np.random.default_rng(2), 8)
    history = [*items[:4], -1, *items[4:7]]
    (answer,) = local.rank([(history, items[50:60])], 10, **events)
    kept = {name: np.delete(events[name], 4, 1) for name in ("ratings", "times")}
    report = check_ranking(answer, by_torch(items[:7], items[50:60], **{**events, **kept}), 10)
    assert report.dropped == 1


def test_of_a_user_who_has_seen_all_items_none_is_read(tiny_hstu: Path, items: list[int]) -> None:
    """The retrieval finds nothing to rank, and the report counts his whole history as cut off."""
    asked = {"features": np.array([[1]], np.int32), "retrieve": np.array([[12]], np.int32)}
    with LocalRecommender(tiny_hstu, 16, decoder="recommend_and_rank", pool_user_mb=1) as local:
        (answer,) = local.runtime.run([request([1, *items], 5, exclude_history=True) | asked])
    assert isinstance(answer, dict) and answer["item_ids"].size == 0
    report = report_of(answer)
    assert (report.answered_by, report.dropped, report.cut) == (POPULARITY, 1, len(items))


def test_an_event_of_a_lifetime_ago_is_as_old_as_can_be_told(
    local: LocalRecommender, items: list[int]
) -> None:
    """Those beside it are as old as they are."""
    newest, found = 10**9, []
    for first in (newest + 1 - 2**31, newest - 2**40, -(2**63), newest - 10**6):
        times = np.array([[first, newest - 60, newest - 5]])
        (answer,) = local.rank([(items[:3], items[100:140])], 10, times=times, now=np.array([[newest]]))
        assert isinstance(answer, dict), answer
        found.append(answer["scores"][0].tolist())
    assert found[0] == found[1] == found[2] != found[3]
    beyond = {"times": np.array([[-(2**63), 0, 2**63 - 1]])}
    assert isinstance(local.rank([(items[:3], items[100:140])], 10, **beyond)[0], dict)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"ratings": np.array([[1, 2]], np.int32)}, "ratings: has 2 values (accepted: 3)"),
        ({"ratings": np.array([[1, 6, 2]], np.int32)}, "ratings: has 6 (accepted: 1 to 5, 0 where"),
        ({"ratings": np.array([[1.0, 2, 2]], np.float32)}, "ratings: is of type float32 (accepted: int32)"),
        ({"times": np.array([[5, 9, 7]])}, "times: has 7 after 9 (accepted: seconds, oldest first)"),
        ({"times": np.array([[1, 2, 3]]), "now": np.array([[2]])}, "now: is 2 (accepted: at least 3"),
        ({"now": np.array([[2]])}, "now: is given without times (accepted: beside times alone)"),
        ({"features": np.array([[8]], np.int32)}, "features: has 8 (accepted: 1 to 7"),
        ({"features": np.ones((1, 17), np.int32)}, "features: has 17 values (accepted: at most 16)"),
    ],
)
def test_bad_input_is_answered_with_the_field_and_the_limit(
    local: LocalRecommender, items: list[int], change: dict[str, np.ndarray], problem: str
) -> None:
    (answer,) = local.rank([(items[:3], items[5:8])], 1, **change)
    assert isinstance(answer, InputError) and problem in str(answer)


def test_the_other_ranker_reads_items_alone(tiny_ranker: Path, items: list[int]) -> None:
    with LocalRecommender(tiny_ranker, 16, decoder="rank") as local:
        (answer,) = local.rank([(items[:1], items[5:8])], 1, ratings=np.ones((1, 1), np.int32))
    assert isinstance(answer, InputError) and "ratings: is given (accepted: nothing" in str(answer)


def test_one_is_chosen_where_there_are_two(tiny_hstu: Path, tiny_ranker: Path, tmp_path: Path) -> None:
    assert [ranker_of(each) for each in (tiny_hstu, tiny_ranker, tmp_path)] == [HSTU, DISCRIMINANT, NO_RANKER]
    both = shutil.copytree(tiny_hstu, tmp_path / "both")
    shutil.copy(tiny_ranker / "onnx" / HEAD, both / "onnx")
    assert [ranker_of(both, wanted) for wanted in ("auto", "hstu")] == [DISCRIMINANT, HSTU]
    with pytest.raises(InputError, match=r"ranker: is discriminant, .* \(accepted: auto, none, hstu\)"):
        ranker_of(tiny_hstu, "discriminant")


def test_a_later_version_s_items_keep_their_rows_and_new_ones_have_codes_alone(
    tiny_hstu: Path, tmp_path: Path, items: list[int]
) -> None:
    artifact = shutil.copytree(tiny_hstu, tmp_path / "artifact")
    first = Catalogue.load(artifact / CATALOGUE)
    codes = ",".join(map(str, first.codes[30]))
    (tmp_path / "new.csv").write_text(f"item,title,code_1,code_2,code_3\n5,new,{codes}\n")
    add_items(artifact, tmp_path / "new.csv")
    remove_items(artifact, first.item_ids[:10])
    point(artifact, read_current(artifact).to(3))
    model = load_hstu(artifact / "model")
    asked = Asked(range(20, 24), [0] * 4, [0] * 4, 0, [])
    want = logits_of(model, asked, range(40, 44))[:, 0].tolist()
    with torch.no_grad():  # as if item 30 had no row of its own
        model.of_item.weight[31] = 0
    want.append(float(logits_of(model, asked, [30])[0, 0]))
    with LocalRecommender(artifact, 16, decoder="rank") as local:
        (answer,) = local.rank([(items[20:24], [*items[40:44], 5, items[0]])], 6)
    report = check_ranking(answer, dict(zip([*items[40:44], 5], want, strict=True)), 6)
    assert (report.left_out, report.catalogue_version) == (1, 3)


def test_scores_are_float32_s_whatever_the_type_of_the_generator_s_kv(
    tiny_hstu: Path, tmp_path: Path, by_torch: ByTorch, items: list[int]
) -> None:
    artifact = shutil.copytree(tiny_hstu, tmp_path / "artifact")
    build_engines(artifact, "bf16")
    events = events_of(np.random.default_rng(4), 9)
    with LocalRecommender(artifact, 16, decoder="rank") as local:
        (answer,) = local.rank([(items[:9], items[50:80])], 10, **events)
    check_ranking(answer, by_torch(items[:9], items[50:80], **events), 10)


def test_a_ranker_of_another_catalogue_is_refused(tiny_hstu: Path, tmp_path: Path) -> None:
    artifact = shutil.copytree(tiny_hstu, tmp_path / "artifact")
    of = Catalogue.load(artifact / CATALOGUE)
    fewer = Catalogue(of.item_ids[1:], of.codes[1:], of.titles[1:], of.popularity[1:], of.codebook_sizes)
    fewer.save(artifact / CATALOGUE)
    with pytest.raises(
        ArtifactError,
        match=r"onnx/hstu_weights.* is of 300 items .* has 299 .*`genrec train .* --recipe hstu-ranker`",
    ):
        load("encode_candidates", Settings(artifact, tmp_path / "arena"))
