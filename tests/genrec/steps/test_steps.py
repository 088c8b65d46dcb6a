"""The steps in one process, against enumeration of the whole catalogue, for several L, T and BW."""

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ensembles.local import LocalRecommender, request
from genrec import metrics
from genrec.artifact import load_config
from genrec.catalogue.load import load_catalogue
from genrec.catalogue.semantic_id import pack
from genrec.errors import GenrecError, InputError
from genrec.nn.checkpoint import load_generator
from tests.oracles.twin import score_every_item, twin_artifact

SHAPES = {(40,): 30, (6, 5): 25, (7, 6, 5): 60, (4, 4, 4, 4): 60}


@pytest.fixture(scope="module", params=product(SHAPES, ("beam", "staged")), ids=str)
def world(request, tmp_path_factory):
    """(catalogue, generator, recommender with a beam for every leaf, one with a narrow beam)."""
    sizes, decoder = request.param
    folder = twin_artifact(tmp_path_factory.mktemp("twin") / "artifact", sizes, SHAPES[sizes])
    catalogue = load_catalogue(folder, load_config(folder))
    with (
        LocalRecommender(folder, 256, "twin", 16, decoder) as wide,
        LocalRecommender(folder, 9, "twin", 16, decoder) as narrow,
    ):
        yield catalogue, load_generator(folder / "model"), wide, narrow


@pytest.fixture
def chain(world):
    """The worlds whose steps are apart, with KV in an arena between them."""
    if world[3].runtime.ensemble.name != "recommend_staged":
        pytest.skip("whole requests in one process use no arena")
    return world


def in_order(catalogue, scores):
    """Ids by score, semantic ID, popularity, id: the stated order, by a plain sort."""
    row = {int(item): n for n, item in enumerate(catalogue.item_ids)}
    keys = {
        i: (-s, tuple(catalogue.codes[row[i]]), -catalogue.popularity[row[i]], i) for i, s in scores.items()
    }
    return sorted(scores, key=keys.__getitem__)


@settings(max_examples=12, deadline=None)
@given(data=st.data())
def test_a_beam_as_wide_as_the_catalogue_ranks_it_exactly(world, data):
    catalogue, generator, wide, _ = world
    rows = st.lists(st.integers(0, len(catalogue) - 1), min_size=1, max_size=8)
    history, exclude = data.draw(rows), data.draw(st.booleans())
    lists = {name: data.draw(rows) for name in ("exclude", "only") if data.draw(st.booleans())}
    excluded = (set(history) if exclude else set()) | set(lists.get("exclude", ()))
    if "only" in lists:
        excluded |= set(range(len(catalogue))) - set(lists["only"])
    asked = request(catalogue.item_ids[history], len(catalogue), exclude)
    (answer,) = wide.runtime.run([asked | {name: catalogue.item_ids[r][None] for name, r in lists.items()}])
    truth = score_every_item(generator, catalogue, history, excluded)
    given_ids = answer["item_ids"][0].tolist()
    assert sorted(given_ids) == sorted(truth)
    assert np.allclose(answer["scores"][0], [truth[i] for i in given_ids], atol=2e-5)
    assert (np.diff(answer["scores"][0]) <= 0).all()
    if not truth:
        return
    top = in_order(catalogue, truth)[0]
    assert truth[given_ids[0]] == pytest.approx(truth[top], abs=2e-5)
    semantic_ids = {tuple(catalogue.codes[row]) for row in catalogue.rows_of(list(truth))}
    assert answer["report"][0, 4] == len(semantic_ids)


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_narrow_beams_give_top_k_distinct_valid_items(world, data):
    catalogue, _, _, narrow = world
    items = len(catalogue)
    history = data.draw(st.lists(st.integers(0, items - 1), min_size=1, max_size=items))
    top_k, exclude = data.draw(st.integers(1, min(9, items))), data.draw(st.booleans())
    (answer,) = narrow.recommend([catalogue.item_ids[history]], top_k, exclude)
    found = answer["item_ids"][0].tolist()
    left = items - len(set(history)) if exclude else items
    assert len(found) == len(set(found)) == min(top_k, left)
    assert (catalogue.rows_of(found) >= 0).all()
    assert not exclude or not set(found) & set(catalogue.item_ids[history].tolist())


