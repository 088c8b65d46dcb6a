import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genrec.errors import InputError
from genrec.hashset import MAX_LOAD, SemanticIdSet

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
