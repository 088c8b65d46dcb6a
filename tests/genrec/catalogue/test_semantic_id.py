import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genrec.catalogue.semantic_id import check_sizes, pack
from genrec.errors import InputError
from tests.oracles.semantic_id import codes_of


@given(st.lists(st.integers(1, 8192), min_size=1, max_size=4), st.integers(0, 2**32 - 1))
def test_pack_is_horner_and_keeps_lexicographic_order(sizes, seed):
    codes = np.random.default_rng(seed).integers(0, sizes, (30, len(sizes)))
    ids = pack(codes, sizes)
    for row, packed in zip(codes.tolist(), ids.tolist(), strict=True):
        want = 0
        for code, size in zip(row, sizes, strict=True):
            want = want * size + code
        assert packed == want
    assert [tuple(c) for c in codes[np.argsort(ids, kind="stable")].tolist()] == sorted(
        map(tuple, codes.tolist())
    )
    assert ids.dtype == np.int64
    np.testing.assert_array_equal(codes_of(ids, sizes), codes)
    np.testing.assert_array_equal(pack(codes.reshape(5, 6, -1), sizes), ids.reshape(5, 6))


def test_the_largest_that_fits():
    sizes = (2**31, 2**31)
    top = [[2**31 - 1, 2**31 - 1]]
    assert pack(top, sizes).tolist() == [2**62 - 1]
    assert codes_of(pack(top, sizes), sizes).tolist() == top
    assert check_sizes((2**31, 2**31 - 1, 2)) == (2**31, 2**31 - 1, 2)
    assert pack(np.empty((0, 2), np.int64), sizes).shape == (0,)


@pytest.mark.parametrize(
    "sizes", [(), (0,), (4, -1), (2**31 + 1,), (8192,) * 5, (2**31, 2**31, 2), (2,) * 63]
)
def test_sizes_that_are_refused(sizes):
    with pytest.raises(InputError, match="codebook_sizes"):
        check_sizes(sizes)
    with pytest.raises(InputError, match="codebook_sizes"):
        pack(np.zeros((1, len(sizes)), np.int32), sizes)


def test_a_product_of_2_to_the_63_names_the_limit():
    with pytest.raises(InputError, match=r"2\*\*63"):
        check_sizes((8192,) * 5)


@pytest.mark.parametrize("codes", [[[0, 4]], [[-1, 0]], [[3, 0]], [[0]], 3, [[0.0, 1.0]], [[0, 2**40]]])
def test_codes_that_are_refused(codes):
    with pytest.raises(InputError, match="codes"):
        pack(codes, (3, 4))
