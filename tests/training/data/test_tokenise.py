"""Semantic IDs: collisions reported exactly, last level spread, published IDs read, figures repeatable."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.catalogue.items import Catalogue
from genrec.catalogue.versions import BASE, check_files
from genrec.errors import ArtifactError, InputError
from genrec.nn.checkpoint import load_generator
from training.data.steps import Steps
from training.data.tokenise import read_semantic_ids, training_part
from training.generator.evaluate import evaluate, transition_baseline
from training.generator.recommend import model_recommender
from training.sharded.world import World
from training.stages import CODEBOOKS, load_histories, prepare, recipe, tokenise, train
from training.vectors.quantise import codebook_means, collisions, groups_at_once, match, quantise
from training.vectors.stored import ItemVectors, Stored


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), min_size=1, max_size=30))
def test_collisions_equal_counting(codes: list[tuple[int, int]]) -> None:
    counts = [n for n in Counter(codes).values() if n > 1]
    assert collisions(np.array(codes)) == (len(counts), sum(counts))


def greedy(distance: np.ndarray) -> Iterator[tuple[int, int]]:
    """What `match` does for a group of items, one argmin over all that is left after the other."""
    left = distance.copy()
    free = np.ones(distance.shape[1], bool)
    for _ in range(len(distance)):
        if not free.any():
            free[:] = True
        row, code = np.unravel_index(np.argmin(np.where(free, left, np.inf)), left.shape)
        left[row], free[code] = np.inf, False
        yield int(row), int(code)


@settings(deadline=None)
@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=5), st.integers(1, 5), st.integers(0, 99), st.booleans()
)
def test_match_is_the_greedy_one_group_by_group(groups: list[int], size: int, seed: int, ties: bool) -> None:
    draw = np.random.default_rng(seed)
    distance = draw.integers(0, 3, (sum(groups), size)) if ties else draw.random((sum(groups), size))
    ends = np.cumsum(groups)
    chosen = match(distance.astype(np.float32), ends)
    for end, count in zip(ends, groups, strict=True):
        wanted = dict(greedy(distance[end - count : end].astype(np.float32)))
        assert dict(enumerate(chosen[end - count : end].tolist())) == wanted
        used = Counter(chosen[end - count : end].tolist())
        assert max(used.values()) == -(-count // size)  # ceil: rounds are filled before the next begins


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 20))
def test_groups_at_once_are_whole_and_all(groups: list[int], rows: int) -> None:
    ends = np.cumsum(groups)
    found = list(groups_at_once(ends, rows))
    assert [first for first, _ in found] == [0, *(last for _, last in found[:-1])]
    assert found[-1][1] == ends[-1] and {last for _, last in found} <= set(ends.tolist())
    sizes = dict(zip(ends.tolist(), groups, strict=True))
    assert all(last - first <= rows or sizes[last] == last - first for first, last in found)


def vectors_of(folder: Path, values: np.ndarray) -> ItemVectors:
    """These float32[n, d], as one part of weight 1; their rows have norm 1 then."""
    values.astype(np.float32).tofile(folder / "vectors")
    return ItemVectors([(Stored.of(folder / "vectors", len(values)), 1.0)])


def quantised(vectors: ItemVectors, sizes: tuple[int, ...], folder: Path) -> np.ndarray:
    with Steps(folder / "steps", "") as steps:
        return quantise(vectors, sizes, 2, steps)


def test_quantise_is_repeatable_and_codebooks_are_means(tmp_path: Path) -> None:
    vectors = vectors_of(tmp_path, np.random.default_rng(0).normal(size=(80, 6)))
    codes = quantised(vectors, (8, 4, 4), tmp_path)
    np.testing.assert_array_equal(codes, quantised(vectors, (8, 4, 4), tmp_path))
    assert (codes >= 0).all() and (codes.max(axis=0) < (8, 4, 4)).all()
    books, whole = codebook_means(vectors, codes, (8, 4, 4)), vectors.rows(0, 80)
    for code in range(8):
        np.testing.assert_allclose(
            books[0][code], whole[codes[:, 0] == code].mean(axis=0), rtol=1e-4, atol=1e-6
        )
    errors = [np.linalg.norm(whole - sum(b[codes[:, i]] for i, b in enumerate(books[:k]))) for k in (1, 2, 3)]
    assert errors[0] > errors[1] > errors[2]


def test_more_codes_than_items(tmp_path: Path) -> None:
    codes = quantised(vectors_of(tmp_path, np.eye(3)), (16, 8), tmp_path)
    assert len(np.unique(codes, axis=0)) == 3


SAMPLE = "user,item,timestamp\n" + "".join(
    f"{u},{(u + 3 * t) % 24},{t}\n" for u in range(24) for t in range(8)
)
TITLES = "item,title,genre\n" + "".join(f"{i},Film {i} of part {i % 3},g{i % 3}\n" for i in range(24))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "interactions.csv").write_text(SAMPLE)
    (tmp_path / "items.csv").write_text(TITLES)
    prepare(tmp_path / "out", interactions=tmp_path / "interactions.csv", items=tmp_path / "items.csv")
    return tmp_path / "out"


def test_vectors_see_the_training_part_only(folder: Path) -> None:
    """Changing every validation and test item changes no vector and no popularity."""
    histories = load_histories(folder)
    tokenise(folder, (4, 4, 4))
    made = [folder / name for name in ("catalogue.parquet", CODEBOOKS)]
    before = [path.read_bytes() for path in made]
    items = histories.items.copy()
    for back in (1, 2):
        items[histories.offsets[1:] - back] = 0
    changed = type(histories)(histories.user_ids, items, histories.offsets)
    changed.save(folder / "histories.parquet", [str(u) for u in histories.user_ids])
    tokenise(folder, (4, 4, 4))
    assert [path.read_bytes() for path in made] == before


def test_the_training_part_is_what_cut_leaves(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    past, ids = load_histories(folder).cut(2), np.arange(24)
    monkeypatch.setattr("training.data.tokenise.BATCH_USERS", 5)
    rows, offsets = training_part(folder / "histories.parquet", ids)
    np.testing.assert_array_equal(rows, past.items)
    np.testing.assert_array_equal(offsets, past.offsets)


def test_whole_pipeline(folder: Path) -> None:
    assert "every item has a semantic ID of its own" in tokenise(folder, (6, 4, 24))
    train(World(), folder, replace(recipe(folder), epochs=1), folder / "state")
    with pytest.raises(ArtifactError, match=f"has no index of its items; `genrec build {folder}` makes it"):
        check_files(folder, BASE)
    catalogue, histories = Catalogue.load(folder / "catalogue.parquet"), load_histories(folder)
    assert (
        evaluate(transition_baseline(catalogue, histories), histories)["HR@10"] == 1.0
    )  # the walk is certain
    model = model_recommender(load_generator(folder / "model"), catalogue, beam_width=16)
    assert evaluate(model, histories)["HR@10"] > 0
    assert recipe(folder).max_history == 50


def test_collisions_are_reported(folder: Path) -> None:
    notes = tokenise(folder, (2, 2, 2))
    catalogue = Catalogue.load(folder / "catalogue.parquet")
    shared, sharing = collisions(catalogue.codes)
    assert shared > 0 and f"{shared} semantic IDs are shared by {sharing} items" in notes


def test_published_ids(folder: Path, tmp_path: Path) -> None:
    given = {str(i): [f"<a_{i // 6}>", f"<b_{i % 6}>"] for i in range(24)}
    (tmp_path / "ids.json").write_text(json.dumps(given))
    tokenise(folder, semantic_ids=tmp_path / "ids.json")
    catalogue = Catalogue.load(folder / "catalogue.parquet")
    assert catalogue.codebook_sizes == (4, 6)
    assert catalogue.codes.tolist() == [[i // 6, i % 6] for i in range(24)]
    (tmp_path / "ids.csv").write_text(
        "item,code_1,code_2\n" + "".join(f"{i},{i // 6},{i % 6}\n" for i in range(24))
    )
    assert read_semantic_ids(tmp_path / "ids.csv") == read_semantic_ids(tmp_path / "ids.json")
    (tmp_path / "ids.json").write_text(json.dumps({k: v for k, v in given.items() if k != "7"}))
    with pytest.raises(InputError, match="lacks 1 of 24 items, the first is '7'"):
        tokenise(folder, semantic_ids=tmp_path / "ids.json")


def test_letter_ids_of_beauty() -> None:
    path = Path(__file__).parents[4] / "shared" / "data" / "amazon-beauty" / "letter" / "Beauty.index.json"
    if not path.is_file():
        pytest.skip("Amazon Beauty is not at ../shared/data/amazon-beauty")
    given = read_semantic_ids(path)
    assert (len(given), len({tuple(codes) for codes in given.values()})) == (12101, 12088)
    assert {len(codes) for codes in given.values()} == {4}


def test_codes_are_in_the_order_of_their_numbers(tmp_path: Path) -> None:
    """Not in that of the columns, nor of their names: ten would come before two."""
    levels = [10, 2, 1, 11, *range(3, 10)]
    names, codes = (",".join(each.format(level) for level in levels) for each in ("code_{}", "{}"))
    (tmp_path / "ids.csv").write_text(f"{names},item,code_x\n{codes},7,no code\n")
    assert read_semantic_ids(tmp_path / "ids.csv") == {"7": list(range(1, 12))}


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.json", '{"1": ["<a_x>"]}', "'<a_x>' is not a code"),
        ("a.json", '{"1": ["<a_1>"], "2": []}', "have 0 (item '2'), 1 (item '1') codes"),
        ("a.json", "[]", "is no object"),
        ("a.json", '{"1": ["<a_1>"], "2": ["<a_1>"], "1": ["<a_2>"]}', "has the item '1' again"),
        ("a.json", '{"1": "12", "2": ["<a_1>", "<b_2>"]}', "item '1' has '12', no list of codes"),
        ("a.csv", "item,c\n1,2\n", "no column code_1"),
        ("a.csv", "item,code_3,code_1\n1,2,2\n", "columns code_1, code_3: a number is left out or twice"),
        ("a.csv", "item,code_1\n1,2\n2,-3\n", "line 3: '-3' is not a code"),
        ("a.csv", "item,code_1\n1,2\n1,3\n", "line 3: item '1' is there twice"),
    ],
)
def test_bad_published_ids_are_named(tmp_path: Path, name: str, content: str, problem: str) -> None:
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError) as caught:
        read_semantic_ids(tmp_path / name)
    assert problem in str(caught.value) and name in str(caught.value)


def test_stages_name_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"items\.parquet"):
        tokenise(tmp_path)
    with pytest.raises(InputError, match="source: is missing"):
        prepare(tmp_path)
