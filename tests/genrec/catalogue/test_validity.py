"""The validity index against dictionaries of tuples, and against files nobody should trust."""

import json
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

import genrec.catalogue.validity as validity
from genrec.catalogue.answerable import THESE_ALONE
from genrec.catalogue.validity import ValidityIndex
from genrec.errors import ArtifactError, InputError
from perf.kit.work import leaf_count
from tests.oracles.semantic_id import codes_of

sizes_of = st.lists(st.integers(1, 6), min_size=1, max_size=5)


def make(seed, sizes, items):
    rng = np.random.default_rng(seed)
    codes = np.stack([rng.integers(0, t, items) for t in sizes], axis=1).astype(np.int32)
    popularity, item_ids = rng.integers(0, 3, items), rng.permutation(items) + 5
    return rng, ValidityIndex.build(codes, sizes, popularity, item_ids), codes, popularity, item_ids


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), sizes_of, st.integers(1, 60))
def test_the_tree_equals_sets_of_tuples(seed, sizes, items):
    _, index, codes, popularity, item_ids = make(seed, sizes, items)
    tuples = [tuple(c) for c in codes.tolist()]
    assert index.items == items and index.levels == len(sizes)
    for level in range(1, len(sizes) + 1):
        paths = sorted({t[:level] for t in tuples})
        assert [tuple(c) for c in codes_of(index.paths(level), sizes[:level]).tolist()] == paths
        assert index.node_count(level) == len(paths) and index.codes[level - 1].dtype == np.uint16
        leaves = [len({t for t in tuples if t[:level] == p}) for p in paths]
        assert leaf_count(index, level).tolist() == leaves
        pointers = index.children_into(level)
        parents = sorted({t[: level - 1] for t in tuples})
        for node, parent in enumerate(parents):
            children = index.codes[level - 1][pointers[node] : pointers[node + 1]]
            assert children.tolist() == sorted({t[level - 1] for t in tuples if t[: level - 1] == parent})
    for leaf, semantic_id in enumerate(sorted(set(tuples))):
        mine = [r for r in range(items) if tuples[r] == semantic_id]
        mine.sort(key=lambda r: (-popularity[r], item_ids[r]))
        first = index.first_child[-1]
        assert index.rows[first[leaf] : first[leaf + 1]].tolist() == mine
        assert (index.row_leaf[mine] == leaf).all()


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), sizes_of, st.integers(1, 60), st.floats(0, 1))
def test_blocked_equals_counting_every_item(seed, sizes, items, share):
    rng, index, codes, _, _ = make(seed, sizes, items)
    excluded = np.flatnonzero(rng.random(items) < share)
    request = rng.permutation(np.concatenate([excluded, excluded[:3], [-1]]))  # unsorted, repeated, with none
    blocked = index.blocked(request)
    for level in range(1, len(sizes) + 1):
        items_of = defaultdict(list)
        for row, code in enumerate(codes.tolist()):
            items_of[tuple(code[:level])].append(row)
        want = [n for n, p in enumerate(sorted(items_of)) if set(items_of[p]) <= set(excluded.tolist())]
        assert blocked.at(level).tolist() == want and blocked.at(level).dtype == np.int32


@settings(deadline=None)
@given(st.integers(0, 2**32 - 1), sizes_of, st.integers(1, 60), st.floats(0, 1))
def test_rows_alone_leave_the_ways_to_them_and_no_other(seed, sizes, items, share):
    rng, index, codes, _, _ = make(seed, sizes, items)
    rows = np.flatnonzero(rng.random(items) < share)
    blocked = index.blocked(np.concatenate([[THESE_ALONE], rng.permutation(rows), rows[:3], [-1]]))
    wanted = {tuple(code) for code in codes[rows].tolist()}
    reached = {(): 0}  # path -> its node, of all that a beam can get to
    for level in range(1, len(sizes) + 1):
        first, below = index.children_into(level), index.codes[level - 1]
        way, closed = blocked.open_at(level), blocked.at(level)
        assert sorted(set(way.tolist())) == way.tolist() and way.dtype == closed.dtype == np.int32
        assert not len(closed)
        reached = {
            (*path, int(below[child])): child
            for path, node in reached.items()
            for child in range(first[node], first[node + 1])
            if child in way
        }
        assert set(reached) == {each[:level] for each in wanted}


def test_empty_exclusions_and_bad_rows():
    _, index, *_ = make(1, (3, 4), 10)
    for nothing in ([], [-1], np.array([-1], np.int32), ()):
        assert [len(n) for n in index.blocked(nothing).nodes] == [0, 0]
    for rows in ([10], [-3], [0, -2], [-2, -2], [-2, 10], [0.5], [2**40]):
        with pytest.raises(InputError, match="excluded_rows"):
            index.blocked(rows)


def test_large_codebooks_take_int32():
    index = ValidityIndex.build([[70000, 1], [3, 65535]], (70001, 65536), [1, 1], [1, 2])
    assert index.codes[0].dtype == np.int32 and index.codes[1].dtype == np.uint16
    assert index.codes[0].tolist() == [3, 70000]


