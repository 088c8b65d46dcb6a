import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.catalogue.hashset import MAX_LOAD, RANGE_BITS, SemanticIdSet
from genrec.errors import ArtifactError, InputError

ROOT = Path(__file__).resolve().parents[2]
INT64 = st.integers(-(2**63), 2**63 - 1)


@settings(deadline=None)  # the first example compiles
@given(
    st.lists(st.one_of(INT64, st.integers(-3, 30)), unique=True, max_size=80), st.lists(INT64, max_size=40)
)
def test_equals_a_dictionary(keys, others):
    built = SemanticIdSet.build(np.array(keys, np.int64))
    position = {key: i for i, key in enumerate(keys)}
    asked = np.array(keys + others + [0, -1, 2**63 - 1, -(2**63)], np.int64)
    assert built.find(asked).tolist() == [position.get(key, -1) for key in asked.tolist()]
    assert built.find(asked).dtype == np.int32
    assert len(keys) <= MAX_LOAD * len(built.leaves) and built.nbytes == 12 * len(built.keys)


def test_shape_is_kept_and_small_types_are_taken():
    built = SemanticIdSet.build(np.array([5, 7, 9]))
    assert built.find(np.array([[5, 6], [9, 7]], np.int32)).tolist() == [[0, -1], [2, 1]]
    assert built.find(np.array(7)).shape == ()
    assert built.find(np.array([], np.int64)).shape == (0,)
    assert built.find(np.arange(12)[::2]).tolist() == [-1, -1, -1, -1, -1, -1]


@pytest.mark.parametrize("stride", [1, 256, 65536, 2**40])
def test_regular_keys_do_not_pile_up(stride):
    """Packed semantic IDs are regular; without mixing, those of one stride would share a slot."""
    keys = np.arange(2000, dtype=np.int64) * stride
    built = SemanticIdSet.build(keys)
    full = np.concatenate([built.leaves, built.leaves]) >= 0
    longest = max(len(run) for run in "".join("x" if f else " " for f in full).split())
    assert longest < 100
    assert built.find(keys).tolist() == list(range(2000))


def test_a_table_without_a_gap_still_answers():
    """Memory mapped from elsewhere may be anything; probing must end."""
    full = SemanticIdSet(np.arange(4), np.arange(4, dtype=np.int32))
    assert full.find(np.array([99, -5])).tolist() == [-1, -1]


def test_what_is_refused():
    with pytest.raises(InputError, match="twice"):
        SemanticIdSet.build(np.array([1, 2, 1]))
    for keys in (np.array([1.0]), np.array([2**63], np.uint64)):
        with pytest.raises(InputError, match="semantic_ids"):
            SemanticIdSet.build(keys)
        with pytest.raises(InputError, match="semantic_ids"):
            SemanticIdSet.build(np.array([1])).find(keys)
    for slots, leaves in ((3, 3), (4, 2), (0, 0)):
        with pytest.raises(InputError, match="hash set"):
            SemanticIdSet(np.zeros(slots, np.int64), np.zeros(leaves, np.int32))
    with pytest.raises(InputError, match="hash set"):
        SemanticIdSet(np.zeros(4, np.int32), np.zeros(4, np.int32))


def test_a_mapped_file_answers_like_the_table_and_is_no_copy(tmp_path):
    keys = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, 5000)
    built = SemanticIdSet.build(keys)
    built.save(tmp_path / "set")
    mapped = SemanticIdSet.map(tmp_path / "set")
    asked = np.concatenate((keys, keys + 1))
    assert (mapped.find(asked) == built.find(asked)).all()
    assert len(mapped) == len(built) == 5000
    for array in (mapped.keys, mapped.leaves):
        assert array.base is not None and not array.flags.owndata and not array.flags.writeable


def test_one_copy_serves_several_processes(tmp_path):
    """The file is in the maps of both processes, shared and read-only."""
    SemanticIdSet.build(np.arange(100_000) * 7).save(tmp_path / "set")
    code = (
        "import sys, numpy as np; from pathlib import Path; from genrec.catalogue.hashset import SemanticIdSet as S;"
        "s = S.map(Path(sys.argv[1])); print(s.find(np.array([700, 701])).tolist());"
        "print(sum(sys.argv[1] in line and ' r--s ' in line for line in open('/proc/self/maps')))"
    )
    command = [sys.executable, "-c", code, str(tmp_path / "set")]
    jobs = [subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    for job in jobs:
        assert job.communicate(timeout=120)[0].split("\n")[:2] == ["[100, -1]", "1"]


def home(keys, mask):
    """The finaliser of splitmix64 in NumPy: where a key's search begins."""
    x = keys.astype(np.uint64)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return ((x ^ (x >> np.uint64(31))) & np.uint64(mask)).astype(np.int64)


@pytest.mark.parametrize("threads", [1, 2, 5])
def test_threads_fill_one_table_and_crowded_ends_of_ranges_run_over(threads):
    """200 keys want the last 8 slots of the first range, and 200 those of the table, which must wrap round."""
    span = 1 << RANGE_BITS
    many = np.random.default_rng(1).integers(0, 2**62, 1 << 22)
    slots = home(many, 2 * span - 1)
    crowd = [many[(slots >= end - 8) & (slots < end)][:200] for end in (span, 2 * span)]
    keys = np.unique(np.concatenate((*crowd, many[:50_000])))
    built = SemanticIdSet.build(keys, threads)
    assert len(built.keys) == 2 * span
    assert (built.find(keys) == np.arange(len(keys))).all()
    others = np.setdiff1d(many[50_000:60_000], keys)
    assert (built.find(others) == -1).all()
    assert (home(built.keys[:50], 2 * span - 1) > span)[built.leaves[:50] >= 0].any()  # wrapped round
    for twice in (crowd[0][-1], crowd[1][-1], keys[7]):
        with pytest.raises(InputError, match=f"{twice} twice"):
            SemanticIdSet.build(np.append(keys, twice), threads)


@pytest.mark.parametrize("damage", [b"", b"nonsense", b"\x10\0\0\0\0\0\0\0{}"])
def test_a_file_that_is_none_is_refused(tmp_path, damage):
    (tmp_path / "set").write_bytes(damage)
    with pytest.raises(ArtifactError, match="set"):
        SemanticIdSet.map(tmp_path / "set")


def test_a_cut_file_is_refused(tmp_path):
    SemanticIdSet.build(np.arange(1000)).save(tmp_path / "set")
    whole = (tmp_path / "set").read_bytes()
    (tmp_path / "set").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(ArtifactError, match="set"):
        SemanticIdSet.map(tmp_path / "set")
