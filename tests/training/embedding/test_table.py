"""The dynamic table against a dictionary and plain NumPy, on both kinds of kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.compiled import can_be_compiled
from genrec.errors import InputError
from training.embedding.arrays import NO_LINES
from training.embedding.compiled import Compiled
from training.embedding.index import MOVED, Index
from training.embedding.kernels import Kernels
from training.embedding.optimizers import RowAdam, RowwiseAdagrad
from training.embedding.portable import Portable, mixed
from training.embedding.table import DynamicTable, Rows, sum_by

no_compiler = pytest.mark.skipif(not can_be_compiled(), reason="no g++: the compiled kernels are not here")
KINDS = [pytest.param(Compiled, marks=no_compiler), Portable]
FIRST = np.zeros(1, np.int32)  # row
any_id = st.integers(-(2**63) + 1, 2**63 - 1)


@pytest.fixture(params=KINDS)
def kernels(request: pytest.FixtureRequest) -> Kernels:
    return request.param()


def random_ids(count: int) -> np.ndarray:
    """Distinct ids of both signs, those of the ends among them."""
    ids = np.random.default_rng(0).integers(-(2**63) + 1, 2**63 - 1, count)
    return np.unique(np.concatenate((ids, [0, -1, 1, 2**63 - 1, -(2**63) + 1])))[:count]


def rows_by_id(table: DynamicTable) -> dict[int, tuple[list[float], list[float], list[int]]]:
    found = {}
    for part in table.export(most=7):
        for row in zip(*(each.tolist() for each in part), strict=True):
            found[row[0]] = row[1:]
    return found


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=60, deadline=None)
@given(batches=st.lists(st.lists(st.integers(-40, 40) | any_id, max_size=60), max_size=12))
def test_an_index_is_a_dictionary(kind: type[Kernels], batches: list[list[int]]) -> None:
    index, twin = Index(kind()), {}
    for batch in batches:
        rows, fresh = index.insert(np.array(batch, np.int64))
        new = [i for i, each in enumerate(batch) if each not in twin and each not in batch[:i]]
        assert fresh.tolist() == new
        for each, row in zip(batch, rows.tolist(), strict=True):
            assert twin.setdefault(each, row) == row
        assert len(index) == len(twin) == len(set(twin.values()))
    ids, rows = index.items()
    assert dict(zip(ids.tolist(), rows.tolist(), strict=True)) == twin
    asked = np.array([*twin, 41, 42], np.int64)
    assert index.find(asked).tolist() == [twin.get(each, -1) for each in asked.tolist()]


def test_ids_are_found_at_every_moment_of_a_doubling(kernels: Kernels) -> None:
    index, ids, growing = Index(kernels, room=2000), random_ids(20_000), 0
    for first in range(0, len(ids), 4):
        index.insert(ids[first : first + 4])
        growing += index.old is not NO_LINES
        if first % 500 == 0:
            assert index.find(ids[: first + 4]).tolist() == list(range(first + 4))
            assert (index.find(ids[first + 4 : first + 200]) < 0).all()
    assert growing > 100 and (index.find(np.tile(ids, 4)) == np.tile(np.arange(len(ids)), 4)).all()


def test_a_doubling_moves_a_few_lines_at_a_time_and_no_values(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, moved = DynamicTable(4, kernels=kernels), []
    move = kernels.move
    monkeypatch.setattr(kernels, "move", lambda *a: (moved.append(a[2] - a[1]), move(*a))[1], raising=True)
    first_chunk = table.values.parts[0].ctypes.data
    for batch in np.array_split(random_ids(30_000), 3000):
        table.rows_of(batch)
    assert max(moved) <= 10 * MOVED and sum(moved) == (1 << table.index.lines.bits) - 1
    assert table.values.parts[0].ctypes.data == first_chunk


def test_pages_of_the_next_lines_come_a_few_at_a_time(kernels: Kernels) -> None:
    index, sizes = Index(kernels), []
    for part in np.split(random_ids(100_000), 1000):
        index.insert(part)
        sizes.append(index.nbytes)
    late = np.array(sizes[400:])  # doublings of many batches
    assert index.lines.bits > 10 and (np.diff(late) / late[:-1]).max() < 0.1


def test_removed_rows_are_given_again(kernels: Kernels) -> None:
    index, ids = Index(kernels), random_ids(5000)
    index.insert(ids)
    index.remove(np.arange(1000, 2000, dtype=np.int32))
    assert len(index) == 4000 and (index.find(ids[1000:2000]) < 0).all()
    assert index.find(ids[2000:]).tolist() == list(range(2000, 5000))
    rows, _ = index.insert(np.arange(100, 1200))  # no end is among them, so all are new
    assert index.rows_given == 5100 and sorted(rows.tolist())[:1000] == list(range(1000, 2000))


@pytest.mark.parametrize("bits", range(11))
def test_every_line_is_probed_once(kernels: Kernels, bits: int) -> None:
    """Theorem 1: the stride of equation 5 is odd; with more than one thread group as printed it would not be."""
    for key in [0, 1, -1, 12345, 2**62, *random_ids(20).tolist()]:
        assert sorted(kernels.probes(key, bits).tolist()) == list(range(1 << bits))


@no_compiler
def test_both_kernels_probe_the_same_lines() -> None:
    for bits in range(8):
        for key in random_ids(30).tolist():
            assert Compiled().probes(key, bits).tolist() == Portable().probes(key, bits).tolist()


def test_ids_of_one_rank_spread_over_all_lines(kernels: Kernels) -> None:
    """They share the low bits of their hash, which therefore must not choose the line."""
    ids = random_ids(200_000)
    mine = ids[mixed(ids) % np.uint64(8) == 3]
    homes = [int(kernels.probes(key, 4)[0]) for key in mine[:2000].tolist()]
    assert np.bincount(homes, minlength=16).min() > 80


def test_unique_sum_and_spread(kernels: Kernels) -> None:
    draw = np.random.default_rng(0)
    ids = draw.integers(-50, 50, 1000)
    distinct, inverse = kernels.unique(ids)
    assert distinct.tolist() == list(dict.fromkeys(ids.tolist())) and np.array_equal(distinct[inverse], ids)
    values = draw.standard_normal((1000, 5)).astype(np.float32)
    sums = np.zeros((len(distinct), 5))
    np.add.at(sums, inverse, values)
    np.testing.assert_allclose(sum_by(kernels, values, inverse, len(distinct)), sums, rtol=1e-5, atol=1e-5)
    assert np.array_equal(kernels.spread(values[: len(distinct)], inverse), values[inverse])
    empty, none = kernels.unique(ids[:0])
    assert len(empty) == len(none) == 0


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_ids_by_owner(kernels: Kernels, ranks: int) -> None:
    ids = random_ids(500)
    places, counts = kernels.by_owner(ids, ranks)
    owners = (mixed(ids) % np.uint64(ranks)).astype(int)
    assert places.tolist() == np.argsort(owners, kind="stable").tolist()
    assert counts.tolist() == np.bincount(owners, minlength=ranks).tolist()


def test_the_hash_is_that_of_murmur(kernels: Kernels) -> None:
    """Two values of fmix64, worked out from its definition with whole numbers of Python."""

    def fmix64(h: int) -> int:
        for factor in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53, 1):
            h = ((h ^ h >> 33) * factor) & (2**64 - 1)
        return h

    for key in (1, -1, 2**40 + 7):
        assert kernels.probes(key, 10)[0] == fmix64(key & (2**64 - 1)) >> 54


def test_reading_adds_nothing_and_looking_up_does(kernels: Kernels) -> None:
    default = np.arange(3, dtype=np.float32)
    table = DynamicTable(3, default=default, kernels=kernels)
    ids = np.array([5, -5, 5], np.int64)
    assert np.array_equal(table.read(ids), np.stack([default] * 3)) and len(table) == 0
    seen = table.look_up(ids, stamp=4)
    assert len(table) == 2 and np.array_equal(table.read(ids), seen)
    assert np.array_equal(seen[0], seen[2]) and not np.array_equal(seen[0], seen[1])
    assert {id_: row[2] for id_, row in rows_by_id(table).items()} == {5: [2, 4], -5: [1, 4]}


def test_a_first_vector_depends_on_id_and_seed_alone(kernels: Kernels) -> None:
    ids = random_ids(5000)
    one = DynamicTable(16, seed=3, kernels=kernels)
    other = DynamicTable(16, seed=3, kernels=kernels)
    one.rows_of(np.arange(100, dtype=np.int64))
    np.testing.assert_array_equal(one.look_up(ids), other.look_up(ids[::-1].copy())[::-1])
    values = one.read(ids)
    assert abs(values.mean()) < 1e-3 and 0.0195 < abs(values).max() <= 0.02
    assert abs(values.std() - 0.02 / 3**0.5) < 1e-3
    assert not np.array_equal(values, DynamicTable(16, seed=4, kernels=kernels).look_up(ids))


@no_compiler
def test_both_kernels_draw_the_same_first_vectors() -> None:
    ids = random_ids(300)
    tables = [DynamicTable(8, seed=9, kernels=kind()) for kind in (Compiled, Portable)]
    assert np.array_equal(*(table.look_up(ids) for table in tables))


@pytest.mark.parametrize(
    "optimizer", [RowwiseAdagrad(0.1), RowAdam(0.1), RowAdam(0.1, decay=0.3, averaging=0.25)]
)
def test_updates_follow_the_printed_formulas(kernels: Kernels, optimizer: RowwiseAdagrad | RowAdam) -> None:
    """Against float64 and one row at a time; gradients of a repeated id are summed."""
    table, draw = DynamicTable(6, optimizer, kernels=kernels), np.random.default_rng(0)
    twin = {int(i): [v.astype(float), 0.0, 0.0, 0, None] for i, v in enumerate(table.look_up(np.arange(9)))}
    for _ in range(5):
        ids, gradients = draw.integers(0, 9, 20), draw.standard_normal((20, 6)).astype(np.float32)
        distinct, inverse = kernels.unique(ids)
        table.apply(table.index.find(distinct), sum_by(kernels, gradients, inverse, len(distinct)), 0.5)
        for each in set(ids.tolist()):
            g, row = gradients[ids == each].sum(0, dtype=float) * 0.5, twin[each]
            row[3] += 1
            if isinstance(optimizer, RowwiseAdagrad):
                row[1] += (g * g).mean()
                row[0] -= 0.1 * g / (np.sqrt(row[1]) + 1e-8)
            else:
                row[1], row[2] = 0.9 * row[1] + 0.1 * g, 0.999 * row[2] + 0.001 * g * g
                first, second = row[1] / (1 - 0.9 ** row[3]), row[2] / (1 - 0.999 ** row[3])
                row[0] -= 0.1 * (optimizer.decay * row[0] + first / (np.sqrt(second) + 1e-8))
                kept = min(optimizer.averaging, (row[3] - 1) / (row[3] + 8))
                row[4] = row[0].copy() if row[3] == 1 else (1 - kept) * row[0] + kept * row[4]
    expected = np.stack([twin[i][0] for i in range(9)])
    np.testing.assert_allclose(table.read(np.arange(9)), expected, rtol=2e-4, atol=2e-5)
    if isinstance(optimizer, RowAdam) and optimizer.averaging:
        (part,) = table.export()
        averages = np.stack([twin[i][4] for i in part.ids.tolist()])
        np.testing.assert_allclose(optimizer.averages(part.state, 6), averages, rtol=2e-4, atol=2e-5)


@pytest.mark.parametrize(
    ("policy", "stays"), [("lru", [3, 4]), ("lfu", [2, 4])], ids=["least recently", "least frequently"]
)
def test_eviction_keeps_the_state_in_step(kernels: Kernels, policy: str, stays: list[int]) -> None:
    table = DynamicTable(2, RowAdam(), kernels=kernels)
    for stamp, ids in enumerate([[1, 2], [2, 2, 2], [4, 4, 4, 3]], 1):
        table.rows_of(np.array(ids, np.int64), stamp)
    everyone = np.array([1, 2, 3, 4], np.int64)
    table.apply(table.index.find(everyone), np.ones((4, 2), np.float32))
    before = rows_by_id(table)
    gone = table.evict(2, policy)
    assert sorted(rows_by_id(table)) == stays and sorted(gone.tolist() + stays) == [1, 2, 3, 4]
    assert rows_by_id(table) == {each: before[each] for each in stays}
    table.rows_of(np.array([7, 8, *gone], np.int64), 9)  # into the rows of those that went
    fresh, after = DynamicTable(2, RowAdam(), kernels=kernels), rows_by_id(table)
    for each in [7, 8, *gone.tolist()]:
        assert after[each] == (fresh.look_up(np.array([each]))[0].tolist(), [0.0] * 5, [1, 9])
    assert {each: after[each] for each in stays} == {each: before[each] for each in stays}


def test_export_and_put_carry_everything_over_chunks(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.embedding.arrays.CHUNK_BYTES", 1 << 10)
    table, ids = DynamicTable(4, RowAdam(), kernels=kernels), random_ids(700)
    table.apply(table.rows_of(ids, 3), np.random.default_rng(0).standard_normal((700, 4)).astype(np.float32))
    assert len(table.values.parts) > 20
    copy = DynamicTable(4, RowAdam(), kernels=kernels)
    for part in table.export(most=100):
        copy.put(part)
    assert rows_by_id(copy) == rows_by_id(table)


def test_the_next_chunk_is_always_ready(kernels: Kernels, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("training.embedding.arrays.CHUNK_BYTES", 1 << 10)
    table = DynamicTable(4, kernels=kernels)
    for batch in np.array_split(random_ids(500), 50):
        table.rows_of(batch)
        assert len(table.values.parts) << table.values.shift > len(table)


def test_memory_beside_the_vectors_stays_within_its_goal(kernels: Kernels) -> None:
    table = DynamicTable(1, kernels=kernels)
    table.rows_of(random_ids(1_000_000))
    assert table.nbytes_beside_vectors / len(table) <= 36


def bad_rows(ids: list[int], width: int = 3) -> Rows:
    n = len(ids)
    return Rows(np.array(ids), np.zeros((n, width), np.float32), np.zeros((n, 1), np.float32),
                np.zeros((n, 2), np.uint32))  # fmt: skip


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda t: t.look_up(np.array([-(2**63)])), "marks an empty slot"),
        (lambda t: t.read(np.array([1.5])), "ids: is float64"),
        (lambda t: t.look_up(np.array([[1]])), r"shape \[1, 1\]"),
        (lambda t: t.apply(FIRST, np.array([[1, np.nan, 1]])), "gradients: has a value that is NaN"),
        (lambda t: t.apply(FIRST, np.full((1, 3), np.inf)), "gradients: has a value that is NaN"),
        (lambda t: t.apply(FIRST, np.full((1, 3), -2e18)), "too large .*numbers below 1e"),
        (lambda t: t.apply(FIRST, np.zeros((1, 4))), r"gradients: has shape \[1, 4\].*\[1, 3\]"),
        (lambda t: t.evict(1, "oldest"), "evict: is 'oldest' to 1 rows .*lru or lfu"),
        (lambda t: t.put(bad_rows([3, 3])), "ids: has an id twice"),
        (lambda t: t.put(bad_rows([3], width=2)), r"vectors: has shape \[1, 2\].*\[1, 3\]"),
        (lambda t: DynamicTable(0), "dimension: is 0"),
        (lambda t: DynamicTable(2, default=np.zeros(3)), r"default: has shape \[3\]"),
    ],
)
def test_what_is_wrong_is_refused_and_changes_nothing(kernels: Kernels, call, says: str) -> None:
    table = DynamicTable(3, kernels=kernels)
    table.look_up(np.array([1]))
    before = rows_by_id(table)
    with pytest.raises(InputError, match=says):
        call(table)
    assert rows_by_id(table) == before