def test_a_batch_answers_like_one_by_one_and_errors_stay_with_their_request(world):
    catalogue, _, _, narrow = world
    draw = np.random.default_rng(1)
    requests = [request(draw.choice(catalogue.item_ids, n), 5, bool(n % 2)) for n in range(1, 20)]
    requests[3] = request([], 4)
    requests[5] = request(catalogue.item_ids[:3], 10)
    requests[8] = request([-1, 2**62, 5], 2)
    batch = narrow.runtime.run(requests)
    for one, together in zip((narrow.runtime.run([r])[0] for r in requests), batch, strict=True):
        if isinstance(one, GenrecError):
            assert str(one) == str(together)
        else:
            assert all(np.array_equal(one[name], together[name]) for name in one)
    assert isinstance(batch[5], InputError) and batch[5].field == "top_k"
    assert batch[3]["report"][0].tolist() == [1, 0, 0, 0, 0, 1]
    assert batch[8]["report"][0].tolist() == [1, 3, 0, 0, 0, 1]


def test_nothing_stays_in_the_arena(chain):
    _, _, wide, narrow = chain
    from genrec.kv.arena import Arena

    for recommender in (wide, narrow):
        assert Arena(recommender.settings.arena).usage() == {"free": 16, "held": 0, "idle": 0, "done": 0}


def test_semantic_ids_of_no_item_are_counted_and_not_answered(world):
    catalogue, _, _, narrow = world
    ids = pack(catalogue.codes, catalogue.codebook_sizes)
    valid, invalid = np.unique(ids)[:2], np.setdiff1d(np.arange(ids.max() + 4), ids)[:3]
    asked = {"paths": np.concatenate((invalid, valid))[None], "scores": np.float32([[0, 0, 0, -1, -2]])}
    before = [metrics.SEMANTIC_IDS.value(verdict=verdict) for verdict in ("valid", "invalid")]
    more = {"ticket": np.array([[9, 3, 0, 0, 0, 0]]), "excluded": np.array([[-1]], np.int32)}
    (answer,) = narrow.runtime._steps["validity_lookup"].run([asked | more])
    counted = [metrics.SEMANTIC_IDS.value(verdict=verdict) for verdict in ("valid", "invalid")]
    assert np.subtract(counted, before).tolist() == [2, 3] and answer["report"][0, 4] == 2
    assert sorted(answer["item_ids"][0]) == sorted(catalogue.item_ids[np.isin(ids, valid)])


WRONG = {
    "top_k": [
        np.int32([[0]]),
        np.int32([[-3]]),
        np.int32([[10]]),
        np.int64([[5]]),
        np.int32([5]),
        np.int32([[1, 2]]),
    ],
    "history": [np.float32([[1.0, np.nan]]), np.int32([[1]]), np.int64([1]), np.int64([[1], [2]])],
    "deadline_ms": [np.int32([[0]]), np.int32([[-5]]), np.int32([[10**7]]), np.float32([[1]])],
    "exclude_history": [np.int32([[1]])],
    "user_id": [np.int32([[1]]), np.int64([[1, 2]])],
}


@pytest.mark.parametrize(("field", "value"), [(f, v) for f, values in WRONG.items() for v in values], ids=str)
def test_bad_input_names_the_field_and_the_limit(world, field, value):
    catalogue, _, _, narrow = world
    good = request(catalogue.item_ids[:2], 5)
    (answer,) = narrow.runtime.run([good | {field: value}])
    assert isinstance(answer, InputError) and answer.field == field and answer.limit in str(answer)
    assert not isinstance(narrow.runtime.run([good])[0], GenrecError)


@pytest.mark.parametrize("missing", ["history", "top_k"])
def test_missing_tensors_are_named(world, missing):
    _, _, _, narrow = world
    tensors = request([1], 5)
    del tensors[missing]
    assert f"{missing}: is missing" in str(narrow.runtime.run([tensors])[0])


def test_of_a_long_history_a_named_user_s_window_moves_in_steps(world):
    """So that his next prompt begins as this one; of nobody named the newest items are read."""
    catalogue, _, _, narrow = world
    assert load_config(narrow.settings.artifact).max_history == 8
    history = np.resize(catalogue.item_ids, 11)
    for user, first in (({}, 3), ({"user_id": np.array([[7]])}, 4)):
        got, want = narrow.runtime.run([request(history, 5) | user, request(history[first:], 5)])
        assert got["item_ids"].tolist() == want["item_ids"].tolist()
        np.testing.assert_allclose(got["scores"], want["scores"], atol=2e-5)