def test_build_refuses():
    for codes, sizes, popularity, ids in (
        (np.zeros((0, 2), int), (2, 2), [], []),
        ([[0, 2]], (2, 2), [1], [1]),
        ([[0, 1]], (2, 2), [-1], [1]),
        ([[0, 1]], (2, 2), [0.5], [1]),
        ([[0, 1]], (2, 2), [1, 2], [1]),
        ([[0, 1]], (2, 2), [1], [[1]]),
        ([0, 1], (2, 2), 1, 1),
    ):
        with pytest.raises(InputError):
            ValidityIndex.build(np.asarray(codes), sizes, np.asarray(popularity), np.asarray(ids))


def test_memory_per_item_is_small_and_all_counted():
    _, index, *_ = make(5, (64, 64, 64), 20000)
    arrays = [v for v in vars(index).values() if isinstance(v, np.ndarray)]
    arrays += [a for v in (index.codes, index.first_child) for a in v]
    assert index.nbytes == sum(a.nbytes for a in arrays) < 40 * index.items


@pytest.fixture
def saved(tmp_path):
    _, index, *_ = make(2, (5, 4, 3), 40)
    path = tmp_path / "validity.safetensors"
    index.save(path)
    return index, path


def same(a, b):
    return all(
        np.array_equal(x, y)
        for x, y in zip(
            (*a.codes, *a.first_child, a.rows, a.row_leaf),
            (*b.codes, *b.first_child, b.rows, b.row_leaf),
            strict=True,
        )
    )


def test_save_and_load(saved):
    index, path = saved
    assert same(index, ValidityIndex.load(path)) and same(index, ValidityIndex.load(path, (5, 4, 3)))
    assert [p.name for p in path.parent.iterdir()] == [path.name]
    with pytest.raises(ArtifactError, match="codebook sizes"):
        ValidityIndex.load(path, (5, 4, 4))
    with pytest.raises(ArtifactError, match="nowhere"):
        ValidityIndex.load(path.with_name("nowhere"))


def test_every_flipped_bit_is_refused_or_harmless(saved):
    """Harmless: whitespace of the header. Never other content than was saved."""
    index, path = saved
    data = path.read_bytes()
    refused = 0
    rng = np.random.default_rng(0)
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 1 << int(rng.integers(8))
        path.write_bytes(flipped)
        try:
            assert same(index, ValidityIndex.load(path))
        except ArtifactError as error:
            assert str(path) in str(error)
            refused += 1
    assert refused > 0.95 * len(data)


def test_every_truncation_is_refused(saved):
    _, path = saved
    data = path.read_bytes()
    for end in range(0, len(data), 7):
        path.write_bytes(data[:end])
        with pytest.raises(ArtifactError, match=path.name):
            ValidityIndex.load(path)


def rewrite(path, change):
    """A hostile file: structure broken, checksum right."""
    tensors = {name: array.copy() for name, array in load_file(path).items()}
    metadata = {
        "format": validity.FORMAT,
        "version": validity.VERSION,
        "codebook_sizes": json.dumps([5, 4, 3]),
    }
    change(tensors, metadata)
    metadata.setdefault("sha256", validity._digest(metadata["codebook_sizes"], tensors))
    save_file(tensors, path, metadata=metadata)


def put(name, at, value):
    def change(tensors, _):
        tensors[name][at] = value

    return change


HOSTILE = {
    "pointer beyond": put("first_child_2", -1, 2**31 - 1),
    "pointer negative": put("first_child_2", 1, -5),
    "pointer back": put("first_child_1", 1, 0),
    "first pointer": put("first_child_3", 0, 1),
    "rows beyond": put("rows", 3, 40),
    "rows negative": put("rows", 3, -1),
    "code beyond": put("codes_3", 0, 3),
    "codes descend": put("codes_1", 0, 4),
    "short pointers": lambda t, _: t.update(first_child_2=t["first_child_2"][:-1].copy()),
    "row twice": lambda t, _: t.update(rows=np.zeros_like(t["rows"])),
    "no rows": lambda t, _: t.update(rows=t["rows"][:0].copy()),
    "no leaves": lambda t, _: t.update(codes_3=t["codes_3"][:0].copy()),
    "no levels": lambda t, m: m.update(codebook_sizes="[]"),
    "huge sizes": lambda t, m: m.update(codebook_sizes=json.dumps([2**31] * 3)),
    "sizes of text": lambda t, m: m.update(codebook_sizes='["a"]'),
    "fewer levels": lambda t, m: m.update(codebook_sizes="[5, 4]"),
    "missing tensor": lambda t, _: t.__delitem__("codes_2"),
    "pointer type": lambda t, _: t.update(first_child_1=t["first_child_1"].astype(np.int64)),
    "code type": lambda t, _: t.update(codes_2=t["codes_2"].astype(np.int16)),
    "rows type": lambda t, _: t.update(rows=t["rows"].astype(np.int64)),
    "rows shape": lambda t, _: t.update(rows=t["rows"].reshape(4, 10)),
    "version": lambda t, m: m.update(version="2"),
    "format": lambda t, m: m.update(format="other"),
    "checksum": lambda t, m: m.update(sha256="0" * 64),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_files_are_refused(saved, name):
    _, path = saved
    rewrite(path, HOSTILE[name])
    with pytest.raises(ArtifactError, match=path.name):
        ValidityIndex.load(path)


def test_the_rewriter_itself_is_accepted(saved):
    index, path = saved
    rewrite(path, lambda tensors, metadata: None)
    assert same(index, ValidityIndex.load(path))