def test_inner_tensors_from_strangers_are_errors(chain):
    """Every model of a Triton repository can be called by anyone: numbers that compiled code trusts are checked."""
    catalogue, _, _, narrow = chain
    steps, levels = narrow.runtime._steps, narrow.runtime.ensemble
    ticket, kv = np.int64([[3, 2, 0, 0, 0, 0]]), np.zeros((1, 4), np.int64)
    tokens = np.zeros((1, 2), np.int32)
    calls = [
        ("prefill", {"tokens": tokens - 1, "ticket": ticket}),
        ("prefill", {"tokens": tokens + 10**6, "ticket": ticket}),
        ("prefill", {"tokens": tokens, "ticket": np.int64([[3, 3, 0, 0, 0, 0]])}),
        ("prefill", {"tokens": tokens, "ticket": np.int64([[0, 2, 0, 0, 0, 0]])}),
        ("prefill", {"tokens": tokens, "ticket": np.int64([[3, 2, 1, 0, 0, 0]])}),
        ("beam_search", {"kv": kv + 5, "ticket": ticket, "excluded": np.int32([[-1]])}),
        ("beam_search", {"kv": kv, "ticket": ticket, "excluded": np.int32([[10**6]])}),
    ]
    answers = {"paths": np.int64([[1]]), "ticket": ticket, "excluded": np.int32([[-1]])}
    calls.append(("validity_lookup", answers | {"scores": np.float32([[np.nan]])}))
    if len([s for s in levels.steps if s.model == "decode"]):
        beams = {"paths": np.int64([[0, 1]]), "level": np.int32([[1]]), "ticket": ticket, "kv": kv}
        scored = {"codes": np.int32([[0, 1]]), "parents": np.int32([[0, 0]]), "level": beams["level"]}
        scored |= {"ticket": ticket, "kv": kv}
        assert not isinstance(steps["decode"].run([scored])[0], GenrecError)
        calls += [("decode", scored | {"parents": np.int32([p])}) for p in ([1, 0], [-1, 0], [0, 9], [0])]
        calls += [("decode", scored | bad) for bad in (
            {"level": np.int32([[0]])}, {"level": np.int32([[99]])}, {"codes": np.int32([[-1, 1]])},
            {"codes": np.int32([[0, catalogue.codebook_sizes[0]]])},
            {"codes": np.int32([[-2]]), "parents": np.int32([[0]])},
            {"codes": np.zeros((1, 0), np.int32), "parents": np.zeros((1, 0), np.int32)}, {"kv": kv + 3},
            {"codes": np.zeros((1, 10), np.int32), "parents": np.zeros((1, 10), np.int32)},
        )]  # fmt: skip
        more = {"nodes": np.int32([[0, 1]]), "scores": np.float32([[0, -1]]), "excluded": np.int32([[-1]])}
        calls += [("beam_search", beams | more | bad) for bad in (
            {"nodes": np.int32([[0, 10**6]])}, {"nodes": np.int32([[-1, 0]])}, {"scores": np.float32([[np.nan, 0]])},
            {"nodes": np.int32([[0]])}, {"level": np.int32([[99]])},
        )]  # fmt: skip
    for (name, tensors), _ in product(calls, range(2)):
        (answer,) = steps[name].run([tensors])
        assert isinstance(answer, GenrecError), (name, tensors)


def test_a_passed_deadline_is_refused_and_gives_its_slot_back(chain):
    from genrec.errors import DeadlineExceeded
    from genrec.kv.arena import Arena

    catalogue, _, _, narrow = chain
    steps = narrow.runtime._steps
    (encoded,) = steps["encode_history"].run([request(catalogue.item_ids[:2], 3)])
    (kv,) = steps["prefill"].run([{name: encoded[name] for name in ("tokens", "ticket")}])
    late = encoded["ticket"].copy()
    late[0, 2] = 1
    (answer,) = steps["beam_search"].run([kv | {"ticket": late, "excluded": encoded["excluded"]}])
    assert isinstance(answer, DeadlineExceeded) and "deadline_ms" in str(answer)
    assert Arena(narrow.settings.arena).usage()["free"] == 16


def test_scattered_free_slots_are_used_and_only_the_rest_is_shed(chain):
    from genrec.errors import ArenaFull
    from genrec.kv.arena import Arena

    catalogue, _, _, narrow = chain
    steps, arena = narrow.runtime._steps, Arena(narrow.settings.arena)
    taken = [arena.allocate(1, 1).handles[0] for _ in range(16)]
    for handle in taken[::3]:
        arena.release(handle)  # six slots, no two adjacent
    encoded = steps["encode_history"].run([request(catalogue.item_ids[:2], 3)] * 8)
    answers = steps["prefill"].run([{name: e[name] for name in ("tokens", "ticket")} for e in encoded])
    assert [isinstance(a, ArenaFull) for a in answers] == [False] * 6 + [True] * 2
    written = [tuple(int(x) for x in a["kv"][0]) for a in answers[:6]]
    assert len({handle[1] for handle in written}) == 6
    for handle in written:
        arena.hold(handle)
    for handle in [*written, *(h for n, h in enumerate(taken) if n % 3)]:
        arena.release(handle)
